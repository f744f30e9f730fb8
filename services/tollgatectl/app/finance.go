package app

import (
	"net/http"

	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

// ledgerDatabase is the database of the views; finance's user may read no other.
const ledgerDatabase = "tollgate"

// finance gives the ledger as finance's read-only user sees it.
func (s *session) finance() (*clickhousehttp.Client, error) {
	v, err := s.need("TOLLGATE_CLICKHOUSE_HTTP_URL", "TOLLGATE_FINANCE_USER", "TOLLGATE_FINANCE_PASSWORD")
	if err != nil {
		return nil, err
	}
	if err := httpURL("TOLLGATE_CLICKHOUSE_HTTP_URL", v["TOLLGATE_CLICKHOUSE_HTTP_URL"]); err != nil {
		return nil, err
	}
	return &clickhousehttp.Client{URL: v["TOLLGATE_CLICKHOUSE_HTTP_URL"], Database: ledgerDatabase, User: v["TOLLGATE_FINANCE_USER"],
		Password: v["TOLLGATE_FINANCE_PASSWORD"], HTTP: &http.Client{}}, nil
}

// answer writes a table as --output says.
func (s *session) answer(t *clickhousehttp.Table) error {
	if s.output == outputJSON {
		return show.JSON(s.Stdout, show.Objects(t))
	}
	return show.Table(s.Stdout, t)
}
