// Package subject names who is limited. It serves the REQUEST stage: ids are checked once at the edge, so that no id can forge a
// Redis key, a header or a metric label further in.
package subject

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// MaxIDLen is the longest id in characters (all of them ASCII).
const MaxIDLen = 128

// SecretPrefix begins every API key's secret. No id may begin with it, so that a secret in the wrong field gets nowhere.
const SecretPrefix = "tg-"

// Kind is what a subject is: a user (a session) or an API key.
type Kind string

// The kinds of subject. Their text is the part before the colon in a subject's name.
const (
	User   Kind = "user"
	APIKey Kind = "api_key"
)

// Subject is who is limited. The zero value names nobody.
type Subject struct {
	Kind Kind
	ID   string
}

// String gives the stable name, "user:<id>" or "api_key:<id>". It is the same text in Kafka, Redis and Postgres.
func (s Subject) String() string { return string(s.Kind) + ":" + s.ID }

// IsZero reports whether s names nobody.
func (s Subject) IsZero() bool { return s == Subject{} }

// Parse reads the text that String made.
func Parse(name string) (Subject, error) {
	kind, id, ok := strings.Cut(name, ":")
	if !ok || (Kind(kind) != User && Kind(kind) != APIKey) {
		return Subject{}, fmt.Errorf("subject %q: want user:<id> or api_key:<id>", name)
	}
	if err := ValidateID(id); err != nil {
		return Subject{}, err
	}
	return Subject{Kind: Kind(kind), ID: id}, nil
}

// ValidateID tells what is wrong with a user, org, key or model id: 1 to 128 characters of A–Z a–z 0–9 . _ @ / + - (DESIGN §2), and not a
// secret.
func ValidateID(id string) error {
	if id == "" {
		return fmt.Errorf("must not be empty")
	}
	if strings.HasPrefix(id, SecretPrefix) {
		return fmt.Errorf("must not begin with %s: so do secrets, and an id is no place for one", SecretPrefix)
	}
	if len(id) > MaxIDLen {
		return fmt.Errorf("must be at most %d characters, has %d bytes", MaxIDLen, len(id))
	}
	for i := range len(id) {
		if !validByte(id[i]) {
			return fmt.Errorf("may hold only letters, digits and . _ @ / + - ; byte %d is %q", i, id[i])
		}
	}
	return nil
}

func validByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	case c == '.', c == '_', c == '@', c == '/', c == '+', c == '-':
		return true
	}
	return false
}

// Shards is how many hash tags share out all subjects. It is fixed for the life of a Redis data set: another number would look
// for every counter in another place.
const Shards = 256

// Shard is the number, 0 to Shards-1, of the Redis Cluster hash tag that holds everything of an org, or of a subject without one.
// All keys that one decision touches lie in one shard, hence in one slot, and whoever must look at everything (lease expiry, a
// tier's version) has Shards places to visit instead of a key scan.
func Shard(orgID string, s Subject) int {
	h := fnv.New32a()
	if orgID != "" {
		_, _ = h.Write([]byte("org:" + orgID))
	} else {
		_, _ = h.Write([]byte(s.String()))
	}
	return int(h.Sum32() % Shards)
}

// Spread is the shards over which a payer's keys are spread: n of them from its own on, wrapping around. n below 1 is 1.
func Spread(base, n int) []int {
	out := make([]int, max(n, 1))
	for i := range out {
		out[i] = (base + i) % Shards
	}
	return out
}

// Tag is the hash tag of a shard, braces included.
func Tag(shard int) string { return "{" + strconv.Itoa(shard) + "}" }
