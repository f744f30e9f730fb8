// Package upstream is a simulated inference server with OpenAI's API, for tests, for measurements and for standalone: the far side of the REQUEST.
// It is deterministic: the answer and its usage depend on the request alone.
//
// It serves POST /v1/chat/completions, /v1/completions and /v1/embeddings, streaming and not, and GET /v1/models. An answer has as many output
// tokens as the request's limit allows, DefaultTokens at most; token number i is the text " t<i>". Input tokens are a quarter of the request's text in
// bytes, rounded up. In a stream each chunk bears one token.
//
// # Faults
//
// With Options.Scripted, a request may carry a Script in its field "x_sim" (a gateway has to hand on fields that it doesn't know): delays, an
// answer that is cut, malformed events, usage that is missing, cumulative or repeated, a compressed answer, an error, an echo of the bytes that came, a
// call of a tool.
//
// # What it remembers
//
// Answers tells of each request, by its X-Request-Id, what was counted and whether that was told: what a meter has to agree with.
package upstream
