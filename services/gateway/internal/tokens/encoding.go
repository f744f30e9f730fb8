package tokens

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/tiktoken-go/tokenizer"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// DefaultEncoding is a model's that configuration does not name.
const DefaultEncoding = string(tokenizer.O200kBase)

// anyModel is the model's name in a pair that sets the default.
const anyModel = "*"

// codec counts the tokens of a text.
type codec interface {
	Count(text string) (int, error)
}

// Encodings name the encoding of each model; that of "*" is the others'.
type Encodings map[string]string

var known = []string{string(tokenizer.O200kBase), string(tokenizer.Cl100kBase), string(tokenizer.P50kBase), string(tokenizer.R50kBase)}

// ParseEncodings reads pairs of model:encoding, such as "gpt-4:cl100k_base" and "*:o200k_base". It gives every fault.
func ParseEncodings(pairs []string) (Encodings, []error) {
	e := Encodings{anyModel: DefaultEncoding}
	seen := map[string]bool{}
	var errs []error
	for _, pair := range pairs {
		model, encoding, ok := strings.Cut(pair, ":")
		switch {
		case !ok || model != anyModel && subject.ValidateID(model) != nil:
			errs = append(errs, fmt.Errorf("%q must be a model, or *, and an encoding with a colon between", pair))
		case !slices.Contains(known, encoding):
			errs = append(errs, fmt.Errorf("%s: %q is not a known encoding: %s", model, encoding, strings.Join(known, ", ")))
		case seen[model]:
			errs = append(errs, fmt.Errorf("%s is given twice", model))
		default:
			e[model] = encoding
		}
		seen[model] = true
	}
	return e, errs
}

// Counter counts by the encoding of each model. It is safe for concurrent use.
type Counter struct {
	models map[string]codec
	other  codec
	seed   maphash.Seed // of the places where long texts are sampled
}

// New loads the encodings that are named, which takes some 50 ms each, so that no request waits for it.
func New(e Encodings) (*Counter, error) {
	c := &Counter{models: map[string]codec{}, seed: newSeed()}
	codecs := map[string]codec{}
	for _, model := range slices.Sorted(maps.Keys(e)) {
		name := e[model]
		if codecs[name] == nil {
			codec, err := tokenizer.Get(tokenizer.Encoding(name))
			if err != nil {
				return nil, fmt.Errorf("encoding %s: %w", name, err)
			}
			codecs[name] = codec
		}
		c.models[model] = codecs[name]
	}
	if c.other = c.models[anyModel]; c.other == nil {
		codec, err := tokenizer.Get(tokenizer.Encoding(DefaultEncoding))
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", DefaultEncoding, err)
		}
		c.other = codec
	}
	return c, nil
}

func newSeed() maphash.Seed { return maphash.MakeSeed() }

func (c *Counter) codec(model string) codec {
	if codec, ok := c.models[model]; ok {
		return codec
	}
	return c.other
}
