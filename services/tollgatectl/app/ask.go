package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

// Asker asks a person to confirm something. The error: no answer came.
type Asker func(ctx context.Context, question string) (yes bool, err error)

// Terminal asks on a terminal; nil if in or out is none.
func Terminal(in, out *os.File) Asker {
	if !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) { //nolint:gosec // a file descriptor fits an int
		return nil
	}
	return asker(in, out)
}

func asker(in io.Reader, out io.Writer) Asker {
	return func(ctx context.Context, question string) (bool, error) {
		_, _ = fmt.Fprintf(out, "%s [y/N] ", question)
		answer := make(chan string, 1)
		go func() { // a read can't be interrupted: it ends with the process
			line, _ := bufio.NewReader(in).ReadString('\n')
			answer <- strings.ToLower(strings.TrimSpace(line))
		}()
		select {
		case a := <-answer:
			return a == "y" || a == "yes", nil
		case <-ctx.Done():
			_, _ = fmt.Fprintln(out)
			return false, ctx.Err()
		}
	}
}

// confirm asks before something that can't be taken back. yes answers beforehand.
func (s *session) confirm(ctx context.Context, yes bool, question string) error {
	switch {
	case yes:
		return nil
	case s.Ask == nil:
		return usagef("%s\nNobody can be asked here: --yes says yes", question)
	}
	ok, err := s.Ask(ctx, show.Text(question))
	if err == nil && !ok {
		s.say("Nothing was done.")
		err = errReported
	}
	return err
}
