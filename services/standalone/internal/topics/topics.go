// Package topics makes the Kafka topics of DESIGN §6 where they are missing. The EVENT log is the truth, so it is kept for good.
package topics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Ensure makes every topic that is missing and leaves the others as they are. One copy of each partition: a production cluster's
// topics are its operators' to make.
func Ensure(ctx context.Context, brokers []string) error {
	forever := []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "-1"}}
	c := &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: 20 * time.Second}
	resp, err := c.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: usage.Topic, NumPartitions: usage.Partitions, ReplicationFactor: 1, ConfigEntries: forever},
		{Topic: usage.DeadLetterTopic, NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: forever},
		{Topic: usage.QuotaTopic, NumPartitions: usage.Partitions, ReplicationFactor: 1, ConfigEntries: []kafka.ConfigEntry{{ConfigName: "cleanup.policy", ConfigValue: "compact"}}},
	}})
	if err != nil {
		return fmt.Errorf("make the Kafka topics: %w", err)
	}
	for topic, err := range resp.Errors {
		if err != nil && !errors.Is(err, kafka.TopicAlreadyExists) {
			return fmt.Errorf("make the Kafka topic %s: %w", topic, err)
		}
	}
	return nil
}
