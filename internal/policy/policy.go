package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	configapi "sigs.k8s.io/gateway-api-inference-extension/apix/config/v1alpha1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/intent"
)

const (
	kindPicker   = "EndpointPickerConfig"
	kindBerth    = v1alpha1.KindBerthConfiguration
	kindPool     = v1alpha1.KindStaticPool
	berthVersion = v1alpha1.Version
)

var pickerVersion = configapi.GroupVersion.String()

// Policy is one valid configuration with all defaults applied. Nothing in it
// changes after Parse returned it, so that any number of goroutines may read it.
// Units, ranges and defaults are those of v1alpha1.BerthConfiguration.
type Policy struct {
	// Digest is "sha256:" and 12 hex digits, equal for files that mean the same.
	// It leaves out the endpoints of Pool, and what is in the key set: that may be
	// a secret. SameKeys compares the latter.
	Digest          string
	Profile         Profile
	Discovery       Discovery
	Gateway         Gateway
	Limits          Limits
	Intent          Intent
	Trust           Trust
	Models          Models
	Screening       Screening
	Telemetry       Telemetry
	Placement       Placement
	Acknowledgement Acknowledgement
	Ledger          Ledger
	// Engines are the profiles that pages are read by: those that are built in and,
	// instead of or beside them, those of Telemetry.Profiles.
	Engines *engine.Set
	// Exporters are in the order of the file: of two that know of the same pod, the
	// first that has a value counts.
	Exporters []Exporter
	// Pool is the inline StaticPool; nil if the file has none.
	Pool *Pool

	// poolFile is where the file says discovery.file, as an Error without a
	// verdict; nil if it does not.
	poolFile *Error
	// ownEngines are the profiles of Telemetry.Profiles, ordered by name.
	ownEngines []*engine.Profile
	// keysByID has each of Intent.Keys as a set of its own.
	keysByID map[string]*intent.KeySet
	// unused are the names of the plugins that no profile refers to.
	unused    []string
	effective string
}

// SameKeys reports whether both policies verify signed intents with the same keys.
// Two of one digest may differ in them, and in the endpoints of Pool.
func (p *Policy) SameKeys(other *Policy) bool {
	return p.Intent.Keys.Equal(other.Intent.Keys)
}

// Profile is the scheduling profile.
type Profile struct {
	Name string
	// Filters are in the order of the file.
	Filters []PluginRef
	// Scorers are in the order of their names. Those of weight 0 are among them.
	Scorers []ScorerRef
	Picker  PluginRef
}

// PluginRef is one plugin of the profile.
type PluginRef struct {
	// Name is unique among all plugins.
	Name string
	// Type is what runs: a stock type's twin, where it has one.
	Type string
	// Parameters are a JSON object with sorted keys; nil if there are none.
	Parameters json.RawMessage
}

// ScorerRef is one scorer of the profile.
type ScorerRef struct {
	Name       string
	Type       string
	Parameters json.RawMessage
	// Weight is 0 to 1e6; 0 keeps the scorer out of the score.
	Weight float64
}

// Discovery says where endpoints come from. Without a File and without an
// inline pool, whoever runs the policy brings the pool.
type Discovery struct {
	// File holds the StaticPool, resolved against the configuration's
	// directory. Empty with an inline pool.
	File string
}

// Gateway is what the picker may expect of the gateway.
type Gateway struct {
	// Fallbacks is how many endpoints follow the pick, 0 to 4.
	Fallbacks       int
	OnViolation     v1alpha1.ViolationAction
	RequestTrailers v1alpha1.TrailersAction
	UnknownPaths    v1alpha1.UnknownPathAction
}

// Limits bounds what requests and gateways may cost.
type Limits struct {
	// Body and Buffered are in bytes; Buffered is at least Body.
	Body     int64
	Buffered int64
	// HeaderBytes is the length of all names and values of one request.
	HeaderCount int
	HeaderBytes int64
	Streams     int
	// UploadIdle is at most UploadTime.
	UploadIdle       time.Duration
	UploadTime       time.Duration
	DecisionDeadline time.Duration
	// Drain may be 0: running requests are not waited for.
	Drain    time.Duration
	Listener Listener
}

// Listener is what the listener for gateways goes by, from the start of a picker
// to its end.
type Listener struct {
	// Message is in bytes.
	Message              int64
	StreamsPerConnection int
	// KeepaliveInterval and KeepaliveTimeout are of the picker's own pings;
	// gateways may send theirs at GatewayInterval.
	KeepaliveInterval, KeepaliveTimeout, GatewayInterval time.Duration
}

// String writes the settings as the configuration file does.
func (l Listener) String() string {
	return fmt.Sprintf("message: %v, streamsPerConnection: %d, keepalive: {interval: %v, timeout: %v, minInterval: %v}",
		v1alpha1.Bytes(l.Message), l.StreamsPerConnection, v1alpha1.Duration(l.KeepaliveInterval),
		v1alpha1.Duration(l.KeepaliveTimeout), v1alpha1.Duration(l.GatewayInterval))
}

// Intent says which channels an intent may come by.
type Intent struct {
	// Required refuses requests without an intent.
	Required bool
	// PassUnreadable places a request whose model cannot be read by the intent alone.
	PassUnreadable bool
	// Metadata switches the channel of dynamic metadata on.
	Metadata bool
	// Keys verify signed intents; nil switches that channel off.
	Keys *intent.KeySet
	// KeySet is the file of Keys, resolved against the configuration's directory;
	// empty if there is none.
	KeySet string
	// Audience is this picker's name, which an intent that states its audience must
	// have there, in each channel. Empty without Keys.
	Audience string
	// Skew is 0 to 5m.
	Skew time.Duration
}

// Trust is about headers that anybody could have sent.
type Trust struct {
	// PlainHeaders switches the channel of Headers on. Where it is off, they are
	// counted as untrusted.
	PlainHeaders bool
	// Headers maps names of headers, in lower case, to flat keys. It must not be
	// changed.
	Headers map[string]string
}

// Models is how the names of models are understood.
type Models struct {
	// Aliases has the served models, sorted, of each alias. It must not be changed.
	Aliases map[string][]string
}

// Screening is about replicas of which it is not known for certain that they can
// serve.
type Screening struct {
	// PassContextUnknown keeps a replica whose context limit nobody states.
	PassContextUnknown bool
	Quarantine         Quarantine
}

// Quarantine keeps requests away from replicas that fail.
type Quarantine struct {
	// Failures is how many in a row it takes, 1 or more.
	Failures int
	// ProbeAfter is how long it takes until one request tries the replica again.
	ProbeAfter time.Duration
	// MaxShare of the replicas, 0 to 1, may be in quarantine at once.
	MaxShare float64
}

// Telemetry is how engines are read. Hot <= Warm <= Idle.
type Telemetry struct {
	Mode    v1alpha1.TelemetryMode
	Hot     time.Duration
	Warm    time.Duration
	Idle    time.Duration
	Timeout time.Duration
	// MaxPage is in decoded bytes.
	MaxPage int64
	Workers int
	// Profiles is the directory of the engine profiles that are not built in,
	// resolved against the configuration's directory; empty if there is none.
	Profiles string
}

// Placement is how readings become a pick.
type Placement struct {
	// Quorum is above 0, at most 1.
	Quorum float64
}

// Acknowledgement is what the client is told.
type Acknowledgement struct {
	ResponseHeaders v1alpha1.ResponseHeaders
}

// Ledger is how decisions are kept.
type Ledger struct {
	// Ring is how many decisions are kept in memory; 0 keeps none.
	Ring int
	// Candidates is how many candidates one decision lists.
	Candidates int
}

// Load reads and parses the configuration file at path. Relative paths in it
// are meant from its directory. Warnings come with a policy only.
func Load(path string, catalog Catalog) (*Policy, []Warning, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, nil, err
	}
	return Parse(path, data, filepath.Dir(path), catalog)
}

// Parse is Load for bytes that were read already. Name stands in errors, dir is
// where relative paths start. What it reads besides is the directory of
// telemetry.profiles and the file of intent.signedHeader.keySet.
func Parse(name string, data []byte, dir string, catalog Catalog) (*Policy, []Warning, error) {
	a := parse(name, data, dir, catalog)
	return a.policy, a.warnings, a.err
}

// attempt is what came of parsing a configuration.
type attempt struct {
	policy   *Policy
	warnings []Warning
	err      error
	// companions are those that the configuration names, also where it was refused.
	companions companions
}

func parse(name string, data []byte, dir string, catalog Catalog) (a attempt) {
	p := &problems{file: name}
	all := split(p, data)
	docs := inOrder(all)

	policy := &Policy{}
	settings := v1alpha1.DefaultBerthConfiguration()
	var picker configapi.EndpointPickerConfig
	if d := docs[kindPicker]; d != nil {
		policy.Profile, policy.unused, picker = d.profile(catalog)
	} else if len(all) > 0 {
		all[0].refuse("kind", "must be EndpointPickerConfig in the first document")
	}
	berth := docs[kindBerth]
	if d := berth; d != nil {
		settings = d.settings()
		if settings.Discovery.File != "" {
			policy.poolFile = &Error{File: name, Line: d.line("discovery.file"), Field: "discovery.file", Value: d.value("discovery.file")}
		}
	}
	policy.apply(&settings, dir)
	a.companions = readCompanions(policy.Telemetry.Profiles, policy.Intent.KeySet)
	policy.Engines, policy.ownEngines = p.engines(berth, &a.companions.profiles)
	if berth != nil {
		policy.Intent.Keys, policy.keysByID = berth.keys(&a.companions.keySet)
		policy.Exporters = berth.exporters(settings.Telemetry.Exporters, policy.Engines)
	}
	if d := docs[kindPool]; d != nil {
		policy.Pool = d.pool(policy.Engines)
		if settings.Discovery.File != "" {
			d.problems.refuse(d.root.Line, "kind", d.kind, "must be left out, or else discovery.file: the pool is either this document or that file")
		}
	}
	if a.err = p.err(); a.err != nil {
		return a
	}
	if err := policy.seal(&picker, &settings); err != nil {
		a.err = &Error{File: name, Allowed: "cannot be written in canonical form: " + err.Error(), cause: err}
		return a
	}
	a.policy, a.warnings = policy, p.warnings
	return a
}

// PoolFileError is an error of reading Discovery.File as one of the
// configuration, with the line and field that name the file: where there is no
// such file, that is what to correct. Errors in what the file says are returned
// as they are.
func (p *Policy) PoolFileError(err error) error {
	var unread *fs.PathError
	if p.poolFile == nil || !errors.As(err, &unread) {
		return err
	}
	e := *p.poolFile
	e.Allowed, e.cause = "cannot be read: "+unread.Error(), err
	return &e
}

// inOrder checks the order of documents and returns them by kind.
func inOrder(docs []*document) map[string]*document {
	order := []string{kindPicker, kindBerth, kindPool}
	byKind := make(map[string]*document, len(order))
	last := -1
	for _, d := range docs {
		rank := 0
		for order[rank] != d.kind {
			rank++
		}
		switch {
		case byKind[d.kind] != nil:
			d.refuse("kind", "must occur once: there is one document of each kind")
			continue
		case rank < last:
			d.refuse("kind", "must be in its place: the order of documents is EndpointPickerConfig, BerthConfiguration, StaticPool")
		}
		last = max(last, rank)
		byKind[d.kind] = d
	}
	return byKind
}

func (p *Policy) apply(c *v1alpha1.BerthConfiguration, dir string) {
	p.Discovery.File = resolved(c.Discovery.File, dir)
	p.Gateway = Gateway{c.Gateway.Fallbacks, c.Gateway.OnViolation, c.Gateway.RequestTrailers, c.Gateway.UnknownPaths}
	p.Limits = Limits{
		Body:             int64(c.Limits.Body),
		Buffered:         int64(c.Limits.Buffered),
		HeaderCount:      c.Limits.HeaderCount,
		HeaderBytes:      int64(c.Limits.HeaderBytes),
		Streams:          c.Limits.Streams,
		UploadIdle:       time.Duration(c.Limits.UploadIdle),
		UploadTime:       time.Duration(c.Limits.UploadTime),
		DecisionDeadline: time.Duration(c.Limits.DecisionDeadline),
		Drain:            time.Duration(c.Limits.Drain),
		Listener: Listener{
			Message:              int64(c.Limits.Message),
			StreamsPerConnection: c.Limits.StreamsPerConnection,
			KeepaliveInterval:    time.Duration(c.Limits.Keepalive.Interval),
			KeepaliveTimeout:     time.Duration(c.Limits.Keepalive.Timeout),
			GatewayInterval:      time.Duration(c.Limits.Keepalive.MinInterval),
		},
	}
	p.applyIntent(c, dir)
	p.Telemetry = Telemetry{
		Mode:    c.Telemetry.Mode,
		Hot:     time.Duration(c.Telemetry.Hot),
		Warm:    time.Duration(c.Telemetry.Warm),
		Idle:    time.Duration(c.Telemetry.Idle),
		Timeout: time.Duration(c.Telemetry.Timeout),
		MaxPage: int64(c.Telemetry.MaxPage),
		Workers: c.Telemetry.Workers,

		Profiles: resolved(c.Telemetry.Profiles, dir),
	}
	p.Placement = Placement{c.Placement.Quorum}
	p.Acknowledgement = Acknowledgement{c.Acknowledgement.ResponseHeaders}
	p.Ledger = Ledger{c.Ledger.Ring, c.Ledger.Candidates}
}

// resolved is a path that is meant from dir; empty if it says nothing.
func resolved(path, dir string) string {
	switch {
	case path == "":
		return ""
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	default:
		return filepath.Join(dir, path)
	}
}
