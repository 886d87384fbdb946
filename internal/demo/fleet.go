package demo

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
	"github.com/berth-dev/berth/internal/enginesim"
)

// engineSize is one replica's engine. With ten requests in the batch and the
// tenants' prompts cached it serves about 13 requests of the workload a second.
// A prompt that is not cached takes 85 to 215 ms, so that a few milliseconds on
// the way, which a busy machine may take, are a small part. The cache holds all
// tenants' prompts and a full batch, and little more.
var engineSize = enginemodel.Config{
	MaxRunning:  16,
	PrefillRate: 4000,
	StepBase:    12 * time.Millisecond,
	PerSequence: time.Millisecond,
	Blocks:      384,
}

// A shape is what is particular about each replica of a fleet.
type shape struct {
	// Name says what the fleet is like; Note is what follows the name in
	// headings.
	Name, Note string
	Replicas   []replicaShape
}

type replicaShape struct {
	Name string
	// Note says what is particular; empty if nothing is.
	Note       string
	Speed      float64
	Background enginesim.Load
}

// impaired is a fleet of four of which two serve: a third is slow, and the
// fourth has more work than it can do.
var impaired = shape{
	Name: "impaired fleet",
	Note: "r3 is three times slower, r4 has a full batch and a queue",
	Replicas: []replicaShape{
		{Name: "r1", Speed: 1},
		{Name: "r2", Speed: 1},
		{Name: "r3", Speed: 1.0 / 3, Note: "three times slower than the others"},
		{Name: "r4", Speed: 1, Note: "its batch and its queue are full of other work",
			Background: enginesim.Load{Running: engineSize.MaxRunning, Waiting: 8}},
	},
}

// equal is a fleet of four that are alike.
var equal = shape{
	Name:     "equal fleet",
	Note:     "four replicas that are alike",
	Replicas: []replicaShape{{Name: "r1", Speed: 1}, {Name: "r2", Speed: 1}, {Name: "r3", Speed: 1}, {Name: "r4", Speed: 1}},
}

// A fleet is running engines.
type fleet struct {
	replicas []*replica
}

// A replica is one running engine.
type replica struct {
	*enginesim.Server
	replicaShape
	Address netip.AddrPort
}

// startFleet starts fresh engines.
func startFleet(s shape) (*fleet, error) {
	f := &fleet{}
	for _, r := range s.Replicas {
		server, err := enginesim.New(enginesim.Config{
			Name: r.Name, Models: []string{model}, Engine: engineSize, Speed: r.Speed, Background: r.Background,
		})
		if err == nil {
			err = listen(server)
		}
		if err != nil {
			f.close()
			return nil, fmt.Errorf("replica %s: %w", r.Name, err)
		}
		address, err := netip.ParseAddrPort(server.Addr())
		f.replicas = append(f.replicas, &replica{Server: server, replicaShape: r, Address: address})
		if err != nil {
			f.close()
			return nil, fmt.Errorf("replica %s: %w", r.Name, err)
		}
	}
	return f, nil
}

func (f *fleet) close() {
	for _, r := range f.replicas {
		r.Close()
	}
}

func (f *fleet) named(name string) *replica {
	for _, r := range f.replicas {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Engines listen below the ports that Linux gives to outgoing connections
// (32768 and up): one of those must not take the port of a replica that is dead
// for the moment.
const (
	firstPort = 21000
	numPorts  = 10000
	portTries = 100
)

// listen starts the engine at a free port.
func listen(server *enginesim.Server) error {
	var err error
	for range portTries {
		err = server.Start(fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(numPorts)))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("no free port among %d tried from %d to %d: %w", portTries, firstPort, firstPort+numPorts-1, err)
}
