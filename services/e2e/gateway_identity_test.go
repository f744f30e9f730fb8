package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// B43: nothing but the credential says who pays.
func TestB43OnlyTheCredentialSaysWhoPays(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{rpm: 100})
	other := newUser(t, q, limits{rpm: 100})
	var last uuid.UUID
	for i := range 20 {
		named := other
		if i >= 10 {
			named = uuid.NewString()
		}
		h := http.Header{"X-User-Id": {named}, "X-Org-Id": {"o2"}, "X-Api-Key": {"tg-other"}, "Openai-Organization": {"o2"}, "Cookie": {"session=1"}, "X-Request-Id": {uuid.NewString()}}
		resp := ask(t.Context(), t, p.system.GatewayURL, key.Secret, chatPath, fmt.Sprintf(`%s,"max_tokens":1,"user":%q,"metadata":{"user_id":%q}}`, hello, named, named), h)
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		_ = resp.Body.Close()
		if last = requestID(t, resp); last.String() == h.Get("X-Request-Id") {
			t.Error("a client's request id became a bill's")
		}
	}
	awaitFree(t, e, user)
	if u := p.usageOf(t, last); u.User != user || u.Key != key.ID || u.Org != "" {
		t.Errorf("%+v", u)
	}
	if left := remaining(t, status(t, e, user), "requests"); left > 100-20+15 {
		t.Errorf("%d requests are left of 100 after 20", left)
	}
	if left := remaining(t, status(t, e, other), "requests"); left != 100 {
		t.Errorf("%d requests are left of the other's 100", left)
	}
	sent := p.upstream.Answers()[last.String()].Header
	for _, name := range []string{"X-User-Id", "X-Org-Id", "X-Api-Key", "Openai-Organization", "Cookie"} {
		if sent.Get(name) != "" {
			t.Errorf("the server got %s", name)
		}
	}
	if sent.Get("Authorization") != "Bearer "+system.UpstreamKey {
		t.Error("the server did not get its own credential")
	}
}

func TestARevokedOrRotatedKeyIsRefusedOnTheNextRequest(t *testing.T) {
	p, _, q := services(t)
	for range 10 {
		_, key := keyed(t, q, limits{})
		status := func(secret string) int {
			resp, _ := answered(t, p.system.GatewayURL, secret, chatPath, hello+`,"max_tokens":1}`)
			return resp.StatusCode
		}
		if s := status(key.Secret); s != http.StatusOK {
			t.Fatal(s)
		}
		rotated, err := q.RotateKey(t.Context(), key.ID, client.KeyChange{})
		if err != nil {
			t.Fatal(err)
		}
		if s, n := status(key.Secret), status(rotated.Secret); s != http.StatusUnauthorized || n != http.StatusOK {
			t.Errorf("after the rotation: old %d, new %d", s, n)
		}
		if _, err := q.RevokeKey(t.Context(), key.ID, client.KeyChange{}); err != nil {
			t.Fatal(err)
		}
		if s := status(rotated.Secret); s != http.StatusUnauthorized {
			t.Errorf("after the revocation: %d", s)
		}
	}
}

func TestASessionIsBilledToItsUser(t *testing.T) {
	p, _, q := services(t)
	user := newUser(t, q, limits{})
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": user, "exp": time.Now().Add(time.Hour).Unix()}).SignedString([]byte(system.JWTSecret))
	if err != nil {
		t.Fatal(err)
	}
	resp, body := answered(t, p.system.GatewayURL, token, chatPath, hello+`,"max_tokens":2}`)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, body)
	}
	if u := p.usageOf(t, requestID(t, resp)); u.User != user || u.Key != "" || u.Output != 2 {
		t.Errorf("%+v", u)
	}
}

var requestsOfB130 = flag.Int("gateway.series", 300, "how many models, paths and unknown keys the test of case B130 sends, and a tenth as many keys; the case has 10000")

// B130: what clients send becomes no series.
func TestB130NothingThatClientsSendBecomesASeries(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{})
	_, _ = answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"max_tokens":1}`)
	before := metricsOf(t, p.system.GatewayURL)
	secrets := []string{key.Secret}
	marker := "m" + strings.ReplaceAll(uuid.NewString(), "-", "")
	for i := range *requestsOfB130 {
		if i%10 == 0 {
			_, key = keyed(t, q, limits{})
			secrets = append(secrets, key.Secret)
		}
		model := fmt.Sprintf("%s-%d", marker, i)
		_, _ = answered(t, p.system.GatewayURL, key.Secret, chatPath, fmt.Sprintf(`{"model":%q,"user":%q,"max_tokens":1,"messages":[]}`, model, model))
		resp := ask(t.Context(), t, p.system.GatewayURL, "tg-"+model, "/"+model, "{}", nil)
		_ = resp.Body.Close()
		resp = ask(t.Context(), t, p.system.GatewayURL, "tg-"+model, chatPath, "{}", nil)
		_ = resp.Body.Close()
	}
	after := metricsOf(t, p.system.GatewayURL)
	if grown := strings.Count(after, "\n") - strings.Count(before, "\n"); grown >= 100 {
		t.Errorf("%d more series", grown)
	}
	for _, sent := range append(secrets, marker) {
		if strings.Contains(after, sent) {
			t.Fatal("what a client sent is in the metrics")
		}
	}
}
