package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/test/finding"
)

// pageBytes bounds the metrics page, bytes.
const pageBytes = 5_000_000

// checkNames brings names that never come twice, wherever a request has a name.
func checkNames(s *session, p *picker) error {
	if _, err := s.warmUp(p); err != nil {
		return err
	}
	// Every series that can be there is there after a few of each kind.
	var first, all answers
	if err := s.bring(p, &first, 0, min(s.size.names, 500), min(s.size.longNames, 2)); err != nil {
		return err
	}
	base, err := s.rest(p)
	if err != nil {
		return err
	}
	if err := s.bring(p, &all, s.size.names, s.size.names, s.size.longNames); err != nil {
		return err
	}
	now, err := s.rest(p)
	if err != nil {
		return err
	}
	sent := float64(all.sent.Load())
	s.report(finding.Finding{
		Name: "names/answered", Value: sent - float64(all.unanswered.Load()), Limit: finding.Exactly(sent),
		About: fmt.Sprintf("requests with a model, an id, a header, a path and a subset of their own: %d placed, %d refused, %d not valid UTF-8 where the protocol wants it",
			all.placed.Load(), all.refused.Load(), all.invalid.Load()),
	})
	s.report(finding.Finding{
		Name: "names/series", Value: float64(now.series()), Limit: finding.Exactly(float64(base.series())),
		About: fmt.Sprintf("series on the metrics page after %d names of each kind", s.size.names+s.size.longNames),
	})
	s.report(finding.Finding{Name: "names/page", Value: float64(now.bytes), Unit: "B", Limit: finding.AtMost(pageBytes), About: "size of the metrics page"})
	return s.compare("names", p, base, 16)
}

// answers counts what became of requests.
type answers struct {
	sent, placed, refused, invalid, unanswered atomic.Int64
}

// bring sends n requests whose names begin with those of number from, and more
// with long ones.
func (s *session) bring(p *picker, a *answers, from, n, long int) error {
	gateways, closeAll, err := dialMany(p.address)
	if err != nil {
		return err
	}
	defer closeAll()
	one := func(ctx context.Context, i int, names nameSet) error {
		x, err := gateways[i%len(gateways)].open(ctx)
		if err != nil {
			return err
		}
		defer x.cancel()
		return a.count(x, names)
	}
	if err := inParallel(s.ctx, n, openers, func(ctx context.Context, i int) error {
		return one(ctx, i, shortNames(from+i))
	}); err != nil {
		return err
	}
	s.logf("  %d short names have come", n)
	return inParallel(s.ctx, long, connections, func(ctx context.Context, i int) error {
		for place := range places {
			if err := one(ctx, i, longName(from+i, place, s.size.longName)); err != nil {
				return err
			}
		}
		return nil
	})
}

// count sends one request and counts what is answered.
func (a *answers) count(x *exchange, names nameSet) error {
	a.sent.Add(1)
	for _, m := range names.messages() {
		b, err := names.encode(m)
		if err != nil {
			return err
		}
		if err := x.send(b); err != nil {
			return err
		}
	}
	_, err := x.take()
	var r *refusal
	switch {
	case err == nil:
		a.placed.Add(1)
	case errors.As(err, &r):
		a.refused.Add(1)
	case names.undecodable && status.Code(err) == codes.Internal:
		a.invalid.Add(1)
	default:
		a.unanswered.Add(1)
	}
	return nil
}

// nameSet are the names of one request.
type nameSet struct {
	names [places]string
	// apiPath is whether the path ends as that of a known API, whose body is read.
	apiPath bool
	// raw is whether the body has the model as it is, escaped or not.
	raw bool
	// notUTF8 has stand-ins of the names replaced by bytes that are not UTF-8;
	// undecodable also where the protocol wants UTF-8.
	notUTF8, undecodable bool
}

// Places where a request has a name.
const (
	modelPlace = iota
	idPlace
	headerPlace
	pathPlace
	subsetPlace
	places
)

// standIn is replaced in encoded messages by as many bytes that are not UTF-8.
const (
	standIn  = "\x01\x02\x03"
	badBytes = "\xff\xc0\xfe"
)

// shortNames are names of their own in all places, odd in turns.
func shortNames(i int) nameSet {
	odd := [...]string{"plain", `quo"te'd\`, "two\nlines\r\n", "nul\x00", "naïve-模型", standIn, "{label=\"x\"} 1\n# HELP x"}
	var n nameSet
	for place := range n.names {
		n.names[place] = fmt.Sprintf("%s-%d-%d", odd[i%len(odd)], place, i)
	}
	n.apiPath = i%3 != 0
	n.raw = i%2 == 0
	n.notUTF8 = strings.Contains(n.names[modelPlace], standIn)
	n.undecodable = n.notUTF8 && !n.raw
	if n.notUTF8 && n.raw {
		for _, place := range []int{headerPlace, subsetPlace} {
			n.names[place] = strings.ReplaceAll(n.names[place], standIn, "plain-too")
		}
	}
	return n
}

// longName is a name of n bytes in one place, and short ones in all others.
func longName(i, place, n int) nameSet {
	names := shortNames(i * 7)
	names.names[place] = strings.Repeat("n", n) + strconv.Itoa(i)
	return names
}

// messages are the request: headers with metadata, and a body.
func (n nameSet) messages() []*extprocv3.ProcessingRequest {
	path := "/" + n.names[pathPlace]
	if n.apiPath {
		path += "/v1/chat/completions"
	}
	headers := requestHeaders(extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, path,
		"x-request-id", n.names[idPlace], "x-"+n.names[headerPlace], "value")
	// One in the pool, and one that no other request has.
	subset := []any{endpointHost(0) + ":" + strconv.Itoa(endpointPort), n.names[subsetPlace]}
	list, err := structpb.NewList(subset)
	if err == nil {
		headers.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb.subset_hint": {Fields: map[string]*structpb.Value{
				"x-gateway-destination-endpoint-subset": structpb.NewListValue(list),
			}},
		}}
	}
	named := []byte(`"` + n.names[modelPlace] + `"`)
	if !n.raw {
		// Text always marshals.
		named, _ = json.Marshal(n.names[modelPlace])
	}
	body := slices.Concat([]byte(`{"model":`), named, []byte(`,"messages":[{"role":"user","content":"hello"}]}`))
	return []*extprocv3.ProcessingRequest{headers, requestBody(body, true)}
}

func (n nameSet) encode(m *extprocv3.ProcessingRequest) ([]byte, error) {
	b, err := proto.Marshal(m)
	if n.notUTF8 {
		b = bytes.ReplaceAll(b, []byte(standIn), []byte(badBytes))
	}
	return b, err
}
