// Package identity tells who a REQUEST is of, by its credential alone: `Authorization: Bearer` with an API key's secret or with a session's JWT.
// Nothing in a body or in another header has any say (case B43).
//
// # API keys
//
// A secret is looked up by its hash; secrets are neither kept nor logged. What was found is cached, for redisfence.CacheTTL at most, and dropped
// when the key is announced as changed. Announcements may be lost, so they only save work. The guarantee is the version: an entry bears the key's
// version of the moment of the look-up, a decision bears the key's version that it was made by, and enforcement's fence keeps decisions from
// being made by an old one. Whoever gets a decision by a later version than the entry's asks again (Confirm). So a revoked key and a rotated secret
// are refused from the next request on, whatever was cached.
//
// A secret that nobody has is remembered for a few seconds. That keeps no new key waiting: nobody can have asked for its secret, 130 random bits, before
// the key was stored, and what is announced of any key forgets them all. Secrets that are not cached are looked up a few at a time, so a flood of
// made-up ones takes half of the connections to Postgres at most, and keys that are known pass it by. It can still hold up a key's first use: if it makes
// more look-ups than these few connections can, that waits its turn, for LookupWait at most, and is then told to come again (503).
//
// Postgres away: keys that are cached serve; others get ErrUnavailable.
//
// # Sessions
//
// A JWT is verified by each configured kind of key alone: HS256 by the shared secret; RS256 by the public key; by a JWKS what its keys sign
// asymmetrically. The algorithm that a token names never chooses the kind of a key: HS256 "signed" with a public key is refused, and so is "none".
// A token has to have an expiry; issuer and audience are checked when they are configured. Keys of a JWKS are cached and refreshed; one that
// names an unknown key is fetched again, at most every few seconds.
package identity
