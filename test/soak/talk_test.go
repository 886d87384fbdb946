package main

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
)

// Each line is a mode's conversation: the messages, with the number of answers
// that are due after each.
func TestAConversationHasTheMessagesOfItsMode(t *testing.T) {
	for i, want := range []string{
		"request_headers:0 request_body:0 request_body:3 response_headers:1 response_body:1 response_body:1 response_trailers:1",
		"request_headers:1 request_body:1 response_headers:1 response_body:1 response_trailers:1",
		"request_headers:1 request_body:1 request_body:1 response_headers:1 response_body:1 response_body:1 response_trailers:1",
		"request_headers:1 response_headers:1 response_trailers:1",
	} {
		var got []string
		for _, s := range usual(modes[i]).steps() {
			m := s.message(&exchange{}).ProtoReflect()
			kind := m.WhichOneof(m.Descriptor().Oneofs().ByName("request")).Name()
			got = append(got, string(kind)+":"+strconv.Itoa(len(s.due)))
		}
		if line := strings.Join(got, " "); line != want {
			t.Errorf("mode %s: %s, want %s", modes[i], line, want)
		}
	}
}

func TestTheResponseIsFromWhereTheRequestWasSent(t *testing.T) {
	served := func(x *exchange) string {
		return responseHeaders(x).GetAttributes()["envoy.filters.http.ext_proc"].GetFields()["upstream.address"].GetStringValue()
	}
	if got := served(&exchange{destination: "127.0.1.4:9,127.0.1.1:9"}); got != "127.0.1.4:9" {
		t.Errorf("served by %s, want the first of the destinations", got)
	}
	if got := served(&exchange{}); got != "127.0.1.1:9" {
		t.Errorf("without a destination served by %s, want the first endpoint", got)
	}
}

func TestChatBodiesAreValidAndOfTheSizeAskedFor(t *testing.T) {
	for _, n := range []int{200, 1024, 300_000} {
		if body := chatBody(n); len(body) != n || !json.Valid(body) {
			t.Errorf("chatBody(%d): %d bytes, valid JSON: %v", n, len(body), json.Valid(body))
		}
	}
}

func TestNamesOfOneRequestAreOfNoOther(t *testing.T) {
	seen := map[string]bool{}
	for i := range 50 {
		for place, name := range shortNames(i).names {
			if seen[name] {
				t.Errorf("request %d, place %d: %q has come before", i, place, name)
			}
			seen[name] = true
		}
	}
}

func TestALongNameIsInItsPlaceAlone(t *testing.T) {
	for place := range places {
		n := longName(3, place, 5000)
		for at, name := range n.names {
			if long := len(name) > 1000; long != (at == place) {
				t.Errorf("long name in place %d: place %d has %d bytes", place, at, len(name))
			}
		}
	}
}

func TestNamesThatAreNotUTF8ReachTheWire(t *testing.T) {
	for i := range 14 {
		n := shortNames(i)
		b, err := n.encode(n.messages()[0])
		if err != nil {
			t.Fatal(err)
		}
		if has := bytes.Contains(b, []byte(badBytes)); has != n.notUTF8 {
			t.Errorf("request %d: bytes that are not UTF-8: %v, want %v", i, has, n.notUTF8)
		}
		if err := proto.Unmarshal(b, &extprocv3.ProcessingRequest{}); (err != nil) != n.undecodable {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if !shortNames(5).undecodable || shortNames(12).undecodable || !shortNames(12).notUTF8 {
		t.Error("names 5 must be undecodable, names 12 not UTF-8 and decodable")
	}
}
