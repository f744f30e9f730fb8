package app

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func priceCommand(s *session) *cobra.Command {
	cmd := s.adminGroup("price", "What a model's tokens cost, from when on: get, set, list, history")
	cmd.AddCommand(priceGetCommand(s), priceSetCommand(s), priceListCommand(s),
		s.historyCommand("history MODEL", "Show who changed a model's prices, when, from what and to what", "MODEL",
			func(k *api, ctx context.Context, model string, p client.Page) ([]told, string, error) {
				events, next, err := k.PriceEvents(ctx, model, p)
				out := make([]told, len(events))
				for i, e := range events {
					out[i] = told{e.Version, e.At, e.Actor, e.Reason, priceThen(e.ValidFrom, e.Before), priceThen(e.ValidFrom, &e.After), "valid_from"}
				}
				return out, next, err
			}))
	return cmd
}

// priceThen is a price with when it begins; nil for none.
func priceThen(from time.Time, a *price.Amounts) any {
	if a == nil {
		return nil
	}
	return map[string]string{"valid_from": usage.At(from).String(), "currency": a.Currency, "input": a.Input, "cached_input": a.CachedInput, "output": a.Output}
}

func priceGetCommand(s *session) *cobra.Command {
	return getCommand(s, &cobra.Command{Use: "get MODEL", Short: "Show a model's prices, past and future ones too"},
		named("MODEL"), (*api).GetPrices, nil, func(_ context.Context, k *api, book client.PriceBook, _ *time.Time) error {
			return s.showPrices(k, book)
		})
}

func priceSetCommand(s *session) *cobra.Command {
	var f changeFlags
	var change client.PriceChange
	var from string
	cmd := &cobra.Command{
		Use:   "set MODEL --input-price AMOUNT --output-price AMOUNT",
		Short: "State what a million tokens of a model cost from an instant on",
		Long: `Set states one price of a model: it holds until the model's next one. One that begins at the same instant is replaced; all others stay. There is no way to
remove a price; a model that costs nothing has the price 0. A --valid-from in the past prices anew what was used since. The ledger follows within seconds.`,
		Example: "  tollgatectl price set grok-2 --input-price 3.00 --cached-input-price 0.75 --output-price 15.00 --valid-from 2027-01-01T00:00:00Z --reason \"new year\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			model, ctx := args[0], cmd.Context()
			if missing := notGiven(cmd, "input-price", "output-price"); len(missing) > 0 {
				return usagef("%s: must be given", strings.Join(missing, ", "))
			}
			var err error
			if change.ValidFrom, err = instant("valid-from", from); err != nil {
				return err
			}
			if err := id("MODEL", model); err != nil {
				return err
			}
			k, err := s.api(changes)
			if err != nil {
				return err
			}
			defer k.Close()
			var before client.PriceBook // of version 0, where the model has none
			err = k.get(ctx, func(ctx context.Context) (err error) { before, err = k.GetPrices(ctx, model); return err })
			if err != nil && !isNotFound(err) {
				return err
			}
			change.Reason, change.IfVersion = f.reason, f.version(cmd)
			var book client.PriceBook
			if err := k.call(ctx, change.IfVersion == nil, unanswered("price history "+model), func(ctx context.Context) (err error) {
				book, err = k.PutPrice(ctx, model, change)
				return err
			}); err != nil {
				return err
			}
			s.sayIfUnchanged(before.Version, book.Version)
			if book.Version != before.Version && change.ValidFrom != nil && change.ValidFrom.Before(time.Now()) {
				s.say("note: %s is past: what was used since then is priced anew", when(change.ValidFrom))
			}
			return s.showPrices(k, book)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&change.Input, "input-price", "", "`amount` for a million input tokens, as in 3.00 (required)")
	fs.StringVar(&change.CachedInput, "cached-input-price", "", "`amount` for a million cached input tokens (default: as --input-price)")
	fs.StringVar(&change.Output, "output-price", "", "`amount` for a million output tokens (required)")
	fs.StringVar(&change.Currency, "currency", "", "ISO 4217 `code` (default: USD)")
	fs.StringVar(&from, "valid-from", "", "the `instant` from which on it holds, RFC 3339 (default: now)")
	f.add(cmd)
	return cmd
}

// showPrices shows the API's last answer, which is book.
func (s *session) showPrices(k *api, book client.PriceBook) error {
	if s.output == outputJSON {
		return s.raw(k)
	}
	if err := show.Pairs(s.Stdout, [][2]string{{"model", book.Model}, {"version", itoa(book.Version)}}); err != nil {
		return err
	}
	s.skip()
	var rows [][]string
	for _, p := range book.Prices {
		now := "future"
		switch in := book.InForce; {
		case in == nil:
		case in.ValidFrom.Equal(p.ValidFrom):
			now = "in force"
		case in.ValidFrom.After(p.ValidFrom):
			now = "past"
		}
		rows = append(rows, []string{when(&p.ValidFrom), p.Currency, p.Input, p.CachedInput, p.Output, now, p.Actor, p.Reason})
	}
	return show.List(s.Stdout, []string{"valid from", "currency", "input", "cached", "output", "state", "by", "reason"}, []bool{false, false, true, true, true, false, false, false}, rows)
}

func priceListCommand(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the price book: what a million tokens of each model cost now",
		Long:  "Show what a million tokens of each model cost now, by model. With --output json past and future prices too, as tollgatectl price get shows them.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := s.api(reads)
			if err != nil {
				return err
			}
			defer k.Close()
			var books []client.PriceBook
			if err := k.get(cmd.Context(), func(ctx context.Context) (err error) { books, err = k.ListPrices(ctx); return err }); err != nil {
				return err
			}
			if s.output == outputJSON {
				return s.raw(k)
			}
			var rows [][]string
			for _, b := range books {
				row := []string{b.Model, "-", "-", "-", "-", "-"}
				if p := b.InForce; p != nil {
					row = []string{b.Model, p.Currency, p.Input, p.CachedInput, p.Output, when(&p.ValidFrom)}
				}
				rows = append(rows, append(row, itoa(int64(len(b.Prices)))))
			}
			return show.List(s.Stdout, []string{"model", "currency", "input", "cached", "output", "valid from", "prices"}, []bool{false, false, true, true, true, false, true}, rows)
		},
	}
}
