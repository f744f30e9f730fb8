// Package clickhousehttp asks the LEDGER over ClickHouse's HTTP interface, as finance's read-only user does.
//
// An answer that fails half-way is an error. ClickHouse has sent status 200 by then; it appends the exception between two marks that bear the
// tag of header X-ClickHouse-Exception-Tag, and breaks off without the last chunk (ClickHouse pull request 88818, from 25.11 on). So a body that
// breaks off is an error, and its end says which; older servers end the body properly, and only the mark tells. The mark counts only
// with the answer's own tag, which no data can know.
package clickhousehttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Client asks one database.
type Client struct {
	URL      string // http://host:port
	Database string
	User     string
	Password string
	HTTP     *http.Client
}

// Query is one question. Params are those that the SQL names as {name:Type}.
type Query struct {
	SQL      string
	Params   map[string]string
	Settings map[string]string
	Format   string // of the answer, such as CSVWithNames
}

const (
	exceptionMark = "__exception__"
	tailLen       = 32 << 10 // more than the longest exception that ClickHouse appends (16 KiB)
	maxError      = 2000     // bytes of an error's text
)

// Stream copies the answer to w as it comes. On an error w holds a part of it, and perhaps the text of the exception.
func (c *Client) Stream(ctx context.Context, q Query, w io.Writer) (n int64, err error) {
	form := url.Values{"database": {c.Database}, "default_format": {q.Format}}
	for k, v := range q.Params {
		form.Set("param_"+k, escape(v))
	}
	for k, v := range q.Settings {
		form.Set(k, v)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(c.URL, "/")+"/?"+form.Encode(), strings.NewReader(q.SQL))
	if err != nil {
		return 0, fmt.Errorf("ask ClickHouse: %w", err)
	}
	req.Header.Set("X-ClickHouse-User", c.User)
	req.Header.Set("X-ClickHouse-Key", c.Password)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // its text holds the whole query
			err = u.Err
		}
		return 0, fmt.Errorf("ask ClickHouse at %s: %w", c.URL, err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // what could be read is all there is to tell
		return 0, fmt.Errorf("ClickHouse answers %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	t := &tail{w: w}
	n, err = io.Copy(t, resp.Body)
	if text := t.exception(resp.Header.Get("X-ClickHouse-Exception-Tag")); text != "" {
		return n, fmt.Errorf("ClickHouse failed in the middle of its answer: %s", text)
	}
	if code := resp.Trailer.Get("X-ClickHouse-Exception-Code"); code != "" && code != "0" {
		return n, fmt.Errorf("ClickHouse failed in the middle of its answer, code %s", code)
	}
	if err != nil {
		return n, fmt.Errorf("the answer broke off after %d bytes: %w", n, err)
	}
	return n, nil
}

// escape writes a parameter's value as ClickHouse reads it: as a field of TSV.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\t", `\t`, "\n", `\n`).Replace(s)
}

// tail passes on what is written and keeps the end of it.
type tail struct {
	w    io.Writer
	last []byte
}

func (t *tail) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	t.last = append(t.last, p[:n]...)
	if over := len(t.last) - tailLen; over > tailLen {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	return n, err
}

// exception gives the text between the marks at the end, or "".
func (t *tail) exception(tag string) string {
	begin := exceptionMark + "\r\n"
	if tag != "" {
		begin += tag + "\r\n"
	}
	i := bytes.LastIndex(t.last, []byte(begin))
	if i < 0 || tag == "" && !bytes.HasPrefix(t.last[i+len(begin):], []byte("Code: ")) {
		return ""
	}
	text, _, _ := bytes.Cut(t.last[i+len(begin):], []byte("\n"))
	return string(bytes.TrimSpace(text[:min(len(text), maxError)]))
}

// Table is a small answer, whole. Values are JSON; numbers are exact, decimals are strings.
type Table struct {
	Columns []Column            `json:"meta"`
	Rows    [][]json.RawMessage `json:"data"`
}

// Column is a column of a Table.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Table asks for an answer that is held in memory.
func (c *Client) Table(ctx context.Context, q Query) (*Table, error) {
	q.Format = "JSONCompact"
	settings := map[string]string{"output_format_json_quote_64bit_integers": "0", "output_format_json_quote_decimals": "1", "output_format_json_quote_denormals": "1"}
	for k, v := range q.Settings {
		settings[k] = v
	}
	q.Settings = settings
	var b bytes.Buffer
	if _, err := c.Stream(ctx, q, &b); err != nil {
		return nil, err
	}
	var t Table
	if err := json.Unmarshal(b.Bytes(), &t); err != nil {
		return nil, fmt.Errorf("read ClickHouse's answer: %w", err)
	}
	return &t, nil
}
