// Package redisfence carries a quota change from the quota service to the very next decision. A change leaves its version in Redis,
// where the check's script reads it and refuses a decision made with an older one, and is announced on a channel so that caches
// drop the entry before they are refused. The channel may lose messages; the version may not.
//
// When Redis fails: Publish returns an error and may be repeated, in any order with others; until it succeeds, instances decide by what
// they have cached, for CacheTTL at most. Subscribe keeps trying and says when it is back; whatever was cached until then may be stale.
// When Redis loses its data (a restart without persistence), versions published in the last TTL are gone: every subscription broke too,
// so every cache is dropped.
package redisfence

import (
	"strconv"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Channel is the Redis pub/sub channel of DESIGN §3.
const Channel = "quota_invalidation"

// CacheTTL is how long an enforcement instance may hold a quota. TTL is how long a version stays in Redis: twice that, so that it
// outlives every copy of the older quota.
const (
	CacheTTL = 60 * time.Second
	TTL      = 2 * CacheTTL
)

// Change is the message on the channel, as JSON. Name is "user:u1", "api_key:k1", "org:o1" or "tier:plus".
type Change struct {
	Name    string `json:"name"`
	Version int64  `json:"version"`
}

// TierName is the fence name of a tier.
func TierName(tier string) string { return "tier:" + tier }

// Key is the Redis key that holds the published version of name, in one shard. A version is left in every shard in which a decision that
// depends on it can be made: a user's in those of its old and its new org, a key's and an org's in those of the payer, a tier's in all.
func Key(shard int, name string) string {
	return "tg:" + subject.Tag(shard) + ":v:" + name
}

// Value is the text of a version under Key.
func Value(version int64) string { return strconv.FormatInt(version, 10) }
