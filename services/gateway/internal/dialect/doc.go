// Package dialect words an answer's rate limit headers, and its errors, for the clients of a REQUEST: TOLLGATE_HEADER_DIALECT says which names and
// units the headers have. A dialect's names take the place of the others', for one name has two meanings (x-ratelimit-reset-requests is an instant
// in one and a duration in another).
//
//   - tollgate: X-RateLimit-Limit-*, -Remaining-* and -Reset-* of every dimension, resets as RFC 3339 instants (DESIGN §8).
//   - openai: x-ratelimit-limit-*, -remaining-* and -reset-* of requests and tokens, resets as durations such as "1s" or "6m0s".
//   - anthropic: anthropic-ratelimit-requests-*, -tokens-*, and -input-tokens-* and -output-tokens-* where there are such limits, resets as RFC 3339
//     instants in whole seconds.
//   - ietf: RateLimit-Policy and RateLimit of every dimension, structured fields as in draft-ietf-httpapi-ratelimit-headers-10. Tokens have the
//     unit "tokens", which is no registered one. t is when the bucket is full; of slots in use nobody knows.
//
// Where a dialect knows one kind of tokens only, the one of the minute's and the day's is told that has the least left. Resets are when the bucket is
// full, rounded up. What is unlimited has no header.
//
// A 429 has Retry-After (whole seconds, rounded up) and retry-after-ms, in every dialect; so has a 503, which may be repeated. Nothing else has.
//
// Errors have OpenAI's shape. A shed request is 429, not 503: it is refused because of its tier, other tiers are served meanwhile, and load balancers
// take a server that answers many 5xx for a broken one, which would move the load to the others.
package dialect
