package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	headertometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	setmetadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_metadata/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/yamlerror"
)

// ErrNotEnvoy is the answer to a file that is no Envoy configuration.
var ErrNotEnvoy = errors.New("is no Envoy configuration")

// maxYAML bounds what is read as YAML, bytes: its tree takes some thirty times the
// memory of its text. JSON is read without a tree.
const maxYAML = 64 << 20

// The types of what is read.
const (
	// An ext_proc filter's settings, and those that a route puts in their place.
	filterType = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
	routeType  = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
	// Filters that write into dynamic metadata.
	headersType  = "envoy.extensions.filters.http.header_to_metadata.v3.Config"
	metadataType = "envoy.extensions.filters.http.set_metadata.v3.Config"
	// What removes headers before any filter.
	earlyType = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
	// What filters and early mutations are members of.
	managerType = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	// The policy that walks a list of destinations.
	overrideHostType = "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"
)

// Configuration is what a gateway's configuration says of the picker's filters and
// of what stands around them.
type Configuration struct {
	// Filters are the ext_proc filters, and what routes replace of them, in the order
	// of the file.
	Filters []Filter

	managers []manager
	writers  []writer
	stripped []strip

	// originalDst is the line of a cluster that takes one address; 0: there is none.
	originalDst int
	// overrideHost is set where a cluster walks a list.
	overrideHost bool
	// routes is set once a route with an action was seen; retries is the largest
	// number of retries of a retry policy.
	routes  bool
	retries int
}

// Read reads the ext_proc filters of an Envoy configuration, and what stands around
// them, wherever they stand in it: in a bootstrap, in resources, in the dump of Envoy's admin
// endpoint. What begins with a brace and a quote is read as JSON, of one value;
// all else as YAML, of any number of documents. A file without Envoy's keys at the top
// is ErrNotEnvoy; what is wrong with one that has them is *policy.Error, joined.
func Read(file string, data []byte) (*Configuration, error) {
	c := &reading{file: file, data: bytes.TrimPrefix(data, []byte("\ufeff"))}
	read := c.readYAML
	if isJSON(c.data) {
		read = c.readJSON
	}
	switch err := read(); {
	case !c.envoy:
		return nil, ErrNotEnvoy
	case err != nil:
		c.errs = append(c.errs, err)
	}
	c.tellApart()
	return &c.Configuration, errors.Join(c.errs...)
}

// reading is a file of Envoy's while it is read.
type reading struct {
	Configuration
	file string
	data []byte

	// envoy is set once a document has one of Envoy's keys at its top.
	envoy bool
	// next is the place of what is read next.
	next int
	errs []error

	// lineEnds has the offset of each line's end, once it was asked for.
	lineEnds []int
}

// topKeys are the keys by which a bootstrap, a file of resources and a dump are
// known.
var topKeys = []string{"static_resources", "dynamic_resources", "resources", "configs"}

func isTopKey(key string) bool {
	return slices.ContainsFunc(topKeys, func(name string) bool { return spells(key, name) })
}

// spells reports whether a key is a name in either spelling that Envoy takes:
// processing_mode, processingMode.
func spells(key, name string) bool {
	return strings.EqualFold(strings.ReplaceAll(key, "_", ""), strings.ReplaceAll(name, "_", ""))
}

// readYAML reads documents one at a time, so that one tree at most is held.
func (c *reading) readYAML() error {
	if len(c.data) > maxYAML {
		c.envoy = c.hasTopLine()
		return &policy.Error{File: c.file, Value: "more than 64MiB", Allowed: "must be at most 64MiB as YAML; the JSON of Envoy's admin endpoint may be longer"}
	}
	for dec := yaml.NewDecoder(bytes.NewReader(c.data)); ; {
		var root yaml.Node
		err := dec.Decode(&root)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			c.envoy = c.envoy || c.hasTopLine()
			line, reason := yamlerror.Place(c.data, err)
			return &policy.Error{File: c.file, Line: line, Allowed: "is not valid YAML: " + reason}
		}
		for _, document := range root.Content {
			eachMember(document, func(key string, _ *yaml.Node) { c.envoy = c.envoy || isTopKey(key) })
		}
		c.visit(&root, false)
	}
}

// hasTopLine reports whether a line begins with one of Envoy's keys, in a file
// that does not parse.
func (c *reading) hasTopLine() bool {
	for line := range bytes.Lines(c.data) {
		key, _, found := bytes.Cut(line, []byte(":"))
		if found && len(key) < 32 && isTopKey(strings.Trim(string(key), `"' `)) && key[0] != ' ' {
			return true
		}
	}
	return false
}

// visit reads each mapping of a document; perRoute is set inside of what routes put
// in the place of filters. Aliases are not followed: what they stand for is visited
// where it is written.
func (c *reading) visit(n *yaml.Node, perRoute bool) {
	from, kind := c.next, ""
	if n.Kind == yaml.MappingNode {
		kind = c.yamlMapping(n, perRoute)
	}
	for i, child := range n.Content {
		within := n.Kind == yaml.MappingNode && i%2 == 1 && spells(behind(n.Content[i-1]).Value, perRouteKey)
		c.visit(child, perRoute || within)
	}
	c.close(kind, from)
}

// perRouteKey is the key of what a route puts in the place of filters.
const perRouteKey = "typed_per_filter_config"

// close ends what began at a place, if that is a connection manager.
func (c *reading) close(kind string, from int) {
	if isType(kind, managerType) {
		c.managers = append(c.managers, manager{from, c.next})
	}
}

// behind is the node that an alias stands for. No alias stands for another.
func behind(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// eachMember calls see for the members of a mapping, or of the one behind an
// alias.
func eachMember(n *yaml.Node, see func(key string, value *yaml.Node)) {
	n = behind(n)
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		see(behind(n.Content[i]).Value, behind(n.Content[i+1]))
	}
}

// yamlMapping takes a mapping's settings if they are of a type that is read, and
// returns the type.
func (c *reading) yamlMapping(n *yaml.Node, perRoute bool) (kind string) {
	eachMember(n, func(key string, value *yaml.Node) {
		switch {
		case key == "@type":
			kind = value.Value
		case key == "type":
			c.clusterType(n.Line, value.Value)
		case key == "route" && value.Kind == yaml.MappingNode:
			c.routes = true
		case spells(key, "retry_policy") && value.Kind == yaml.MappingNode:
			retries := "1"
			eachMember(value, func(key string, value *yaml.Node) {
				if spells(key, "num_retries") {
					retries = value.Value
				}
			})
			c.retry(retries)
		}
	})
	if !isSettings(kind) {
		return kind
	}
	kept := settings{}
	var errs []error
	eachMember(n, func(key string, value *yaml.Node) {
		if name, read := settingName(key); read {
			var content any
			// Decoding follows aliases inside, and refuses those that lead back to
			// themselves or blow a small text up.
			err := value.Decode(&content)
			if err == nil {
				kept[name], err = json.Marshal(content)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	})
	lineOf := func(text string) int { return lineOfScalar(n, text, map[*yaml.Node]bool{}) }
	c.add(n.Line, lineOf, kind, kept, perRoute, errors.Join(errs...))
	return kind
}

// lineOfScalar is the line of the first scalar with a text in a node, or behind the
// aliases in it; 0 if there is none. Nodes that were seen are not gone through again:
// aliases may lead back.
func lineOfScalar(n *yaml.Node, text string, seen map[*yaml.Node]bool) int {
	n = behind(n)
	if n.Kind == yaml.ScalarNode && n.Value == text {
		return n.Line
	}
	if seen[n] {
		return 0
	}
	seen[n] = true
	for _, child := range n.Content {
		if line := lineOfScalar(child, text, seen); line > 0 {
			return line
		}
	}
	return 0
}

// clusterType takes what may be the type of a cluster.
func (c *reading) clusterType(line int, kind string) {
	if kind == "ORIGINAL_DST" && c.originalDst == 0 {
		c.originalDst = line
	}
}

// retry takes the number of retries of a policy. What is no number Envoy refuses.
func (c *reading) retry(number string) {
	if n, err := strconv.Atoi(number); err == nil {
		c.retries = max(c.retries, n)
	}
}

// space is what may stand between the parts of JSON.
const space = " \t\r\n"

// isJSON reports whether a file begins as a JSON object does: with a brace, and
// behind it a quote or the other brace. An unquoted key is YAML's.
func isJSON(data []byte) bool {
	inside, found := bytes.CutPrefix(bytes.TrimLeft(data, space), []byte("{"))
	inside = bytes.TrimLeft(inside, space)
	return found && len(inside) > 0 && (inside[0] == '"' || inside[0] == '}')
}

// unread is a JSON value that is checked and not kept.
type unread struct{}

func (*unread) UnmarshalJSON([]byte) error { return nil }

// readJSON checks the file and looks for objects of the two types in it. A dump
// may be large, so nothing is held of it but the settings that are linted.
func (c *reading) readJSON() error {
	err := json.Unmarshal(c.data, &unread{})
	c.scanJSON(err == nil)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		// The offset is behind the byte that does not fit.
		return &policy.Error{File: c.file, Line: c.lineAt(int(syntax.Offset) - 1), Allowed: "is not valid JSON: " + syntax.Error()}
	}
	return err
}

// scanJSON goes through brackets and strings. Of a file that is not valid it
// finds the keys at the top alone.
func (c *reading) scanJSON(valid bool) {
	type bracket struct {
		begin    int
		from     int // the place of what is read first inside
		kind     string
		perRoute bool // inside of what routes put in the place of filters
		route    bool // a route's action
		retry    bool // a retry policy
	}
	var open []bracket
	var key []byte // the one whose value is next
	for i := 0; i < len(c.data); i++ {
		switch c.data[i] {
		case '{', '[':
			open = append(open, bracket{
				begin: i, from: c.next,
				perRoute: isKey(key, perRouteKey) || len(open) > 0 && open[len(open)-1].perRoute,
				route:    string(key) == "route",
				retry:    isKey(key, "retry_policy"),
			})
			key = nil
		case '}', ']':
			if len(open) == 0 {
				return // not valid
			}
			inner := open[len(open)-1]
			open = open[:len(open)-1]
			if !valid || c.data[i] == ']' {
				continue
			}
			c.routes = c.routes || inner.route
			if inner.retry {
				c.retry(retriesOf(c.data[inner.begin : i+1]))
			}
			if isSettings(inner.kind) {
				object := c.data[inner.begin : i+1]
				kept, err := settingsOf(object)
				lineOf := func(text string) int {
					// A string always marshals.
					quoted, _ := json.Marshal(text)
					if at := bytes.Index(object, quoted); at >= 0 {
						return c.lineAt(inner.begin + at)
					}
					return 0
				}
				c.add(c.lineAt(inner.begin), lineOf, inner.kind, kept, inner.perRoute, err)
			}
			c.close(inner.kind, inner.from)
		case '"':
			text, length := jsonString(c.data[i:])
			i += length - 1
			switch {
			case bytes.HasPrefix(bytes.TrimLeft(c.data[min(i+1, len(c.data)):], space), []byte(":")):
				key = text
				c.envoy = c.envoy || len(open) == 1 && isTopKey(string(text))
			case len(open) > 0 && string(key) == "@type":
				open[len(open)-1].kind = string(text)
			case string(key) == "type" && string(text) == "ORIGINAL_DST":
				c.clusterType(c.lineAt(i), string(text))
			}
		}
	}
}

// isKey reports what spells does, of a key in JSON, without work for most.
func isKey(key []byte, name string) bool {
	return len(key) <= len(name) && len(key) >= len(name)-strings.Count(name, "_") && spells(string(key), name)
}

// retriesOf is the number of retries of a retry policy in JSON that is valid; one, if
// it says none.
func retriesOf(policy json.RawMessage) string {
	var all map[string]json.RawMessage
	retries := "1"
	if json.Unmarshal(policy, &all) == nil {
		for key, value := range all {
			if spells(key, "num_retries") {
				retries = string(value)
			}
		}
	}
	return retries
}

// jsonString is the text of the string that data begins with, and its length
// with the quotes.
func jsonString(data []byte) (text []byte, length int) {
	end, escaped := 1, false
	for end < len(data) && data[end] != '"' {
		if data[end] == '\\' {
			escaped = true
			end++
		}
		end++
	}
	end = min(end, len(data)-1)
	text = data[1:max(end, 1)]
	if escaped {
		var unescaped string
		if json.Unmarshal(data[:end+1], &unescaped) == nil {
			text = []byte(unescaped)
		}
	}
	return text, end + 1
}

// lineAt is the line of an offset, from 1.
func (c *reading) lineAt(offset int) int {
	if c.lineEnds == nil {
		c.lineEnds = []int{}
		for i, b := range c.data {
			if b == '\n' {
				c.lineEnds = append(c.lineEnds, i)
			}
		}
	}
	before, _ := slices.BinarySearch(c.lineEnds, offset)
	return before + 1
}

// settings are members of a filter's settings by their names in snake case, as
// JSON. Only those that are linted are kept: others may hold types that only
// Envoy knows.
type settings map[string]json.RawMessage

// settingName is the name of a key in snake case, if the setting is read.
func settingName(key string) (name string, read bool) {
	for _, name := range []string{
		"processing_mode", "failure_mode_allow", "observability_mode", "metadata_options", "response_attributes",
		"disabled", "overrides", "request_rules", "metadata", "metadata_namespace", "value", "mutations",
	} {
		if spells(key, name) {
			return name, true
		}
	}
	return "", false
}

func settingsOf(object json.RawMessage) (settings, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(object, &all); err != nil {
		return nil, err
	}
	kept := settings{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if name, read := settingName(key); read {
			kept[name] = all[key]
		}
	}
	return kept, nil
}

// decode reads the named settings into a message that has fields of these names.
func (s settings) decode(into proto.Message, names ...string) error {
	named := settings{}
	for _, name := range names {
		if value, set := s[name]; set {
			named[name] = value
		}
	}
	text, err := json.Marshal(named)
	if err != nil {
		return err
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, into); err != nil {
		return errors.New(protoPlace.ReplaceAllString(err.Error(), ""))
	}
	return nil
}

// protoPlace is where protojson found an error, in a text that nobody wrote.
var protoPlace = regexp.MustCompile(`^proto:\W*(?:syntax error )?\(line \d+:\d+\): `)

// isSettings reports whether a type is one whose settings are read.
func isSettings(kind string) bool {
	for _, read := range []string{filterType, routeType, headersType, metadataType, earlyType, overrideHostType} {
		if isType(kind, read) {
			return true
		}
	}
	return false
}

// isType reports whether the URL of a type is that of a message.
func isType(url, message string) bool {
	before, found := strings.CutSuffix(url, message)
	return found && strings.HasSuffix(before, "/")
}

// add keeps what settings of a type say, or what is wrong with them. lineOf is the line
// in which a text stands in them; 0 where it cannot be told.
func (c *reading) add(line int, lineOf func(text string) int, kind string, s settings, perRoute bool, err error) {
	at := c.next
	c.next++
	named := kind[strings.LastIndexByte(kind, '/')+1:]
	if err == nil {
		switch named {
		case filterType, routeType:
			f := Filter{Line: line, at: at, Route: named == routeType, settings: &extprocv3.ExternalProcessor{}}
			if f.Route {
				err = f.override(s)
			} else {
				err = s.decode(f.settings, "processing_mode", "failure_mode_allow", "observability_mode", "metadata_options", "response_attributes")
			}
			if err == nil {
				c.Filters = append(c.Filters, f)
			}
		case headersType:
			err = c.addHeaderRules(writer{line: line, at: at, route: perRoute}, lineOf, s)
		case metadataType:
			err = c.addMetadata(writer{line: line, at: at, route: perRoute}, lineOf, s)
		case earlyType:
			err = c.addStrip(at, s)
		case overrideHostType:
			c.overrideHost = true
		}
	}
	if err != nil {
		c.errs = append(c.errs, &policy.Error{File: c.file, Line: line, Field: named, Allowed: "cannot be read: " + err.Error()})
	}
}

// addHeaderRules keeps what header_to_metadata writes on the way of a request.
func (c *reading) addHeaderRules(w writer, lineOf func(text string) int, s settings) error {
	var config headertometadatav3.Config
	if err := s.decode(&config, "request_rules"); err != nil {
		return err
	}
	for _, rule := range config.GetRequestRules() {
		// A rule without a key has the name of the header or the cookie in its place.
		name := cmp.Or(rule.GetHeader(), rule.GetCookie())
		if present := rule.GetOnHeaderPresent(); present != nil {
			w := w
			w.namespace, w.header = present.GetMetadataNamespace(), strings.ToLower(rule.GetHeader())
			w.source = "header " + w.header
			if w.header == "" {
				w.source = "cookie " + rule.GetCookie()
			}
			w.write(cmp.Or(present.GetKey(), name), lineOf)
			c.writers = append(c.writers, w)
		}
		if missing := rule.GetOnHeaderMissing(); missing != nil {
			w := w
			w.namespace = missing.GetMetadataNamespace()
			w.write(cmp.Or(missing.GetKey(), name), lineOf)
			c.writers = append(c.writers, w)
		}
	}
	return nil
}

// write adds a key to what the filter writes.
func (w *writer) write(key string, lineOf func(text string) int) {
	w.keys = append(w.keys, metadataKey{key, cmp.Or(lineOf(key), w.line)})
}

// addMetadata keeps what set_metadata writes.
func (c *reading) addMetadata(w writer, lineOf func(text string) int, s settings) error {
	var config setmetadatav3.Config
	if err := s.decode(&config, "metadata", "metadata_namespace", "value"); err != nil {
		return err
	}
	add := func(namespace string, value *structpb.Struct) {
		if namespace == "" {
			return
		}
		w := w
		w.namespace = namespace
		for _, key := range slices.Sorted(maps.Keys(value.GetFields())) {
			w.write(key, lineOf)
		}
		c.writers = append(c.writers, w)
	}
	add(config.GetMetadataNamespace(), config.GetValue()) //nolint:staticcheck // the older form of the same
	for _, m := range config.GetMetadata() {
		add(m.GetMetadataNamespace(), m.GetValue())
	}
	return nil
}

// addStrip keeps the names that an early header mutation removes.
func (c *reading) addStrip(at int, s settings) error {
	var config earlyv3.HeaderMutation
	if err := s.decode(&config, "mutations"); err != nil {
		return err
	}
	removed := strip{at: at}
	for _, m := range config.GetMutations() {
		if name := m.GetRemove(); name != "" {
			removed.names = append(removed.names, strings.ToLower(name))
		}
		switch key := m.GetRemoveOnMatch().GetKeyMatcher(); {
		case key.GetExact() != "":
			removed.names = append(removed.names, strings.ToLower(key.GetExact()))
		case key.GetPrefix() != "":
			removed.prefixes = append(removed.prefixes, strings.ToLower(key.GetPrefix()))
		}
	}
	c.stripped = append(c.stripped, removed)
	return nil
}

// override sets what a route replaces of the filter.
func (f *Filter) override(s settings) error {
	route := &extprocv3.ExtProcPerRoute{}
	if err := s.decode(route, "disabled"); err != nil {
		return err
	}
	f.disabled = route.GetDisabled()
	text, set := s["overrides"]
	if !set {
		return nil
	}
	inside, err := settingsOf(text)
	if err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	overrides := &extprocv3.ExtProcOverrides{}
	if err := inside.decode(overrides, "processing_mode", "failure_mode_allow", "metadata_options"); err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	f.settings.ProcessingMode = overrides.GetProcessingMode()
	f.settings.FailureModeAllow = overrides.GetFailureModeAllow().GetValue()
	f.settings.MetadataOptions = overrides.GetMetadataOptions()
	return nil
}
