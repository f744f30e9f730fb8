package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// slowly is a server that sends the first half of an answer of size bytes, chunked, and the rest when release is closed.
func slowly(size int, release <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		text := `{"choices":[],` + total + `,"x":"` + strings.Repeat("x", size) + `"}`
		_, _ = io.WriteString(w, text[:len(text)/2])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, text[len(text)/2:])
	}
}

// asks asks as somebody and gives the answer's status and length.
func (w *world) asks(who string) (status int, length int, code string) {
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+chatPath, strings.NewReader(hello+`}`))
	if err != nil {
		w.t.Error(err)
		return 0, 0, ""
	}
	req.Header.Set("Authorization", "Bearer "+who)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Error(err)
		return 0, 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Error(err)
	}
	return resp.StatusCode, len(text), string(text[:min(len(text), 200)])
}

// All whole answers together, and each caller's, have a bound. Who finds no room is told so before anything is reserved; who has been let in gets its
// answer whole, though all of them have outgrown the room together.
func TestTheMemoryOfAllWholeAnswersIsBounded(t *testing.T) {
	const size, most = 900_000, 3 << 20 // room for two of 1 MiB, and one beside it
	release := make(chan struct{})
	w := newWorld(t, func(o *Options) { o.MaxAnswer, o.MaxAnswers = 1<<20, most; from(t, slowly(size, release))(o) })
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if status, n, text := w.asks(fmt.Sprintf("k%d", i)); status != http.StatusOK || n < size {
				t.Errorf("k%d: %d, %d bytes, %.200s", i, status, n, text)
			}
		})
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d bytes are held", what, w.server.answers.taken())
			}
		}
	}
	until("the room is used up", func() bool {
		return w.server.answers.taken()+firstAnswer > w.server.answers.most && len(w.server.beside) == 1 || w.server.answers.taken() > most
	})
	w.e.mu.Lock()
	decided := len(w.e.checks)
	w.e.mu.Unlock()
	full := 0
	for i := range 3 * int(w.server.answers.most) / firstAnswer { // small ones take what is left
		if w.server.answers.taken()+firstAnswer > w.server.answers.most {
			break
		}
		_ = w.server.answers.take(everyone(i), firstAnswer)
		full = i + 1
	}
	resp, body := w.ask(chatPath, hello+`}`)
	w.e.mu.Lock()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" || !strings.Contains(body, `"code":"overloaded"`) || len(w.e.checks) != decided {
		t.Errorf("one more: %s %s, %d decisions, %d before it", resp.Status, body, len(w.e.checks), decided)
	}
	w.e.mu.Unlock()
	if resp, _ := w.get("/v1/models"); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("models: %s", resp.Status)
	}
	for i := range full {
		w.server.answers.give(everyone(i), firstAnswer)
	}
	close(release)
	wg.Wait()
	if err := w.server.Wait(t.Context()); err != nil || w.server.answers.taken() != 0 || len(w.server.beside) != 0 || len(w.server.answers.of) != 0 {
		t.Errorf("%v, %d bytes are held at the end", err, w.server.answers.taken())
	}
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	for _, r := range w.e.records {
		if r.InputTokens != 11 || r.OutputTokens != 5 || r.Outcome != "completed" {
			t.Errorf("%+v", r)
		}
	}
}

// One caller's answers leave room for the others.
func TestOneCallersAnswersLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxAnswer, o.MaxAnswers = 1<<20, 9<<20 })
	h := held{room: w.server.answers, who: everyone(1)}
	if err := h.grow(2 << 20); err != nil {
		t.Fatal(err)
	}
	if status, _, text := w.asks("k1"); status != http.StatusTooManyRequests || !strings.Contains(text, `"code":"rate_limit_exceeded"`) || len(w.e.checks) != 0 {
		t.Errorf("the same caller: %d %s", status, text)
	}
	if status, _, text := w.asks("k2"); status != http.StatusOK {
		t.Errorf("another one: %d %s", status, text)
	}
	h.free()
	if status, _, text := w.asks("k1"); status != http.StatusOK {
		t.Errorf("once it has room again: %d %s", status, text)
	}
}

// An answer for which no room comes free is given up, and its slot with it.
func TestAnAnswerThatFindsNoRoomIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	close(release)
	w := newWorld(t, func(o *Options) {
		o.MaxAnswer, o.MaxAnswers, o.IdleWait = 1<<20, 3<<20, 300*time.Millisecond
		from(t, slowly(900_000, release))(o)
	})
	h := held{room: w.server.answers, who: everyone(2)}
	_ = h.grow(1 << 20)
	w.server.beside <- struct{}{}
	o := held{room: w.server.answers, who: everyone(3)}
	_ = o.grow(1<<20 - firstAnswer)
	resp, body := w.ask(chatPath, hello+`}`)
	if r := w.recorded(); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"overloaded"`) || r.Outcome != "failed" {
		t.Errorf("%s %s, %+v", resp.Status, body, r)
	}
}

func TestFillReadsWhatThereIsAndAsksForNoMoreRoomThanThat(t *testing.T) {
	broken := errors.New("broken")
	text := strings.Repeat("0123456789", 100)
	for name, c := range map[string]struct {
		in     io.Reader
		length int64
		most   int64
		want   string
		err    error
		asked  []int64
	}{
		"known":                {strings.NewReader(text), 1000, 5000, text, nil, []int64{100, 1000}},
		"known, small":         {strings.NewReader("abc"), 3, 5000, "abc", nil, []int64{3}},
		"known, empty":         {strings.NewReader(""), 0, 5000, "", nil, []int64{0}},
		"known, in bytes":      {iotest.OneByteReader(strings.NewReader(text)), 1000, 5000, text, nil, []int64{100, 1000}},
		"known, and less":      {strings.NewReader("abc"), 4, 5000, "", io.EOF, []int64{4}},
		"not known":            {strings.NewReader(text), -1, 5000, text, nil, []int64{100, 200, 400, 800, 1600}},
		"not known, empty":     {strings.NewReader(""), -1, 5000, "", nil, []int64{100}},
		"not known, too large": {strings.NewReader(text), -1, 501, text[:501], nil, []int64{100, 200, 400, 501}},
		"ends with its error":  {iotest.DataErrReader(strings.NewReader(text)), 1000, 5000, text, nil, []int64{100, 1000}},
		"broken":               {io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), -1, 5000, "", broken, []int64{100}},
	} {
		var asked []int64
		got, err := fill(c.in, c.length, 100, c.most, func(n int64) error { asked = append(asked, n); return nil })
		if string(got) != c.want || !errors.Is(err, c.err) || fmt.Sprint(asked) != fmt.Sprint(c.asked) {
			t.Errorf("%s: %d bytes, %v, asked for %v, want %d, %v, %v", name, len(got), err, asked, len(c.want), c.err, c.asked)
		}
	}
	if _, err := fill(strings.NewReader(text), -1, 100, 5000, func(n int64) error {
		if n > 400 {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func everyone(i int) subject.Subject {
	return subject.Subject{Kind: subject.APIKey, ID: fmt.Sprintf("k%d", i)}
}

// counting is a counter that takes its time for long bodies, and notes how many it is at.
type counting struct {
	*tokens.Counter
	release    chan struct{}
	now, most  atomic.Int64
	begun, all atomic.Int64
}

func (c *counting) Count(kind tokens.Kind, model string, text []byte) (tokens.Counted, error) {
	c.all.Add(1)
	if len(text) >= longBody {
		c.most.Store(max(c.most.Load(), c.now.Add(1)))
		c.begun.Add(1)
		<-c.release
		c.now.Add(-1)
	}
	return c.Counter.Count(kind, model, text)
}

// Long bodies are counted a few at a time, so that short ones are served meanwhile; one whose client leaves while it waits is neither counted nor decided.
func TestLongBodiesTakeHalfOfTheProcessorsAtMost(t *testing.T) {
	c := &counting{Counter: counter(), release: make(chan struct{})}
	w := newWorld(t, func(o *Options) { o.Counter = c })
	turns := int64(max(1, runtime.GOMAXPROCS(0)/2))
	long := hello + `,"max_tokens":1,"x":"` + strings.Repeat("x", longBody) + `"}`
	var wg sync.WaitGroup
	for range turns + 3 {
		wg.Go(func() {
			if resp, body := w.ask(chatPath, long); resp.StatusCode != http.StatusOK {
				t.Errorf("%s %s", resp.Status, body)
			}
		})
	}
	for deadline := time.Now().Add(10 * time.Second); c.begun.Load() < turns || w.server.held() < (turns+3)*longBody; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the turns are not used")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, w.url+chatPath, strings.NewReader(long))
	req.Header.Set("Authorization", "Bearer k1")
	time.AfterFunc(100*time.Millisecond, cancel)
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Error(resp.Status)
	}
	if resp, body := w.ask(chatPath, hello+`,"max_tokens":1}`); resp.StatusCode != http.StatusOK {
		t.Errorf("a short one: %s %s", resp.Status, body)
	}
	close(c.release)
	wg.Wait()
	if c.most.Load() != turns || c.all.Load() != turns+3+1 || len(w.e.checks) != int(turns)+3+1 {
		t.Errorf("%d at once, want %d; %d counted, %d decided", c.most.Load(), turns, c.all.Load(), len(w.e.checks))
	}
}
