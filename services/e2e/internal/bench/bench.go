package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// Options say how much to measure.
type Options struct {
	Callers  int           // at once
	Duration time.Duration // of each measurement
	Users    int           // that share the requests
	Out      io.Writer     // the table, in Markdown
	Log      io.Writer     // what happens meanwhile
}

// Run measures everything and prints the table.
func Run(ctx context.Context, o Options) error {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(o.Log, format+"\n", args...) }
	say("starting a real Redis, a real Kafka, PostgreSQL, quota and enforcement")
	services, err := os.CreateTemp("", "tollgate-bench-*.log")
	if err != nil {
		return err
	}
	defer func() { _ = services.Close() }()
	r, err := startRig(ctx, services)
	if err != nil {
		return fmt.Errorf("%w (the services' log is %s)", err, services.Name())
	}
	results, err := r.measureAll(ctx, o, say)
	version := redisVersion(ctx, r.redisAddr)
	if stopErr := r.stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return fmt.Errorf("%w (the services' log is %s)", err, services.Name())
	}
	_ = os.Remove(services.Name()) // nothing went wrong: nobody needs it
	printTable(o, version, results)
	return nil
}

func (r *rig) measureAll(ctx context.Context, o Options, say func(string, ...any)) ([]Result, error) {
	if err := r.subscribe(ctx, o.Users); err != nil {
		return nil, err
	}
	api := client.NewEnforcement(r.system.EnforcementURL, system.ServiceToken, client.WithConnections(o.Callers))
	defer api.Close()
	var results []Result
	add := func(res Result, err error) error {
		if err == nil {
			results = append(results, res)
			say("%s: %.0f/s", res.What, res.PerSecond)
		}
		return err
	}
	check := func(ctx context.Context, _, n int) error { return checkOnce(ctx, api, n, o.Users, nil) }
	both := func(ctx context.Context, _, n int) error {
		id := uuid.Must(uuid.NewV7())
		if err := checkOnce(ctx, api, n, o.Users, &id); err != nil {
			return err
		}
		_, err := api.Record(ctx, client.RecordRequest{UserID: user(n, o.Users), RequestID: id, Model: "grok-2", InputTokens: 100, OutputTokens: 30, LatencyMS: 1, Outcome: "completed"})
		return err
	}
	if err := add(measure(ctx, "check + record over HTTP, durable in Kafka", o.Callers, o.Duration, both)); err != nil {
		return nil, err
	}
	if err := add(measure(ctx, "check over HTTP", o.Callers, o.Duration, check)); err != nil {
		return nil, err
	}

	rdb := redis.NewClient(&redis.Options{Addr: r.redisAddr, PoolSize: o.Callers, Protocol: 2})
	defer func() { _ = rdb.Close() }()
	if err := rdb.ScriptFlush(ctx).Err(); err != nil {
		return nil, err
	}
	id := uuid.Must(uuid.NewV7())
	source, err := capture(ctx, r.redisAddr, id.String(), func() error { return checkOnce(ctx, api, 0, o.Users, &id) })
	if err != nil {
		return nil, err
	}
	script, err := source.load(ctx, rdb)
	if err != nil {
		return nil, err
	}
	limiter := func(ctx context.Context, _, n int) error {
		return rdb.Do(ctx, script.with(id.String(), fmt.Sprintf("00000000-0000-7000-8000-%012d", n)).with(user(0, o.Users), user(n, o.Users)).args()...).Err()
	}
	if err := add(measure(ctx, "the check's script, by the Go Redis client", o.Callers, o.Duration, limiter)); err != nil {
		return nil, err
	}
	empty, err := rdb.ScriptLoad(ctx, "return 1").Result()
	if err != nil {
		return nil, err
	}
	requests := max(int(results[len(results)-1].PerSecond*o.Duration.Seconds()), 1000)
	if source, err = source.tellable(); err != nil {
		return nil, err
	}
	if script, err = source.load(ctx, rdb); err != nil {
		return nil, err
	}
	random := script.with(id.String(), "00000000-0000-7000-8000-__rand_int__").with(user(0, o.Users), "bench-__rand_int__")
	if err := add(yardstick(ctx, "the check's script, by redis-benchmark", r.redisAddr, o.Callers, requests, random)); err != nil {
		return nil, err
	}
	nothing := append(call{random[0], empty}, random[2:]...)
	return results, add(yardstick(ctx, "an empty script (`return 1`), same keys and arguments", r.redisAddr, o.Callers, 4*requests, nothing))
}

// subscribe gives every user limits in all four dimensions, so high that none is met: the script does all of its work.
func (r *rig) subscribe(ctx context.Context, users int) error {
	q := client.NewQuotas(r.system.QuotaURL, system.AdminToken)
	defer q.Close()
	for i := range users {
		_, err := q.PutQuota(ctx, user(i, users), client.QuotaChange{Tier: tier.Enterprise, Overrides: tier.Overrides{RPMLimit: new(int64(1e12)), TPMLimit: new(int64(1e12)),
			TPDLimit: new(int64(1e12)), ConcurrentLimit: new(int64(1e12))}})
		if err != nil {
			return fmt.Errorf("set a quota: %w", err)
		}
	}
	return nil
}

func user(n, users int) string { return fmt.Sprintf("bench-%04d", n%users) }

func checkOnce(ctx context.Context, api *client.Enforcement, n, users int, id *uuid.UUID) error {
	req := client.CheckRequest{UserID: user(n, users), Model: "grok-2", InputTokens: new(int64(100)), MaxOutputTokens: new(int64(50))}
	if id != nil {
		req.RequestID = *id
	}
	d, err := api.Check(ctx, req)
	if err == nil && !d.Allowed {
		err = fmt.Errorf("a check was refused: %s", d.Reason)
	}
	return err
}

func redisVersion(ctx context.Context, addr string) string {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	info, err := rdb.Info(ctx, "server").Result()
	if err != nil {
		return "unknown"
	}
	_, rest, _ := strings.Cut(info, "redis_version:")
	v, _, _ := strings.Cut(rest, "\r\n")
	return v
}

func printTable(o Options, redisVersion string, results []Result) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(o.Out, format+"\n", args...) }
	p("%s/%s, %d cores%s, %s, Redis %s; %d callers at once, %s each, %d users with four limits each; callers, services and stores share the machine.\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor(), runtime.Version(), redisVersion, o.Callers, o.Duration, o.Users)
	p("| measured | per second | p50 | p99 |")
	p("|---|---:|---:|---:|")
	for _, r := range results {
		p("| %s | %.0f | %.2f ms | %.2f ms |", r.What, r.PerSecond, r.P50.Seconds()*1000, r.P99.Seconds()*1000)
	}
}

// processor names the processor where Linux tells it.
func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	_, rest, ok := strings.Cut(string(b), "model name")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimLeft(rest, "\t :"), "\n")
	return " (" + name + ")"
}
