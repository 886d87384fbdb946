package telemetry

import "fmt"

// Field is one engine-neutral quantity. The numeric value is an index into
// Snapshot.Readings and is not stable between versions; names are.
type Field uint8

// The load fields come first: placement reads them for every candidate, and
// neighbours share cache lines.
const (
	QueueDepth Field = iota
	ActiveRequests
	KVCacheUtilization
	Sleeping
	ServedModels
	ContextLimit
	Health
	Ready
	MaxConcurrency
	KVCacheCapacity
	KVBlockSize
	PrefixCacheEnabled
	PrefixCacheHitRatio
	AdaptersLoaded
	AdaptersWaiting
	AdaptersMax
	TTFT
	ITL
	TPOT
	E2E
	QueueTime
	PromptThroughput
	GenerationThroughput
	PreemptionRate
	GPUUtilization
	MemoryPressure
	Power
	EnergyPerToken
	EngineVersion
	ProcessStart

	// NumFields is the size of the catalogue.
	NumFields
)

// LoadFields are the fields that say how busy a replica is. Their freshness
// decides the rung of a decision.
var LoadFields = [...]Field{QueueDepth, ActiveRequests, KVCacheUtilization}

// NumLoadFields is the number of load fields.
const NumLoadFields = len(LoadFields)

// Kind is the shape of a field's value.
type Kind uint8

const (
	// Number is a finite float64 of at least 0.
	Number Kind = iota
	// Bool is 0 or 1 in Reading.Value.
	Bool
	// Names is a list of names in Detail.Names.
	Names
	// Text is a string in Detail.Text.
	Text
	// Time is seconds since the Unix epoch in Reading.Value.
	Time
	// Dist is a distribution in Detail.Distribution.
	Dist
)

type fieldInfo struct {
	name string
	unit string
	kind Kind
	// upper is the largest possible value of a Number; 0 means unbounded.
	upper float64
}

var catalogue = [NumFields]fieldInfo{
	QueueDepth:           {name: "queueDepth", unit: "requests"},
	ActiveRequests:       {name: "activeRequests", unit: "requests"},
	KVCacheUtilization:   {name: "kvCacheUtilization", unit: "util", upper: 1},
	Sleeping:             {name: "sleeping", kind: Bool},
	ServedModels:         {name: "servedModels", kind: Names},
	ContextLimit:         {name: "contextLimit", unit: "tokens"},
	Health:               {name: "health", kind: Bool},
	Ready:                {name: "ready", kind: Bool},
	MaxConcurrency:       {name: "maxConcurrency", unit: "requests"},
	KVCacheCapacity:      {name: "kvCacheCapacity", unit: "tokens"},
	KVBlockSize:          {name: "kvBlockSize", unit: "tokens"},
	PrefixCacheEnabled:   {name: "prefixCacheEnabled", kind: Bool},
	PrefixCacheHitRatio:  {name: "prefixCacheHitRatio", unit: "util", upper: 1},
	AdaptersLoaded:       {name: "adaptersLoaded", kind: Names},
	AdaptersWaiting:      {name: "adaptersWaiting", kind: Names},
	AdaptersMax:          {name: "adaptersMax", unit: "count"},
	TTFT:                 {name: "ttft", unit: "seconds", kind: Dist},
	ITL:                  {name: "itl", unit: "seconds", kind: Dist},
	TPOT:                 {name: "tpot", unit: "seconds", kind: Dist},
	E2E:                  {name: "e2e", unit: "seconds", kind: Dist},
	QueueTime:            {name: "queueTime", unit: "seconds", kind: Dist},
	PromptThroughput:     {name: "promptThroughput", unit: "tokens/s"},
	GenerationThroughput: {name: "generationThroughput", unit: "tokens/s"},
	PreemptionRate:       {name: "preemptionRate", unit: "1/s"},
	GPUUtilization:       {name: "gpuUtilization", unit: "util", upper: 1},
	MemoryPressure:       {name: "memoryPressure", unit: "util", upper: 1},
	Power:                {name: "power", unit: "W"},
	EnergyPerToken:       {name: "energyPerToken", unit: "J/token"},
	EngineVersion:        {name: "engineVersion", kind: Text},
	ProcessStart:         {name: "processStart", unit: "time", kind: Time},
}

// String is the field's name in documents and profiles.
func (f Field) String() string {
	if f >= NumFields {
		return fmt.Sprintf("field(%d)", uint8(f))
	}
	return catalogue[f].name
}

// Unit is the field's unit in documents; empty for fields without one.
func (f Field) Unit() string { return catalogue[f].unit }

// Kind is the shape of the field's value.
func (f Field) Kind() Kind { return catalogue[f].kind }

// ParseField finds a field by its name.
func ParseField(name string) (Field, bool) {
	for f := range catalogue {
		if catalogue[f].name == name {
			return Field(f), true
		}
	}
	return 0, false
}
