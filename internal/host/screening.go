package host

import (
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/screen"
)

// retryAfter is what a client is told to wait when nobody can serve it now:
// about what an engine takes to restart is too long to be of use, and a scrape
// of a recovered one too short.
const retryAfter = 5 * time.Second

// screenRefusal is what a client is told of an empty set. Messages name the class,
// and the attributes of its requirements; never values or replicas.
func screenRefusal(res *screen.Result) *extproc.Refusal {
	refusal := screenRefusals[res.Cause]
	if keys := res.Keys(); len(keys) > 0 {
		refusal.Message += " on " + strings.Join(keys, ", ")
	}
	return &refusal
}

var screenRefusals = map[screen.Cause]extproc.Refusal{
	screen.PoolEmpty: {
		Status: 503, Reason: "pool_empty", RetryAfter: retryAfter,
		Message: "the pool has no endpoints",
	},
	screen.SubsetEmpty: {
		Status: 503, Reason: "subset_empty", RetryAfter: retryAfter,
		Message: "no endpoint of the pool is in the subset that the gateway allows",
	},
	screen.ModelUnserved: {
		Status: 404, Reason: "model_unserved",
		Message: "no endpoint of the pool serves the model that the request names",
	},
	screen.ModelUnknown: {
		Status: 503, Reason: "model_unknown", RetryAfter: retryAfter,
		Message: "no endpoint of the pool is known to serve the model that the routing intent names, and some have not said yet what they serve",
	},
	screen.AuthorizationUnmet: {
		Status: 403, Reason: "authorization_unmet",
		Message: "no endpoint of the pool meets the authorization requirements",
	},
	screen.SafetyUnmet: {
		Status: 403, Reason: "safety_unmet",
		Message: "no endpoint of the pool meets the safety requirements",
	},
	screen.ResidencyUnmet: {
		Status: 403, Reason: "residency_unmet",
		Message: "no endpoint of the pool meets the residency requirements",
	},
	screen.CapabilityUnmet: {
		Status: 422, Reason: "capability_unmet",
		Message: "no endpoint of the pool meets the capability requirements",
	},
	screen.ContextExceeded: {
		Status: 422, Reason: "context_exceeded",
		Message: "the tokens that the request needs are known to fit the context limit of no endpoint of the pool",
	},
	screen.PlacementUnmet: {
		Status: 422, Reason: "placement_unmet",
		Message: "no endpoint of the pool meets the placement requirements",
	},
	screen.Unhealthy: {
		Status: 503, Reason: "unhealthy", RetryAfter: retryAfter,
		Message: "every endpoint that could serve the request is not ready, terminating, asleep or unhealthy",
	},
}
