package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/tail"
)

func tailCommand(s *session) *cobra.Command {
	var f tail.Filter
	var since time.Duration
	var limit int64
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow usage records as they are written to Kafka",
		Long: `Tail shows usage records as they are written, until Ctrl-C. It reads from the log, not the ledger: a repeat is shown again. With --output json each
line is one record with its place in the log. Records of one payer come in order. Times of day are UTC, tokens are input + output.`,
		Example: "  tollgatectl tail --org acme\n  tollgatectl tail --since 10m --outcome failed -o json",
		GroupID: groupFinance,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if since < 0 || limit < 0 {
				return usagef("--since and --limit must not be negative")
			}
			v, err := s.need("TOLLGATE_KAFKA_BROKERS")
			if err != nil {
				return err
			}
			var from time.Time
			if since > 0 {
				from = time.Now().Add(-since)
			}
			shown := int64(0)
			return tail.Follow(cmd.Context(), strings.Split(v["TOLLGATE_KAFKA_BROKERS"], ","), usage.Topic, from, func(m tail.Message) error {
				if m.Unusable != "" {
					s.say("partition %d, offset %d can't be used: %s", m.Partition, m.Offset, m.Unusable)
					return nil
				}
				if !f.Wants(&m.Record) {
					return nil
				}
				if err := s.showRecord(m); err != nil {
					return err
				}
				if shown++; shown == limit {
					return tail.ErrEnough
				}
				return nil
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.Org, "org", "", "only of this `org`")
	fs.StringVar(&f.User, "user", "", "only of this `user`")
	fs.StringVar(&f.Key, "key", "", "only of this API `key`'s id")
	fs.StringVar(&f.Model, "model", "", "only of this served `model`")
	fs.StringVar(&f.Outcome, "outcome", "", "only with this `outcome`: completed, cancelled, failed, expired, rejected, adjustment")
	s.complete(cmd, "outcome", fixed("completed", "cancelled", "failed", "expired", "rejected", "adjustment"))
	fs.DurationVar(&since, "since", 0, "begin with what was written so long ago (0: with what comes)")
	fs.Int64Var(&limit, "limit", 0, "end after so many `records` (0: never)")
	return cmd
}

func (s *session) showRecord(m tail.Message) error {
	if s.output == outputJSON {
		b, err := json.Marshal(m)
		if err == nil {
			_, err = fmt.Fprintln(s.Stdout, show.Escape(string(b)))
		}
		return err
	}
	r := &m.Record
	payer := "user " + r.UserID
	if r.APIKeyID != "" {
		payer = "key " + r.APIKeyID
	}
	if r.OrgID != "" {
		payer = r.OrgID + " " + payer
	}
	what := fmt.Sprintf("%d+%d", r.InputTokens, r.OutputTokens)
	if r.WasRateLimited {
		what = strings.TrimSpace(r.Reason + " " + r.Scope)
	}
	// The payer stands last: with its key's id it is the longest, and the line still fits 100 columns.
	_, err := fmt.Fprintf(s.Stdout, "%s  %-10s  %-16s  %-12s  %s\n", time.Time(r.Timestamp).UTC().Format(time.TimeOnly), r.Outcome, show.Text(what), show.Text(r.Model), show.Text(payer))
	return err
}
