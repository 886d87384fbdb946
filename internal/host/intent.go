package host

import (
	"errors"
	"slices"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/request"
	"github.com/berth-dev/berth/internal/screen"
)

// inputOf is what a request brought in the channels of intents.
func inputOf(req *extproc.Request) intent.Input {
	in := intent.Input{Metadata: req.IntentMetadata, Signed: req.SignedIntents}
	for _, h := range req.Kept {
		in.Plain = append(in.Plain, intent.Header(h))
	}
	return in
}

// countUntrusted counts what came by a channel that is off, and means nothing.
func (d *decider) countUntrusted(act *active, in *intent.Input) {
	for _, name := range act.intents.Untrusted(in) {
		d.metrics.untrusted.WithLabelValues(name).Inc()
	}
}

// readIntent reads what the request demands, by whom it may be demanded, and what
// its body says.
func (d *decider) readIntent(c *cycle) *extproc.Refusal {
	req := c.request
	c.input = inputOf(req)
	d.countUntrusted(c.act, &c.input)
	var err error
	if c.intent, err = c.act.intents.Read(&c.input, d.wall()); err != nil {
		c.facts = request.Facts{API: request.APIOf(req.Path), Unread: request.UnreadRefused}
		return c.refuseIntent(err)
	}
	if refusal := readFacts(c); refusal != nil {
		return refusal
	}
	return c.state()
}

// refuseIntent says what was wrong with an intent.
func (c *cycle) refuseIntent(err error) *extproc.Refusal {
	var wrong *intent.Error
	if !errors.As(err, &wrong) {
		return &extproc.Refusal{Status: 500, Reason: "internal", Message: "the routing intent could not be read"}
	}
	c.intent.Source = wrong.Source
	refusal := intentRefusals[wrong.Token]
	refusal.Reason, refusal.Detail = wrong.Token, wrong.Message
	return &refusal
}

// intentRefusals say to clients no more than that: what an intent holds is between
// the router and the picker, and is in the record.
var intentRefusals = map[string]extproc.Refusal{
	intent.TokenMalformed: {Status: 400, Message: "the routing intent of the request is malformed"},
	intent.TokenVersion:   {Status: 400, Message: "the routing intent of the request has no version that is understood here"},
	intent.TokenExpired:   {Status: 403, Message: "the routing intent of the request has expired"},
	intent.TokenUntrusted: {Status: 403, Message: "the routing intent of the request is not signed by anybody who is trusted here, for this use"},
	intent.TokenRequired:  {Status: 403, Message: "requests need a routing intent here, and this one has none"},
}

// readFacts reads the body, or says why it is not read.
func readFacts(c *cycle) *extproc.Refusal {
	req := c.request
	facts, err := request.Read(req.Path, req.ContentType, req.ContentEncoding, req.Body)
	if err != nil {
		c.facts.API = request.APIOf(req.Path)
		refusal := &extproc.Refusal{Status: 400, Reason: "body_malformed", Message: err.Error()}
		var scanErr *request.Error
		if errors.As(err, &scanErr) {
			refusal.Reason = scanErr.Token
		}
		return refusal
	}
	c.facts = facts
	switch {
	case facts.API == request.Unknown && c.act.policy.Gateway.UnknownPaths == v1alpha1.UnknownPathRefuse:
		return &extproc.Refusal{Status: 404, Reason: "path_unknown", Message: "the path is none of the inference APIs that are served here"}
	case req.Tunnel:
		c.facts.Unread = request.UnreadTunnel
	case !req.BodySeen && facts.Unread == request.UnreadEmptyBody:
		c.facts.Unread = request.UnreadNotShown
	}
	return nil
}

// state makes the demand of what intent, gateway and body say.
func (c *cycle) state() *extproc.Refusal {
	c.demand = screen.Request{Subset: c.request.Subset}
	if i := c.intent.Routing; i != nil {
		c.demand.Requirements = i.Requirements
		if i.Context != nil {
			// Each is below 2^53.
			c.demand.Context = i.Context.InputTokens + i.Context.OutputTokens
		}
	}
	c.model[0] = c.facts.Model
	named := c.facts.Model != ""
	switch allowed := c.intent.Models; {
	case len(allowed) == 0 && named:
		c.demand.Models = c.model[:]
	case len(allowed) == 0:
	case named && !slices.Contains(allowed, c.facts.Model):
		return ineligible("the model that the request names is none of those that its routing intent allows")
	case named:
		c.demand.Models, c.demand.Trusted = c.model[:], true
	case c.bodiless(), c.act.policy.Intent.PassUnreadable:
		c.demand.Models, c.demand.Trusted = allowed, true
	default:
		return ineligible("the routing intent names a model, and it cannot be read from the request that this is the one it asks for")
	}
	return nil
}

// bodiless reports that the request ends with its headers: it asks for no model.
func (c *cycle) bodiless() bool {
	return c.request.BodySeen && len(c.request.Body) == 0 && !c.request.Tunnel
}

func ineligible(message string) *extproc.Refusal {
	return &extproc.Refusal{Status: 403, Reason: "model_not_eligible", Message: message}
}
