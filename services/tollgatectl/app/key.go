package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func keyCommand(s *session) *cobra.Command {
	cmd := s.adminGroup("key", "API keys of users and orgs: create, list, get, rotate, revoke, quota, history")
	cmd.AddCommand(keyCreateCommand(s), keyListCommand(s), keyGetCommand(s), keyRotateCommand(s), keyRevokeCommand(s), keyQuotaCommand(s),
		s.historyCommand("history KEY", "Show who changed a key, when, from what and to what", "KEY",
			func(k *api, ctx context.Context, key string, p client.Page) ([]told, string, error) {
				return quotaEvents(k.KeyEvents(ctx, key, p))
			}))
	return cmd
}

// keyID checks a key's id. A secret that is given for one must not become a path, nor be told again.
func keyID(text string) error {
	if strings.HasPrefix(text, "tg-") {
		return usagef("KEY must be a key's id, not its secret: tollgatectl key list shows the ids. The secret is in your shell's history now")
	}
	return id("KEY", text)
}

func keyCreateCommand(s *session) *cobra.Command {
	var n client.NewKey
	var once onceFlag
	limits := limitFlags{own: true}
	cmd := &cobra.Command{
		Use:   "create {--user USER | --org ORG}",
		Short: "Make an API key, and print its secret, once",
		Long: `Create makes a key of a user or of an org. A key of a user only narrows what its user has: a limit that is not given is unlimited at the key.
A key of an org is on a tier of its own (api, if not given), beside the org's pool.

The secret stands in the answer and nowhere else. A lost one is replaced by tollgatectl key rotate.`,
		Example: "  tollgatectl key create --user ann --name \"batch jobs\" --tpm 600\n  tollgatectl key create --org acme --tier api -o json > key.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := limits.apply(cmd, &n.Overrides); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			var key client.Key
			if err := once.make(cmd.Context(), k, func(ctx context.Context, once string) (err error) {
				n.Once = once
				key, err = k.CreateKey(ctx, n)
				return err
			}); err != nil {
				return err
			}
			return s.showKey(k, key)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&n.UserID, "user", "", "the `user` that owns it")
	fs.StringVar(&n.OrgID, "org", "", "the `org` that owns it")
	fs.StringVar(&n.Name, "name", "", "a `name` for people")
	fs.StringVar(&n.Tier, "tier", "", "the key's `tier`, if an org owns it")
	fs.BoolVar(&n.Suspended, "suspended", false, "make it suspended")
	fs.StringVar(&n.Reason, "reason", "", "`why`, for the history")
	limits.add(cmd, keyLimits, "none of the key's own")
	once.add(cmd)
	cmd.MarkFlagsOneRequired("user", "org")
	cmd.MarkFlagsMutuallyExclusive("user", "org")
	s.complete(cmd, "tier", s.tierNames)
	return cmd
}

// keyLimits are the limits that a key can have: shards are of who pays.
var keyLimits = limitSet{models: true, maxContext: true, modelLimits: true}

// showKey shows the API's last answer, which is key.
func (s *session) showKey(k *api, key client.Key) error {
	s.sayPropagation(key.Propagation)
	if key.Secret != "" {
		s.say("warning: the secret is shown this once and can't be asked for again. Keep it where only its user can read it.")
	}
	if s.output == outputJSON {
		return s.raw(k)
	}
	pairs := [][2]string{{"key", key.ID}, {"owner", owner(key)}, {"name", dash(key.Name)}, {"prefix", key.Prefix}, {"state", keyState(key)}, {"created", when(&key.CreatedAt)},
		{"rotations", itoa(key.Rotations)}, {"rotated", when(key.RotatedAt)}, {"revoked", when(key.RevokedAt)}, {"version", itoa(key.Version)}}
	if key.Propagation != "" {
		pairs = append(pairs, [2]string{"propagation", key.Propagation})
	}
	if key.Secret != "" {
		pairs = append(pairs, [2]string{"secret", key.Secret})
	}
	return show.Pairs(s.Stdout, pairs)
}

func owner(key client.Key) string {
	if key.UserID != "" {
		return "user " + key.UserID
	}
	return "org " + key.OrgID
}

func keyState(key client.Key) string {
	if key.RevokedAt != nil {
		return "revoked"
	}
	return state(key.Suspended)
}

func keyListCommand(s *session) *cobra.Command {
	var page pageFlags
	var user, org string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List API keys, revoked ones included, in the order they were made",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(cmd.Context(), s, page, "api_keys", func(k *api, ctx context.Context, p client.Page) ([]client.Key, string, error) {
				return k.ListKeys(ctx, user, org, p)
			},
				func(keys []client.Key) error {
					var rows [][]string
					for _, key := range keys {
						rows = append(rows, []string{key.ID, key.Prefix, owner(key), keyState(key), key.Name})
					}
					return show.List(s.Stdout, []string{"key", "prefix", "owner", "state", "name"}, make([]bool, 5), rows)
				})
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "only keys of this `user`")
	cmd.Flags().StringVar(&org, "org", "", "only keys that this `org` owns")
	page.add(cmd)
	return cmd
}

func keyGetCommand(s *session) *cobra.Command {
	return getCommand(s, &cobra.Command{Use: "get KEY", Short: "Show a key, without its secret"},
		keyID, (*api).GetKey, nil, func(_ context.Context, k *api, key client.Key, _ *time.Time) error { return s.showKey(k, key) })
}

func keyRotateCommand(s *session) *cobra.Command {
	var f changeFlags
	var once onceFlag
	cmd := &cobra.Command{
		Use:     "rotate KEY",
		Short:   "Give a key another secret, and print it, once; the old one is refused from the next request on",
		Example: "  tollgatectl key rotate 01936f2e-7c1a-7b02-9c21-2d3e4f5a6b02 --reason leaked",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := keyID(args[0]); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			var key client.Key
			if err := once.make(cmd.Context(), k, func(ctx context.Context, once string) (err error) {
				key, err = k.RotateKey(ctx, args[0], client.KeyChange{Reason: f.reason, IfVersion: f.version(cmd), Once: once})
				return err
			}); err != nil {
				return err
			}
			return s.showKey(k, key)
		},
	}
	f.add(cmd)
	once.add(cmd)
	return cmd
}

func keyRevokeCommand(s *session) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:     "revoke KEY",
		Short:   "Refuse a key from the next request on, for good",
		Example: "  tollgatectl key revoke 01936f2e-7c1a-7b02-9c21-2d3e4f5a6b02 --reason leaked --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if err := keyID(args[0]); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			if !f.yes {
				var key client.Key
				if err := k.get(ctx, func(ctx context.Context) (err error) { key, err = k.GetKey(ctx, args[0]); return err }); err != nil {
					return err
				}
				what := fmt.Sprintf("Revoke the key %s (%s…, %s, of %s) for good?", key.ID, key.Prefix, dash(key.Name), owner(key))
				if err := s.confirm(ctx, false, show.Text(what)); err != nil {
					return err
				}
			}
			var key client.Key
			if err := k.call(ctx, f.version(cmd) == nil, unanswered("key get "+args[0]), func(ctx context.Context) (err error) {
				key, err = k.RevokeKey(ctx, args[0], client.KeyChange{Reason: f.reason, IfVersion: f.version(cmd)})
				return err
			}); err != nil {
				return err
			}
			return s.showKey(k, key)
		},
	}
	f.add(cmd)
	f.addYes(cmd, "revoke without asking")
	return cmd
}
