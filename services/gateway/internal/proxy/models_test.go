package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
)

const list = `{"object":"list","data":[7,{"id":5},{"id":"grok-2","object":"model","created":1700000000,"owned_by":"us","x":1.50},
 {"id":"org/m\u006fdel","object":"model","created":1,"owned_by":"them"},{"object":"model","id":"llama:8b"}],"more":[{"id":"hidden"}]}`

func TestAModelIsTheListsOwnEntry(t *testing.T) {
	asked := ""
	w := newWorld(t, from(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.Path
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, list)
	}))
	for path, want := range map[string]string{
		"grok-2":        `{"id":"grok-2","object":"model","created":1700000000,"owned_by":"us","x":1.50}`,
		"org%2Fmodel":   `{"id":"org/m\u006fdel","object":"model","created":1,"owned_by":"them"}`,
		"llama:8b":      `{"object":"model","id":"llama:8b"}`,
		"llama%3A8b?x=": `{"object":"model","id":"llama:8b"}`,
	} {
		resp, body := w.get("/v1/models/" + path)
		if resp.StatusCode != http.StatusOK || body != want || resp.Header.Get("X-Ratelimit-Limit-Requests") != "40" || asked != "GET /v1/models" {
			t.Errorf("%s: %s %s, the server was asked for %s", path, resp.Status, body, asked)
		}
	}
	if resp, body := w.raw("GET /v1/models/org/model HTTP/1.1\r\nHost: x\r\n" + key + "\r\n"); resp.StatusCode != http.StatusOK || !strings.Contains(body, `"owned_by":"them"`) {
		t.Errorf("with a plain slash: %s %s", resp.Status, body)
	}
	for _, path := range []string{"hidden", "5", "Grok-2", "grok-2%00", "org%2F%2Fmodel", strings.Repeat("x", 10_000)} {
		resp, body := w.get("/v1/models/" + path)
		if resp.StatusCode != http.StatusNotFound || !strings.Contains(body, `"code":"model_not_found"`) || !strings.Contains(body, `"param":"model"`) ||
			!strings.Contains(body, `"type":"invalid_request_error"`) || resp.Header.Get("X-Ratelimit-Limit-Requests") != "40" {
			t.Errorf("%.40s: %s %s", path, resp.Status, body)
		}
	}
	if len(w.e.checks)+len(w.e.records) != 0 {
		t.Error("a look at the models took something")
	}
}

func TestModelsAreShownToThoseWhoMayAskForSomething(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Identities = everybody{&identity.Unauthorized{Detail: "The API key is revoked."}} })
	for _, path := range []string{"/v1/models", "/v1/models/grok-2", "/v1/models/none"} {
		for _, credential := range []string{"", key} {
			if resp, body := w.raw("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + credential + "\r\n"); resp.StatusCode != http.StatusUnauthorized || w.up.Served() != 0 {
				t.Errorf("%s %q: %s %s", path, credential, resp.Status, body)
			}
		}
	}
	w = newWorld(t, nil)
	for _, path := range []string{"/v1/models", "/v1/models/grok-2"} {
		if resp, _ := w.ask(path, `{}`); resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET" {
			t.Error(path, resp.Status)
		}
	}
}

func TestAListThatCantBeReadIsTheServersFault(t *testing.T) {
	for text, c := range map[string]struct {
		status int
		code   string
	}{
		`<html>`:                       {502, "upstream_status"},
		`{"data":[{"id":"grok-2"`:      {502, "upstream_status"},
		`{"data":[{"id":"grok-2"},]}`:  {502, "upstream_status"},
		`[]`:                           {502, "upstream_status"},
		`{"data":{"id":"grok-2"}}`:     {404, "model_not_found"},
		`{"data":null,"id":"grok-2"}`:  {404, "model_not_found"},
		`{"models":[{"id":"grok-2"}]}`: {404, "model_not_found"},
	} {
		w := newWorld(t, from(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		if resp, body := w.get("/v1/models/grok-2"); resp.StatusCode != c.status || !strings.Contains(body, `"code":"`+c.code+`"`) {
			t.Errorf("%s: %s %s", text, resp.Status, body)
		}
	}
	w := newWorld(t, from(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":{"message":"loading","type":"x","param":null,"code":"y"}}`)
	}))
	if resp, body := w.get("/v1/models/grok-2"); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "loading") {
		t.Errorf("%s %s", resp.Status, body)
	}
}
