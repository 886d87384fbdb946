package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/intent"
)

const (
	// maxKeySet is far above any key set that is still in use: a key takes a few
	// hundred bytes.
	maxKeySet = 64 << 10
	// maxSkew is what a clock may be off before it is broken.
	maxSkew    = 5 * time.Minute
	maxAliases = 1024
	maxServed  = 64
	maxHeaders = 32
	// maxHeaderName is far above any name in use.
	maxHeaderName = 256
)

// intents checks the sections on where intents come from and what they mean, and
// writes into them what was left out.
func (d *document) intents(c *v1alpha1.BerthConfiguration) {
	oneOf(d, "intent.unreadableBody", c.Intent.UnreadableBody, v1alpha1.UnreadableBodyRefuse, v1alpha1.UnreadableBodyPass)
	if s := c.Intent.SignedHeader; s != nil && !d.failed["intent.signedHeader"] {
		d.signedHeader("intent.signedHeader", s)
	}
	d.headers("trust.headers", &c.Trust)
	d.aliases("models.aliases", c.Models.Aliases)

	s := &c.Screening
	oneOf(d, "screening.contextUnknown", s.ContextUnknown, v1alpha1.ContextUnknownFail, v1alpha1.ContextUnknownPass)
	within(d, "screening.quarantine.failures", s.Quarantine.Failures, 1, 1000)
	within(d, "screening.quarantine.probeAfter", s.Quarantine.ProbeAfter, span(100*time.Millisecond), span(time.Hour))
	// NaN fails every comparison.
	if share := s.Quarantine.MaxShare; !(share >= 0 && share <= 1) {
		d.refuse("screening.quarantine.maxShare", "must be a number from 0 to 1")
	}
	// Negative zero is zero, also in the digest.
	s.Quarantine.MaxShare = math.Abs(s.Quarantine.MaxShare)

	d.withoutIntents(c)
}

// withoutIntents refuses to require intents where none can arrive. Other settings that
// act on intents alone may stay: a channel must be easy to switch off.
func (d *document) withoutIntents(c *v1alpha1.BerthConfiguration) {
	if !c.Intent.Required || c.Intent.Metadata || c.Intent.SignedHeader != nil || c.Trust.PlainHeaders ||
		slices.ContainsFunc([]string{"intent.metadata", "trust", "trust.plainHeaders"}, func(at string) bool { return d.failed[at] }) {
		return
	}
	d.refuse("intent.required", "must be false unless intents can arrive: with intent.metadata true, intent.signedHeader, or trust.plainHeaders true; all requests would be refused")
}

func (d *document) signedHeader(path string, s *v1alpha1.SignedHeaderConfiguration) {
	if at := child(path, "keySet"); s.KeySet == "" || strings.ContainsRune(s.KeySet, 0) {
		d.refuse(at, "must be the path of a file with the keys to verify with")
		s.KeySet = ""
	}
	if !plainText(s.Audience, 253) {
		d.refuse(child(path, "audience"), "must be this picker's name in intents, 1 to 253 printable characters")
	}
	if s.Skew == nil {
		s.Skew = new(v1alpha1.DefaultSkew)
	}
	within(d, child(path, "skew"), *s.Skew, 0, span(maxSkew))
}

// keys are those of the file that intent.signedHeader.keySet names; nil without
// one, and where it was refused. The second result has each key by its id, as a set
// of its own.
func (d *document) keys(file *companion) (*intent.KeySet, map[string]*intent.KeySet) {
	if file.path == "" {
		return nil, nil
	}
	keys, err := (*intent.KeySet)(nil), file.err
	if err == nil {
		keys, err = intent.ParseKeySet(file.text)
	}
	var byID map[string]*intent.KeySet
	if err == nil {
		byID, err = eachKey(file.text)
	}
	if err != nil {
		d.unusable("intent.signedHeader.keySet", fmt.Errorf("%s: %w", file.path, err))
		return nil, nil
	}
	return keys, byID
}

// eachKey takes a key set apart that was parsed already.
func eachKey(text []byte) (map[string]*intent.KeySet, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	byID := make(map[string]*intent.KeySet, len(set.Keys))
	for _, raw := range set.Keys {
		var named struct {
			ID string `json:"kid"`
		}
		if err := json.Unmarshal(raw, &named); err != nil {
			return nil, err
		}
		one, err := intent.ParseKeySet(slices.Concat([]byte(`{"keys":[`), raw, []byte(`]}`)))
		if err != nil {
			return nil, err
		}
		byID[named.ID] = one
	}
	return byID, nil
}

// KeyIDs are the ids of the keys that signed intents are verified with, sorted, each
// fit for a line of a log; nil without keys.
func (p *Policy) KeyIDs() []string {
	return p.keyIDs(func(string) bool { return true })
}

// KeyChange says by their ids, sorted, how the keys of a policy differ from those of
// another one.
type KeyChange struct {
	Added, Removed []string
	// Replaced keep their ids, and are other keys.
	Replaced []string
}

// KeysSince compares the keys with those of an earlier policy.
func (p *Policy) KeysSince(was *Policy) KeyChange {
	return KeyChange{
		Added:    p.keyIDs(func(id string) bool { return was.keysByID[id] == nil }),
		Removed:  was.keyIDs(func(id string) bool { return p.keysByID[id] == nil }),
		Replaced: p.keyIDs(func(id string) bool { return was.keysByID[id] != nil && !p.keysByID[id].Equal(was.keysByID[id]) }),
	}
}

func (p *Policy) keyIDs(which func(id string) bool) []string {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(p.keysByID)) {
		if which(id) {
			ids = append(ids, printable(id, 253))
		}
	}
	return ids
}

// Headers that no flat key may come from, by their names and by how those begin:
// they are the gateway's and the picker's own, or say something about the
// connection, the body or the client.
var (
	reservedHeaders = []string{
		"authorization", "connection", "cookie", "expect", "forwarded", "host", "keep-alive", "proxy-authenticate",
		"proxy-authorization", "proxy-connection", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade", "via",
	}
	reservedPrefixes = []string{"content-", "x-berth-", "x-gateway-"}
)

func (d *document) headers(path string, t *v1alpha1.TrustConfiguration) {
	switch {
	case d.failed[path]:
		return
	case len(t.Headers) > maxHeaders:
		d.refuse(path, fmt.Sprintf("must have at most %d entries", maxHeaders))
		return
	case len(t.Headers) == 0 && t.PlainHeaders:
		d.refuse(path, "must have at least one entry with trust.plainHeaders true")
	}
	byKey := map[string]string{}
	for _, name := range d.byLine(path, t.Headers) {
		at, key := child(path, name), t.Headers[name]
		switch earlier := byKey[key]; {
		case d.failed[at]:
		case !fieldName(name):
			d.refuse(at, "must stand for a header's name in lower case: 1 to 256 letters, digits and !#$%&'*+-.^_`|~")
		case reserved(name):
			d.refuse(at, "must stand for another header: not "+strings.Join(reservedHeaders, ", ")+
				", nor one that begins with "+strings.Join(reservedPrefixes, ", "))
		case earlier != "":
			d.refuse(at, fmt.Sprintf("must be a key of its own: %s in line %d has it", earlier, d.line(earlier)))
		default:
			if err := FlatKey(key); err != nil {
				allowed := err.Error()
				if !strings.HasPrefix(allowed, "must ") {
					allowed = "cannot be used: it " + allowed
				}
				d.refuse(at, allowed)
			}
			byKey[key] = at
		}
	}
}

// byLine are the keys of a mapping in the order of the file; those of a default,
// which has no lines, by name.
func (d *document) byLine(path string, m map[string]string) []string {
	return slices.SortedStableFunc(slices.Values(slices.Sorted(maps.Keys(m))), func(a, b string) int {
		return d.line(child(path, a)) - d.line(child(path, b))
	})
}

// fieldName says whether a text is a header's name in the form that HTTP/2 and the
// picker have them: a token of RFC 9110, 5.6.2, without capital letters.
func fieldName(s string) bool {
	return s != "" && len(s) <= maxHeaderName && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

func reserved(header string) bool {
	return slices.Contains(reservedHeaders, header) ||
		slices.ContainsFunc(reservedPrefixes, func(p string) bool { return strings.HasPrefix(header, p) })
}

// aliases also sorts what each alias stands for, which is a set.
func (d *document) aliases(path string, aliases map[string][]string) {
	if len(aliases) > maxAliases {
		d.refuse(path, fmt.Sprintf("must have at most %d entries", maxAliases))
		return
	}
	for _, alias := range slices.Sorted(maps.Keys(aliases)) {
		served, at := aliases[alias], child(path, alias)
		switch {
		case d.failed[at]:
			continue
		case !plainText(alias, 512):
			d.refuse(at, "must stand for a name of 1 to 512 printable characters")
		case len(served) < 1 || len(served) > maxServed:
			d.refuse(at, fmt.Sprintf("must be a list of 1 to %d served models", maxServed))
			continue
		}
		d.modelNames(at, served)
		slices.Sort(served)
	}
}

// modelNames refuses what no served model is called, and repetitions.
func (d *document) modelNames(path string, names []string) {
	for i, name := range names {
		switch at := index(path, i); {
		case d.failed[at]:
		case !plainText(name, 512):
			d.refuse(at, "must be 1 to 512 printable characters")
		case slices.Contains(names[:i], name):
			d.refuse(at, "must occur once")
		}
	}
}

func (p *Policy) applyIntent(c *v1alpha1.BerthConfiguration, dir string) {
	p.Intent = Intent{
		Required:       c.Intent.Required,
		PassUnreadable: c.Intent.UnreadableBody == v1alpha1.UnreadableBodyPass,
		Metadata:       c.Intent.Metadata,
	}
	if s := c.Intent.SignedHeader; s != nil {
		p.Intent.KeySet, p.Intent.Audience = resolved(s.KeySet, dir), s.Audience
		if s.Skew != nil {
			p.Intent.Skew = time.Duration(*s.Skew)
		}
	}
	p.Trust = Trust{c.Trust.PlainHeaders, c.Trust.Headers}
	p.Models = Models{c.Models.Aliases}
	q := c.Screening.Quarantine
	p.Screening = Screening{
		PassContextUnknown: c.Screening.ContextUnknown == v1alpha1.ContextUnknownPass,
		Quarantine:         Quarantine{q.Failures, time.Duration(q.ProbeAfter), q.MaxShare},
	}
}
