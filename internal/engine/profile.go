package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Profile says how the pages of one kind of engine, or of one kind of GPU
// exporter, become readings. It is immutable and safe for concurrent use.
type Profile struct {
	name    string
	aliases []string
	// file is where the profile is from, for errors, and lines where in it stands
	// what may be wrong beside other profiles, by its path.
	file     string
	lines    map[string]int
	builtIn  bool
	digest   string
	text     []byte
	exporter bool
	detect   detection
	never    []string
	pages    []Page
	access   Access
	labels   labelRules
	valid    *validity
	clock    *engineClock
	// still is how long a page may stand still while the engine works.
	still time.Duration
	rules []rule
	// windows is the number of sources that are read as growth.
	windows int
	// unsupported are the fields without a source, with the reason.
	unsupported [telemetry.NumFields]string

	// families are those that the rules read; names finds them.
	families []family
	names    map[string]naming
	// numbers are those of the families, by name, while the profile is parsed;
	// sorted are the names in order, and readAt tells where each is read first.
	numbers map[string]int
	sorted  []string
	readAt  map[string]string
	// blank is a snapshot of an engine that has said nothing yet.
	blank   telemetry.Snapshot
	ttl     [telemetry.NumFields]time.Duration
	scratch sync.Pool
}

// family is one metric family that the rules read.
type family struct {
	name string
	// seldom: only rules that are applied seldom read it. A page may be read
	// without it.
	seldom bool
	// works: what moves in it shows that the engine works.
	works bool
	// choosing: each of its sources names the model itself.
	choosing bool
	// base is the name of the histogram that it is a part of, or else its own; typed
	// is the family that TYPE says that of.
	base  string
	typed int
	// gone and empty are the reasons for which it has no value.
	gone, empty string
}

// naming is what a name at the beginning of a line means.
type naming struct {
	family int
	// comment: only HELP and TYPE use this name, as OpenMetrics does for
	// counters and every format for histograms.
	comment bool
}

// detection is how an engine's page is told from those of others.
type detection struct {
	// prefixes are in both spellings, given as the profile has them; of families,
	// each with its two, all must be on the page.
	prefixes []string
	given    []string
	families [][2]string
	ownedBy  []string
}

// labelRules say what the labels of a page mean.
type labelRules struct {
	model        string
	placeholders []string
	ranks        []string
	lowest       []string
	drop         []string
	refuse       []string
	// apart are all labels that tell ranks apart, ordered.
	apart          []string
	namespace, pod string
}

// validity is a gauge that says whether the page says anything.
type validity struct {
	series
	because string
}

// engineClock is the time that an engine states for its page.
type engineClock struct {
	series
	maxAge    time.Duration
	whileBusy bool
}

// Format says how a page is written.
type Format string

const (
	// Prometheus is the text exposition format, version 0.0.4.
	Prometheus Format = "prometheus"
	// OpenAIModels is the model list of the OpenAI API.
	OpenAIModels Format = "openai-models"
	// Status is a page whose HTTP status is the answer.
	Status Format = "status"
	// JSON is a JSON object.
	JSON Format = "json"
)

// Page is one page of an engine, relative to its own address.
type Page struct {
	// Path begins with a slash.
	Path   string
	Format Format
	// Accept is the Accept header to ask with.
	Accept string
	// Scheme is http, https, or empty where the profile does not say.
	Scheme string
	// Port is that of the page; 0 is the serving port.
	Port uint16
	// Every is the cadence of a page that changes only with the process; 0
	// for the metrics page, which is asked for at every scrape.
	Every time.Duration
	// TTL is the shortest life of a reading.
	TTL time.Duration
	// Needs says, in one line of at most 1024 bytes, with what the engine must be
	// started for the page to be there and to say something; empty where the
	// profile does not tell. It is for people alone.
	Needs string

	// fields are those that the page is the only source of.
	fields []telemetry.Field
	// no are the statuses of a status page that say no.
	no []int
	// members are what a JSON page is asked for, in the order of fields.
	members []member
}

// Access is what it takes to be let in to the pages. The files are read by
// whoever asks for the pages.
type Access struct {
	// TokenFile holds a bearer token, empty if none is needed.
	TokenFile string
	// CAFile holds the certificate authorities to trust, in PEM, instead of the
	// system's; ServerName is the name that the certificate must be for, instead
	// of the address.
	CAFile, ServerName string
}

type combination uint8

const (
	one combination = iota
	sum
	mean
	largest
	newest
)

// rule is how one field is read from the metrics page.
type rule struct {
	field telemetry.Field
	// absent is the support to report when no source is on the page.
	absent  telemetry.Support
	sources []source
	// contradicted are what makes a value of the field invalid.
	contradicted []contradiction
	off          []condition
	// seldom: it is applied once in readSeldom, since a source is a window, or the
	// reading lives long.
	seldom bool
}

// series chooses some series of one family, and says how they become one value.
type series struct {
	family  int
	label   string
	where   []labelPair
	combine combination
	// weight is that of a mean.
	weight *series
}

type source struct {
	series
	plus  []series
	times *series
	over  []series
	scale float64
	// window is 0 for what does not count.
	window time.Duration
	id     int
	// bucket and total are a histogram's; total alone makes a mean.
	bucket, total *series
	differs       string
	// alike is the reason for which a text means nothing where it does not
	// differ.
	alike   string
	invert  bool
	quality float32
	because string
	// detail is shared by all readings that have nothing more to say, byHead by those
	// of a mean whose weights the page does not tell.
	detail, byHead *telemetry.Detail
}

// condition tells that a field is switched off.
type condition struct {
	series
	// is is the text that the label or the value must be; above, if is is
	// empty, what the sum of the values must exceed.
	is      string
	above   float64
	because string
	// on are families of which a sample shows that it is not.
	on []int
}

type labelPair struct{ name, value string }

// Name is the engine's name.
func (p *Profile) Name() string { return p.name }

// Aliases are other names that a pool may use for the engine. The slice must
// not be changed.
func (p *Profile) Aliases() []string { return p.aliases }

// File is the name of the file that the profile is from.
func (p *Profile) File() string { return p.file }

// BuiltIn reports that the profile came with this binary.
func (p *Profile) BuiltIn() bool { return p.builtIn }

// Exporter reports that the page is one of GPUs, of several pods.
func (p *Profile) Exporter() bool { return p.exporter }

// Digest is the name and the first 12 hexadecimal digits of the SHA-256 of the
// profile's text, as in "vllm@sha256:0123456789ab".
func (p *Profile) Digest() string { return p.digest }

// Text is the YAML that the profile was parsed from.
func (p *Profile) Text() []byte { return slices.Clone(p.text) }

// Reads are the fields that the metrics page is read for.
func (p *Profile) Reads() []telemetry.Field {
	fields := make([]telemetry.Field, len(p.rules))
	for i := range p.rules {
		fields[i] = p.rules[i].field
	}
	return fields
}

// Metrics is the metrics page.
func (p *Profile) Metrics() Page { return p.pages[0] }

// SlowPages are the others, in the order in which to ask for them. The slice
// must not be changed.
func (p *Profile) SlowPages() []Page { return p.pages[1:] }

// Never reports that a path must not be asked on this engine, since reading it
// changes something there.
func (p *Profile) Never(path string) bool { return slices.Contains(p.never, path) }

// Owns reports that an engine of this kind says owner of itself in the cards of
// /v1/models.
func (p *Profile) Owns(owner string) bool { return slices.Contains(p.detect.ownedBy, owner) }

// PodLabels are the labels by which an exporter's series name their pod; empty for
// an engine.
func (p *Profile) PodLabels() (namespace, pod string) { return p.labels.namespace, p.labels.pod }

// Access is what it takes to be let in to the pages.
func (p *Profile) Access() Access { return p.access }

// Silent is a snapshot of an engine whose page has no family of its own: what
// the page could say is switched off.
func (p *Profile) Silent(at telemetry.Instant) *telemetry.Snapshot {
	s := p.blank
	s.ScrapedAt = at
	s.Incarnation = 1
	off := reasons("the metrics page has no family of the engine: its statistics are switched off")
	for i := range p.rules {
		s.Readings[p.rules[i].field] = telemetry.Reading{Support: telemetry.Disabled, Detail: off}
	}
	return &s
}
