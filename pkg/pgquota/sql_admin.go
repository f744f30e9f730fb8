package pgquota

import _ "embed"

// Of tokens, refusals, repeated calls, lists and histories.
var (
	//go:embed sql/insert_admin_token.sql
	sqlInsertAdminToken string
	//go:embed sql/insert_refusal.sql
	sqlInsertRefusal string
	//go:embed sql/list_admin_tokens.sql
	sqlListAdminTokens string
	//go:embed sql/list_orgs.sql
	sqlListOrgs string
	//go:embed sql/list_price_events.sql
	sqlListPriceEvents string
	//go:embed sql/list_refusals.sql
	sqlListRefusals string
	//go:embed sql/list_tier_events.sql
	sqlListTierEvents string
	//go:embed sql/once_insert.sql
	sqlOnceInsert string
	//go:embed sql/once_lock.sql
	sqlOnceLock string
	//go:embed sql/once_prune.sql
	sqlOncePrune string
	//go:embed sql/once_select.sql
	sqlOnceSelect string
	//go:embed sql/revoke_admin_token.sql
	sqlRevokeAdminToken string
	//go:embed sql/select_admin_token.sql
	sqlSelectAdminToken string
	//go:embed sql/select_at.sql
	sqlSelectAt string
)

// Of the rebuild.
var (
	//go:embed sql/rebuild_count.sql
	sqlRebuildCount string
	//go:embed sql/rebuild_drop_org.sql
	sqlRebuildDropOrg string
	//go:embed sql/rebuild_drop_prices.sql
	sqlRebuildDropPrices string
	//go:embed sql/rebuild_drop_quota.sql
	sqlRebuildDropQuota string
	//go:embed sql/rebuild_events.sql
	sqlRebuildEvents string
	//go:embed sql/rebuild_key.sql
	sqlRebuildKey string
	//go:embed sql/rebuild_models.sql
	sqlRebuildModels string
	//go:embed sql/rebuild_names.sql
	sqlRebuildNames string
	//go:embed sql/rebuild_org_made.sql
	sqlRebuildOrgMade string
	//go:embed sql/rebuild_quota_made.sql
	sqlRebuildQuotaMade string
	//go:embed sql/rebuild_stored.sql
	sqlRebuildStored string
	//go:embed sql/rebuild_tier_made.sql
	sqlRebuildTierMade string
	//go:embed sql/rebuild_tiers.sql
	sqlRebuildTiers string
)
