package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// call is one command as the limiter sent it to Redis.
type call []string

// captureWithin is how long the limiter's call is waited for.
const captureWithin = 10 * time.Second

// capture runs once and gives the first EVAL that names a request, source, keys and arguments included, as MONITOR shows it. Redis must have forgotten its
// scripts: else the source is not sent.
func capture(ctx context.Context, addr, id string, once func() error) (call, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("watch Redis: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(captureWithin)); err != nil {
		return nil, fmt.Errorf("watch Redis: %w", err)
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		return nil, fmt.Errorf("watch Redis: %w", err)
	}
	lines := bufio.NewReader(conn)
	if _, err := lines.ReadString('\n'); err != nil { // +OK: it watches
		return nil, fmt.Errorf("watch Redis: %w", err)
	}
	if err := once(); err != nil {
		return nil, err
	}
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("watch Redis: no script was run: %w", err)
		}
		if c, err := parseMonitor(line); err == nil && strings.EqualFold(c[0], "eval") && c.names(id) {
			return c, nil
		}
	}
}

func (c call) names(id string) bool {
	return slices.ContainsFunc(c, func(w string) bool { return strings.Contains(w, id) })
}

// tellable is an EVAL that a program's arguments can hold, in which no byte is 0: where one is, as many others stand, and the script puts the right ones in.
func (c call) tellable() (call, error) {
	out := slices.Clone(c)
	keys, err := strconv.Atoi(c[2])
	if err != nil {
		return nil, fmt.Errorf("read the number of keys: %w", err)
	}
	for i := 3 + keys; i < len(c); i++ {
		if !strings.Contains(c[i], "\x00") {
			continue
		}
		var literal strings.Builder
		for _, b := range []byte(c[i]) {
			fmt.Fprintf(&literal, "\\%03d", b)
		}
		out[i] = strings.Repeat("x", len(c[i]))
		out[1] = "ARGV[" + strconv.Itoa(i-2-keys) + "] = \"" + literal.String() + "\"\n" + out[1]
	}
	return out, nil
}

// load has Redis know an EVAL's script, and gives the EVALSHA.
func (c call) load(ctx context.Context, rdb *redis.Client) (call, error) {
	sha, err := rdb.ScriptLoad(ctx, c[1]).Result()
	return append(call{"evalsha", sha}, c[2:]...), err
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
