package pgquota

import _ "embed"

// Every statement is a file with a header that says what it takes and gives.
var (
	//go:embed sql/begin_change.sql
	sqlBeginChange string
	//go:embed sql/insert_outbox.sql
	sqlInsertOutbox string
	//go:embed sql/insert_quota_event.sql
	sqlInsertQuotaEvent string
	//go:embed sql/insert_tier_event.sql
	sqlInsertTierEvent string
	//go:embed sql/list_events.sql
	sqlListEvents string
	//go:embed sql/list_quotas.sql
	sqlListQuotas string
	//go:embed sql/list_tiers.sql
	sqlListTiers string
	//go:embed sql/mark_kafka.sql
	sqlMarkKafka string
	//go:embed sql/mark_redis.sql
	sqlMarkRedis string
	//go:embed sql/now.sql
	sqlNow string
	//go:embed sql/outbox_backlog.sql
	sqlOutboxBacklog string
	//go:embed sql/outbox_kafka.sql
	sqlOutboxKafka string
	//go:embed sql/outbox_redis.sql
	sqlOutboxRedis string
	//go:embed sql/outbox_redis_by_name.sql
	sqlOutboxRedisByName string
	//go:embed sql/prune_outbox.sql
	sqlPruneOutbox string
	//go:embed sql/select_quota.sql
	sqlSelectQuota string
	//go:embed sql/select_tier.sql
	sqlSelectTier string
	//go:embed sql/upsert_quota.sql
	sqlUpsertQuota string
	//go:embed sql/upsert_tier.sql
	sqlUpsertTier string
)
