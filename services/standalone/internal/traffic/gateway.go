package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Gateway is asked as any OpenAI client asks.
type Gateway struct {
	URL  string // without /v1
	HTTP *http.Client
}

// Request is one request of a client.
type Request struct {
	Path  string // below /v1; chat/completions if empty
	Body  map[string]any
	Leave int // after so many events of a stream; 0: not before its end
}

// Answer is what the client got.
type Answer struct {
	ID            uuid.UUID // of the request, in bills too
	Status        int
	Code          string        // of an error
	Wait          time.Duration // after which the client is to ask again; 0: none was told
	Input, Output int64         // tokens, as the answer tells
	Events        int           // of a stream, that bore a choice
	Done          bool          // a stream ended in [DONE]
}

// patience is how long a request is repeated that was told to come again because no decision could be had: clients have that of their own.
const patience = 30 * time.Second

// Ask asks. An answer with an error is an Answer; Error: there was none, or none that a client can read.
func (g *Gateway) Ask(ctx context.Context, secret string, q Request) (Answer, error) {
	begin := time.Now()
	for {
		a, err := g.once(ctx, secret, q)
		if err != nil || a.Status != http.StatusServiceUnavailable || time.Since(begin) > patience {
			return a, err
		}
		select {
		case <-time.After(a.Wait):
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
}

func (g *Gateway) once(ctx context.Context, secret string, q Request) (Answer, error) {
	body, err := json.Marshal(q.Body)
	if err != nil {
		return Answer{}, err
	}
	path := q.Path
	if path == "" {
		path = "chat/completions"
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.HTTP.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	a := Answer{Status: resp.StatusCode}
	if a.ID, err = uuid.Parse(resp.Header.Get("X-Request-Id")); err != nil {
		return a, fmt.Errorf("%s: X-Request-Id: %w", resp.Status, err)
	}
	if ms, err := strconv.ParseInt(resp.Header.Get("Retry-After-Ms"), 10, 64); err == nil {
		a.Wait = time.Duration(ms) * time.Millisecond
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		err = a.readStream(resp.Body, q.Leave)
		return a, err
	}
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = a.read(text)
	}
	return a, err
}

// chunk is what a client reads in an answer, or in an event of a stream.
type chunk struct {
	Choices []json.RawMessage `json:"choices"`
	Usage   *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
	} `json:"usage"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (a *Answer) read(text []byte) error {
	var c chunk
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("status %d: %w", a.Status, err)
	}
	if c.Usage != nil {
		a.Input, a.Output = c.Usage.Prompt, c.Usage.Completion
	}
	if len(c.Choices) > 0 {
		a.Events++
	}
	if c.Error != nil {
		a.Code = c.Error.Code
		if a.Status == http.StatusOK {
			return errors.New(c.Error.Message)
		}
	}
	return nil
}

func (a *Answer) readStream(r io.Reader, leave int) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			a.Done = true
			return nil
		}
		if err := a.read([]byte(data)); err != nil {
			return err
		}
		if leave > 0 && a.Events == leave {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("a stream has ended without [DONE]")
}
