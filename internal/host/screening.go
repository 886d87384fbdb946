package host

import (
	"time"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/screen"
)

// retryAfter is what a client is told to wait when nobody can serve it now:
// about what an engine takes to restart is too long to be of use, and a scrape
// of a recovered one too short.
const retryAfter = 5 * time.Second

// screenRefusals says, per cause, what the client is told. Messages name the
// class and never a replica.
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
	screen.Unhealthy: {
		Status: 503, Reason: "unhealthy", RetryAfter: retryAfter,
		Message: "every endpoint that could serve the request is not ready, terminating, asleep or unhealthy",
	},
}
