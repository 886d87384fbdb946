// Package channel brings the routing intent of a request to the filters of a stock
// EPP, and the parameters by which it is trusted.
//
// A stock EPP shows filters a request's headers and its target model. Of the
// channels of package intent, two are left: the signed header, and plain headers
// that the gateway vouches for. Dynamic metadata never reaches a filter there. Of
// several copies of one header, a stock EPP keeps the last.
package channel

import (
	"errors"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/intent"
)

// Reader reads the intent of a request. It is immutable and may be used
// concurrently.
type Reader struct {
	intents *intent.Reader
	// plain are the headers that are mapped.
	plain []string
}

// Read finds the intent of a request, nil for none at all. now is wall-clock time.
// The error is an *intent.Error, and means that nobody may serve the request.
func (r *Reader) Read(request *scheduling.LLMRequest, now time.Time) (intent.Intent, error) {
	return r.intents.Read(r.input(request), now)
}

// input takes the headers that matter. GIE has their names as the gateway sent them,
// which is in lower case; in any other case they count all the same, so that no
// spelling drops a constraint. Values are sorted, as the order of a map must not
// decide between two spellings.
func (r *Reader) input(request *scheduling.LLMRequest) *intent.Input {
	var in intent.Input
	if request == nil {
		return &in
	}
	for name, value := range request.Headers {
		name = strings.ToLower(name)
		switch {
		case name == intent.SignedHeader:
			in.Signed = append(in.Signed, value)
		case slices.Contains(r.plain, name):
			in.Plain = append(in.Plain, intent.Header{Name: name, Value: value})
		}
	}
	slices.Sort(in.Signed)
	slices.SortFunc(in.Plain, func(a, b intent.Header) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Value, b.Value)
	})
	return &in
}

// Reason is the token of an error of Read.
func Reason(err error) string {
	var refused *intent.Error
	if errors.As(err, &refused) {
		return refused.Token
	}
	return intent.TokenMalformed
}
