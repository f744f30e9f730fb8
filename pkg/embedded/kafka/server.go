package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

// Topic is a topic that must exist.
type Topic struct {
	Name       string
	Partitions int32
	Configs    map[string]string // such as cleanup.policy=compact
}

// Options say how to start a broker. Only Dir is required.
type Options struct {
	Dir    string    // data; made if absent; one broker at a time
	Port   int       // 0: chosen by the system
	Topics []Topic   // made if absent; one that exists is left as it is
	NoSync bool      // acknowledge before the disk has it: faster, for tests
	Log    io.Writer // the broker's warnings; may be nil
}

// Server is a running broker.
type Server struct {
	Addr string // host:port, loopback

	cluster *kfake.Cluster
	lock    *os.File
	close   sync.Once
}

// Start starts a broker and returns when it answers. Errors: process.ErrPortInUse, process.ErrLocked (another broker has the
// directory).
func Start(ctx context.Context, o Options) (*Server, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve the Kafka directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the Kafka directory: %w", err)
	}
	lock, err := process.Lock(ctx, filepath.Join(dir, "lock"), 0)
	if err != nil {
		return nil, fmt.Errorf("Kafka directory %s is used by another broker: %w", dir, err)
	}
	s, err := open(o, dir)
	if err != nil {
		lock.Close()
		return nil, err
	}
	s.lock = lock
	return s, nil
}

func open(o Options, dir string) (*Server, error) {
	if err := process.CheckPort("Kafka", o.Port); err != nil {
		return nil, err
	}
	log := o.Log
	if log == nil {
		log = io.Discard
	}
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.Ports(o.Port),
		kfake.ClusterID("tollgate"),
		kfake.DataDir(filepath.Join(dir, "data")),
		kfake.WithLogger(kfake.BasicLogger(log, kfake.LogLevelWarn)),
	}
	if !o.NoSync {
		opts = append(opts, kfake.SyncWrites())
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start the Kafka broker: %w", err)
	}
	for _, t := range o.Topics {
		// Seeding by an option would do nothing on a directory that has data already.
		if err := cluster.CreateTopic(t.Name, t.Partitions, t.Configs); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			cluster.Close()
			return nil, fmt.Errorf("make topic %s: %w", t.Name, err)
		}
	}
	return &Server{Addr: cluster.ListenAddrs()[0], cluster: cluster}, nil
}

// Brokers is the address list that clients take.
func (s *Server) Brokers() []string { return []string{s.Addr} }

// Cluster gives tests kfake's own means, such as scripted faults.
func (s *Server) Cluster() *kfake.Cluster { return s.cluster }

// Close stops the broker. Requests in flight fail; what was acknowledged is on disk.
func (s *Server) Close(context.Context) error {
	var err error
	s.close.Do(func() {
		s.cluster.Close()
		err = s.lock.Close()
	})
	if err != nil {
		return fmt.Errorf("release the Kafka directory: %w", err)
	}
	return nil
}
