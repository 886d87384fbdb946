package v1alpha1

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The reason tokens of an IntentError. Both are refused with 400.
const (
	ReasonIntentMalformed = "intent_malformed"
	ReasonIntentVersion   = "intent_version"
)

// IntentError says why something is not an intent of this version.
type IntentError struct {
	// Token is ReasonIntentMalformed or ReasonIntentVersion.
	Token string
	// Field is the path of the member, such as requirements[2].operator, or empty for
	// the intent as a whole.
	Field string
	// Problem says what is wrong with it and what is allowed. Of what came, no more
	// than 64 bytes are quoted.
	Problem string
}

func (e *IntentError) Error() string {
	if e.Field == "" {
		return "intent: " + e.Problem
	}
	return e.Field + ": " + e.Problem
}

// The bounds of an intent: of texts in bytes, of lists in items.
const (
	intentBytes   = 64 << 10 // as JSON text
	intentDepth   = 8        // objects and lists within each other, the intent among them
	intentTokens  = 1<<53 - 1
	nameBytes     = 253
	modelBytes    = 512
	keyBytes      = 317 // a prefix of 253, a slash, a name of 63
	valueBytes    = 512
	audienceItems = 16
	modelItems    = 64
	requireItems  = 64
	valueItems    = 256
	unknownItems  = 16
	quotedBytes   = 64
)

// EncodeIntent writes an intent as JSON. It refuses, with an *IntentError, whatever
// DecodeIntent would refuse. DecodeIntent reads the same intent from it: times in
// UTC, values of requirements without the blanks around them, and what is empty as
// nil.
func EncodeIntent(i *RoutingIntent) ([]byte, error) {
	if err := i.Validate(); err != nil {
		return nil, err
	}
	written := *i
	// A zone's offset may have seconds, which RFC 3339 has no place for.
	written.IssuedAt, written.ExpiresAt = i.IssuedAt.UTC(), i.ExpiresAt.UTC()
	written.Requirements = slices.Clone(i.Requirements)
	for n, r := range written.Requirements {
		r.Values = slices.Clone(r.Values)
		for v, text := range r.Values {
			r.Values[v] = trimBlanks(text)
		}
		written.Requirements[n].Values = r.Values
	}
	data, err := json.Marshal(&written)
	if err != nil {
		return nil, malformed("", "cannot be written: %v", err)
	}
	if len(data) > intentBytes {
		return nil, tooLong(len(data))
	}
	return data, nil
}

// Validate reports, as an *IntentError, the first member that DecodeIntent would
// not have read. The length as JSON text is EncodeIntent's to check.
func (i *RoutingIntent) Validate() error {
	if err := i.check(); err != nil {
		return err
	}
	return nil
}

// DecodeIntent reads an intent from JSON text of at most 64 KiB. Its errors are of
// type *IntentError.
//
// It is strict where leniency could lose a constraint: a member that occurs twice,
// one that is null, one that is known but for its case, and one that is not known
// inside of another are all refused. Members that are not known of the intent
// itself are passed over, so that later versions can add hints; unknown has the
// names of the first 16 in order, each cut to 64 bytes.
//
// The intent holds on to a copy of data.
func DecodeIntent(data []byte) (i *RoutingIntent, unknown []string, err error) {
	if len(data) > intentBytes {
		return nil, nil, tooLong(len(data))
	}
	// An intent with six requirements has about 50 nodes.
	var room [96]node
	p := parser{nodes: room[:0]}
	if bad := p.parseObject(string(data)); bad != nil {
		return nil, nil, bad
	}
	return fromMembers(members{of: value{tape: &p}})
}

// IntentFromValue is DecodeIntent for what has been decoded to a tree: of string,
// float64, json.Number, bool, nil, []any and map[string]any, as encoding/json and
// structpb's AsMap make them. It neither changes nor keeps the tree, its texts
// apart.
//
// A tree no longer tells which members came twice: whoever makes one from JSON
// text should call DecodeIntent.
func IntentFromValue(v map[string]any) (i *RoutingIntent, unknown []string, err error) {
	return fromMembers(members{of: value{tree: v}})
}

func fromMembers(m members) (i *RoutingIntent, unknown []string, err error) {
	// Nothing can be said of the members of a version that is not known.
	version, _ := m.of.member("version")
	if text, _ := version.text(); text != Version {
		return nil, nil, checkVersion(version.plain())
	}
	i = &RoutingIntent{
		Version:      m.text("version"),
		IntentID:     m.text("intentID"),
		Issuer:       m.text("issuer"),
		Audience:     m.texts("audience", audienceItems),
		IssuedAt:     m.time("issuedAt"),
		ExpiresAt:    m.time("expiresAt"),
		LogicalModel: m.text("logicalModel"),
		ServedModels: m.texts("servedModels", modelItems),
		Requirements: m.requirements("requirements"),
		Priority:     int32(m.whole("priority", math.MinInt32, math.MaxInt32)),
		SessionKey:   m.text("sessionKey"),
		Energy:       EnergyPreference(m.text("energy")),
	}
	if m.err == nil && i.Audience != nil && len(i.Audience) == 0 {
		// It would be for nobody, and a nil list is for everybody.
		m.fail("audience", "is empty; allowed are 1 to %d names", audienceItems)
	}
	if len(i.ServedModels) == 0 {
		i.ServedModels = nil
	}
	if n, ok := m.object("context"); ok {
		i.Context = &ContextNeed{InputTokens: n.tokens("inputTokens"), OutputTokens: n.tokens("outputTokens")}
		m.done("context", &n, "inputTokens", "outputTokens")
	}
	if n, ok := m.object("slo"); ok {
		i.SLO = &SLO{TTFT: n.seconds("ttft"), TPOT: n.seconds("tpot")}
		m.done("slo", &n, "ttft", "tpot")
	}
	if n, ok := m.object("demand"); ok {
		i.Demand = &Demand{InputTokens: n.tokens("inputTokens"), OutputTokens: n.tokens("outputTokens")}
		m.done("demand", &n, "inputTokens", "outputTokens")
	}
	if m.err == nil && m.read != m.of.len() {
		unknown, m.err = unknownMembers(m.of.names())
	}
	if m.err == nil {
		m.err = i.check()
	}
	if m.err != nil {
		return nil, nil, m.err
	}
	return i, unknown, nil
}

// intentMembers are the members of an intent.
var intentMembers = [...]string{
	"version", "intentID", "issuer", "audience", "issuedAt", "expiresAt", "logicalModel", "servedModels", "requirements",
	"context", "slo", "priority", "sessionKey", "demand", "energy",
}

func unknownMembers(of []string) ([]string, *IntentError) {
	var names []string
	for _, name := range of {
		if !slices.Contains(intentMembers[:], name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for n, name := range names {
		for _, known := range intentMembers {
			// The singular of a list, and the plural of an object, too.
			if strings.EqualFold(strings.TrimRight(name, "sS"), strings.TrimRight(known, "sS")) {
				return nil, malformed(member(name), "is unknown; %s is written like this", known)
			}
		}
		if !utf8.ValidString(name) {
			return nil, malformed(member(name), "is not UTF-8")
		}
		names[n] = cut(name)
	}
	return names[:min(len(names), unknownItems)], nil
}

// checkVersion takes what the member version holds, or nil if there is none.
func checkVersion(v any) *IntentError {
	text, ok := v.(string)
	switch {
	case ok && text == Version:
		return nil
	case ok:
		return &IntentError{ReasonIntentVersion, "version", fmt.Sprintf("%s is unknown; allowed is %q", quote(text), Version)}
	case v == nil:
		return &IntentError{ReasonIntentVersion, "version", fmt.Sprintf("is missing; allowed is %q", Version)}
	default:
		return &IntentError{ReasonIntentVersion, "version", fmt.Sprintf("is %s; allowed is %q", kindOf(v), Version)}
	}
}

// members reads the members of one object by their names, until the first that is
// not what it should be. What is there must say something: absence is said by
// absence. Whether it is within bounds, check says.
type members struct {
	of   value
	read int
	err  *IntentError
}

func (m *members) fail(field, format string, args ...any) {
	if m.err == nil {
		m.err = malformed(field, format, args...)
	}
}

func (m *members) take(name string) (value, bool) {
	if m.err != nil {
		return value{}, false
	}
	v, ok := m.of.member(name)
	if ok {
		m.read++
	}
	return v, ok
}

func (m *members) text(name string) string {
	v, ok := m.take(name)
	if !ok {
		return ""
	}
	text, ok := v.text()
	switch {
	case !ok:
		m.fail(name, "is %s; allowed is a text", kindOf(v.plain()))
	case text == "":
		m.fail(name, "is empty; leave it out")
	}
	return text
}

// texts is nil only if there is no such list.
func (m *members) texts(name string, most int) []string {
	items, ok := m.list(name, most)
	if !ok {
		return nil
	}
	texts := make([]string, items.n)
	for n := range items.n {
		v := items.next()
		if texts[n], ok = v.text(); !ok {
			m.fail(item(name, n), "is %s; allowed is a text", kindOf(v.plain()))
			return nil
		}
	}
	return texts
}

func (m *members) list(name string, most int) (items, bool) {
	v, ok := m.take(name)
	if !ok {
		return items{}, false
	}
	list, ok := v.items()
	if !ok {
		m.fail(name, "is %s; allowed is a list", kindOf(v.plain()))
		return items{}, false
	}
	if list.n > most {
		m.fail(name, "has %d items; allowed are at most %d", list.n, most)
		return items{}, false
	}
	return list, true
}

func (m *members) object(name string) (members, bool) {
	v, ok := m.take(name)
	if !ok {
		return members{}, false
	}
	if !v.isObject() {
		m.fail(name, "is %s; allowed is an object", kindOf(v.plain()))
		return members{}, false
	}
	return members{of: v}, true
}

// done takes over what was wrong with an object within, which has no members but
// the known ones.
func (m *members) done(name string, within *members, known ...string) {
	if within.err == nil && within.read != within.of.len() {
		within.err = within.stranger(known)
	}
	if m.err == nil {
		m.err = within.err.within(name)
	}
}

// stranger is the error of an object that has members other than the known ones.
func (m *members) stranger(known []string) *IntentError {
	first, found := "", false
	for _, name := range m.of.names() {
		if !slices.Contains(known, name) && (!found || name < first) {
			first, found = name, true
		}
	}
	return malformed(member(first), "is unknown; allowed are %s", strings.Join(known, ", "))
}

func (m *members) requirements(name string) []Requirement {
	items, ok := m.list(name, requireItems)
	if !ok || items.n == 0 {
		return nil
	}
	requirements := make([]Requirement, items.n)
	for n := range items.n {
		v := items.next()
		if !v.isObject() {
			m.fail(item(name, n), "is %s; allowed is an object", kindOf(v.plain()))
			return nil
		}
		r := members{of: v}
		requirements[n] = Requirement{
			Class:    RequirementClass(r.text("class")),
			Key:      r.text("key"),
			Operator: Operator(r.text("operator")),
			Values:   r.texts("values", valueItems),
		}
		if r.err != nil || r.read != r.of.len() {
			m.done(item(name, n), &r, "class", "key", "operator", "values")
			return nil
		}
		if len(requirements[n].Values) == 0 {
			requirements[n].Values = nil
		}
		for i, text := range requirements[n].Values {
			requirements[n].Values[i] = trimBlanks(text)
		}
	}
	return requirements
}

func (m *members) time(name string) time.Time {
	text := m.text(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !strictly3339(text) {
		m.fail(name, "%s is no time; allowed is RFC 3339, such as 2026-01-02T03:04:05Z", quote(text))
		return time.Time{}
	}
	if t.IsZero() {
		m.fail(name, "%s stands for no time at all; leave it out", quote(text))
	}
	return t.UTC()
}

// strictly3339 is false for what Parse takes beyond RFC 3339: hours of one digit,
// fractions after a comma, and offsets of a day and more.
func strictly3339(text string) bool {
	if text[len("2006-01-02T15")] != ':' || strings.Contains(text, ",") {
		return false
	}
	if strings.HasSuffix(text, "Z") {
		return true
	}
	offset := text[len(text)-len("15:04"):]
	return offset[:2] <= "23" && offset[3:] <= "59"
}

func (m *members) tokens(name string) int64 { return m.whole(name, 0, intentTokens) }

func (m *members) whole(name string, least, most int64) int64 {
	v, ok := m.take(name)
	if !ok {
		return 0
	}
	var number int64
	switch v := v.plain().(type) {
	case float64:
		// What is not a number is equal to nothing.
		if ok = v == math.Trunc(v) && math.Abs(v) <= intentTokens; ok {
			number = int64(v)
		}
	case json.Number:
		number, ok = wholeNumber(string(v))
	default:
		m.fail(name, "is %s; allowed is a whole number", kindOf(v))
		return 0
	}
	if !ok || number < least || number > most {
		m.fail(name, "%s is not allowed; allowed are whole numbers, %d to %d", shown(v.plain()), least, most)
		return 0
	}
	return number
}

func (m *members) seconds(name string) float64 {
	v, ok := m.take(name)
	if !ok {
		return 0
	}
	var number float64
	switch v := v.plain().(type) {
	case float64:
		number = v
	case json.Number:
		var err error
		if number, err = strconv.ParseFloat(string(v), 64); err != nil || numberEnd(string(v), 0) != len(v) {
			number = math.NaN()
		}
	default:
		m.fail(name, "is %s; allowed is a number", kindOf(v))
		return 0
	}
	if bad := checkSeconds(name, number); bad != nil {
		m.fail(name, "%s is not allowed; allowed are seconds, 0 or more", shown(v.plain()))
		return 0
	}
	return number + 0 // -0 is 0
}

// wholeNumber is the value of a number's JSON text. 1.0 and 1e3 are whole numbers,
// too; they are judged by their digits, since a float64 of 0.99999999999999999 is 1.
func wholeNumber(text string) (int64, bool) {
	if numberEnd(text, 0) != len(text) {
		return 0, false
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	digits, exponent := text, 0
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		var err error
		if exponent, err = strconv.Atoi(text[at+1:]); err != nil {
			return 0, false
		}
		digits = text[:at]
	}
	before, after, _ := strings.Cut(digits, ".")
	after = strings.TrimRight(after, "0")
	significant := strings.TrimRight(before+after, "0")
	if significant != "" && significant != "-" && len(significant) > len(before)+exponent {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.Abs(f) > intentTokens {
		return 0, false
	}
	return int64(f), true
}

func malformed(field, format string, args ...any) *IntentError {
	return &IntentError{ReasonIntentMalformed, field, fmt.Sprintf(format, args...)}
}

func tooLong(n int) *IntentError {
	return malformed("", "has %d bytes as JSON; allowed are at most %d", n, intentBytes)
}

// within puts the path of an object or list before the path of an error in it.
func (e *IntentError) within(path string) *IntentError {
	switch {
	case e == nil:
	case e.Field == "" || e.Field[0] == '[':
		e.Field = path + e.Field
	default:
		e.Field = path + "." + e.Field
	}
	return e
}

// member is the path of a member by a name that anyone may have chosen.
func member(name string) string {
	plain := func(r rune) bool {
		return r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if name != "" && len(name) <= quotedBytes && strings.IndexFunc(name, func(r rune) bool { return !plain(r) }) < 0 {
		return name
	}
	return "[" + quote(name) + "]"
}

func item(list string, n int) string { return list + "[" + strconv.Itoa(n) + "]" }

func quote(text string) string {
	if short := cut(text); short != text {
		return strconv.Quote(short) + "..."
	}
	return strconv.Quote(text)
}

// shown is a number as it came.
func shown(v any) string {
	if text, ok := v.(json.Number); ok {
		if numberEnd(string(text), 0) != len(text) {
			return quote(string(text))
		}
		return cut(string(text))
	}
	return fmt.Sprint(v)
}

// cut leaves at most 64 bytes of a text, of whole characters.
func cut(text string) string {
	if len(text) <= quotedBytes {
		return text
	}
	n := quotedBytes
	for n > quotedBytes-utf8.UTFMax && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// trimBlanks leaves what counts of a value of a requirement.
func trimBlanks(text string) string { return strings.Trim(text, " \t\r\n") }

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "a text"
	case float64, json.Number:
		return "a number"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	default:
		return fmt.Sprintf("a %T", v)
	}
}
