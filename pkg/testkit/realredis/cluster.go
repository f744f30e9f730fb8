package realredis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

const (
	nodes = 3
	slots = 16384
)

// Cluster is a Redis Cluster of three primaries without replicas.
type Cluster struct {
	Nodes []*Server
}

// Addrs are the nodes' addresses.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr)
	}
	return addrs
}

// StartCluster starts a cluster that ends with the test, all slots served. Options apply to every node.
func StartCluster(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c := &Cluster{}
	for range nodes {
		c.Nodes = append(c.Nodes, startNode(t, opts))
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := c.join(ctx); err != nil {
		t.Fatalf("realredis: start a cluster: %v", err)
	}
	return c
}

func startNode(t testing.TB, opts []Option) *Server {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Fatalf("realredis: %v", err)
	}
	for try := 1; ; try++ {
		port, err := freeClusterPort()
		if err != nil {
			t.Fatalf("realredis: %v", err)
		}
		s := &Server{t: t, path: path, dir: t.TempDir(), port: port, Addr: process.Addr(port)}
		WithArgs("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000")(s)
		for _, o := range opts {
			o(s)
		}
		if err = s.start(); err == nil {
			t.Cleanup(func() { s.child.Kill() })
			return s
		}
		if try == portTries {
			t.Fatalf("realredis: %v", err)
		}
	}
}

// join introduces the nodes to each other, deals out the slots and waits until every node sees a whole cluster.
func (c *Cluster) join(ctx context.Context) error {
	var clients []*redis.Client
	for i, n := range c.Nodes {
		client := redis.NewClient(&redis.Options{Addr: n.Addr, Protocol: 2})
		defer client.Close() //nolint:gocritic // three clients, all needed until the end
		clients = append(clients, client)
		first, last := i*slots/nodes, (i+1)*slots/nodes-1
		if err := client.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			return fmt.Errorf("give slots %d to %d to node %d: %w", first, last, i, err)
		}
		// Distinct epochs at once, instead of by a collision that takes seconds to settle.
		if err := client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return fmt.Errorf("set the epoch of node %d: %w", i, err)
		}
	}
	for i, n := range c.Nodes[1:] {
		if err := clients[0].Do(ctx, "cluster", "meet", "127.0.0.1", n.port).Err(); err != nil {
			return fmt.Errorf("introduce node %d: %w", i+1, err)
		}
	}
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for i, client := range clients {
		for {
			info, err := client.ClusterInfo(ctx).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", nodes)) {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("node %d sees no whole cluster: %w: %s", i, ctx.Err(), info)
			case <-ticker.C:
			}
		}
	}
	return nil
}
