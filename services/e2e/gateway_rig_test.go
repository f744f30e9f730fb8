package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// keyed makes a user and a key of theirs without limits of its own.
func keyed(t testing.TB, q *client.Quotas, l limits) (user string, key client.Key) {
	t.Helper()
	user = newUser(t, q, l)
	zero := func() *int64 { return new(int64(0)) }
	key, err := q.CreateKey(t.Context(), client.NewKey{UserID: user, Name: "e2e", Overrides: tier.Overrides{RPMLimit: zero(), TPMLimit: zero(), TPDLimit: zero(),
		ConcurrentLimit: zero(), MaxContext: zero()}})
	if err != nil {
		t.Fatal(err)
	}
	return user, key
}

// ask posts a body to the gateway's path below /v1 and gives the answer; the test closes it.
func ask(ctx context.Context, t *testing.T, base, token, path, body string, header http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

const chatPath = "/chat/completions"

// answered asks and reads all of the answer.
func answered(t *testing.T, base, token, path, body string) (*http.Response, string) {
	t.Helper()
	resp := ask(t.Context(), t, base, token, path, body, nil)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %v after %s", resp.Status, err, b)
	}
	return resp, string(b)
}

// events are the data lines of a stream.
func events(body string) []string {
	var out []string
	for line := range strings.Lines(body) {
		if data, ok := strings.CutPrefix(line, "data:"); ok {
			out = append(out, strings.TrimSpace(data))
		}
	}
	return out
}

// readEvents reads n events of a stream that goes on.
func readEvents(t *testing.T, r *bufio.Reader, n int) {
	t.Helper()
	for n > 0 {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%d events before their time: %v", n, err)
		}
		if strings.HasPrefix(line, "data:") {
			n--
		}
	}
}

func requestID(t *testing.T, resp *http.Response) uuid.UUID {
	t.Helper()
	id, err := uuid.Parse(resp.Header.Get("X-Request-Id"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// usageRow is a row of the ledger.
type usageRow struct {
	User, Key, Org, Outcome, Reservation, Model, Requested string
	Input, Output, Cached                                  int64
	Estimated                                              bool
}

func (p *wholePath) ledger(t *testing.T) clickhousego.Conn {
	t.Helper()
	o, err := clickhousego.ParseDSN(p.clickhouseDSN)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := clickhousego.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// usageOf waits for the one record of a request. A second one fails the test.
func (p *wholePath) usageOf(t *testing.T, id uuid.UUID) usageRow {
	t.Helper()
	conn := p.ledger(t)
	deadline := time.Now().Add(20 * time.Second)
	for {
		rows, err := conn.Query(t.Context(), `SELECT user_id, api_key_id, org_id, toString(outcome), toString(reservation), model, requested_model, toInt64(input_tokens),
			toInt64(output_tokens), toInt64(cached_input_tokens), estimated FROM usage_events WHERE request_id = @id AND NOT was_rate_limited`, clickhousego.Named("id", id.String()))
		if err != nil {
			t.Fatal(err)
		}
		var all []usageRow
		for rows.Next() {
			var u usageRow
			if err := rows.Scan(&u.User, &u.Key, &u.Org, &u.Outcome, &u.Reservation, &u.Model, &u.Requested, &u.Input, &u.Output, &u.Cached, &u.Estimated); err != nil {
				t.Fatal(err)
			}
			all = append(all, u)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		switch {
		case len(all) == 1:
			return all[0]
		case len(all) > 1:
			t.Fatalf("%s has %d records: %+v", id, len(all), all)
		case time.Now().After(deadline):
			t.Fatalf("%s has no record", id)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitFree waits until nothing of the user's is in flight, and tells how long that took.
func awaitFree(t *testing.T, e *client.Enforcement, user string) time.Duration {
	t.Helper()
	begin := time.Now()
	for status(t, e, user).InFlight != 0 {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("a slot is held though its request is over")
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(begin)
}

func errorOf(t *testing.T, body string) (kind, code, message, param string) {
	t.Helper()
	var e struct {
		Error struct {
			Type, Code, Message string
			Param               *string
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Message == "" {
		t.Fatalf("no error in OpenAI's shape: %v: %s", err, body)
	}
	if e.Error.Param != nil {
		param = *e.Error.Param
	}
	return e.Error.Type, e.Error.Code, e.Error.Message, param
}

func metricsOf(t *testing.T, base string) string {
	t.Helper()
	_, b := exchange(t, http.MethodGet, base+"/metrics", "", "")
	return string(b)
}

// pair starts another enforcement and another gateway on the same stores, with settings of their own, until the test ends. stop stops the gateway
// before that, and gives what its Run returned.
func (p *wholePath) pair(t *testing.T, settings ...string) (gatewayURL string, e *client.Enforcement, stop func() error) {
	t.Helper()
	urls, stops := p.pairLogging(t, os.Stderr, settings...)
	e = client.NewEnforcement(urls[0], system.ServiceToken)
	t.Cleanup(e.Close)
	return urls[1], e, stops[1]
}

// pairLogging is pair with the logs of both in one place. The first url and stop are the enforcement's, the second ones the gateway's.
func (p *wholePath) pairLogging(t *testing.T, log io.Writer, settings ...string) (urls []string, stops []func() error) {
	t.Helper()
	st := p.stores
	st.SpoolDir = t.TempDir()
	for _, svc := range []struct{ name, addr string }{{system.Enforcement, "TOLLGATE_ENFORCEMENT_ADDR"}, {system.Gateway, "TOLLGATE_GATEWAY_ADDR"}} {
		port, err := process.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "http://"+process.Addr(port))
		environ := append(append(st.Environ(), "TOLLGATE_INSTANCE=pair", svc.addr+"="+process.Addr(port), "TOLLGATE_ENFORCEMENT_URL="+urls[0]), settings...)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- system.Run(ctx, svc.name, environ, log) }()
		end := sync.OnceValue(func() error { cancel(); return <-ended })
		stops = append(stops, end)
		t.Cleanup(func() { // last started, first stopped
			if err := end(); err != nil {
				t.Errorf("%s: %v", svc.name, err)
			}
		})
		if err := system.AwaitReady(ctx, urls[len(urls)-1], nil); err != nil {
			t.Fatal(err)
		}
	}
	return urls, stops
}
