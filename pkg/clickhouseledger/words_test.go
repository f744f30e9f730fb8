package clickhouseledger

import (
	"fmt"
	"testing"
)

// The words of a column are sent as places in a list, whose width grows with it.
func TestAnyNumberOfDifferentWordsIsStored(t *testing.T) {
	for _, n := range []int{1, 256, 257, 70_000} {
		dsn, db := migrated(t)
		l := writer(t, dsn)
		all := events(0, n)
		for i := range all {
			all[i].Model = fmt.Sprint("model-", i)
			all[i].Outcome = "expired"
		}
		store(t, l, all)
		if got := number(t, db, "SELECT toInt64(countIf(model = 'model-' || toString(kafka_offset * 12 + kafka_partition) AND tier = 'plus' AND reason = '')) FROM usage_events"); got != int64(n) {
			t.Errorf("%d of %d events are as they were", got, n)
		}
		// Read back, to be replaced by real outcomes.
		for i := range all {
			all[i].Outcome = "completed"
		}
		if s := store(t, l, all); s.Replaced != n {
			t.Errorf("%d of %d were replaced", s.Replaced, n)
		}
		if got := number(t, db, "SELECT toInt64(count()) FROM usage_minutely WHERE startsWith(model, 'model-') AND requests = 1"); got != int64(n) {
			t.Errorf("%d of %d groups are right after the replacement", got, n)
		}
	}
}
