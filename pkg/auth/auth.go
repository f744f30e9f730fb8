// Package auth recognises bearer tokens. Only SHA-256 hashes are kept, and every comparison takes the same time.
package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// Role is what a token's bearer may do.
type Role string

// Service may call the enforcement API, an Instance of it may ask others; Viewer may read and Admin may change the quota API; OrgAdmin may do so within one org.
const (
	Service  Role = "service"
	Instance Role = "instance"
	Viewer   Role = "viewer"
	Admin    Role = "admin"
	OrgAdmin Role = "org-admin"
)

// AdminTokenPrefix begins every token that NewAdminToken makes. As the secrets of API keys ("tg-" and capitals) it begins with what no id may begin
// with: a token in the wrong field gets nowhere.
const AdminTokenPrefix = "tg-admin-"

// NewAdminToken makes a token of 130 random bits.
func NewAdminToken() string { return AdminTokenPrefix + rand.Text() }

// Hash is what is stored of a token.
func Hash(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

// Grant is one known token. Name stands for it in logs and in the history of changes. OrgID is an OrgAdmin's org.
type Grant struct {
	Name  string
	Role  Role
	OrgID string
	hash  [sha256.Size]byte
}

// NewGrant keeps the hash of token.
func NewGrant(name string, role Role, token string) Grant {
	return Grant{Name: name, Role: role, hash: sha256.Sum256([]byte(token))}
}

// Tokens is the set of known tokens.
type Tokens []Grant

// Find gives the grant of a token. It looks at all of them, whichever matches.
func (ts Tokens) Find(token string) (Grant, bool) {
	h := sha256.Sum256([]byte(token))
	found := -1
	for i := range ts {
		if subtle.ConstantTimeCompare(h[:], ts[i].hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 || token == "" {
		return Grant{}, false
	}
	return ts[found], true
}

// Bearer gives the token of an "Authorization: Bearer …" header, or "" if there is none.
func Bearer(r *http.Request) string {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
