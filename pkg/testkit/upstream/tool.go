package upstream

import "encoding/json"

// calling tells whether the answer is a call of the script's tool: it is until the tool's result is the conversation's last message.
func (r request) calling() bool {
	if r.Script.Tool == "" {
		return false
	}
	var messages []struct{ Role string }
	if err := json.Unmarshal(r.Messages, &messages); err != nil || len(messages) == 0 {
		return true
	}
	return messages[len(messages)-1].Role != "tool"
}

// toolCall is a chat's answer that calls a tool. The arguments are {"text": …} with what the answer's text would have been; the end of a stream's comes
// with its finish_reason, as some servers send it.
type toolCall struct{ name string }

const (
	argumentsBegin = `{"text":"`
	argumentsEnd   = `"}`
)

func (c toolCall) called(arguments string, first bool) map[string]any {
	function := map[string]any{"arguments": arguments}
	call := map[string]any{"function": function}
	if first {
		function["name"], call["id"], call["type"] = c.name, "call_0", "function"
	}
	return call
}

func (c toolCall) whole(index int, text, _ string) any {
	call := c.called(argumentsBegin+text+argumentsEnd, true)
	message := map[string]any{"role": "assistant", "content": nil, "refusal": nil, "tool_calls": []any{call}}
	return map[string]any{"index": index, "message": message, "logprobs": nil, "finish_reason": "tool_calls"}
}

func (c toolCall) delta(index int, text string, first bool, finish any) any {
	switch {
	case first:
		text = argumentsBegin + text
	case finish != nil:
		text, finish = text+argumentsEnd, "tool_calls"
	}
	call := c.called(text, first)
	call["index"] = 0
	d := map[string]any{"tool_calls": []any{call}}
	if first {
		d["role"], d["content"] = "assistant", nil
	}
	return map[string]any{"index": index, "delta": d, "logprobs": nil, "finish_reason": finish}
}

func (toolCall) object(stream bool) string { return chat{}.object(stream) }
