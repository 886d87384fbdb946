package v1alpha1

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Kinds of the configuration documents in this API group.
const (
	KindBerthConfiguration = "BerthConfiguration"
	KindStaticPool         = "StaticPool"
)

// BerthConfiguration is how one picker runs. It is the document that follows
// the EndpointPickerConfig in the configuration file. Whatever a file leaves
// out has the value of DefaultBerthConfiguration; an explicit zero stays zero.
type BerthConfiguration struct {
	APIVersion      string                       `json:"apiVersion"`
	Kind            string                       `json:"kind"`
	Discovery       DiscoveryConfiguration       `json:"discovery"`
	Gateway         GatewayConfiguration         `json:"gateway"`
	Limits          LimitsConfiguration          `json:"limits"`
	Intent          IntentConfiguration          `json:"intent"`
	Trust           TrustConfiguration           `json:"trust"`
	Models          ModelsConfiguration          `json:"models"`
	Screening       ScreeningConfiguration       `json:"screening"`
	Telemetry       TelemetryConfiguration       `json:"telemetry"`
	Placement       PlacementConfiguration       `json:"placement"`
	Acknowledgement AcknowledgementConfiguration `json:"acknowledgement"`
	Ledger          LedgerConfiguration          `json:"ledger"`
}

// DiscoveryConfiguration says where the pool's endpoints come from.
type DiscoveryConfiguration struct {
	// File is a file that holds one StaticPool, relative to the configuration
	// file. Empty where the StaticPool is a document of the same file.
	File string `json:"file,omitempty"`
}

// GatewayConfiguration is what the picker may expect of the gateway.
type GatewayConfiguration struct {
	// Fallbacks is how many endpoints follow the pick in the destination list,
	// 0 to 4. Default 0: gateways that take one address refuse a list.
	Fallbacks int `json:"fallbacks"`
	// OnViolation is what happens when the gateway served the request outside
	// the screened set. Default report.
	OnViolation ViolationAction `json:"onViolation"`
	// RequestTrailers is what happens to a request that ends with trailers.
	// Default refuse: Envoy sends the body twice when such a request is retried.
	RequestTrailers TrailersAction `json:"requestTrailers"`
	// UnknownPaths is what happens to a request whose path is none of the
	// inference APIs that the picker knows. Default route.
	UnknownPaths UnknownPathAction `json:"unknownPaths"`
}

// ViolationAction is the answer to a request served outside the screened set.
type ViolationAction string

const (
	// ViolationReport counts and records it, and lets the response through.
	ViolationReport ViolationAction = "report"
	// ViolationRefuse also replaces the response by a refusal.
	ViolationRefuse ViolationAction = "refuse"
)

// TrailersAction is the answer to a request that ends with trailers.
type TrailersAction string

const (
	// TrailersRefuse answers 400.
	TrailersRefuse TrailersAction = "refuse"
	// TrailersPass places the request like any other.
	TrailersPass TrailersAction = "pass"
)

// UnknownPathAction is the answer to a request of no known inference API.
type UnknownPathAction string

const (
	// UnknownPathRoute places it by its headers alone, as opaque traffic.
	UnknownPathRoute UnknownPathAction = "route"
	// UnknownPathRefuse answers 404.
	UnknownPathRefuse UnknownPathAction = "refuse"
)

// LimitsConfiguration bounds what requests and gateways may cost. A reload
// changes the limits for new requests; Message, StreamsPerConnection and
// Keepalive belong to the listener and keep what they were at the start.
type LimitsConfiguration struct {
	// Body is the largest request body, 1KiB to 1GiB. Default 32MiB.
	Body Bytes `json:"body"`
	// Buffered is how much of requests the picker holds at once until they are
	// decided and handed back, over all of them: bodies, and the headers that are
	// kept. At least Body, at most 64GiB. Each part that a body comes in counts for
	// 64 bytes more. Default 1GiB.
	Buffered Bytes `json:"buffered"`
	// Message is the largest message of a gateway, 2MiB to 2047MiB. A gateway that
	// buffers sends a whole body in one, with headers and attributes beside it.
	// Default Body and 1MiB more, 2MiB at least.
	Message Bytes `json:"message"`
	// HeaderCount and HeaderBytes bound the headers of one request: how many there
	// may be, 1 to 10000, and the length of all names and values together, 1KiB to
	// 16MiB. Defaults 1000 and 256KiB, well above what gateways allow by default.
	HeaderCount int   `json:"headerCount"`
	HeaderBytes Bytes `json:"headerBytes"`
	// Streams is how many requests may be in flight at once over all connections,
	// 1 to 10000000. Default 100000, each of about 16KiB once it is decided.
	Streams int `json:"streams"`
	// StreamsPerConnection is how many requests may be in flight on one
	// connection of a gateway, 1 to 10000000. It is announced to the gateway, which
	// opens another connection for more. Default 32768.
	StreamsPerConnection int `json:"streamsPerConnection"`
	// UploadIdle is the longest pause between two pieces of a request body, on its
	// way from the gateway and on its way back, 10ms to 10m. Default 10s.
	UploadIdle Duration `json:"uploadIdle"`
	// UploadTime is the longest time that a request body may take in all, from
	// its headers to its end: at least UploadIdle, at most 24h. Default 5m.
	UploadTime Duration `json:"uploadTime"`
	// DecisionDeadline is the longest time from the complete request to the
	// answer, 1ms to 1m. Default 500ms.
	DecisionDeadline Duration `json:"decisionDeadline"`
	// Drain is how long a picker that is shutting down waits for the requests
	// it has, 0s to 10m. Default 30s.
	Drain Duration `json:"drain"`
	// Keepalive finds connections whose gateway is gone.
	Keepalive KeepaliveConfiguration `json:"keepalive"`
}

// KeepaliveConfiguration is how connections of gateways are probed by HTTP/2
// pings. Requests on a connection that is given up end as if the gateway had
// closed their streams.
type KeepaliveConfiguration struct {
	// Interval is how long a connection may be silent before the picker sends a
	// ping, 1s to 2h. Default 1m.
	Interval Duration `json:"interval"`
	// Timeout is how long the picker waits for the answer, 10ms to 10m. Default 20s.
	Timeout Duration `json:"timeout"`
	// MinInterval is the shortest interval at which a gateway may send pings of
	// its own, 100ms to 1h. One that sends them more often is disconnected.
	// Default 5s.
	MinInterval Duration `json:"minInterval"`
}

// IntentConfiguration says where a RoutingIntent may come from. Of the channels
// that are switched on, the first one that a request uses counts: metadata, then
// the signed header, then plain headers by trust. What is wrong with an intent is a
// refusal, and never leads to the next channel.
type IntentConfiguration struct {
	// Required refuses requests without an intent. Default false: the model that
	// the body names is all that is asked of a replica.
	Required bool `json:"required"`
	// UnreadableBody is what happens to a request whose intent names a model and
	// whose body cannot be read for it: compressed, without a model, or not shown to
	// the picker in time. Default refuse.
	UnreadableBody UnreadableBodyAction `json:"unreadableBody"`
	// Metadata takes the intent from the dynamic metadata namespace berth.dev, which
	// filters in the gateway write and clients cannot. Default true.
	Metadata bool `json:"metadata"`
	// SignedHeader takes it from the header x-berth-intent. Left out, that header
	// is counted as untrusted, and means nothing.
	SignedHeader *SignedHeaderConfiguration `json:"signedHeader,omitempty"`
}

// UnreadableBodyAction is the answer to a request whose model cannot be held
// against its intent.
type UnreadableBodyAction string

const (
	// UnreadableBodyRefuse answers 403.
	UnreadableBodyRefuse UnreadableBodyAction = "refuse"
	// UnreadableBodyPass places the request by the intent alone.
	UnreadableBodyPass UnreadableBodyAction = "pass"
)

// SignedHeaderConfiguration is whose signatures on intents are believed.
type SignedHeaderConfiguration struct {
	// KeySet is a file with the JSON Web Keys to verify with, relative to the
	// configuration file: a regular file of at most 64KiB. Changes of it are taken
	// over as those of the configuration file are. Required.
	KeySet string `json:"keySet"`
	// Audience is this picker's name, 1 to 253 printable characters, which an intent
	// must be meant for. Required.
	Audience string `json:"audience"`
	// Skew is by how much the clock that signs may differ from the picker's, 0s to
	// 5m. Default 30s.
	Skew *Duration `json:"skew,omitempty"`
}

// DefaultSkew is the skew of a SignedHeaderConfiguration that sets none.
const DefaultSkew = Duration(30 * time.Second)

// TrustConfiguration is about headers that anybody could have sent.
type TrustConfiguration struct {
	// PlainHeaders takes intents from Headers. It is for gateways that remove the
	// copies that clients send, before they set them. Default false: those headers
	// are counted as untrusted, and mean nothing.
	PlainHeaders bool `json:"plainHeaders"`
	// Headers maps names of headers to the flat keys that their values stand for, at
	// most 32, in place of the default {x-selected-model: logicalModel}. A flat key
	// is logicalModel, servedModels, priority, sessionKey, contextInputTokens,
	// contextOutputTokens or requirement.<class>.<key>; each may have one header.
	// Names are in lower case. A header with a meaning of its own is refused: those of
	// connections, credentials and contents, host, x-berth-* and x-gateway-*.
	Headers map[string]string `json:"headers"`
}

// ModelsConfiguration is how the names of models are understood.
type ModelsConfiguration struct {
	// Aliases has the served models that an intent's logicalModel stands for, by
	// its name: at most 1024 names, each for 1 to 64 served models, all of 1 to 512
	// printable characters. Their order has no meaning. The name of a served
	// model may be an alias too. What an alias lists are served models, never other
	// aliases. A name that is no alias stands for itself.
	Aliases map[string][]string `json:"aliases,omitempty"`
}

// ScreeningConfiguration is about replicas of which it is not known for certain
// that they can serve.
type ScreeningConfiguration struct {
	// ContextUnknown is what happens to a replica whose context limit nobody states,
	// where an intent says how much must fit. Default fail.
	ContextUnknown ContextUnknownAction `json:"contextUnknown"`
	// Quarantine keeps requests away from replicas that fail.
	Quarantine QuarantineConfiguration `json:"quarantine"`
}

// ContextUnknownAction is how a replica without a known context limit is judged.
type ContextUnknownAction string

const (
	// ContextUnknownFail screens it out.
	ContextUnknownFail ContextUnknownAction = "fail"
	// ContextUnknownPass keeps it.
	ContextUnknownPass ContextUnknownAction = "pass"
)

// QuarantineConfiguration is when a replica gets no requests for a while. That
// never leaves a request without a replica.
type QuarantineConfiguration struct {
	// Failures is how many in a row put a replica into quarantine, 1 to 1000.
	// Default 3.
	Failures int `json:"failures"`
	// ProbeAfter is how long it stays there until one request tries it again, 100ms
	// to 1h. Default 10s.
	ProbeAfter Duration `json:"probeAfter"`
	// MaxShare is the largest share of replicas that may be in quarantine at once, 0
	// to 1. Default 0.5; with 0 nothing ever is.
	MaxShare float64 `json:"maxShare"`
}

// TelemetryConfiguration is how engines are read. Hot, Warm and Idle are the
// intervals between two scrapes of one replica: Hot <= Warm <= Idle, each 50ms
// to 1h.
type TelemetryConfiguration struct {
	// Mode is auto or none. Default auto.
	Mode TelemetryMode `json:"mode"`
	// Hot is for replicas that work or were just picked. Default 200ms.
	Hot Duration `json:"hot"`
	// Warm is for replicas that were candidates lately. Default 1s.
	Warm Duration `json:"warm"`
	// Idle is for all others. Default 5s.
	Idle Duration `json:"idle"`
	// Timeout bounds one scrape, above 0 to 10s. Default 1s.
	Timeout Duration `json:"timeout"`
	// MaxPage bounds one decoded page, 64KiB to 64MiB. Default 8MiB.
	MaxPage Bytes `json:"maxPage"`
	// Workers is how many scrapes run at the same time, 1 to 1024. Default 8.
	Workers int `json:"workers"`
	// Profiles is a directory of engine profiles, relative to the configuration
	// file: each regular file in it whose name ends in .yaml, at most 64 of at most
	// 1MiB each; names that begin with a dot are left alone. A profile with the
	// name of a built-in one replaces it, others are added. Changes in the
	// directory are taken over as those of the configuration file are. Left out,
	// the built-in profiles alone count.
	Profiles string `json:"profiles,omitempty"`
	// Exporters are pages of GPUs that are read beside the engines, at most 4096.
	// Of two that know of the same pod, the first that has a value counts.
	Exporters []ExporterConfiguration `json:"exporters,omitempty"`
}

// ExporterConfiguration is a page that says of GPUs what the engines on them do
// not. Its series join the endpoints whose pod they name; the pod of a static
// endpoint is the pool's namespace and the endpoint's name.
type ExporterConfiguration struct {
	// Profile is the name, or an alias, of a profile whose role is exporter.
	// Required.
	Profile string `json:"profile"`
	// Address is an IPv4 or IPv6 address, as that of a StaticEndpoint. Required.
	Address string `json:"address"`
	// Port is 1 to 65535. Default that of the profile; required where it has none.
	Port *int `json:"port,omitempty"`
	// Scheme is http or https. Default that of the profile, or http.
	Scheme string `json:"scheme,omitempty"`
}

// TelemetryMode switches the reading of engines.
type TelemetryMode string

const (
	// TelemetryAuto reads each engine by its declared or detected profile.
	TelemetryAuto TelemetryMode = "auto"
	// TelemetryNone reads no engine: picks rest on what the picker itself knows.
	TelemetryNone TelemetryMode = "none"
)

// PlacementConfiguration is how readings become a pick.
type PlacementConfiguration struct {
	// Quorum is the share of screened replicas that must have a fresh reading
	// of a field for the field to count, above 0 to 1. Default 0.5.
	Quorum float64 `json:"quorum"`
	// Replicas is the number of pickers that share the pool. Only 1, the
	// default, is supported.
	Replicas int `json:"replicas"`
}

// AcknowledgementConfiguration is what the client is told.
type AcknowledgementConfiguration struct {
	// ResponseHeaders is off, summary or full. Default summary.
	ResponseHeaders ResponseHeaders `json:"responseHeaders"`
}

// ResponseHeaders is how much of a decision the response headers show.
type ResponseHeaders string

const (
	ResponseHeadersOff     ResponseHeaders = "off"
	ResponseHeadersSummary ResponseHeaders = "summary"
	ResponseHeadersFull    ResponseHeaders = "full"
)

// LedgerConfiguration is how decisions are kept.
type LedgerConfiguration struct {
	// Dir is the directory of decision files. Only empty, the default, is
	// supported: decisions are kept in memory.
	Dir string `json:"dir"`
	// Ring is how many decisions are kept in memory, 0 to 100000. Default 1000.
	Ring int `json:"ring"`
	// Candidates is how many candidates one decision lists, 0 to 10000.
	// Default 512.
	Candidates int `json:"candidates"`
}

// DefaultBerthConfiguration is the configuration of a file that sets nothing.
func DefaultBerthConfiguration() BerthConfiguration {
	return BerthConfiguration{
		APIVersion: Version,
		Kind:       KindBerthConfiguration,
		Gateway: GatewayConfiguration{
			OnViolation:     ViolationReport,
			RequestTrailers: TrailersRefuse,
			UnknownPaths:    UnknownPathRoute,
		},
		Limits: LimitsConfiguration{
			Body:                 32 * MiB,
			Buffered:             GiB,
			Message:              33 * MiB,
			HeaderCount:          1000,
			HeaderBytes:          256 * KiB,
			Streams:              100000,
			StreamsPerConnection: 32768,
			UploadIdle:           Duration(10 * time.Second),
			UploadTime:           Duration(5 * time.Minute),
			DecisionDeadline:     Duration(500 * time.Millisecond),
			Drain:                Duration(30 * time.Second),
			Keepalive: KeepaliveConfiguration{
				Interval:    Duration(time.Minute),
				Timeout:     Duration(20 * time.Second),
				MinInterval: Duration(5 * time.Second),
			},
		},
		Intent: IntentConfiguration{UnreadableBody: UnreadableBodyRefuse, Metadata: true},
		Trust:  TrustConfiguration{Headers: map[string]string{"x-selected-model": "logicalModel"}},
		Screening: ScreeningConfiguration{
			ContextUnknown: ContextUnknownFail,
			Quarantine:     QuarantineConfiguration{Failures: 3, ProbeAfter: Duration(10 * time.Second), MaxShare: 0.5},
		},
		Telemetry: TelemetryConfiguration{
			Mode:    TelemetryAuto,
			Hot:     Duration(200 * time.Millisecond),
			Warm:    Duration(time.Second),
			Idle:    Duration(5 * time.Second),
			Timeout: Duration(time.Second),
			MaxPage: 8 * MiB,
			Workers: 8,
		},
		Placement:       PlacementConfiguration{Quorum: 0.5, Replicas: 1},
		Acknowledgement: AcknowledgementConfiguration{ResponseHeaders: ResponseHeadersSummary},
		Ledger:          LedgerConfiguration{Ring: 1000, Candidates: 512},
	}
}

// StaticPool is a pool whose endpoints are listed in a file.
type StaticPool struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   PoolMetadata `json:"metadata"`
	// FailureMode is FailClose, the default, or FailOpen.
	FailureMode FailureMode      `json:"failureMode"`
	Endpoints   []StaticEndpoint `json:"endpoints"`
}

// PoolMetadata names a pool.
type PoolMetadata struct {
	// Namespace is a DNS label. Default "default".
	Namespace string `json:"namespace"`
	// Name is a DNS subdomain. Required.
	Name string `json:"name"`
}

// FailureMode is what a gateway should do without its picker.
type FailureMode string

const (
	// FailClose refuses requests.
	FailClose FailureMode = "FailClose"
	// FailOpen serves them by any endpoint.
	FailOpen FailureMode = "FailOpen"
)

// StaticEndpoint is one endpoint of a StaticPool.
type StaticEndpoint struct {
	// Name is unique in the pool, 1 to 253 printable characters. Required. Where an
	// exporter reads the endpoint's GPUs, it is the name of the pod that their
	// series carry, and the pool's namespace is the pod's.
	Name string `json:"name"`
	// Address is an IPv4 or IPv6 address: no hostname, no zone, no link-local,
	// multicast or unspecified address. Required.
	Address string `json:"address"`
	// Port is 1 to 65535. Required.
	Port int `json:"port"`
	// Engine is the kind of engine: the name, or an alias, of an engine profile
	// ("vllm") that is built in or in telemetry.profiles. Empty leaves it to the
	// labels berth.dev/engine and inference.networking.k8s.io/engine-type, and then
	// to detection.
	Engine string `json:"engine,omitempty"`
	Node   string `json:"node,omitempty"`
	Zone   string `json:"zone,omitempty"`
	// Ready false excludes the endpoint from every pick. Default true.
	Ready *bool `json:"ready,omitempty"`
	// Terminating true excludes the endpoint from every pick.
	Terminating bool `json:"terminating,omitempty"`
	// ServedModels are the names that the endpoint may serve, adapters among them.
	// The engine's own list, once it was read, narrows them further. Left out,
	// the engine's list alone counts.
	ServedModels []string `json:"servedModels,omitempty"`
	// ContextLimit is the longest context in tokens, above 0. Left out, the
	// engine is asked.
	ContextLimit *int64            `json:"contextLimit,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Metrics      *EndpointMetrics  `json:"metrics,omitempty"`
}

// EndpointMetrics is where an endpoint's telemetry page is, on the endpoint's
// own address. What is left out comes from the engine's profile.
type EndpointMetrics struct {
	// Scheme is http or https.
	Scheme string `json:"scheme,omitempty"`
	// Port is 1 to 65535.
	Port *int `json:"port,omitempty"`
	// Path begins with a slash.
	Path string `json:"path,omitempty"`
}

// Duration is a length of time, written as Go writes it: "200ms", "1m30s". A
// number without a unit is refused.
type Duration time.Duration

// String is the shortest text that UnmarshalText reads back: "1m", not "1m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration: a number with a unit of ns, us, ms, s, m or h, such as 200ms", text)
	}
	*d = Duration(v)
	return nil
}

// Bytes is a number of bytes, written with a binary unit: "32MiB". A plain
// number counts bytes.
type Bytes int64

// Units of Bytes.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

var byteUnits = [...]struct {
	suffix string
	size   Bytes
}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}}

// String uses the largest unit that divides b.
func (b Bytes) String() string {
	for _, u := range byteUnits {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText implements encoding.TextMarshaler.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It takes whole,
// non-negative numbers only.
func (b *Bytes) UnmarshalText(text []byte) error {
	digits, size := string(text), Bytes(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(digits, u.suffix); ok {
			digits, size = rest, u.size
			break
		}
	}
	// ParseUint takes no sign; 63 bits keep the result an int64.
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n > uint64(math.MaxInt64/int64(size)) {
		return fmt.Errorf("%q is not a number of bytes: a whole number with KiB, MiB, GiB or no unit, such as 32MiB", text)
	}
	*b = Bytes(n) * size
	return nil
}

// UnmarshalJSON takes a string, or a plain number of bytes.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		return b.UnmarshalText([]byte(s))
	}
	return b.UnmarshalText(data)
}
