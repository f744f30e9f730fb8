package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
)

var mixedRequests = flag.Int("gateway.requests", 2000, "how many requests the mixed test of the gateway sends")

// mixed is one request of the mix.
type mixed struct {
	path, body string
	status     int
	leave      int  // after so many events; 0: never; -1: before the answer
	whole      bool // the server's own figures must be those of the record
}

func mix(i int) mixed {
	stream := func(tokens int, sim string) string {
		return fmt.Sprintf(`%s,"stream":true,"max_tokens":%d,"x_sim":{"tokens":%d,"prompt":%d%s}}`, hello, tokens, tokens, 20+i%50, sim)
	}
	n := 1 + i%37
	switch i % 20 {
	case 0:
		return mixed{path: chatPath, body: stream(200, `,"pace_ms":5`), leave: 1 + i%7}
	case 1:
		return mixed{path: chatPath, body: hello + `,"max_tokens":5,"x_sim":{"delay_ms":5000}}`, leave: -1}
	case 2:
		return mixed{path: chatPath, body: stream(50, `,"pace_ms":5,"usage":"each"`), leave: 1 + i%11}
	case 3:
		return mixed{path: chatPath, body: stream(50, `,"stall_after":3`), leave: 3}
	case 4:
		switch i / 20 % 4 {
		case 0:
			return mixed{path: chatPath, body: hello + `,"x_sim":{"status":500}}`, status: http.StatusInternalServerError}
		case 1:
			return mixed{path: chatPath, body: hello + `,"x_sim":{"cut_after":1}}`, status: http.StatusBadGateway}
		case 2:
			return mixed{path: chatPath, body: stream(20, `,"cut_after":4`), status: http.StatusOK}
		}
		return mixed{path: chatPath, body: stream(20, `,"usage":"each","cut_after":6`), status: http.StatusOK}
	case 5, 6, 7, 8, 9:
		return mixed{path: chatPath, body: stream(n, ``), status: http.StatusOK, whole: true}
	case 10:
		return mixed{path: chatPath, body: stream(n, `,"usage":"each"`), status: http.StatusOK, whole: true}
	case 11:
		return mixed{path: chatPath, body: stream(n, `,"usage":"finish"`), status: http.StatusOK, whole: true}
	case 12:
		return mixed{path: chatPath, body: stream(n, `,"encoding":"gzip"`), status: http.StatusOK, whole: true}
	case 13:
		return mixed{path: "/embeddings", body: `{"model":"grok-2","input":"some words"}`, status: http.StatusOK, whole: true}
	case 14:
		return mixed{path: "/completions", body: fmt.Sprintf(`{"model":"grok-2","prompt":"once","max_tokens":%d}`, n), status: http.StatusOK, whole: true}
	}
	return mixed{path: chatPath, body: fmt.Sprintf(`%s,"max_tokens":%d}`, hello, n), status: http.StatusOK, whole: true}
}

// Whatever becomes of requests, no slot stays held, each has exactly one record, and that has the server's own figures wherever it gave any.
func TestGatewayLosesNothingInAMix(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{tpd: 1 << 40, concurrent: 1000})
	n := *mixedRequests
	var ids sync.Map // request id: mixed
	var next atomic.Int64
	var workers sync.WaitGroup
	before := granted(t, p.system.GatewayURL)
	began := time.Now()
	for range 64 {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				m := mix(i)
				if id, err := m.send(t.Context(), p.system.GatewayURL, key.Secret); err != nil {
					t.Errorf("request %d: %v", i, err)
				} else if id != "" {
					ids.Store(id, m)
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d requests in %s; free %s after the last", n, time.Since(began), awaitFree(t, e, user))

	// A client that leaves on a busy machine may have left before its request was there: then there is nothing to bill.
	want := uint64(granted(t, p.system.GatewayURL) - before)
	if most, least := uint64(n), uint64(n-n/20); want > most || want < least {
		t.Errorf("%d of %d requests were granted", want, n)
	}
	conn := p.ledger(t)
	var rows, requests uint64
	deadline := time.Now().Add(time.Minute)
	for rows < want && time.Now().Before(deadline) {
		if err := conn.QueryRow(t.Context(), `SELECT count(), uniqExact(request_id) FROM usage_events WHERE user_id = @user`, clickhousego.Named("user", user)).Scan(&rows, &requests); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if rows != want || requests != want {
		t.Errorf("%d records of %d requests; %d were granted", rows, requests, want)
	}
	answers := p.upstream.Answers()
	all, err := conn.Query(t.Context(), `SELECT toString(request_id), toString(outcome), estimated, toInt64(input_tokens), toInt64(output_tokens) FROM usage_events WHERE user_id = @user`, clickhousego.Named("user", user))
	if err != nil {
		t.Fatal(err)
	}
	figures, outcomes, whole, sum := 0, map[string]int{}, 0, int64(0)
	for all.Next() {
		var id, outcome string
		var estimated bool
		var input, output int64
		if err := all.Scan(&id, &outcome, &estimated, &input, &output); err != nil {
			t.Fatal(err)
		}
		outcomes[outcome]++
		sum += input + output
		a, asked := answers[id]
		v, _ := ids.Load(id)
		m, _ := v.(mixed)
		if !estimated && asked && a.Told && a.Finished && (input != int64(a.Prompt) || output != int64(a.Produced)) {
			t.Errorf("%s: %d and %d tokens are recorded, the server said %d and %d", id, input, output, a.Prompt, a.Produced)
		}
		if m.whole {
			whole++
			if estimated || outcome != "completed" || input != int64(a.Prompt) || output != int64(a.Produced) {
				t.Errorf("%s: recorded %s, estimated %v, %d and %d tokens; the server said %d and %d", id, outcome, estimated, input, output, a.Prompt, a.Produced)
			}
		}
		if !estimated {
			figures++
		}
	}
	if err := all.Err(); err != nil {
		t.Fatal(err)
	}
	if whole != n/20*15 || outcomes["completed"] != whole || outcomes["failed"] != n/20 || outcomes["cancelled"] != int(want)-n/20*16 {
		t.Errorf("%d whole answers, %v", whole, outcomes)
	}
	left := remaining(t, status(t, e, user), "tokens_1d")
	drained := int64(time.Since(began).Seconds()+1) * (1 << 40) / 86400
	if used := int64(1<<40) - left; used > sum || used < sum-drained {
		t.Errorf("%d tokens are charged, %d are recorded", used, sum)
	}
	t.Logf("outcomes %v, %d by the server's own figures", outcomes, figures)
}

// granted is how many requests the gateway has granted and seen end.
func granted(t *testing.T, base string) int {
	t.Helper()
	sum := 0
	for line := range strings.Lines(metricsOf(t, base)) {
		for _, outcome := range []string{"completed", "cancelled", "failed"} {
			if strings.HasPrefix(line, "tollgate_gateway_requests_total{") && strings.Contains(line, `outcome="`+outcome+`"`) {
				n, err := strconv.Atoi(strings.Fields(line)[1])
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
	}
	return sum
}

// send asks, and leaves when it is to. It gives the request's id where the answer told it.
func (m mixed) send(ctx context.Context, base, secret string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if m.leave < 0 {
		time.AfterFunc(300*time.Millisecond, cancel)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1"+m.path, strings.NewReader(m.body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if m.leave < 0 {
			err = nil
		}
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if m.leave > 0 {
		r := bufio.NewReader(resp.Body)
		for seen := 0; seen < m.leave; {
			line, err := r.ReadString('\n')
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(line, "data:") {
				seen++
			}
		}
		return resp.Header.Get("X-Request-Id"), nil
	}
	if resp.StatusCode != m.status {
		return "", fmt.Errorf("%s %s", resp.Status, m.body)
	}
	if _, err = io.Copy(io.Discard, resp.Body); m.whole && err != nil {
		return "", err
	}
	return resp.Header.Get("X-Request-Id"), nil
}
