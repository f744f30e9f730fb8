package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

// callTimeout is how long one call may take: the service gives itself 10 s for the store, and then publishes.
const callTimeout = 20 * time.Second

// pauses are how long to wait before each repeat of a call that may be repeated.
var pauses = []time.Duration{250 * time.Millisecond, time.Second}

// adminFlags say where the quota API is and whose token is used.
type adminFlags struct{ url, tokenFile string }

func (s *session) addAdminFlags(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&s.admin.url, "quota-url", "", "`address` of the quota API (default: TOLLGATE_QUOTA_URL)")
	cmd.PersistentFlags().StringVar(&s.admin.tokenFile, "token-file", "", "`file` that holds the admin token (default: TOLLGATE_ADMIN_TOKEN, or to read TOLLGATE_VIEWER_TOKEN)")
}

// group makes a command that only has others.
func (s *session) group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
}

// adminGroup is a group of commands that talk to the quota API.
func (s *session) adminGroup(use, short string) *cobra.Command {
	cmd := s.group(use, short)
	cmd.GroupID = groupAdmin
	s.addAdminFlags(cmd)
	return cmd
}

// api is the quota API for one command.
type api struct {
	*client.Quotas
	tokenFrom string
	answers   [][]byte // as they came, the last one last
}

// ability is what a command needs of its token.
type ability bool

const (
	reads   ability = false
	changes ability = true
)

func (s *session) api(a ability) (*api, error) {
	vars, err := s.vars()
	if err != nil {
		return nil, err
	}
	var wrong []error
	base, from := cmp.Or(s.admin.url, vars("TOLLGATE_QUOTA_URL")), "TOLLGATE_QUOTA_URL"
	if s.admin.url != "" {
		from = "--quota-url"
	}
	if base == "" {
		wrong = append(wrong, errors.New("the quota API's address is not known: set TOLLGATE_QUOTA_URL or give --quota-url; is `make run` running?"))
	} else if err := httpURL(from, base); err != nil {
		wrong = append(wrong, err)
	}
	var token string
	k := &api{}
	if s.admin.tokenFile != "" {
		k.tokenFrom = s.admin.tokenFile
		if token, err = s.tokenIn("token-file", s.admin.tokenFile); err != nil {
			wrong = append(wrong, err)
		}
	} else {
		names := []string{"TOLLGATE_ADMIN_TOKEN"}
		if a == reads {
			names = append(names, "TOLLGATE_VIEWER_TOKEN")
		}
		for _, n := range names {
			if token == "" {
				token, k.tokenFrom = vars(n), n
			}
		}
		switch {
		case token == "":
			wrong = append(wrong, fmt.Errorf("no token: set %s or give --token-file", strings.Join(names, " or ")))
		case !oneToken(token):
			wrong = append(wrong, fmt.Errorf("%s must hold one token and nothing else", k.tokenFrom))
		}
	}
	if len(wrong) > 0 {
		return nil, usageError{errors.Join(wrong...)}
	}
	k.Quotas = client.NewQuotas(base, token, client.WithConnections(1), client.WithAnswerHook(func(b []byte) { k.answers = append(k.answers, b) }))
	return k, nil
}

// maxToken bounds a token's file, in bytes.
const maxToken = 4096

// tokenIn reads a token's file, and warns where others can read it too.
func (s *session) tokenIn(flag, path string) (string, error) {
	f, err := os.Open(path) //nolint:gosec // the path is the user's own
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	defer func() { _ = f.Close() }() // read only
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		s.say("warning: others can read %s: chmod 600 it", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || len(b) > maxToken || !oneToken(token) {
		return "", fmt.Errorf("--%s: %s must hold one token and nothing else", flag, path)
	}
	return token, nil
}

// oneToken tells whether a text can be a token: the error of net/http would come too late, and name nothing.
func oneToken(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// get makes a call that may be repeated.
func (k *api) get(ctx context.Context, f func(context.Context) error) error {
	return k.call(ctx, true, "", f)
}

// call makes one call, and again where it can't have arrived, or where that is safe. after tells what to do where no answer came in the end.
func (k *api) call(ctx context.Context, safe bool, after string, f func(context.Context) error) error {
	for try := 0; ; try++ {
		once, cancel := context.WithTimeout(ctx, callTimeout)
		err := f(once)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil || try == len(pauses) || !unsent(err) && !(safe && away(err)):
			if unsent(err) {
				after = ""
			}
			return &adminError{err: err, token: k.tokenFrom, after: after}
		}
		select {
		case <-time.After(pauses[try]):
		case <-ctx.Done():
		}
	}
}

// unsent tells that a call never reached the service.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// away tells that no answer came, or that the service can't serve now.
func away(err error) bool {
	var p *problem.Problem
	return !errors.As(err, &p) || p.Code == problem.CodeUnavailable
}

// onceFlag is --idempotency-key.
type onceFlag struct{ key string }

func (f *onceFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.key, "idempotency-key", "", "`key` of the caller's own, under which the command may be given again for a day and gets the same answer (default: one made for this run)")
}

// make makes a POST: the same one however often it is sent.
func (f *onceFlag) make(ctx context.Context, k *api, post func(ctx context.Context, once string) error) error {
	once := cmp.Or(f.key, rand.Text())
	return k.call(ctx, true, "It may have been made all the same. Give the same command with --idempotency-key "+show.Text(once)+" to get its answer.",
		func(ctx context.Context) error { return post(ctx, once) })
}

// raw writes the API's last answer, as it came.
func (s *session) raw(k *api) error { return show.RawJSON(s.Stdout, k.answers[len(k.answers)-1]) }

// pageFlags are those of a list.
type pageFlags struct {
	limit  int
	cursor string
}

func (f *pageFlags) add(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.limit, "limit", 1000, "at most so many `rows` (0: all)")
	cmd.Flags().StringVar(&f.cursor, "cursor", "", "go on behind this `next_cursor` of the same list")
}

// pageSize is the most that the API gives at once.
const pageSize = 1000

// list reads a list to its end or to --limit rows, and shows it by show or, as one document, as the API wrote it. name is the list's in that document.
func list[T any](ctx context.Context, s *session, f pageFlags, name string, read func(*api, context.Context, client.Page) ([]T, string, error), table func([]T) error) error {
	k, err := s.api(reads)
	if err != nil {
		return err
	}
	defer k.Close()
	if f.limit < 0 {
		return usagef("--limit must not be negative")
	}
	var all []T
	next := f.cursor
	for more := true; more; more = next != "" && (f.limit == 0 || len(all) < f.limit) {
		p := client.Page{Limit: pageSize, Cursor: next}
		if f.limit > 0 {
			p.Limit = min(pageSize, f.limit-len(all))
		}
		var items []T
		if err := k.get(ctx, func(ctx context.Context) (err error) {
			items, next, err = read(k, ctx, p)
			return err
		}); err != nil {
			return err
		}
		all = append(all, items...)
	}
	if s.output == outputJSON {
		return s.pages(k, name, next)
	}
	if err := table(all); err != nil {
		return err
	}
	if next != "" {
		s.say("More follow: --limit 0 shows all, --cursor %s goes on from here.", show.Text(next))
	}
	return nil
}

// pages writes all answers as one: their lists joined.
func (s *session) pages(k *api, name, next string) error {
	all := []json.RawMessage{}
	for _, a := range k.answers {
		var page map[string]json.RawMessage
		var items []json.RawMessage
		if err := json.Unmarshal(a, &page); err != nil {
			return err
		}
		if err := json.Unmarshal(page[name], &items); err != nil {
			return fmt.Errorf("%s in the answer: %w", name, err)
		}
		all = append(all, items...)
	}
	return show.JSON(s.Stdout, document{name, all, next})
}

// document is a list as the API writes it.
type document struct {
	name  string
	items []json.RawMessage
	next  string
}

// MarshalJSON writes the list first.
func (d document) MarshalJSON() ([]byte, error) {
	items, err := json.Marshal(d.items)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{%q:%s,"next_cursor":%q}`, d.name, items, d.next), nil
}

// sayPropagation warns where a change is kept but not yet seen by every check.
func (s *session) sayPropagation(propagation string) {
	if propagation == "pending" {
		s.say("warning: the change is kept, but Redis can't be reached: checks see it as soon as Redis is back (propagation: pending)")
	}
}
