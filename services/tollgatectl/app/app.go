package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/envfile"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

// IO is what a run may see of the world.
type IO struct {
	Environ        []string // "NAME=value" lines
	Dir            string   // where the search for .tollgate/env begins
	Stdout, Stderr io.Writer
	Ask            Asker // nil: nobody can be asked
}

// Values of --output.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// session is one run: the world and the flags that every command has.
type session struct {
	IO
	output  string
	envFile string
	admin   adminFlags
	faulty  error // of putting the commands together
}

// Run runs one command and returns its exit code.
func Run(ctx context.Context, args []string, world IO) int {
	world.Stdout = show.OnTerminal(world.Stdout)
	s := &session{IO: world}
	root, err := s.root()
	cmd := root
	if err == nil {
		root.SetArgs(args)
		cmd, err = root.ExecuteContextC(ctx)
	}
	return s.end(ctx, cmd, err)
}

func (s *session) root() (*cobra.Command, error) {
	root := &cobra.Command{
		Use:   "tollgatectl",
		Short: "Tollgate's command line: decide, meter and bill requests to AI inference services",
		Long: `Tollgate's command line, for admins, finance and operators.

Addresses and passwords come from TOLLGATE_… variables, else from the file .tollgate/env in this directory or a parent, which a running standalone
writes (--env-file names another one). Tokens may also come from files; no flag takes a secret, for every user of the machine could read it. Times are
RFC 3339, and UTC unless a command says otherwise. Answers go to standard output, all else to standard error.

` + exitCodes,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if s.output != outputTable && s.output != outputJSON {
				return usagef("--output must be table or json, is %q", s.output)
			}
			return nil
		},
	}
	root.SetOut(s.Stdout)
	root.SetErr(s.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	fs := root.PersistentFlags()
	fs.StringVarP(&s.output, "output", "o", outputTable, "`form` of the answer: table or json")
	fs.StringVar(&s.envFile, "env-file", "", "`file` of NAME=value lines (default: .tollgate/env in this directory or a parent, if there)")
	if err := root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{outputTable, outputJSON}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		return nil, err
	}
	query, err := queryCommand(s)
	if err != nil {
		return nil, err
	}
	root.AddGroup(&cobra.Group{ID: groupAdmin, Title: "Who may use how much:"}, &cobra.Group{ID: groupFinance, Title: "What was used:"}, &cobra.Group{ID: groupOperate, Title: "Is it right:"})
	reconcile := reconcileCommand(s)
	reconcile.AddCommand(reconcileBucketsCommand(s))
	root.AddCommand(quotaCommand(s), orgCommand(s), keyCommand(s), tierCommand(s), priceCommand(s), tokenCommand(s), refusalsCommand(s))
	root.AddCommand(query, exportCommand(s), usageCommand(s), topCommand(s), tailCommand(s), reconcile, rebuildCommand(s), replayCommand(s), versionCommand(s))
	return root, s.faulty
}

const (
	groupAdmin   = "admin"
	groupFinance = "finance"
	groupOperate = "operate"
)

// vars looks TOLLGATE_… names up.
func (s *session) vars() (func(name string) string, error) {
	if s.envFile != "" {
		return envfile.VarsIn(s.Environ, s.envFile)
	}
	return envfile.Vars(s.Environ, s.Dir)
}

// need looks names up that must be there.
func (s *session) need(names ...string) (map[string]string, error) {
	vars, err := s.vars()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	var missing []string
	for _, n := range names {
		if out[n] = vars(n); out[n] == "" {
			missing = append(missing, n)
		}
	}
	if missing != nil {
		return nil, usagef("%s: not set in the environment or %s; is `make run` running?", strings.Join(missing, ", "), cmp.Or(s.envFile, envfile.Name))
	}
	return out, nil
}

// httpURL tells whether a text is an address. A password in it is never told.
func httpURL(name, text string) error {
	if u, err := url.Parse(text); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return usagef("%s: %q is not a URL like http://127.0.0.1:8123", name, withoutSecrets(text))
	}
	return nil
}

// withoutSecrets takes out of an address, even of one that is none, where a password may stand: what is before an @ or after a ? or #.
func withoutSecrets(text string) string {
	if i := strings.LastIndexByte(text, '@'); i >= 0 {
		scheme, _, found := strings.Cut(text[:i], "//")
		if !found || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz:") != "" {
			scheme = ""
		} else {
			scheme += "//"
		}
		text = scheme + "…" + text[i:]
	}
	if i := strings.IndexAny(text, "?#"); i >= 0 {
		text = text[:i] + "…"
	}
	return text
}

// skip writes an empty line of the answer.
func (s *session) skip() { _, _ = fmt.Fprintln(s.Stdout) }

func (s *session) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Stderr, format+"\n", args...)
}

func versionCommand(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version this command was built from",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(s.Stdout, version())
			return err
		},
	}
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "tollgatectl (unknown build)"
	}
	v, revision, dirty := info.Main.Version, "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " with local changes"
		}
	}
	return fmt.Sprintf("tollgatectl %s%s%s %s", v, revision, dirty, info.GoVersion)
}
