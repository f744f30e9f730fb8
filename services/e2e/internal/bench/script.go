package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// call is one command as the limiter sent it to Redis.
type call []string

// capture runs once and gives the EVALSHA that it made Redis run, keys and arguments included.
func capture(ctx context.Context, addr string, once func() error) (call, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	lines := make(chan string, 1000)
	m := rdb.Monitor(ctx, lines)
	m.Start()
	defer m.Stop()
	timeout := time.After(10 * time.Second)
	awaitLine := func(what string, match func(call) bool) (call, error) {
		for {
			select {
			case l := <-lines:
				if c, err := parseMonitor(l); err == nil && match(c) {
					return c, nil
				}
			case <-timeout:
				return nil, fmt.Errorf("watch Redis: %s was not seen", what)
			}
		}
	}
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, err
	}
	probe := time.NewTicker(20 * time.Millisecond) // until MONITOR watches
	defer probe.Stop()
	watching := make(chan struct{})
	go func() {
		for {
			select {
			case <-probe.C:
				rdb.Echo(ctx, "bench begins")
			case <-watching:
				return
			}
		}
	}()
	_, err := awaitLine("the first command", func(c call) bool { return strings.EqualFold(c[0], "echo") })
	close(watching)
	if err != nil {
		return nil, err
	}
	if err := once(); err != nil {
		return nil, err
	}
	return awaitLine("the limiter's script", func(c call) bool { return strings.EqualFold(c[0], "evalsha") })
}

// parseMonitor reads a line of MONITOR: a time and a client, then quoted words.
func parseMonitor(line string) (call, error) {
	_, rest, ok := strings.Cut(line, "] ")
	if !ok {
		return nil, errors.New("no command in the line")
	}
	var c call
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimLeft(rest, " ") {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", rest, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", quoted, err)
		}
		c, rest = append(c, word), rest[len(quoted):]
	}
	if len(c) == 0 {
		return nil, errors.New("no command in the line")
	}
	return c, nil
}

// with replaces a request id wherever the call names it.
func (c call) with(old, id string) call {
	out := slices.Clone(c)
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], old, id)
	}
	return out
}

func (c call) args() []any {
	out := make([]any, len(c))
	for i, w := range c {
		out[i] = w
	}
	return out
}

// yardstick measures a command by redis-benchmark. Where it says __rand_int__, every command has another number.
func yardstick(ctx context.Context, what, addr string, clients, requests int, c call) (Result, error) {
	path, err := exec.LookPath("redis-benchmark")
	if err != nil {
		return Result{}, errors.New("redis-benchmark is not on PATH; it comes with Redis (Debian: apt-get install redis-tools)")
	}
	host, port, ok := strings.Cut(addr, ":")
	if !ok {
		return Result{}, fmt.Errorf("%q is not host:port", addr)
	}
	args := append([]string{"-h", host, "-p", port, "-c", strconv.Itoa(clients), "-n", strconv.Itoa(requests), "-r", "2000000000", "--csv"}, c...)
	out, err := exec.CommandContext(ctx, path, args...).Output() //nolint:gosec // the command is ours
	if err != nil {
		return Result{}, fmt.Errorf("run redis-benchmark: %w", err)
	}
	return parseBenchmark(what, string(out))
}

// parseBenchmark reads redis-benchmark's CSV: a header, and a line whose first field, the command itself, may hold anything.
func parseBenchmark(what, text string) (Result, error) {
	_, table, _ := strings.Cut(text, `"test",`)
	head, rows, _ := strings.Cut(table, "\n")
	names := strings.Split(strings.Trim(head, "\"\r"), `","`)
	lines := strings.Split(strings.TrimSpace(rows), "\n")
	fields := strings.Split(strings.Trim(lines[len(lines)-1], "\"\r"), `","`)
	value := map[string]float64{}
	if len(fields) > len(names) {
		for i, f := range fields[len(fields)-len(names):] {
			if v, err := strconv.ParseFloat(f, 64); err == nil {
				value[names[i]] = v
			}
		}
	}
	if value["rps"] == 0 {
		return Result{}, fmt.Errorf("redis-benchmark's table can't be read: %.500s", text)
	}
	millis := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
	return Result{What: what, PerSecond: value["rps"], P50: millis(value["p50_latency_ms"]), P99: millis(value["p99_latency_ms"])}, nil
}
