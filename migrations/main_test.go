package migrations

import (
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

func TestMain(m *testing.M) { stores.Main(m) }
