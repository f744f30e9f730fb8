package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

var benchRate = flag.Int("gateway.rate", 500, "requests a second of the gateway's latency benchmark")

const (
	benchRound = 5 * time.Second
	benchIdle  = 2000 // streams
)

// ownProcesses starts an enforcement and a gateway as processes of their own, as they are in production: this executable, which TestMain turns into
// them. In one process with the clients and the inference server they would wait for these in one queue.
func (p *wholePath) ownProcesses(b *testing.B) (url string, pid int) {
	b.Helper()
	enforcement, _ := p.process(b, system.Enforcement, "TOLLGATE_ENFORCEMENT_ADDR", "TOLLGATE_SPOOL_DIR="+b.TempDir())
	return p.process(b, system.Gateway, "TOLLGATE_GATEWAY_ADDR", "TOLLGATE_ENFORCEMENT_URL="+enforcement, "TOLLGATE_CONNECTIONS=4096")
}

func (p *wholePath) process(b *testing.B, service, addrVar string, settings ...string) (url string, pid int) {
	b.Helper()
	port, err := process.FreePort()
	if err != nil {
		b.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	addr := process.Addr(port)
	cmd := exec.Command(self)
	cmd.Env = append(append(append(os.Environ(), p.stores.Environ()...), "TOLLGATE_CHAOS_SERVICE="+service, "TOLLGATE_INSTANCE=bench", addrVar+"="+addr), settings...)
	cmd.Stderr = os.Stderr
	child, err := process.Start(cmd, syscall.SIGKILL)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if !child.Stop(context.Background(), process.Step{Signal: syscall.SIGTERM, Wait: 30 * time.Second}) || child.Err() != nil {
			b.Errorf("%s did not stop in order: %v", service, child.Err())
		}
	})
	if err := system.AwaitReady(b.Context(), "http://"+addr, nil); err != nil {
		b.Fatal(err)
	}
	return "http://" + addr, child.Pid()
}

// BenchmarkGatewayLatency sends the same requests to the simulated server directly and through the gateway, in turns, at a fixed rate.
// Run it with -benchtime 1x.
func BenchmarkGatewayLatency(b *testing.B) {
	p, _, q := lean.services(b)
	_, key := keyed(b, q, limits{})
	base, pid := p.ownProcesses(b)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	defer client.CloseIdleConnections()
	for name, body := range map[string]string{
		"whole":  hello + `,"max_tokens":16,"x_sim":{"delay_ms":20}}`,
		"stream": hello + `,"stream":true,"max_tokens":16,"x_sim":{"delay_ms":20}}`,
	} {
		b.Run(name, func(b *testing.B) {
			direct := strings.TrimSuffix(p.stores.UpstreamURL, "/v1/")
			for _, warm := range []string{direct, base} {
				drive(b, client, warm, key.Secret, body, time.Second)
			}
			var without, with []time.Duration
			used := time.Duration(0)
			for range b.N {
				for range 3 {
					without = append(without, drive(b, client, direct, key.Secret, body, benchRound)...)
					before := processorTime(b, pid)
					with = append(with, drive(b, client, base, key.Secret, body, benchRound)...)
					used += processorTime(b, pid) - before
				}
			}
			b.ReportMetric(float64(used.Microseconds())/float64(len(with)), "µs-cpu-of-gateway/request")
			for _, q := range []struct {
				name string
				at   float64
			}{{"p50", .5}, {"p99", .99}} {
				d, g := quantile(without, q.at), quantile(with, q.at)
				b.ReportMetric(float64(d.Microseconds())/1000, "ms-direct-"+q.name)
				b.ReportMetric(float64((g-d).Microseconds())/1000, "ms-added-"+q.name)
			}
		})
	}
}

// drive sends at the rate and gives the time to each answer's first byte of body, which of a whole answer is its end.
func drive(b *testing.B, client *http.Client, base, token, body string, d time.Duration) []time.Duration {
	b.Helper()
	var mu sync.Mutex
	var out []time.Duration
	var all sync.WaitGroup
	begin := time.Now()
	for i := range int(d.Seconds()) * *benchRate {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(*benchRate))))
		all.Go(func() {
			sent := time.Now()
			req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, base+"/v1"+chatPath, strings.NewReader(body))
			if err != nil {
				b.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := client.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			var one [1]byte
			_, err = io.ReadFull(resp.Body, one[:])
			took := time.Since(sent)
			rest, _ := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusOK {
				b.Errorf("%s of %s, %v: %s", resp.Status, base, err, rest)
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, took)
		})
	}
	all.Wait()
	return out
}

func quantile(ds []time.Duration, at float64) time.Duration {
	slices.Sort(ds)
	return ds[int(at*float64(len(ds)-1))]
}

// BenchmarkGatewayIdleStreams tells what a gateway of its own process holds with 2,000 streams that wait for their next token.
func BenchmarkGatewayIdleStreams(b *testing.B) {
	p, e, q := lean.services(b)
	user, key := keyed(b, q, limits{concurrent: 3 * benchIdle})
	base, pid := p.ownProcesses(b)
	client := &http.Client{Transport: &http.Transport{}}
	b.ReportMetric(resident(b, pid), "MiB-before")
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	gate := make(chan struct{}, 64)
	var all sync.WaitGroup
	for range benchIdle {
		gate <- struct{}{}
		all.Go(func() {
			defer func() { <-gate }()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1"+chatPath, strings.NewReader(hello+`,"stream":true,"x_sim":{"tokens":9,"stall_after":2}}`))
			if err != nil {
				b.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+key.Secret)
			resp, err := client.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data:") {
				b.Errorf("%s %q %v", resp.Status, line, err)
			}
		})
	}
	all.Wait()
	st, err := e.UserStatus(b.Context(), user)
	if err != nil || st.InFlight != benchIdle {
		b.Errorf("%d are in flight, %v", st.InFlight, err)
	}
	time.Sleep(2 * time.Second)
	b.ReportMetric(resident(b, pid), "MiB-with-streams")
	cancel()
	begin := time.Now()
	for st.InFlight > 0 && time.Since(begin) < 30*time.Second {
		if st, err = e.UserStatus(b.Context(), user); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(begin).Milliseconds()), "ms-until-all-are-free")
	if st.InFlight != 0 {
		b.Errorf("%d slots are held", st.InFlight)
	}
}

// processorTime is what a process has used, of all processors, to a hundredth of a second.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third field on; ticks in user mode are the 14th, in the kernel's the 15th
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err := errors.Join(err1, err2); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// resident is a process's memory in MiB.
func resident(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
