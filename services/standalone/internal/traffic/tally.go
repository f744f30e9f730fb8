package traffic

import (
	"fmt"
	"maps"
	"net/http"
	"sync"
)

// Row counts one user's requests, as its client sees them.
type Row struct {
	User          string
	Requests      int64
	Served        int64
	Refused       map[int]int64 // by status
	Input, Output int64         // tokens, as the answers tell
}

// refused is how many were refused.
func (r Row) refused() int64 {
	n := int64(0)
	for _, m := range r.Refused {
		n += m
	}
	return n
}

// Snapshot is the tally at one moment.
type Snapshot struct {
	Rows      []Row // in the profiles' order
	Total     Row
	Errors    int64
	LastError string
}

// Events is how many events the requests so far leave in the log: one each.
func (s Snapshot) Events() int64 { return s.Total.Served + s.Total.refused() }

// Tally counts what became of the traffic. Its methods may be called from any goroutine.
type Tally struct {
	mu        sync.Mutex
	rows      map[string]*Row
	order     []string
	errors    int64
	lastError string
}

// NewTally makes an empty tally with a row for each profile.
func NewTally(ps []Profile) *Tally {
	t := &Tally{rows: map[string]*Row{}}
	for _, p := range ps {
		t.order = append(t.order, p.User)
		t.rows[p.User] = &Row{User: p.User, Refused: map[int]int64{}}
	}
	return t
}

func (t *Tally) answered(user string, a Answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[user]
	r.Requests++
	switch {
	case err != nil:
		t.errors++
		t.lastError = err.Error()
	case a.Status == http.StatusOK:
		r.Served++
		r.Input += a.Input
		r.Output += a.Output
	case a.Status >= http.StatusInternalServerError || a.Status == http.StatusUnauthorized:
		t.errors++
		t.lastError = fmt.Sprintf("%d %s", a.Status, a.Code)
	default:
		r.Refused[a.Status]++
	}
}

// Snapshot copies the counts.
func (t *Tally) Snapshot() Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Snapshot{Total: Row{User: "all", Refused: map[int]int64{}}, Errors: t.errors, LastError: t.lastError}
	for _, name := range t.order {
		r := *t.rows[name]
		r.Refused = maps.Clone(r.Refused)
		s.Rows = append(s.Rows, r)
		s.Total.Requests += r.Requests
		s.Total.Served += r.Served
		s.Total.Input += r.Input
		s.Total.Output += r.Output
		for status, n := range r.Refused {
			s.Total.Refused[status] += n
		}
	}
	return s
}
