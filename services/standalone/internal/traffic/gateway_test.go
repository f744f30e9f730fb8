package traffic

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/testkit/upstream"
)

const anID = "01890a5d-ac96-774b-bcce-b302099a8057"

func TestAnswersAreReadAsClientsReadThem(t *testing.T) {
	server := upstream.New(upstream.Options{Scripted: true})
	busy := 2
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", anID)
		if r.Header.Get("Authorization") != "Bearer tg-1" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"code":"invalid_api_key","message":"no"}}`)
			return
		}
		if busy > 0 {
			busy--
			w.Header().Set("Retry-After-Ms", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{"code":"unavailable","message":"later"}}`)
			return
		}
		server.ServeHTTP(w, r)
	}))
	defer srv.Close()
	g := &Gateway{URL: srv.URL, HTTP: srv.Client()}
	ask := func(secret string, stream bool, leave int, sim map[string]any) (Answer, error) {
		q := request{model: "grok-2", input: 10, maxOutput: 6, output: 6, stream: stream}.asked()
		q.Leave = leave
		if sim != nil {
			q.Body["x_sim"] = sim
		}
		return g.Ask(t.Context(), secret, q)
	}
	if a, err := ask("tg-1", false, 0, nil); err != nil || a.Status != http.StatusOK || a.Output != 6 || a.Input < 10 || a.ID.String() != anID || busy != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := ask("tg-1", true, 0, nil); err != nil || !a.Done || a.Output != 6 || a.Events != 7 {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := ask("tg-1", true, 3, nil); err != nil || a.Done || a.Events != 3 {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := ask("tg-2", true, 0, nil); err != nil || a.Status != http.StatusUnauthorized || a.Code != "invalid_api_key" {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := ask("tg-1", true, 0, map[string]any{"end_after": 2}); err == nil || !strings.Contains(err.Error(), "[DONE]") {
		t.Errorf("%+v, %v", a, err)
	}
}
