package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
	"github.com/tollgate-dev/tollgate/pkg/testkit/retention"
)

// The group has committed 10 a partition and the log begins at 25: a comparison, the consumer's log and its metrics name 15 lost messages a partition,
// and the consumer goes on.
func TestMessagesThatRetentionTookBeforeTheyWereConsumedAreNamed(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, r *rig) {
		r.cfg.Reconcile = time.Second
		all := family("acme", 90)
		r.produce(all[:30]...)
		c := r.start()
		r.awaitEvents(30)
		r.awaitCommitted()
		c.mustStop()
		if strings.Contains(c.log.String(), "lost to retention") {
			t.Error("something is said to be lost before anything was")
		}
		r.produce(all[30:]...)
		retention.DropBefore(t, r.cfg.KafkaBrokers, r.cfg.Topic, 25)

		db, err := clickhouseledger.OpenSQL(r.cfg.ClickHouseURL.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		report, err := reconcile.Run(t.Context(), reconcile.Config{Ledger: clickhousetotals.Ledger{DB: db},
			Log: &kafkalog.Log{Brokers: r.cfg.KafkaBrokers, Topic: r.cfg.Topic, DeadLetterTopic: r.cfg.DeadLetterTopic, Group: r.cfg.Group}})
		if err != nil {
			t.Fatal(err)
		}
		for p := range partitions {
			want := reconcile.Difference{Kind: reconcile.KindOffsets, Where: fmt.Sprintf("partition %d", p), Name: reconcile.LostToRetention, Log: 25, Ledger: 10}
			if !slices.Contains(report.Differences, want) {
				t.Errorf("%s: does not name %s", report, want)
			}
		}

		c = r.start()
		r.awaitEvents(45)
		r.awaitCommitted()
		r.eventually(func() string {
			if n := c.metric(`tollgate_reconcile_differences{kind="offsets"}`); n != partitions {
				return fmt.Sprintf("differences: %v", n)
			}
			return ""
		})
		if n := c.metric("tollgate_consumer_lost_messages_total"); n != 45 {
			t.Errorf("%v messages are counted as lost, want 45", n)
		}
		if n := strings.Count(c.log.String(), `"msg":"messages were lost to retention before they were consumed"`); n != partitions {
			t.Errorf("%d lines of log tell of losses, want one a partition", n)
		}
		c.mustStop()
	})
}
