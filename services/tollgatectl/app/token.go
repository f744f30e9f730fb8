package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func tokenCommand(s *session) *cobra.Command {
	cmd := s.adminGroup("token", "Tokens of the admin API: create, list, revoke")
	cmd.AddCommand(tokenCreateCommand(s), tokenListCommand(s), tokenRevokeCommand(s))
	return cmd
}

func tokenCreateCommand(s *session) *cobra.Command {
	var n client.NewAdminToken
	var once onceFlag
	var role, expires string
	cmd := &cobra.Command{
		Use:   "create NAME --role ROLE",
		Short: "Make a token of the admin API, and print it, once",
		Long: `Create makes a token. A viewer may read; an admin may do everything; an org-admin sees and changes one org. The name stands for the token in histories, and is
never used again. The token stands in the answer and nowhere else.`,
		Example: "  tollgatectl token create alice --role viewer --expires-at 2027-01-01T00:00:00Z\n  tollgatectl token create acme-it --role org-admin --org acme",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if role == "" {
				return usagef("--role: must be given: viewer, admin or org-admin")
			}
			var err error
			if n.ExpiresAt, err = instant("expires-at", expires); err != nil {
				return err
			}
			if err := tokenName(args[0]); err != nil {
				return err
			}
			n.Name, n.Role = args[0], auth.Role(role)
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			var t client.AdminToken
			if err := once.make(cmd.Context(), k, func(ctx context.Context, once string) (err error) {
				n.Once = once
				t, err = k.CreateAdminToken(ctx, n)
				return err
			}); err != nil {
				return err
			}
			return s.showToken(k, t)
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "viewer, admin or org-admin (required)")
	cmd.Flags().StringVar(&n.OrgID, "org", "", "the `org` of an org-admin")
	cmd.Flags().StringVar(&expires, "expires-at", "", "the `instant` from which on it is refused, RFC 3339 (default: never)")
	once.add(cmd)
	s.complete(cmd, "role", fixed(string(auth.Viewer), string(auth.Admin), string(auth.OrgAdmin)))
	return cmd
}

// showToken shows the API's last answer, which is t.
func (s *session) showToken(k *api, t client.AdminToken) error {
	if t.Token != "" {
		s.say("warning: the token is shown this once and can't be asked for again. Keep it where only its bearer can read it.")
	}
	if s.output == outputJSON {
		return s.raw(k)
	}
	pairs := [][2]string{{"name", t.Name}, {"role", string(t.Role)}, {"org", dash(t.OrgID)}, {"created by", t.CreatedBy}, {"created", when(&t.CreatedAt)}, {"expires", when(t.ExpiresAt)},
		{"revoked by", dash(t.RevokedBy)}, {"revoked", when(t.RevokedAt)}}
	if t.Token != "" {
		pairs = append(pairs, [2]string{"token", t.Token})
	}
	return show.Pairs(s.Stdout, pairs)
}

// tokenName checks a token's name. A token that is given for one must not become a path, nor be told again.
func tokenName(text string) error {
	if strings.HasPrefix(text, "tg-") {
		return usagef("NAME must be a token's name, not the token: tollgatectl token list shows the names. The token is in your shell's history now")
	}
	return id("NAME", text)
}

func tokenState(t client.AdminToken, now time.Time) string {
	switch {
	case t.RevokedAt != nil:
		return "revoked " + when(t.RevokedAt)
	case t.ExpiresAt == nil:
		return "active"
	case t.ExpiresAt.After(now):
		return "expires " + when(t.ExpiresAt)
	}
	return "expired " + when(t.ExpiresAt)
}

func tokenListCommand(s *session) *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tokens of the admin API by name, expired and revoked ones too",
		Long:  "List tokens by name, expired and revoked ones too. Those of the service's environment are not among them.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(cmd.Context(), s, page, "admin_tokens", (*api).ListAdminTokens, func(tokens []client.AdminToken) error {
				var rows [][]string
				for _, t := range tokens {
					rows = append(rows, []string{t.Name, string(t.Role), dash(t.OrgID), t.CreatedBy, tokenState(t, time.Now())})
				}
				return show.List(s.Stdout, []string{"name", "role", "org", "created by", "state"}, make([]bool, 5), rows)
			})
		},
	}
	page.add(cmd)
	return cmd
}

func tokenRevokeCommand(s *session) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Refuse a token from the next call on, for good",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := tokenName(args[0]); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			if err := s.confirm(cmd.Context(), f.yes, fmt.Sprintf("Revoke the token %s for good?", args[0])); err != nil {
				return err
			}
			var t client.AdminToken
			if err := k.call(cmd.Context(), true, "", func(ctx context.Context) (err error) { t, err = k.RevokeAdminToken(ctx, args[0]); return err }); err != nil {
				return err
			}
			return s.showToken(k, t)
		},
	}
	f.addYes(cmd, "revoke without asking")
	return cmd
}

func refusalsCommand(s *session) *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:     "refusals",
		Short:   "Show who tried what without the right, the newest first",
		Long:    "Show the audit log of refused calls, the newest first, some seconds late. Attempts of one kind within five seconds are one row; what was called is the first one's.",
		GroupID: groupAdmin,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(cmd.Context(), s, page, "refusals", (*api).ListRefusals, func(refusals []client.Refusal) error {
				var rows [][]string
				for _, r := range refusals {
					rows = append(rows, []string{when(&r.LastAt), replay.Commas(r.Attempts), r.Reason, dash(r.Actor), r.Address, r.Method + " " + r.Path})
				}
				return show.List(s.Stdout, []string{"last at", "attempts", "reason", "actor", "address", "call"}, []bool{false, true, false, false, false, false}, rows)
			})
		},
	}
	s.addAdminFlags(cmd)
	page.add(cmd)
	return cmd
}
