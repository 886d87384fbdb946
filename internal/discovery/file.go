package discovery

import (
	"context"
	"fmt"
	"reflect"

	"github.com/go-logr/logr"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
)

// FileOptions are what a File may be given beside its file and its registry.
type FileOptions struct {
	// Log gets one line per set taken over, and one per distinct error. The zero
	// value logs nothing.
	Log logr.Logger
	// Engines are the profiles whose engines the pool may name; nil stands for
	// those that are built in.
	Engines *engine.Set
	// Loaded is called after each attempt to load: with the pool that the
	// registry now has, or with the error that kept the old one. Attempts that
	// find the declared pool unchanged are not told. It is called by one
	// goroutine at a time and holds up further loads; nil is allowed.
	Loaded func(*policy.Pool, error)
}

// File is a StaticPool file that a registry follows.
type File struct {
	path     string
	registry *pool.Registry
	options  FileOptions

	// good is the pool that the registry has.
	good *policy.Pool
	// failure is the last attempt's error as text; empty after a good one.
	failure string
}

// LoadFile reads the StaticPool at path into the registry. Its error is that of
// policy.LoadPool or of the registry, which then is as it was.
func LoadFile(path string, registry *pool.Registry, o FileOptions) (*File, error) {
	f := &File{path: path, registry: registry, options: o}
	p, err := policy.LoadPool(path, o.Engines)
	if err == nil {
		err = Apply(registry, p)
	}
	if err != nil {
		f.tell(nil, err)
		return nil, err
	}
	f.took(p)
	return f, nil
}

// Run follows the file until ctx ends, and returns nil then. An error means that
// the file cannot be followed, for instance because the machine has no watches
// left; the registry keeps what it has. Run must be called at most once.
func (f *File) Run(ctx context.Context) error {
	if err := policy.WatchPool(ctx, f.path, f.options.Engines, f.changed); err != nil && ctx.Err() == nil {
		return fmt.Errorf("discovery: following %s: %w", f.path, err)
	}
	return nil
}

// Apply makes the registry's set that of p. The error is the registry's, which
// then is as it was.
func Apply(registry *pool.Registry, p *policy.Pool) error {
	return registry.Update(p.Namespace+"/"+p.Name, p.Endpoints)
}

// changed takes over one attempt to load the file.
func (f *File) changed(p *policy.Pool, err error) {
	if err == nil && f.failure == "" && reflect.DeepEqual(p, f.good) {
		return // comments, or the order of keys
	}
	if err == nil {
		err = Apply(f.registry, p)
	}
	if err != nil {
		f.failed(err)
		return
	}
	f.took(p)
}

func (f *File) took(p *policy.Pool) {
	f.good, f.failure = p, ""
	f.options.Log.Info("pool loaded", "file", f.path, "pool", p.Namespace+"/"+p.Name, "endpoints", len(p.Endpoints))
	f.tell(p, nil)
}

func (f *File) failed(err error) {
	if text := err.Error(); text != f.failure {
		f.failure = text
		f.options.Log.Error(err, "pool not loaded, keeping the last good one", "file", f.path, "endpoints", len(f.good.Endpoints))
	}
	f.tell(nil, err)
}

func (f *File) tell(p *policy.Pool, err error) {
	if f.options.Loaded != nil {
		f.options.Loaded(p, err)
	}
}
