package e2e

import (
	"errors"
	"net/http"
	"testing"
	"time"

	openai "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

func sdk(base string, key client.Key, opts ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(base + "/v1/"), option.WithAPIKey(key.Secret)}, opts...)...)
}

func chatParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "grok-2", MaxCompletionTokens: openai.Int(4), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}}
}

// The official Go SDK needs another base URL and another key, nothing else.
func TestOfficialGoSDKChatsStreamsEmbedsAndLists(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{})
	c := sdk(p.system.GatewayURL, key)
	whole, err := c.Chat.Completions.New(t.Context(), chatParams())
	if err != nil || whole.Choices[0].Message.Content != " t0 t1 t2 t3" || whole.Choices[0].FinishReason != "length" || whole.Usage.CompletionTokens != 4 {
		t.Errorf("%+v, %v", whole, err)
	}
	for _, asks := range []bool{false, true} {
		params := chatParams()
		if asks {
			params.StreamOptions.IncludeUsage = openai.Bool(true)
		}
		stream := c.Chat.Completions.NewStreaming(t.Context(), params)
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			chunk := stream.Current()
			if len(chunk.Choices) == 0 && !asks {
				t.Error("a chunk without choices reached a client that did not ask for usage")
			}
			acc.AddChunk(chunk)
		}
		if err := stream.Err(); err != nil || acc.Choices[0].Message.Content != " t0 t1 t2 t3" || (acc.Usage.CompletionTokens == 4) != asks {
			t.Errorf("asks %v: %+v, %v", asks, acc.ChatCompletion, err)
		}
		_ = stream.Close()
	}
	vectors, err := c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: "grok-2", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}}})
	if err != nil || len(vectors.Data) != 2 || vectors.Data[1].Embedding[1] != -0.5 {
		t.Errorf("%+v, %v", vectors, err)
	}
	models, err := c.Models.List(t.Context())
	if err != nil || len(models.Data) != 3 {
		t.Errorf("%+v, %v", models, err)
	}
	if model, err := c.Models.Get(t.Context(), "grok-2"); err != nil || model.ID != "grok-2" {
		t.Errorf("%+v, %v", model, err)
	}
	var fault *openai.Error
	if _, err := c.Models.Get(t.Context(), "org/none"); !errors.As(err, &fault) || fault.StatusCode != http.StatusNotFound || fault.Code != "model_not_found" {
		t.Errorf("a model that is none: %v", err)
	}
}

func TestOfficialGoSDKWaitsAsLongAsItIsTold(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{rpm: 30}) // one more every 2 s
	var waits []time.Duration
	var last time.Time
	c := sdk(p.system.GatewayURL, key, option.WithMaxRetries(5), option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		if n := r.Header.Get("X-Stainless-Retry-Count"); n != "0" {
			waits = append(waits, time.Since(last))
		}
		resp, err := next(r)
		last = time.Now()
		return resp, err
	}))
	for range 31 {
		if _, err := c.Chat.Completions.New(t.Context(), chatParams()); err != nil {
			t.Fatal(err)
		}
	}
	if len(waits) != 1 || waits[0] < 500*time.Millisecond || waits[0] > 2500*time.Millisecond {
		t.Errorf("it waited %v; one wait until the next request fits was told", waits)
	}
	impatient := sdk(p.system.GatewayURL, key, option.WithMaxRetries(0))
	_, err := impatient.Chat.Completions.New(t.Context(), chatParams())
	var refused *openai.Error
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusTooManyRequests || refused.Type != "rate_limit_exceeded" || refused.Code != "rate_limit_exceeded" || refused.Response.Header.Get("X-Ratelimit-Remaining-Requests") != "0" {
		t.Errorf("%v", err)
	}
}

func TestOfficialGoSDKSeesABrokenStreamAsAnError(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{})
	c := sdk(p.system.GatewayURL, key)
	params := chatParams()
	stream := c.Chat.Completions.NewStreaming(t.Context(), params, option.WithJSONSet("x_sim", map[string]any{"tokens": 9, "cut_after": 3}))
	n := 0
	for stream.Next() {
		n++
	}
	if err := stream.Err(); err == nil || n != 3 {
		t.Errorf("%d chunks, %v", n, err)
	}
}

func TestOfficialGoSDKCallsATool(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{})
	c := sdk(p.system.GatewayURL, key, option.WithJSONSet("x_sim", map[string]any{"tool": "look"}))
	params := chatParams()
	params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "look"})}
	const arguments = `{"text":" t0 t1 t2 t3"}`
	whole, err := c.Chat.Completions.New(t.Context(), params)
	if err != nil || whole.Choices[0].FinishReason != "tool_calls" || whole.Choices[0].Message.ToolCalls[0].Function.Arguments != arguments {
		t.Fatalf("%+v, %v", whole, err)
	}
	stream := c.Chat.Completions.NewStreaming(t.Context(), params)
	defer stream.Close()
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil || acc.Choices[0].Message.ToolCalls[0].Function.Arguments != arguments {
		t.Errorf("%+v, %v", acc.ChatCompletion, err)
	}
	call := whole.Choices[0].Message
	params.Messages = append(params.Messages, call.ToParam(), openai.ToolMessage("found", call.ToolCalls[0].ID))
	if whole, err = c.Chat.Completions.New(t.Context(), params); err != nil || whole.Choices[0].Message.Content != " t0 t1 t2 t3" {
		t.Errorf("%+v, %v", whole, err)
	}
}
