package app

import (
	"cmp"
	"context"

	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/kafkasource"
)

// Behind is how many messages of the log the ledger of this configuration's group may not know yet: those that the group has not committed.
func Behind(ctx context.Context, cfg Config) (int64, error) {
	lag, err := kafkasource.Lag(ctx, kafkasource.Config{Brokers: cfg.KafkaBrokers, Topic: cmp.Or(cfg.Topic, usage.Topic), Group: cfg.Group, ClientID: cfg.Instance})
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range lag {
		sum += n
	}
	return sum, nil
}
