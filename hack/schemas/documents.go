package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/invopop/jsonschema"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// document is one kind of document with a schema.
type document struct {
	// file is the name of the schema's file, up to ".schema.json".
	file string
	// kind is the name of the document's type, and what its "kind" says if it has
	// one.
	kind string
	of   any
	// about is the description of a document whose type has no comment of its own,
	// or empty.
	about string
	// configuration says that people write the document and the picker reads it:
	// almost nothing has to be there, and what is not known is refused. Of other
	// documents it is the other way round.
	configuration bool
}

func documents() []document {
	return []document{
		{file: "observation", kind: "Observation", of: v1alpha1.Observation{}},
		{
			file: "replica-list", kind: "ReplicaList", of: list[v1alpha1.Observation]{},
			about: "ReplicaList is what a picker knows of every replica of its pool.",
		},
		{file: "decision", kind: "Decision", of: v1alpha1.Decision{}},
		{
			file: "decision-list", kind: "DecisionList", of: list[v1alpha1.Decision]{},
			about: "DecisionList is the newest decisions that a picker has in memory, the newest first.",
		},
		{file: "pool-report", kind: "PoolReport", of: v1alpha1.PoolReport{}},
		{file: "berth-configuration", kind: "BerthConfiguration", of: v1alpha1.BerthConfiguration{}, configuration: true},
		{file: "static-pool", kind: "StaticPool", of: v1alpha1.StaticPool{}, configuration: true},
		{file: "routing-intent", kind: "RoutingIntent", of: v1alpha1.RoutingIntent{}},
	}
}

// list is the form in which the picker's admin listener reports several documents.
type list[T any] struct {
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Items   []T    `json:"items"`
}

// bound narrows the schema of one member.
type bound func(*jsonschema.Schema)

// readBounds has the bounds that comments tell in words, by struct and member. It
// leaves out what another member decides, and what the next version may well
// allow: a schema may take what the picker refuses, never the other way round.
func readBounds(root string) (map[string]bound, error) {
	values := map[string][]string{}
	for _, of := range []struct{ dir, name string }{
		{apiDirectory, "State"}, {"internal/host", "acted"}, {"internal/extproc", "Cause"}, {"internal/extproc", "Seen"},
	} {
		s, err := readSource(filepath.Join(root, of.dir))
		if err != nil {
			return nil, err
		}
		for _, v := range s.values[of.name] {
			values[of.name] = append(values[of.name], v.text)
		}
		if values[of.name] == nil {
			return nil, fmt.Errorf("%s: there are no constants of a type %s", of.dir, of.name)
		}
	}
	var rungs, uses, classes []string
	for r := placement.Full; r <= placement.Refuse; r++ {
		rungs = append(rungs, r.String())
	}
	for u := placement.UsedFull; u <= placement.Dropped; u++ {
		uses = append(uses, u.String())
	}
	for c := screen.Kept + 1; c < screen.NumClasses; c++ {
		classes = append(classes, c.String())
	}
	port := within("1", "65535")
	return map[string]bound{
		"Observation.order":           oneOf("normal", "last"),
		"Observation.excluded":        oneOf("not_ready", "terminating", "asleep_or_unhealthy", "quarantined"),
		"Observation.inFlight":        atLeast("0"),
		"Replica.incarnation":         atLeast("0"),
		"Reading.quality":             within("0", "1"),
		"Distribution.count":          atLeast("0"),
		"Decision.path":               oneOf("native", "gie"),
		"Decision.rung":               oneOf(rungs...),
		"Decision.telemetry":          oneOf(string(v1alpha1.TelemetryNone)),
		"Decision.members":            atLeast("0"),
		"Decision.screened":           atLeast("0"),
		"IntentFacts.outranked":       items(1, 2, oneOf("signed", "headers")),
		"IntentFacts.subset":          atLeast("0"),
		"RequestFacts.bodyBytes":      atLeast("0"),
		"FieldUse.use":                oneOf(uses...),
		"Candidate.removedBy":         oneOf(classes...),
		"Candidate.rank":              atLeast("0"),
		"Candidate.inFlight":          atLeast("0"),
		"Candidate.pending":           atLeast("0"),
		"Candidate.scores":            itemsOrNull,
		"AttributeFacts.state":        oneOf("absent", "present", "contradicted", "unknown"),
		"FieldEvidence.state":         oneOf(values["State"]...),
		"FieldEvidence.support":       oneOf("supported", "unsupported", "disabled"),
		"FieldEvidence.ageMillis":     atLeast("0"),
		"FieldEvidence.reason":        characters(256),
		"Refusal.status":              within("400", "599"),
		"Acknowledgement.acted":       oneOf(values["acted"]...),
		"Acknowledgement.attempts":    atLeast("0"),
		"Outcome.cause":               oneOf(values["Cause"]...),
		"Outcome.seen":                oneOf(values["Seen"]...),
		"Outcome.duration":            atLeast("0"),
		"Outcome.requestBytes":        atLeast("0"),
		"DiscoveryConfiguration.file": notEmpty,

		"GatewayConfiguration.fallbacks":           within("0", "4"),
		"LimitsConfiguration.headerCount":          within("1", "10000"),
		"LimitsConfiguration.streams":              within("1", "10000000"),
		"LimitsConfiguration.streamsPerConnection": within("1", "10000000"),
		"TelemetryConfiguration.workers":           within("1", "1024"),
		"PlacementConfiguration.quorum":            share,
		"PlacementConfiguration.replicas":          atLeast("1"),
		"SignedHeaderConfiguration.keySet":         notEmpty,
		"SignedHeaderConfiguration.audience":       characters(253),
		"TrustConfiguration.headers":               func(s *jsonschema.Schema) { s.MaxProperties = new(uint64(32)) },
		"ModelsConfiguration.aliases":              aliases,
		"QuarantineConfiguration.failures":         within("1", "1000"),
		"QuarantineConfiguration.maxShare":         within("0", "1"),
		"LedgerConfiguration.ring":                 within("0", "100000"),
		"LedgerConfiguration.candidates":           within("0", "10000"),

		"PoolMetadata.namespace":      dnsName(`^`+label+`$`, 63),
		"PoolMetadata.name":           dnsName(`^`+label+`(\.`+label+`)*$`, 253),
		"StaticEndpoint.name":         characters(253),
		"StaticEndpoint.address":      address,
		"StaticEndpoint.port":         port,
		"StaticEndpoint.node":         characters(253),
		"StaticEndpoint.zone":         characters(253),
		"StaticEndpoint.servedModels": distinctNames,
		"StaticEndpoint.contextLimit": atLeast("1"),
		"EndpointMetrics.scheme":      oneOf("http", "https"),
		"EndpointMetrics.port":        port,
		"EndpointMetrics.path":        func(s *jsonschema.Schema) { s.Pattern = "^/" },

		"RoutingIntent.intentID":     characters(253),
		"RoutingIntent.issuer":       characters(253),
		"RoutingIntent.audience":     items(1, 16, characters(253)),
		"RoutingIntent.logicalModel": characters(512),
		"RoutingIntent.servedModels": items(0, 64, characters(512)),
		"RoutingIntent.requirements": items(0, 64, nil),
		"RoutingIntent.priority":     within("-2147483648", "2147483647"),
		"RoutingIntent.sessionKey":   characters(512),
		"Requirement.key":            characters(317),
		"Requirement.values":         items(0, 256, notEmpty),
		"ContextNeed.inputTokens":    tokens,
		"ContextNeed.outputTokens":   tokens,
		"SLO.ttft":                   atLeast("0"),
		"SLO.tpot":                   atLeast("0"),
		"Demand.inputTokens":         tokens,
		"Demand.outputTokens":        tokens,
	}, nil
}

func atLeast(least json.Number) bound { return func(s *jsonschema.Schema) { s.Minimum = least } }

func within(least, most json.Number) bound {
	return func(s *jsonschema.Schema) { s.Minimum, s.Maximum = least, most }
}

func oneOf(values ...string) bound {
	return func(s *jsonschema.Schema) {
		s.Enum = nil
		for _, v := range values {
			s.Enum = append(s.Enum, v)
		}
	}
}

// share is above 0, at most 1.
func share(s *jsonschema.Schema) { s.ExclusiveMinimum, s.Maximum = "0", "1" }

func notEmpty(s *jsonschema.Schema) { s.MinLength = new(uint64(1)) }

// characters bounds a text. The picker counts bytes, of which no text has fewer.
func characters(most uint64) bound {
	return func(s *jsonschema.Schema) { s.MinLength, s.MaxLength = new(uint64(1)), &most }
}

// tokens are as many as every reader of JSON has exactly.
func tokens(s *jsonschema.Schema) { s.Minimum, s.Maximum = "0", "9007199254740991" }

func items(least, most uint64, of bound) bound {
	return func(s *jsonschema.Schema) {
		if s.MaxItems = &most; least > 0 {
			s.MinItems = &least
		}
		if of != nil {
			of(s.Items)
		}
	}
}

const label = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`

func dnsName(pattern string, most uint64) bound {
	return func(s *jsonschema.Schema) { s.Pattern, s.MaxLength = pattern, &most }
}

func address(s *jsonschema.Schema) {
	s.AnyOf = []*jsonschema.Schema{{Format: "ipv4"}, {Format: "ipv6"}}
}

func distinctNames(s *jsonschema.Schema) {
	s.MinItems, s.UniqueItems = new(uint64(1)), true
	characters(512)(s.Items)
}

func aliases(s *jsonschema.Schema) {
	s.MaxProperties = new(uint64(1024))
	items(1, 64, characters(512))(s.AdditionalProperties)
}

func itemsOrNull(s *jsonschema.Schema) {
	s.Items = &jsonschema.Schema{OneOf: []*jsonschema.Schema{s.Items, {Type: "null"}}}
}

// complete adds what takes more than one member to say.
func (d document) complete(types map[string]*jsonschema.Schema) error {
	version := "version"
	if d.configuration {
		version = "apiVersion"
	}
	for name, t := range types {
		if _, ok := t.Properties.Get("kind"); !ok {
			continue
		}
		// Of the kinds that are items of a list, the name of the type is the kind.
		constant(t, version, v1alpha1.Version)
		constant(t, "kind", name)
		if d.configuration {
			t.Description += "\nA member that is not named here is refused."
		} else {
			t.Description += "\nMembers that are not named here may be added within a version: whoever reads the document passes over them."
		}
	}
	if t := types["Observation"]; t != nil {
		observe(t)
	}
	if t := types["Reading"]; t != nil {
		value, _ := t.Properties.Get("value")
		value.OneOf = []*jsonschema.Schema{
			{Type: "number"}, {Type: "boolean"}, {Type: "string"}, names(), distribution(),
		}
		onlyWhereKnown(t, "value", "max")
	}
	if t := types["FieldEvidence"]; t != nil {
		onlyWhereKnown(t, "value", "ageMillis")
	}
	if d.kind == "RoutingIntent" {
		demand(types)
	}
	if d.kind == "BerthConfiguration" {
		types[d.kind].Required = []string{"apiVersion", "kind"}
		types["SignedHeaderConfiguration"].Required = []string{"keySet", "audience"}
		return byDefault(types, d.kind, v1alpha1.DefaultBerthConfiguration())
	}
	if d.kind == "StaticPool" {
		types[d.kind].Required = []string{"apiVersion", "kind", "metadata"}
		types["PoolMetadata"].Required = []string{"name"}
		types["StaticEndpoint"].Required = []string{"name", "address", "port"}
	}
	return nil
}

func constant(t *jsonschema.Schema, member, value string) {
	p, _ := t.Properties.Get(member)
	p.Type, p.Const = "", value
}

// onlyWhereKnown says that the first member is there if and only if the state is
// one that has a value, and the others only then.
func onlyWhereKnown(t *jsonschema.Schema, first string, others ...string) {
	state := jsonschema.NewProperties()
	state.Set("state", &jsonschema.Schema{Enum: []any{string(v1alpha1.Fresh), string(v1alpha1.Stale)}})
	t.If = &jsonschema.Schema{Properties: state}
	t.Then = &jsonschema.Schema{Required: []string{first}}
	absent := jsonschema.NewProperties()
	for _, m := range append([]string{first}, others...) {
		absent.Set(m, jsonschema.FalseSchema)
	}
	t.Else = &jsonschema.Schema{Properties: absent}
}

// observe describes each field of the catalogue: its unit, and what its value is.
// Each of them is always there; fields that are not in the catalogue may be.
func observe(t *jsonschema.Schema) {
	fields, _ := t.Properties.Get("fields")
	fields.Description = "Each field of the catalogue is present, with a value or the reason for its absence."
	fields.Properties = jsonschema.NewProperties()
	for f := range telemetry.NumFields {
		of := jsonschema.NewProperties()
		of.Set("value", valueOf(f))
		if f.Unit() != "" {
			of.Set("unit", &jsonschema.Schema{Const: f.Unit()})
		}
		fields.Properties.Set(f.String(), &jsonschema.Schema{Ref: "#/$defs/Reading", Properties: of})
		fields.Required = append(fields.Required, f.String())
	}
}

func valueOf(f telemetry.Field) *jsonschema.Schema {
	switch f.Kind() {
	case telemetry.Bool:
		return &jsonschema.Schema{Type: "boolean"}
	case telemetry.Names:
		return names()
	case telemetry.Text:
		return &jsonschema.Schema{Type: "string"}
	case telemetry.Time:
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case telemetry.Dist:
		return distribution()
	default:
		s := &jsonschema.Schema{Type: "number", Minimum: "0"}
		if f.Unit() == "util" {
			s.Maximum = "1"
		}
		return s
	}
}

func names() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{Type: "string"}}
}

func distribution() *jsonschema.Schema { return &jsonschema.Schema{Ref: "#/$defs/Distribution"} }

// demand says what an intent may have: anything beside its own members, since hints
// may be added, and nothing within them, since a constraint could be lost.
func demand(types map[string]*jsonschema.Schema) {
	for name, t := range types {
		if name == "RoutingIntent" {
			constant(t, "version", v1alpha1.Version)
			t.Description += "\nMembers that are not named here are passed over. One that is named but for its case is refused, and so is null."
			continue
		}
		t.AdditionalProperties = jsonschema.FalseSchema
		t.Description += "\nA member that is not named here is refused."
	}
	r := types["Requirement"]
	for _, of := range []struct {
		operators   []any
		least, most uint64
		pattern     string
	}{
		{[]any{string(v1alpha1.In), string(v1alpha1.NotIn)}, 1, 256, `[^ \t\r\n]`},
		{[]any{string(v1alpha1.Exists), string(v1alpha1.DoesNotExist)}, 0, 0, ""},
		{[]any{string(v1alpha1.Gt), string(v1alpha1.Lt)}, 1, 1, `^[ \t\r\n]*[+-]?[0-9]+[ \t\r\n]*$`},
	} {
		operator, values := jsonschema.NewProperties(), jsonschema.NewProperties()
		operator.Set("operator", &jsonschema.Schema{Enum: of.operators})
		v := &jsonschema.Schema{MaxItems: &of.most}
		values.Set("values", v)
		then := &jsonschema.Schema{Properties: values}
		if of.least > 0 {
			v.MinItems, v.Items = &of.least, &jsonschema.Schema{Pattern: of.pattern}
			then.Required = []string{"values"}
		}
		r.AllOf = append(r.AllOf, &jsonschema.Schema{If: &jsonschema.Schema{Properties: operator}, Then: then})
	}
}

// byDefault notes what a file that leaves a member out has there.
func byDefault(types map[string]*jsonschema.Schema, root string, defaults any) error {
	data, err := json.Marshal(defaults)
	if err != nil {
		return err
	}
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		return err
	}
	// It follows from another member.
	if limits, ok := tree["limits"].(map[string]any); ok {
		delete(limits, "message")
	}
	var walk func(t *jsonschema.Schema, tree map[string]any) error
	walk = func(t *jsonschema.Schema, tree map[string]any) error {
		for name, v := range tree {
			p, ok := t.Properties.Get(name)
			if !ok {
				return fmt.Errorf("%s: the default has it, the schema has not", name)
			}
			below, nested := v.(map[string]any)
			switch {
			case nested && p.Ref != "":
				if err := walk(types[p.Ref[len("#/$defs/"):]], below); err != nil {
					return err
				}
			case p.Const == nil:
				p.Default = v
			}
		}
		return nil
	}
	return walk(types[root], tree)
}
