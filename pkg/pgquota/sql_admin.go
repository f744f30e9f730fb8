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
