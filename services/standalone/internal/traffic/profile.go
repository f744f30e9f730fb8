package traffic

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Profile is how the user of one tier behaves.
type Profile struct {
	Tier  string
	User  string
	Every time.Duration // between bursts
	Burst int           // requests sent at once
	next  func(r *rand.Rand, n int) request
}

// request is what one request asks for and what it will use. A token takes the simulated server a millisecond.
type request struct {
	model            string
	input, maxOutput int64
	output           int64
	stream           bool
}

// Profiles are the sample users. What each is meant to meet, over ten seconds, is said beside it.
func Profiles() []Profile {
	return []Profile{
		{Tier: tier.Free, User: "demo-free", Every: 160 * time.Millisecond, Burst: 1,
			// 10 a minute: rpm; and a model that free doesn't have
			next: func(r *rand.Rand, n int) request {
				q := chat(r, "grok-2-mini", 200, 60)
				q.stream = n%2 == 1
				if n%8 == 7 {
					q.model = "grok-4"
				}
				return q
			}},
		{Tier: tier.Plus, User: "demo-plus", Every: time.Second, Burst: 4,
			// 3 at once: concurrent; and a context over 32,768
			next: func(r *rand.Rand, n int) request {
				q := chat(r, "grok-2", 900, 300)
				q.stream = n%2 == 1
				if n%12 == 11 {
					q.input = 40_000
				}
				return q
			}},
		{Tier: tier.API, User: "demo-api", Every: 20 * time.Millisecond, Burst: 1,
			// some 60,000 tokens a second of 300,000 a minute: tpm
			next: func(r *rand.Rand, _ int) request { return chat(r, "grok-2", 1200, 500) }},
		{Tier: tier.Enterprise, User: "demo-enterprise", Every: 25 * time.Millisecond, Burst: 1,
			// far below its limits
			next: func(r *rand.Rand, n int) request {
				q := chat(r, "grok-4", 1800, 200)
				q.stream = n%10 == 9
				return q
			}},
	}
}

// chat makes a request of about so many tokens. It asks for twice the output that it will use, as people do.
func chat(r *rand.Rand, model string, input, output int64) request {
	in, out := input/2+r.Int64N(input), output/2+r.Int64N(output)
	return request{model: model, input: in, maxOutput: 2 * out, output: out}
}

// bytesPerToken is how the simulated server counts its input.
const bytesPerToken = 4

func (q request) asked() Request {
	body := chatBody(q.model, strings.Repeat("word", int(q.input*bytesPerToken/4)))
	body["max_tokens"] = q.maxOutput
	body["x_sim"] = map[string]any{"tokens": q.output, "pace_ms": 1}
	if q.stream {
		body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
	}
	return Request{Body: body}
}

func chatBody(model, text string) map[string]any {
	return map[string]any{"model": model, "messages": []any{map[string]any{"role": "user", "content": text}}}
}
