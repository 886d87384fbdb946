package ledger

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// This file writes the JSON of a record, byte for byte what encoding/json makes of
// the document. A line is written for every request, with dozens of members per
// candidate, and reflection over them was the largest part of what a request
// cost. A test compares the two over random records, so that a member added to
// the document and not here is found.

// decided appends the members that are known when the request is decided, up to
// those that its end changes.
func (o *object) decided(d *v1alpha1.Decision) {
	o.text("version", d.Version)
	o.text("kind", d.Kind)
	o.text("id", d.ID)
	o.time("time", d.Time)
	o.text("pool", d.Pool)
	o.text("path", d.Path)
	o.open("intent")
	o.intent(&d.Intent)
	o.close()
	o.open("request")
	o.optionalText("requestID", d.Request.RequestID)
	o.text("api", d.Request.API)
	o.optionalTrue("stream", d.Request.Stream)
	o.optionalInteger("maxTokens", d.Request.MaxTokens)
	o.integer("bodyBytes", int64(d.Request.BodyBytes))
	o.optionalInteger("promptBytes", int64(d.Request.PromptBytes))
	o.optionalText("unread", d.Request.Unread)
	o.close()
	o.text("key", d.Key)
	o.text("rung", d.Rung)
	o.optionalText("telemetry", d.Telemetry)
	if len(d.Fields) > 0 {
		o.list("fields")
		for _, f := range d.Fields {
			o.element()
			o.text("field", f.Field)
			o.text("use", f.Use)
			o.close()
		}
		o.endList()
	}
	if len(d.Scorers) > 0 {
		o.list("scorers")
		for _, s := range d.Scorers {
			o.element()
			o.text("scorer", s.Scorer)
			o.number("weight", s.Weight)
			o.close()
		}
		o.endList()
	}
	o.integer("members", int64(d.Members))
	o.integer("screened", int64(d.Screened))
	o.counts("screenedOut", d.ScreenedOut)
	o.candidates(d.Candidates)
	o.optionalText("pick", d.Pick)
	o.names("fallbacks", d.Fallbacks)
	if r := d.Refusal; r != nil {
		o.open("refusal")
		o.integer("status", int64(r.Status))
		o.text("reason", r.Reason)
		o.text("message", r.Message)
		o.optionalText("detail", r.Detail)
		o.close()
	}
	o.boolean("replayable", d.Replayable)
	o.optionalText("notReplayable", d.NotReplayable)
}

// ended appends the members that the end of the request changes.
func (o *object) ended(a *v1alpha1.Acknowledgement, out *v1alpha1.Outcome) {
	o.acknowledgement(a)
	o.outcome(out)
}

// versions appends the last member.
func (o *object) versions(v *v1alpha1.Versions) {
	o.open("versions")
	o.text("schema", v.Schema)
	o.text("policy", v.Policy)
	o.text("build", v.Build)
	o.names("profiles", v.Profiles)
	o.close()
}

// intent appends the members of the intent, in the order of the document.
func (o *object) intent(i *v1alpha1.IntentFacts) {
	o.text("source", i.Source)
	o.optionalText("intentID", i.IntentID)
	o.optionalText("issuer", i.Issuer)
	o.optionalText("keyID", i.KeyID)
	o.names("outranked", i.Outranked)
	o.names("untrusted", i.Untrusted)
	o.optionalText("logicalModel", i.LogicalModel)
	o.names("models", i.Models)
	if len(i.Requirements) > 0 {
		o.list("requirements")
		for j := range i.Requirements {
			r := &i.Requirements[j]
			o.element()
			o.text("class", string(r.Class))
			o.text("key", r.Key)
			o.text("operator", string(r.Operator))
			o.names("values", r.Values)
			o.close()
		}
		o.endList()
	}
	o.optionalInteger("contextTokens", i.ContextTokens)
	o.optionalInteger("priority", int64(i.Priority))
	o.names("ignored", i.Ignored)
	o.optionalText("model", i.Model)
	if i.Subset != nil {
		o.integer("subset", int64(*i.Subset))
	}
}

func (o *object) candidates(candidates []v1alpha1.Candidate) {
	if candidates == nil {
		o.key("candidates")
		o.b = append(o.b, "null"...)
		return
	}
	o.list("candidates")
	for i := range candidates {
		c := &candidates[i]
		o.element()
		o.text("replica", c.Replica)
		o.text("address", c.Address)
		o.optionalText("removedBy", c.RemovedBy)
		if c.Rule != nil {
			o.integer("rule", int64(*c.Rule))
		}
		if a := c.Attribute; a != nil {
			o.open("attribute")
			o.text("state", a.State)
			o.names("items", a.Items)
			o.optionalInteger("more", int64(a.More))
			o.close()
		}
		if c.ContextLimit != nil {
			o.integer("contextLimit", *c.ContextLimit)
		}
		o.optionalTrue("quarantined", c.Quarantined)
		o.optionalInteger("rank", int64(c.Rank))
		o.optionalTrue("last", c.Last)
		o.integer("inFlight", int64(c.InFlight))
		o.integer("pending", int64(c.Pending))
		o.optionalNumber("latency", c.Latency)
		if len(c.Readings) > 0 {
			o.list("readings")
			for j := range c.Readings {
				r := &c.Readings[j]
				o.element()
				o.text("state", r.State)
				o.optionalText("support", r.Support)
				o.optionalNumber("value", r.Value)
				if r.AgeMillis != nil {
					o.integer("ageMillis", *r.AgeMillis)
				}
				o.optionalNumber("estimate", r.Estimate)
				o.optionalText("reason", r.Reason)
				o.close()
			}
			o.endList()
		}
		if len(c.Scores) > 0 {
			o.list("scores")
			for j, score := range c.Scores {
				if j > 0 {
					o.b = append(o.b, ',')
				}
				if score == nil {
					o.b = append(o.b, "null"...)
				} else {
					o.value(*score)
				}
			}
			o.endList()
		}
		o.number("total", c.Total)
		o.close()
	}
	o.endList()
}

func (o *object) acknowledgement(a *v1alpha1.Acknowledgement) {
	o.open("acknowledgement")
	o.optionalTime("recommendedAt", a.RecommendedAt)
	o.optionalText("acted", a.Acted)
	o.optionalTime("actedAt", a.ActedAt)
	o.optionalText("served", a.Served)
	o.optionalText("servedAddress", a.ServedAddress)
	o.optionalInteger("attempts", int64(a.Attempts))
	o.close()
}

func (o *object) outcome(out *v1alpha1.Outcome) {
	if out == nil {
		return
	}
	o.open("outcome")
	o.time("endedAt", out.EndedAt)
	o.optionalInteger("status", int64(out.Status))
	o.text("cause", out.Cause)
	o.text("seen", out.Seen)
	o.optionalInteger("errorCode", int64(out.ErrorCode))
	o.optionalText("details", out.Details)
	o.optionalNumber("ttft", out.TTFT)
	o.number("duration", out.Duration)
	o.integer("requestBytes", out.RequestBytes)
	for _, m := range []struct {
		name  string
		value *int64
	}{
		{"responseBytes", out.ResponseBytes},
		{"inputTokens", out.InputTokens},
		{"outputTokens", out.OutputTokens},
		{"cachedTokens", out.CachedTokens},
	} {
		if m.value != nil {
			o.integer(m.name, *m.value)
		}
	}
	o.close()
}

// object appends the members of nested objects. Names are written as they are:
// they are this file's own.
type object struct {
	b   []byte
	err error
}

func (o *object) key(name string) {
	if last := o.b[len(o.b)-1]; last != '{' && last != '[' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) open(name string) {
	o.key(name)
	o.b = append(o.b, '{')
}

func (o *object) close() { o.b = append(o.b, '}') }

func (o *object) list(name string) {
	o.key(name)
	o.b = append(o.b, '[')
}

// element opens an object in a list.
func (o *object) element() {
	if o.b[len(o.b)-1] != '[' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, '{')
}

func (o *object) endList() { o.b = append(o.b, ']') }

func (o *object) text(name, value string) {
	o.key(name)
	o.quote(value)
}

func (o *object) optionalText(name, value string) {
	if value != "" {
		o.text(name, value)
	}
}

// plain tells the bytes that encoding/json writes as they are.
var plain = func() (is [256]bool) {
	for c := ' '; c <= '~'; c++ {
		is[c] = !strings.ContainsRune(`"\<>&`, c)
	}
	return is
}()

// quote leaves everything but plain text to encoding/json.
func (o *object) quote(s string) {
	for i := range len(s) {
		if !plain[s[i]] {
			quoted, err := json.Marshal(s)
			if err != nil {
				o.err = err
			}
			o.b = append(o.b, quoted...)
			return
		}
	}
	o.b = append(o.b, '"')
	o.b = append(o.b, s...)
	o.b = append(o.b, '"')
}

func (o *object) integer(name string, value int64) {
	o.key(name)
	o.b = strconv.AppendInt(o.b, value, 10)
}

func (o *object) optionalInteger(name string, value int64) {
	if value != 0 {
		o.integer(name, value)
	}
}

func (o *object) number(name string, value float64) {
	o.key(name)
	o.value(value)
}

// value writes whole numbers, most of what there is, without the search for the
// shortest digits; others as encoding/json does.
func (o *object) value(value float64) {
	if whole := int64(value); float64(whole) == value && whole > -1e15 && whole < 1e15 && (whole != 0 || !math.Signbit(value)) {
		o.b = strconv.AppendInt(o.b, whole, 10)
		return
	}
	if abs := math.Abs(value); abs >= 1e-6 && abs < 1e21 {
		o.b = strconv.AppendFloat(o.b, value, 'f', -1, 64)
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		o.err = err
	}
	o.b = append(o.b, text...)
}

func (o *object) optionalNumber(name string, value *float64) {
	if value != nil {
		o.number(name, *value)
	}
}

func (o *object) boolean(name string, value bool) {
	o.key(name)
	o.b = strconv.AppendBool(o.b, value)
}

func (o *object) optionalTrue(name string, value bool) {
	if value {
		o.boolean(name, value)
	}
}

func (o *object) time(name string, value time.Time) {
	o.key(name)
	o.b = append(o.b, '"')
	o.b = value.AppendFormat(o.b, time.RFC3339Nano)
	o.b = append(o.b, '"')
}

func (o *object) optionalTime(name string, value *time.Time) {
	if value != nil {
		o.time(name, *value)
	}
}

func (o *object) names(name string, values []string) {
	if len(values) == 0 {
		return
	}
	o.list(name)
	for i, v := range values {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.quote(v)
	}
	o.endList()
}

func (o *object) counts(name string, values map[string]int) {
	if len(values) == 0 {
		return
	}
	keys := make([]string, 0, len(values))
	for k := range values {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	o.open(name)
	for _, k := range keys {
		// Names of screening classes: this module's own.
		o.integer(k, int64(values[k]))
	}
	o.close()
}
