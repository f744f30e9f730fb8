package api

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// pages follows cursors and gives the ids of all items; between is called between two pages, with what has been listed.
func (h *harness) pages(path, list, id string, limit int, between func(seen []string)) []string {
	h.t.Helper()
	var seen []string
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	for cursor := ""; ; {
		target := fmt.Sprintf("%s%slimit=%d", path, sep, limit)
		if cursor != "" {
			target += "&cursor=" + url.QueryEscape(cursor)
		}
		a := h.get(target)
		m := a.json(h.t)
		items, _ := m[list].([]any)
		if a.status != 200 || len(items) > limit || len(seen) > 10_000 {
			h.t.Fatalf("%s: %d %s", target, a.status, a.body)
		}
		for _, item := range items {
			one, _ := item.(map[string]any)
			seen = append(seen, fmt.Sprint(one[id]))
		}
		if cursor, _ = m["next_cursor"].(string); cursor == "" {
			return seen
		}
		if between != nil {
			between(seen)
		}
	}
}

// Case B119: rows of one instant are neither lost nor repeated at the edge of a page, whatever is made or deleted meanwhile.
func TestB119PagesLoseNothingAtTheirEdges(t *testing.T) {
	for _, limit := range []int{10, 1} {
		t.Run(fmt.Sprintf("limit %d", limit), func(t *testing.T) {
			h := newHarness(t)
			var users, orgs, tokens []string
			for i := range 25 {
				users, orgs = append(users, fmt.Sprintf("u%02d", i)), append(orgs, fmt.Sprintf("o%02d", i))
				h.put("/internal/quota/"+users[i], `{"org_id":"acme","tier":"plus"}`)
				h.put("/internal/orgs/"+orgs[i]+"/quota", `{"tpm_limit":1}`)
				h.made(`{"user_id":"u01"}`)
				tokens = append(tokens, fmt.Sprintf("t%02d", i*7%25)) // made in another order than listed
				h.token(`{"name":"` + tokens[i] + `","role":"viewer"}`)
			}
			slices.Sort(tokens)
			for _, table := range []string{"quotas", "org_quotas", "api_keys"} {
				if _, err := h.db.Exec("UPDATE " + table + " SET created_at = '2026-01-01T00:00:00Z'"); err != nil {
					t.Fatal(err)
				}
			}
			keys := h.pages("/internal/api-keys", "api_keys", "api_key_id", 1000, nil)
			for _, list := range []struct {
				path, list, id string
				want           []string
			}{{"/internal/quotas", "quotas", "user_id", users}, {"/internal/quotas?org_id=acme", "quotas", "user_id", users}, {"/internal/quotas?tier=plus&org_id=acme", "quotas", "user_id", users},
				{"/internal/api-keys", "api_keys", "api_key_id", keys}, {"/internal/api-keys?user_id=u01", "api_keys", "api_key_id", keys},
				{"/internal/admin-tokens", "admin_tokens", "name", tokens}, {"/internal/orgs", "orgs", "org_id", append([]string{"acme"}, orgs...)}} {
				if got := h.pages(list.path, list.list, list.id, limit, nil); !slices.Equal(got, list.want) {
					t.Errorf("%s: %q", list.path, got)
				}
			}
			// The last row of each page is deleted, and others are made before and behind it.
			made := 0
			got := h.pages("/internal/quotas?org_id=acme", "quotas", "user_id", limit, func(seen []string) {
				last := seen[len(seen)-1]
				if _, err := h.db.Exec("DELETE FROM quotas WHERE subject = 'user:' || $1", last); err != nil {
					t.Fatal(err)
				}
				if made++; made <= 5 {
					h.put("/internal/quota/a-new-"+last, `{"org_id":"acme"}`)
					h.put("/internal/quota/"+last+"-new", `{"org_id":"acme"}`)
				}
			})
			for _, u := range users {
				if n := len(slices.DeleteFunc(slices.Clone(got), func(id string) bool { return id != u })); n != 1 {
					t.Errorf("%s was listed %d times", u, n)
				}
			}
			if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
				t.Errorf("listed %q", got)
			}
		})
	}
}

func TestCursorBelongsToItsListAndFilters(t *testing.T) {
	h := newHarness(t)
	for i := range 5 {
		h.put(fmt.Sprintf("/internal/quota/u%d", i), `{"org_id":"acme","tier":"plus"}`)
		h.made(`{"user_id":"u1"}`)
	}
	cursor, _ := h.get("/internal/quotas?limit=2&org_id=acme").json(t)["next_cursor"].(string)
	if a := h.get("/internal/quotas?limit=3&org_id=acme&cursor=" + cursor); a.status != 200 { // another page size is no other list
		t.Fatalf("%d %s", a.status, a.body)
	}
	flipped := []byte(cursor)
	flipped[3] ^= 1
	for name, query := range map[string]string{"other filter": "org_id=acme&tier=plus&cursor=" + cursor, "no filter": "cursor=" + cursor, "other org": "org_id=o2&cursor=" + cursor,
		"cut": "org_id=acme&cursor=" + cursor[:len(cursor)-2], "changed": "org_id=acme&cursor=" + string(flipped), "empty": "org_id=acme&cursor=", "an id": "org_id=acme&cursor=u1",
		"nonsense": "org_id=acme&cursor=%25%25", "longer": "org_id=acme&cursor=" + cursor + "AAAA"} {
		if a := h.get("/internal/quotas?" + query); a.status != 400 || !slices.Equal(a.fields(t), []string{"cursor"}) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for _, path := range []string{"/internal/api-keys?cursor=", "/internal/orgs?cursor=", "/internal/admin-tokens?cursor=", "/internal/quota/u1/events?cursor=", "/internal/tiers/plus/events?cursor="} {
		if a := h.get(path + cursor); a.status != 400 {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	if a := h.get("/internal/quotas?limit=1001&tier=a%20b&colour=red&org_id=x&org_id=y"); a.status != 400 || !slices.Equal(a.fields(t), []string{"colour", "limit", "org_id", "tier"}) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestHistoryTellsWhoWhenFromWhatToWhat(t *testing.T) {
	h := newHarness(t)
	h.put("/internal/quota/u1", `{"tier":"plus","rpm_limit":5,"reason":"bought"}`)
	h.put("/internal/quota/u1", `{"tier":"plus","suspended":true}`)
	h.put("/internal/orgs/acme/quota", `{"tpm_limit":5,"time_zone":"Europe/Berlin"}`)
	h.delete("/internal/orgs/acme/quota")
	key, _ := h.made(`{"org_id":"acme","name":"batch"}`)
	h.post(key+"/rotate", `{"reason":"leaked"}`)
	h.delete(key)
	h.put("/internal/tiers/plus", wholeTier)
	for path, want := range map[string][]string{ // version, actor, reason, a part of before and of after
		"/internal/quota/u1/events":        {`1 admin bought <nil> rpm_limit:5`, `2 admin  suspended:false suspended:true`},
		"/internal/orgs/acme/quota/events": {`1 admin  <nil> time_zone:Europe/Berlin`, `2 admin  tpm_limit:5 <nil>`},
		key + "/events":                    {`1 admin  <nil> owner:org:acme`, `2 admin leaked name:batch rotations:1`, `3 admin  rotations:1 revoked:true`},
		"/internal/tiers/plus/events":      {`1 tollgate shipped <nil> rpm_limit:40`, `2 admin  rpm_limit:40 rpm_limit:1`},
		"/internal/quota/nobody/events":    nil,
	} {
		for _, limit := range []int{1, 100} {
			var got []map[string]any
			for cursor := ""; ; {
				a := h.get(fmt.Sprintf("%s?limit=%d%s", path, limit, cursor))
				m := a.json(t)
				events, _ := m["events"].([]any)
				for _, e := range events {
					one, _ := e.(map[string]any)
					got = append(got, one)
				}
				next, _ := m["next_cursor"].(string)
				if a.status != 200 || len(events) > limit {
					t.Fatalf("%s: %d %s", path, a.status, a.body)
				}
				if next == "" {
					break
				}
				cursor = "&cursor=" + next
			}
			if len(got) != len(want) {
				t.Errorf("%s: %v", path, got)
				continue
			}
			for i, e := range got {
				parts := strings.Split(want[i], " ")
				if fmt.Sprint(e["version"], " ", e["actor"], " ", e["reason"]) != strings.Join(parts[:3], " ") || !strings.Contains(fmt.Sprint(e["before"]), parts[3]) ||
					!strings.Contains(fmt.Sprint(e["after"]), parts[4]) {
					t.Errorf("%s: %v, want %s", path, e, want[i])
				}
			}
		}
	}
}

func TestQuotaAtAnInstantOverHTTP(t *testing.T) {
	h := newHarness(t)
	h.put("/internal/quota/u1", `{"tier":"plus","rpm_limit":5}`)
	h.put("/internal/orgs/acme/quota", `{"tpm_limit":5}`)
	key, _ := h.made(`{"org_id":"acme","rpm_limit":3}`)
	var then string
	if err := h.db.QueryRow(`SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM pg_sleep(0.005)`).Scan(&then); err != nil {
		t.Fatal(err)
	}
	if _, err := h.db.Exec("SELECT pg_sleep(0.005)"); err != nil {
		t.Fatal(err)
	}
	h.put("/internal/tiers/plus", wholeTier)
	h.put("/internal/quota/u1", `{"tier":"plus"}`)
	h.put("/internal/orgs/acme/quota", `{"tpm_limit":6}`)
	h.put(key+"/quota", `{"rpm_limit":4}`)
	at := "?at=" + url.QueryEscape(then)
	if m := h.get("/internal/quota/u1" + at).json(t); m["rpm_limit"] != 5.0 || m["tpm_limit"] != 40000.0 || m["version"] != 1.0 {
		t.Error(m)
	}
	if m := h.get("/internal/quota/u1").json(t); m["rpm_limit"] != 1.0 || m["tpm_limit"] != 2.0 || m["version"] != 2.0 {
		t.Error(m)
	}
	if m := h.get("/internal/quota/nobody" + at).json(t); m["tier"] != "free" || m["version"] != 0.0 {
		t.Error(m)
	}
	if m := h.get("/internal/orgs/acme/quota" + at).json(t); m["tpm_limit"] != 5.0 {
		t.Error(m)
	}
	if m := h.get(key + "/quota" + at).json(t); m["rpm_limit"] != 3.0 || m["tier"] != "api" {
		t.Error(m)
	}
	for target, want := range map[string]int{"/internal/quota/u1?at=2001-01-01T00:00:00Z": 404, key + "/quota?at=2001-01-01T00:00:00Z": 404, "/internal/orgs/acme/quota?at=2001-01-01T00:00:00Z": 200,
		"/internal/quota/u1?at=2999-01-01T00:00:00Z": 400, "/internal/quota/u1?at=yesterday": 400, "/internal/quota/u1?when=now": 400, "/internal/quota/u1?at=2026-01-01T00:00:00Z&at=2026-01-01T00:00:00Z": 400} {
		if a := h.get(target); a.status != want {
			t.Errorf("%s: %d %s", target, a.status, a.body)
		}
	}
}
