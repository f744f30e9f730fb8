package redisbucket

import (
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
)

func TestMiniredisRestores(t *testing.T)    { limittest.RunRestorer(t, mini) }
func TestRealRedisRestores(t *testing.T)    { limittest.RunRestorer(t, realServer(t)) }
func TestRedisClusterRestores(t *testing.T) { limittest.RunRestorer(t, realCluster(t)) }
