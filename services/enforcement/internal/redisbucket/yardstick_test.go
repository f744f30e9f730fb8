package redisbucket

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
)

// plus is the scope of a user on the plus tier, with so many slots that the benchmark's own requests don't fill them.
func plus(name string) limit.Scope {
	return limit.Scope{Kind: limit.ScopeUser, Name: name, Slots: 1000, Limits: []limit.Limit{
		{Counted: limit.Requests, Capacity: 40, Window: time.Minute}, {Counted: limit.Tokens, Capacity: 40_000, Window: time.Minute},
		{Counted: limit.Tokens, Capacity: 500_000, Window: 24 * time.Hour}}}
}

// BenchmarkScript runs the loaded check script by redis-benchmark -P 16, one scope, random users, and two yardsticks with the same keys and
// arguments on the same server in turn: an empty script, and one that sends the check's four commands with ready-made texts and decides
// nothing. The ratio to the empty one is what it reports; `go test -run xxx -bench Script -benchtime 5x` takes the median of five.
func BenchmarkScript(b *testing.B) {
	if _, err := exec.LookPath("redis-benchmark"); err != nil {
		b.Fatal("redis-benchmark is not on PATH; it comes with Redis (Debian: apt-get install redis-tools)")
	}
	addr := realredis.Start(b).Addr
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	l := New(rdb, Options{})
	u := subject.Subject{Kind: subject.User, ID: "u__rand_int__"}
	id := uuid.Must(uuid.NewV7())
	keys, args := l.checkCall(limit.CheckRequest{Shard: 12, Subject: u, RequestID: id, Scopes: []limit.Scope{plus(u.String())}, Cost: limit.Usage(100, 50), Fresh: true,
		Fences: []limit.Fence{{Name: u.String(), Version: 1}, {Name: "tier:plus", Version: 1}}, Meta: `{"t":"plus","q":"grok-2","i":100}`}, "fresh")
	// The limits' numbers have bytes that are 0, which no argument of a program can: as many others travel, and the script puts the numbers in.
	last := len(args)
	numbers := ""
	for _, c := range []byte(args[last-1].(string)) {
		numbers += fmt.Sprintf("\\%03d", c)
	}
	args[last-1] = strings.Repeat("x", len(args[last-1].(string)))
	check := "ARGV[" + strconv.Itoa(last) + "] = \"" + numbers + "\"\n" + checkSource
	state := `"RM14TMuv4TDapsw!\0\0\0\0\0\0\0\0\1\0\0\0\0\0\150\0\0\0\0\0\150\0\0\0\0\105\45\144\88\0\0\0\1"`
	commands := `redis.call("TIME") redis.call("MGET",KEYS[1],KEYS[2],KEYS[3]) redis.call("SET",KEYS[1],` + state + `,"PX","600000") redis.call("HSET",KEYS[5],ARGV[7],"H 1764600000000 1764600600000 "..ARGV[8]) return ` + state
	var empty, alone, checks []float64
	for b.Loop() {
		empty = append(empty, redisBenchmark(b, rdb, addr, "return 1", keys, args, id))
		alone = append(alone, redisBenchmark(b, rdb, addr, commands, keys, args, id))
		checks = append(checks, redisBenchmark(b, rdb, addr, check, keys, args, id))
	}
	b.ReportMetric(median(empty), "empty/s")
	b.ReportMetric(median(alone)/median(empty), "commands/empty")
	b.ReportMetric(median(checks), "checks/s")
	b.ReportMetric(median(checks)/median(empty), "check/empty")
}

func redisBenchmark(b *testing.B, rdb *redis.Client, addr, script string, keys []string, args []any, id uuid.UUID) float64 {
	b.Helper()
	ctx := context.Background()
	sha, err := rdb.ScriptLoad(ctx, script).Result()
	if err != nil {
		b.Fatal(err)
	}
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		b.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(addr)
	call := []string{"-h", host, "-p", port, "-P", "16", "-n", "200000", "-r", "100000", "-q", "EVALSHA", sha, strconv.Itoa(len(keys))}
	call = append(call, keys...)
	for _, a := range args {
		call = append(call, fmt.Sprint(a))
	}
	for i := range call {
		call[i] = strings.ReplaceAll(call[i], id.String(), id.String()[:24]+"__rand_int__")
	}
	out, err := exec.CommandContext(ctx, "redis-benchmark", call...).CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out[max(0, len(out)-300):])
	}
	rates := regexp.MustCompile(`([\d.]+) requests per second`).FindAllStringSubmatch(string(out), -1)
	if len(rates) == 0 {
		b.Fatalf("redis-benchmark says %.300s", out)
	}
	rate, err := strconv.ParseFloat(rates[len(rates)-1][1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return rate
}

// BenchmarkMemoryPerUser fills a server with users who have used all three of their limits and have no request in flight, and reports what
// Redis's used_memory grew by for each: keys, values and expiry. `-benchtime 1000000x` is the size that the README states.
func BenchmarkMemoryPerUser(b *testing.B) {
	rdb := redis.NewClient(&redis.Options{Addr: realredis.Start(b).Addr, PoolSize: 32})
	defer rdb.Close()
	l, ctx := New(rdb, Options{}), context.Background()
	if err := l.Load(ctx); err != nil {
		b.Fatal(err)
	}
	before := usedMemory(b, rdb)
	users := make(chan int)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for n := range users {
				u := subject.Subject{Kind: subject.User, ID: fmt.Sprintf("u%07d", n)}
				shard, id, scopes := subject.Shard("", u), uuid.Must(uuid.NewV7()), []limit.Scope{plus(u.String())}
				d, err := l.Check(ctx, limit.CheckRequest{Shard: shard, Subject: u, RequestID: id, Scopes: scopes, Cost: limit.Usage(20_000, 10_000), Fresh: true})
				if err == nil && d.Allowed {
					_, err = l.Settle(ctx, limit.SettleRequest{Shard: shard, Subject: u, RequestID: id, Scopes: scopes, Actual: limit.Usage(20_000, 1_234)})
				}
				if err == nil {
					err = l.MarkEmitted(ctx, shard, u, id)
				}
				if err == nil { // a tombstone is a request's, not a user's; and its place in Redis's table of keys would be counted for good
					err = rdb.Del(ctx, tombstoneKey(shard, memberOf(u, id))).Err()
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	n := 0
	for b.Loop() {
		users <- n
		n++
	}
	close(users)
	wg.Wait()
	if keys := rdb.DBSize(ctx).Val(); keys != int64(n) {
		b.Fatalf("%d keys for %d users", keys, n)
	}
	b.ReportMetric(float64(usedMemory(b, rdb)-before)/float64(n), "B/user")
	u := subject.Subject{Kind: subject.User, ID: "u0000000"}
	b.Logf("a state: %q", rdb.Get(ctx, prefix(subject.Shard("", u))+"b:"+u.String()).Val())
}

func usedMemory(b *testing.B, rdb *redis.Client) int64 {
	b.Helper()
	info, err := rdb.Info(context.Background(), "memory").Result()
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "used_memory:")
	v, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func median(v []float64) float64 {
	s := append([]float64{}, v...)
	slices.Sort(s)
	return s[len(s)/2]
}
