// Package e2e tests the picker from the outside: clients send requests to a real
// Envoy, which asks a real picker over ext_proc where each one goes, and engines
// that are simulated serve them.
//
// What is real: Envoy 1.40 with the configuration that package gateway writes;
// the picker, inside the test's process where its end is orderly and as a
// process of its own where it is killed; the clients (net/http, HTTP/2 by prior
// knowledge, the official OpenAI client); every connection. What is simulated:
// the engines, with their queues, telemetry pages, deaths and restarts.
//
// Who served a request is counted at the engines, never taken from the picker's
// own records; those are compared with it.
//
// fleet_test.go starts a fleet and asks it questions, routes_test.go configures its
// gateway in other ways, and scripted_test.go has replicas that fail at a given
// point of a response. The other files are tests, by what they are about; names
// carry the id of a known fault of other pickers where the test repeats what
// triggered it.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/berth-dev/berth/hack/envoy"
)

// envoyBinary is set before any test runs.
var envoyBinary string

func TestMain(m *testing.M) {
	path, err := envoy.Path(context.Background(), os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "these tests need a real Envoy: %v\n", err)
		os.Exit(1)
	}
	envoyBinary = path
	os.Exit(m.Run())
}
