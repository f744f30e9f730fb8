// Package proxy serves OpenAI's API in front of an inference server: it has each REQUEST decided, hands it on, meters the answer, and settles it.
//
// # One request
//
//  1. Who asks: by the credential alone (package identity).
//  2. The body is read once, bounded (one of them, one caller's together, all together: room.go), and stays as it came but for two edits (package body): the model where the decision serves another one, and
//     include_usage in a stream. Once the server has begun to answer, the body is forgotten.
//  3. Input tokens are counted, of long bodies by half of the processors at most; the output is the request's own limit, or a prediction. Enforcement reserves both.
//  4. The answer is handed on as it comes: a stream event by event, flushed; anything else whole, bounded as bodies are. A request that will have such an
//     answer is refused (503, 429) before anything is reserved if there is no room for one; an answer that outgrows the room waits for some.
//  5. It is settled, once, whatever happens: by the server's own usage (the last figure, never a sum) where it is sound and of the whole answer, else
//     by counting, marked estimated (see meter).
//
// # What a stream's client sees
//
// Events pass byte for byte, but for the usage of clients that did not ask for it: an event that bears no choices is dropped with it, and the usage of
// any other is set to null, however the server lays its lines out. An event has 8 MiB and 16,384 lines at most. Events are flushed as they come; those that are here
// at once leave at once, and the header leaves with the first, or after headerWithin. A stream that the server breaks off ends in an error event and a
// broken connection, never in [DONE]; before its first byte it is a 502. One whose quota is used up ends in finish_reason "length" and [DONE].
//
// # When something fails
//
//   - The client leaves: the server's request is cancelled at once, what was produced is billed, outcome cancelled.
//   - The server fails before it has produced anything: 0 tokens, outcome failed. Afterwards: what was produced is billed, outcome failed.
//   - Enforcement is away: nothing is decided, hence nothing served (503). A check whose answer was lost is asked
//     after, and given back. A settlement is tried again for the client's patience (30 s); if it
//     fails for good it is logged, and enforcement bills what was reserved when the lease ends.
//   - This process dies: enforcement does the same.
//   - A client that sends its body too slowly is answered with 408 after Options.BodyWait. Whoever is told an error without having sent its body
//     has a second for the rest of it.
//   - A handler panics: what was granted is settled with nothing used, or given back.
//   - A client that reads too slowly holds back the server by the buffers of two connections, a few hundred kilobytes, and is dropped when it has
//     not read anything for Options.Stall.
//
// # When the settlement happens
//
// A client whose slots are nearly used up must find its slot free when it has seen its answer's end; so the last bytes wait for the settlement,
// for a second at most. Everybody else's is settled after them.
package proxy
