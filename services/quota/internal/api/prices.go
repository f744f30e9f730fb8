package api

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"
	"github.com/shopspring/decimal"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// priceBody is the body of PUT price. nil: the field was left out.
type priceBody struct {
	Input       *string `json:"input_per_million"`
	CachedInput *string `json:"cached_input_per_million"`
	Output      *string `json:"output_per_million"`
	Currency    *string `json:"currency"`
	ValidFrom   *string `json:"valid_from"`
	Reason      string  `json:"reason"`
}

// price gives what the body states and names what it leaves out or can't be read.
func (b priceBody) price(model string) (price.Price, []problem.FieldError) {
	p := price.Price{Model: model, Currency: price.DefaultCurrency}
	var wrong []problem.FieldError
	for _, f := range []struct {
		name     string
		text     *string
		to       *decimal.Decimal
		required bool
	}{{"input_per_million", b.Input, &p.Input, true}, {"cached_input_per_million", b.CachedInput, &p.CachedInput, false},
		{"output_per_million", b.Output, &p.Output, true}} {
		if f.text == nil {
			if f.required {
				wrong = append(wrong, problem.FieldError{Field: f.name, Detail: "is missing"})
			}
			continue
		}
		d, err := price.Parse(f.name, *f.text)
		wrong = append(wrong, fieldErrors(err)...)
		*f.to = d
	}
	if b.CachedInput == nil {
		p.CachedInput = p.Input
	}
	if b.Currency != nil {
		p.Currency = *b.Currency
	}
	if b.ValidFrom != nil {
		at, err := usage.ParseInstant(*b.ValidFrom)
		if err != nil {
			wrong = append(wrong, problem.FieldError{Field: "valid_from", Detail: err.Error()})
		} else {
			wrong = append(wrong, fieldErrors(price.CheckInstant(at))...)
			p.ValidFrom = at.UTC()
		}
	}
	return p, wrong
}

// priceView is a price as the API shows it.
type priceView struct {
	ValidFrom usage.Time `json:"valid_from"`
	price.Amounts
	Version   int64      `json:"version"`
	Actor     string     `json:"actor"`
	Reason    string     `json:"reason"`
	UpdatedAt usage.Time `json:"updated_at"`
}

// bookView is all prices of a model.
type bookView struct {
	Model   string      `json:"model"`
	Version int64       `json:"version"`
	InForce *priceView  `json:"in_force"`
	Prices  []priceView `json:"prices"`
}

func viewPrice(e pgquota.BookEntry) priceView {
	return priceView{ValidFrom: usage.At(e.ValidFrom), Amounts: price.AmountsOf(e.Price), Version: e.Version, Actor: e.Actor, Reason: e.Reason,
		UpdatedAt: usage.At(e.UpdatedAt)}
}

func viewBook(b pgquota.Book) bookView {
	v := bookView{Model: b.Model, Version: b.Version, Prices: make([]priceView, len(b.Entries))}
	for i, e := range b.Entries {
		v.Prices[i] = viewPrice(e)
	}
	if in := b.InForce(); in != nil {
		p := viewPrice(*in)
		v.InForce = &p
	}
	return v
}

func (s *server) listPrices(c echo.Context) error {
	books, err := s.Store.PriceBook(c.Request().Context())
	if err != nil {
		return err
	}
	views := make([]bookView, len(books))
	for i, b := range books {
		views[i] = viewBook(b)
	}
	return c.JSON(http.StatusOK, struct {
		Models []bookView `json:"models"`
	}{views})
}

func (s *server) getPrices(c echo.Context) error {
	model, err := pathID(c, "model")
	if err != nil {
		return err
	}
	if wrong := checkID("model", model); wrong != nil {
		return problem.Invalid(wrong...)
	}
	b, err := s.Store.Prices(c.Request().Context(), model)
	if err != nil {
		return err
	}
	if b.Version == 0 {
		return problem.New(http.StatusNotFound, problem.CodeNotFound, "The model has no price. Its usage is shown as unpriced in the ledger until it gets one.")
	}
	c.Response().Header().Set("ETag", etag(b.Version))
	if notModified(c.Request().Header, b.Version) {
		return c.NoContent(http.StatusNotModified)
	}
	return c.JSON(http.StatusOK, viewBook(b))
}

func (s *server) putPrice(c echo.Context) error {
	model, err := pathID(c, "model")
	if err != nil {
		return err
	}
	ctx, r := c.Request().Context(), c.Request()
	cond, wrong := precondition(r.Header)
	var body priceBody
	if err := strictjson.Read(r, &body); err != nil {
		fields, other := split(err)
		if other != nil {
			return other
		}
		wrong = append(wrong, fields...)
	}
	p, faults := body.price(model)
	change := pgquota.PriceChange{Price: p, If: cond, Actor: actor(c), Reason: body.Reason}
	wrong = merge(merge(wrong, faults), fieldErrors(change.Validate()))
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	res, err := s.Store.PutPrice(ctx, change)
	if err != nil {
		return err
	}
	s.settle(ctx, pgquota.KindPrice, res.Changed, nil) // with no fence it is always done: only Kafka is told, by the relay
	c.Response().Header().Set("ETag", etag(res.Book.Version))
	return c.JSON(http.StatusOK, viewBook(res.Book))
}

// priceEventView is one change of a price as the API shows it.
type priceEventView struct {
	Version   int64          `json:"version"`
	ValidFrom usage.Time     `json:"valid_from"`
	At        usage.Time     `json:"at"`
	Actor     string         `json:"actor"`
	Reason    string         `json:"reason"`
	Before    *price.Amounts `json:"before"`
	After     price.Amounts  `json:"after"`
}

func (s *server) priceEvents(c echo.Context) error {
	model, err := pathID(c, "model")
	if err != nil {
		return err
	}
	p, wrong := readPage(c, nil)
	if wrong = append(checkID("model", model), wrong...); len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	es, err := s.Store.PriceEvents(c.Request().Context(), model, p.version(), p.limit+1)
	if err != nil {
		return err
	}
	var answer struct {
		Events []priceEventView `json:"events"`
		Next   string           `json:"next_cursor"`
	}
	answer.Events, answer.Next = fill(p, es, func(e pgquota.PriceEvent) priceEventView {
		return priceEventView{e.Version, usage.At(e.ValidFrom), usage.At(e.At), e.Actor, e.Reason, e.Before, e.After}
	}, func(e pgquota.PriceEvent) string { return strconv.FormatInt(e.Version, 10) })
	return c.JSON(http.StatusOK, answer)
}
