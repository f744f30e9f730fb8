package redisload

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

// Every is how often the reports are read. MaxAge is how old what is known here may be while Redis answers.
const (
	Every  = 400 * time.Millisecond
	MaxAge = time.Second
)

// Times to live of a report. Shorter ones would end before all instances have seen them.
const (
	MinTTL = time.Second
	MaxTTL = time.Hour
)

const (
	key     = "tg:load"
	all     = "*" // no id
	retries = 20  // of a Put that others get in the way of
)

// ErrUnknownGroup says that no known model is in the group.
var ErrUnknownGroup = errors.New("is not the group of a known model")

//go:embed read.lua
var readLua string

//go:embed put.lua
var putLua string

var readScript, putScript = redis.NewScript(readLua), redis.NewScript(putLua)

// Options are a Loads' settings.
type Options struct {
	Groups   shed.Groups
	Models   []string // known ones: their groups are those that may be reported
	Registry prometheus.Registerer
	Log      *slog.Logger     // slog.DiscardHandler's if nil
	Now      func() time.Time // time.Now
}

// Loads is what one instance knows of the load. It is safe for concurrent use.
type Loads struct {
	rdb   redis.UniversalClient
	o     Options
	names []string   // of the groups, without shed.All
	asks  sync.Mutex // held while Redis is asked: what is known here never goes back to an earlier reading

	mu    sync.RWMutex
	known reading
}

// reading is what Redis said.
type reading struct {
	reports map[string]shed.Report // by group, in Redis's time
	texts   map[string]string      // by group, as they are stored
	at      time.Time              // by Redis's clock
	taken   time.Time              // the same moment by this instance's clock
}

// clock is Redis's time at a time of this instance.
func (r reading) clock(now time.Time) time.Time { return r.at.Add(now.Sub(r.taken)) }

// New makes a Loads on a client, which stays the caller's to close. Run must run for it to learn what other instances are told.
func New(rdb redis.UniversalClient, o Options) *Loads {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &Loads{rdb: rdb, o: o, names: o.Groups.Names(o.Models)}
	if o.Registry != nil {
		o.Registry.MustRegister(newGauges(l))
	}
	return l
}

// Level is a model's: that of its group or of all, whichever is higher; 0 if nothing was reported. It asks nobody.
func (l *Loads) Level(model string) float64 {
	now := l.o.Now()
	l.mu.RLock()
	defer l.mu.RUnlock()
	at := l.known.clock(now)
	return max(l.known.reports[shed.All].At(at), l.known.reports[l.o.Groups.Of(model)].At(at))
}

// Group is what counts for one group now, in this instance's time.
type Group struct {
	Name string // shed.All for all models
	shed.Report
}

// Now gives the reports that count, that of all first, then by name. It asks nobody.
func (l *Loads) Now() []Group {
	now := l.o.Now()
	l.mu.RLock()
	defer l.mu.RUnlock()
	out := []Group{}
	for _, name := range append([]string{shed.All}, l.names...) {
		if r := l.known.reports[name]; r.Until.After(l.known.clock(now)) {
			out = append(out, l.known.group(name, now))
		}
	}
	return out
}

func (r reading) group(name string, now time.Time) Group {
	g := Group{name, r.reports[name]}
	g.Level = g.At(r.clock(now))
	ahead := r.taken.Sub(r.at)
	g.Reached, g.Until = g.Reached.Add(ahead), g.Until.Add(ahead)
	return g
}

// Put reports a group's load, from 0 to 1, for a time from MinTTL to MaxTTL, and gives what counts from now on: here at once, everywhere within
// MaxAge.
func (l *Loads) Put(ctx context.Context, group string, load float64, ttl time.Duration) (Group, error) {
	if group != shed.All && !slices.Contains(l.names, group) {
		return Group{}, ErrUnknownGroup
	}
	l.asks.Lock()
	defer l.asks.Unlock()
	for range retries {
		r, err := l.read(ctx)
		if err != nil {
			return Group{}, err
		}
		next := r.reports[group].Next(load, r.at, ttl)
		done, err := putScript.Run(ctx, l.rdb, []string{key}, field(group), r.texts[group], text(next), ttl.Milliseconds()).Int()
		if err != nil {
			return Group{}, fmt.Errorf("report a load to redis: %w", err)
		}
		if done == 1 {
			r.reports[group] = next
			l.know(r)
			return r.group(group, l.o.Now()), nil
		}
	}
	return Group{}, errors.New("report a load to redis: others report the same group all the time")
}

// Run reads the reports until ctx ends. Failures pass: what was read last counts meanwhile.
func (l *Loads) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	failing := false
	for {
		err := l.Refresh(ctx)
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			if failing = failed; failed {
				l.o.Log.WarnContext(ctx, "the load can't be read; what was read last counts", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Refresh reads the reports once.
func (l *Loads) Refresh(ctx context.Context) error {
	l.asks.Lock()
	defer l.asks.Unlock()
	ctx, cancel := context.WithTimeout(ctx, MaxAge-Every)
	defer cancel()
	r, err := l.read(ctx)
	if err == nil {
		l.know(r)
	}
	return err
}

func (l *Loads) know(r reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = r
}

func (l *Loads) read(ctx context.Context) (reading, error) {
	reply, err := readScript.Run(ctx, l.rdb, []string{key}).StringSlice()
	var ms int64
	if err == nil {
		ms, err = strconv.ParseInt(reply[0], 10, 64)
	}
	if err != nil {
		return reading{}, fmt.Errorf("read the load from redis: %w", err)
	}
	r := reading{reports: map[string]shed.Report{}, texts: map[string]string{}, at: time.UnixMilli(ms), taken: l.o.Now()}
	for pair := range slices.Chunk(reply[1:], 2) {
		name, stored := pair[0], pair[1]
		if name == all {
			name = shed.All
		}
		r.texts[name] = stored
		if report, ok := parse(stored); ok { // what can't be read counts as none, and is replaced by the next report
			r.reports[name] = report
		}
	}
	return r, nil
}

func field(group string) string {
	if group == shed.All {
		return all
	}
	return group
}

func text(r shed.Report) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return fmt.Sprintf("%s %s %d %d", number(r.Load), number(r.Level), r.Reached.UnixMilli(), r.Until.UnixMilli())
}

func parse(s string) (r shed.Report, ok bool) {
	f := strings.Fields(s)
	if len(f) != 4 {
		return r, false
	}
	load, err1 := strconv.ParseFloat(f[0], 64)
	level, err2 := strconv.ParseFloat(f[1], 64)
	reached, err3 := strconv.ParseInt(f[2], 10, 64)
	until, err4 := strconv.ParseInt(f[3], 10, 64)
	if errors.Join(err1, err2, err3, err4) != nil || !(load >= 0 && load <= 1) || !(level >= 0 && level <= 1) { // NaN is neither
		return r, false
	}
	return shed.Report{Load: load, Level: level, Reached: time.UnixMilli(reached), Until: time.UnixMilli(until)}, true
}
