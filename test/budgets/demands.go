package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
)

// wall is when intents are read.
var wall = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// rules are the defaults of screening.
var rules = screen.Rules{QuarantineShare: 0.5}

// alias is the logical model of intents; replicas serve it as model.
const alias = "fast"

// What must fit a replica's context, in tokens.
const inputTokens, outputTokens = 3200, 512

// requirements are what a semantic router demands of a replica, of every class.
var requirements = []v1alpha1.Requirement{
	{Class: v1alpha1.Authorization, Key: v1alpha1.AttributeTenants, Operator: v1alpha1.In, Values: []string{"acme"}},
	{Class: v1alpha1.Safety, Key: v1alpha1.AttributeSafety, Operator: v1alpha1.In, Values: []string{"strict"}},
	{Class: v1alpha1.Residency, Key: v1alpha1.AttributeResidency, Operator: v1alpha1.In, Values: []string{"eu", "ch"}},
	{Class: v1alpha1.Capability, Key: v1alpha1.AttributeCapabilities, Operator: v1alpha1.In, Values: []string{"tools"}},
	{Class: v1alpha1.Capability, Key: v1alpha1.AttributeRevision, Operator: v1alpha1.Exists},
	{Class: v1alpha1.Placement, Key: v1alpha1.AttributeTier, Operator: v1alpha1.NotIn, Values: []string{"spot"}},
}

// demanded are n endpoints that meet the requirements, not all by the same values.
func demanded(n int) []pool.Spec {
	list := specs(n)
	for i := range list {
		list[i].ContextLimit = 8192 << (i % 3)
		list[i].Labels = map[string]string{
			v1alpha1.AttributeResidency: [...]string{"eu", "ch"}[i%2],
			v1alpha1.AttributeTier:      [...]string{"standard", "reserved"}[i%2],
			v1alpha1.AttributeRevision:  fmt.Sprintf("r%d", i%5),
		}
		list[i].Annotations = map[string]string{
			v1alpha1.AttributeTenants:      fmt.Sprintf("acme,t%d", i%50),
			v1alpha1.AttributeSafety:       "strict",
			v1alpha1.AttributeCapabilities: "tools,vision",
		}
	}
	return list
}

// intentJSON is the intent as a router writes it, about 650 bytes.
func intentJSON() (string, error) { return encode(new(v1alpha1.RoutingIntent)) }

// signedPayload is the same intent with what a signed one must state.
func signedPayload() (string, error) {
	return encode(&v1alpha1.RoutingIntent{
		IssuedAt: wall.Add(-time.Minute), ExpiresAt: wall.Add(time.Minute), Audience: []string{audience},
	})
}

// encode adds to an intent what all of them say.
func encode(routing *v1alpha1.RoutingIntent) (string, error) {
	routing.Version = v1alpha1.Version
	routing.IntentID = "rd-7f3a"
	routing.LogicalModel = alias
	routing.Requirements = requirements
	routing.Context = &v1alpha1.ContextNeed{InputTokens: inputTokens, OutputTokens: outputTokens}
	text, err := v1alpha1.EncodeIntent(routing)
	return string(text), err
}

// intentTree is the intent as it comes out of the gateway's metadata, where all
// numbers are float64.
func intentTree() (map[string]any, error) {
	text, err := intentJSON()
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	return tree, json.Unmarshal([]byte(text), &tree)
}

// flatIntent is what flat keys can say of the intent: a list is always of what is
// allowed.
func flatIntent() map[string]any {
	return map[string]any{
		"logicalModel": alias, "contextInputTokens": float64(inputTokens), "contextOutputTokens": float64(outputTokens),
		"requirement.authorization." + v1alpha1.AttributeTenants:   "acme",
		"requirement.safety." + v1alpha1.AttributeSafety:           "strict",
		"requirement.residency." + v1alpha1.AttributeResidency:     "eu,ch",
		"requirement.capability." + v1alpha1.AttributeCapabilities: "tools",
		"requirement.capability." + v1alpha1.AttributeRevision:     "r0,r1,r2,r3,r4",
		"requirement.placement." + v1alpha1.AttributeTier:          "standard,reserved",
	}
}

// demandOf is what an intent demands, of a request whose body names one of its
// models.
func demandOf(read intent.Intent) *screen.Request {
	routing := read.Routing
	return &screen.Request{
		Models: read.Models, Trusted: true, Requirements: routing.Requirements,
		Context: routing.Context.InputTokens + routing.Context.OutputTokens,
	}
}
