package subject

import (
	"strings"
	"testing"
)

func TestNoIDCanForgeAKey(t *testing.T) {
	for _, bad := range []string{"", "a:b", "a{b}", "a b", "a\nb", "a\x00", "ü", "a*", strings.Repeat("a", 129), "a\"b", "{1}"} {
		if ValidateID(bad) == nil {
			t.Errorf("id %q was accepted", bad)
		}
	}
	for _, good := range []string{"u1", "550e8400-e29b-41d4-a716-446655440000", "a.b_c@d/e+f-G", strings.Repeat("a", 128)} {
		if err := ValidateID(good); err != nil {
			t.Errorf("id %q was refused: %v", good, err)
		}
	}
}

func TestSubjectNameRoundTrips(t *testing.T) {
	for _, s := range []Subject{{User, "u1"}, {APIKey, "k/1"}} {
		got, err := Parse(s.String())
		if err != nil || got != s {
			t.Errorf("Parse(%q) = %v, %v", s, got, err)
		}
	}
	for _, bad := range []string{"", "u1", "org:o1", "user:", "user:a:b"} {
		if s, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", bad, s)
		}
	}
}

func TestMembersOfAnOrgShareAShard(t *testing.T) {
	a, b := Subject{User, "u1"}, Subject{APIKey, "k1"}
	if Shard("o1", a) != Shard("o1", b) {
		t.Error("two subjects of one org lie in different shards")
	}
}
