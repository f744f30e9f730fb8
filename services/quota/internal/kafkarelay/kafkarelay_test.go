package kafkarelay

import (
	"errors"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
)

// After a partial failure nothing of a key that lies behind its first failed event counts as sent: it would be overtaken by the repeat.
func TestPartialFailureKeepsTheOrderOfEachKey(t *testing.T) {
	rows := []pgquota.Message{{ID: 1, Name: "a"}, {ID: 2, Name: "b"}, {ID: 3, Name: "a"}, {ID: 4, Name: "b"}, {ID: 5, Name: "a"}}
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		err  error
		want []int64
	}{
		"all sent":        {nil, []int64{1, 2, 3, 4, 5}},
		"none sent":       {boom, nil},
		"first of a":      {kafka.WriteErrors{boom, nil, nil, nil, nil}, []int64{2, 4}},
		"middle of a":     {kafka.WriteErrors{nil, nil, boom, nil, nil}, []int64{1, 2, 4}},
		"last of b":       {kafka.WriteErrors{nil, nil, nil, boom, nil}, []int64{1, 2, 3, 5}},
		"of another call": {kafka.WriteErrors{nil}, nil},
	} {
		if got := acknowledged(rows, c.err); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
