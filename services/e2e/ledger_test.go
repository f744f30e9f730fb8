package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
	tollgatectl "github.com/tollgate-dev/tollgate/services/tollgatectl/app"
)

// counted is what the ledger says of a user.
type counted struct{ requests, rejected, input, output int64 }

// awaitLedger waits until the ledger has counted what want says, and fails if it never does or counts more.
func (p *wholePath) awaitLedger(t *testing.T, user string, want counted) {
	t.Helper()
	conn := p.ledger(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var got counted
	for {
		row := conn.QueryRow(ctx, `SELECT toInt64(sum(requests)), toInt64(sum(rejected_requests)), toInt64(sum(input_tokens)), toInt64(sum(output_tokens))
			FROM usage_hourly WHERE user_id = @user`, clickhousego.Named("user", user))
		if err := row.Scan(&got.requests, &got.rejected, &got.input, &got.output); err != nil {
			t.Fatalf("read the ledger: %v (last seen: %+v)", err, got)
		}
		if got.requests+got.rejected >= want.requests+want.rejected {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the ledger counts %+v, want %+v", got, want)
		}
	}
	if got != want {
		t.Fatalf("the ledger counts %+v, want %+v", got, want)
	}
}

// account is what tollgatectl replay --json prints.
type account struct {
	Checks, Allowed, Refused, Recorded, Errors int64
	RefusedBy                                  map[string]int64 `json:"refused_by_reason"`
	InputTokens                                int64            `json:"input_tokens"`
	OutputTokens                               int64            `json:"output_tokens"`
	Ledger                                     struct {
		Requests     int64 `json:"requests"`
		Rejected     int64 `json:"rejected_requests"`
		InputTokens  int64 `json:"input_tokens"`
		OutputTokens int64 `json:"output_tokens"`
	}
}

// replay runs tollgatectl replay, which compares the ledger with what it sent and fails where they differ.
func replay(t *testing.T, p *wholePath, args ...string) account {
	t.Helper()
	var out, errs strings.Builder
	code := tollgatectl.Run(t.Context(), append([]string{"replay", "--json"}, args...), tollgatectl.IO{Dir: t.TempDir(), Stdout: &out, Stderr: &errs, Environ: []string{
		"TOLLGATE_ENFORCEMENT_URL=" + p.system.EnforcementURL, "TOLLGATE_QUOTA_URL=" + p.system.QuotaURL, "TOLLGATE_CLICKHOUSE_URL=" + p.clickhouseDSN,
		"TOLLGATE_SERVICE_TOKEN=" + system.ServiceToken, "TOLLGATE_ADMIN_TOKEN=" + system.AdminToken}})
	if code != 0 {
		t.Fatalf("replay: exit %d\n%s\n%s", code, errs.String(), out.String())
	}
	var a account
	if err := json.Unmarshal([]byte(out.String()), &a); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	return a
}

// trace is the recorded trace that TOLLGATE_TRACE names or, without it, one of 500 requests made for this test.
func trace(t *testing.T) (file string, want account, real bool) {
	t.Helper()
	if file := os.Getenv("TOLLGATE_TRACE"); file != "" {
		return file, account{Checks: 19_366, InputTokens: 22_361_870, OutputTokens: 4_088_665}, true
	}
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same trace at every run
	var b strings.Builder
	b.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	at := time.Date(2023, 11, 16, 18, 0, 0, 0, time.UTC)
	want = account{Checks: 500}
	for range want.Checks {
		at = at.Add(time.Duration(r.Int64N(int64(400 * time.Millisecond))))
		in, out := r.Int64N(4000), 1+r.Int64N(600)
		want.InputTokens += in
		want.OutputTokens += out
		fmt.Fprintf(&b, "%s,%d,%d\n", at.Format("2006-01-02 15:04:05.0000000"), in, out)
	}
	file = filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, want, false
}

func TestWholePathCountsEveryRequestOnce(t *testing.T) {
	p, _, _ := services(t)
	file, want, real := trace(t)
	users, speed := "20", "100"
	if real {
		users, speed = "500", "600"
	}
	t.Run("unlimited", func(t *testing.T) {
		got := replay(t, p, "--trace", file, "--users", users, "--speed", speed, "--quota", "unlimited")
		if got.Checks != want.Checks || got.Allowed != want.Checks || got.InputTokens != want.InputTokens || got.OutputTokens != want.OutputTokens {
			t.Errorf("replayed %+v, want %+v, all of it allowed", got, want)
		}
		if l := got.Ledger; l.Requests != want.Checks || l.Rejected != 0 || l.InputTokens != want.InputTokens || l.OutputTokens != want.OutputTokens {
			t.Errorf("the ledger has %+v, want %+v", l, want)
		}
	})
	t.Run("plus", func(t *testing.T) {
		got := replay(t, p, "--trace", file, "--users", users, "--speed", speed, "--quota", "plus")
		if got.Allowed+got.Refused != want.Checks || got.Allowed == 0 || got.Refused == 0 {
			t.Errorf("%d allowed and %d refused of %d", got.Allowed, got.Refused, want.Checks)
		}
		if l := got.Ledger; l.Requests != got.Allowed || l.Rejected != got.Refused || l.InputTokens != got.InputTokens || l.OutputTokens != got.OutputTokens {
			t.Errorf("the ledger has %+v, the replay %+v", l, got)
		}
	})
}
