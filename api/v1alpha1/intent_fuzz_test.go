package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzIntent holds DecodeIntent to encoding/json: both must see the same members
// and, of the requirements, every one. Whatever is accepted is written and read
// back as it was.
func FuzzIntent(f *testing.F) {
	// The seeds are short: go test spends up to a minute to shorten each input that is
	// new to it.
	for _, seed := range []string{
		having(`"intentID":"a","issuer":"b","audience":["c"],"logicalModel":"d","servedModels":["e","f"],"sessionKey":"g"`),
		having(`"issuedAt":"2026-01-02T03:04:05.5Z","expiresAt":"2026-01-02T04:05:05+01:00","priority":-1,"energy":"preferLow"`),
		having(`"context":{"inputTokens":1,"outputTokens":2},"slo":{"ttft":0.5,"tpot":2e-2},"demand":{"inputTokens":3}`),
		having(`"later":{"a":[1,-0.5e+3,true,false,null,"\ud83d\ude80\\\"\/\b\f\n\r\t"]}`),
		having(`"requirements":[],"re\u0071uirements":[]`),
		having(`"Requirements":[]`),
		requiring(`"class":"safety","key":"k","operator":"In","values":[" a "]`),
		requiring(`"class":"safety","key":"k","operator":"Lt","values":["-7"],"values":[]`),
		having(`"expiresAt":"2026-01-02T03:04:05.999999999-23:59"`),
		having(`"priority":1e1,"context":{"inputTokens":9007199254740991}`),
		having(`"issuer":"\ud800"`),
		`{}`, `[`, "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		i, unknown, err := DecodeIntent(data)
		if !bytes.Equal(data, before) {
			t.Fatal("the text was changed")
		}
		tree, strict := strictTree(data)
		if err != nil {
			var bad *IntentError
			if !errors.As(err, &bad) || i != nil || unknown != nil {
				t.Fatalf("%+v, %q, %v", i, unknown, err)
			}
			if strings.HasPrefix(bad.Problem, "is not JSON") && strict {
				t.Fatalf("encoding/json reads it: %v", err)
			}
			return
		}
		if !strict {
			t.Fatalf("encoding/json and its tokens do not read it once and for all: %+v", i)
		}
		if same, _, err := IntentFromValue(tree); err != nil || !reflect.DeepEqual(same, i) {
			t.Fatalf("as encoding/json reads it: %+v, %v\nwant %+v", same, err, i)
		}
		nothingIsLost(t, tree, i, unknown)
		text, err := EncodeIntent(i)
		if err != nil {
			// What JSON escapes may make the text longer than the one that was read.
			if i.Validate() != nil || !strings.Contains(err.Error(), "bytes as JSON") {
				t.Fatalf("it cannot be written: %v", err)
			}
			return
		}
		again, _, err := DecodeIntent(text)
		if err != nil || !reflect.DeepEqual(again, i) {
			t.Fatalf("%s\nis %+v, %v\nwas %+v", text, again, err, i)
		}
	})
}

// nothingIsLost compares an intent with its text, as encoding/json has it.
func nothingIsLost(t *testing.T, tree map[string]any, i *RoutingIntent, unknown []string) {
	t.Helper()
	requirements, _ := tree["requirements"].([]any)
	if len(requirements) != len(i.Requirements) {
		t.Fatalf("%d requirements, want %d", len(i.Requirements), len(requirements))
	}
	for n, r := range i.Requirements {
		members, _ := requirements[n].(map[string]any)
		values, _ := members["values"].([]any)
		if members["class"] != string(r.Class) || members["key"] != r.Key || members["operator"] != string(r.Operator) || len(values) != len(r.Values) {
			t.Fatalf("requirement %d is %+v, want %v", n, r, members)
		}
		for v, text := range values {
			if have, _ := text.(string); strings.Trim(have, " \t\r\n") != r.Values[v] {
				t.Fatalf("value %d of requirement %d is %q, want %q", v, n, r.Values[v], have)
			}
		}
	}
	served, _ := tree["servedModels"].([]any)
	audience, _ := tree["audience"].([]any)
	if len(served) != len(i.ServedModels) || len(audience) != len(i.Audience) {
		t.Fatalf("%q and %q, want %v and %v", i.ServedModels, i.Audience, served, audience)
	}
	for name, there := range map[string]bool{
		"logicalModel": i.LogicalModel != "", "sessionKey": i.SessionKey != "",
		"issuedAt": !i.IssuedAt.IsZero(), "expiresAt": !i.ExpiresAt.IsZero(),
		"context": i.Context != nil, "slo": i.SLO != nil, "demand": i.Demand != nil,
	} {
		if _, want := tree[name]; there != want {
			t.Fatalf("%s: there %v, want %v", name, there, want)
		}
	}
	known := 0
	for name := range tree {
		for _, k := range intentMembers {
			if strings.EqualFold(name, k) {
				known++
			}
		}
	}
	if want := min(len(tree)-known, 16); len(unknown) != want {
		t.Fatalf("unknown %q, want %d", unknown, want)
	}
}

// strictTree is what encoding/json makes of a text, and whether it is one object in
// UTF-8, without names that occur twice.
func strictTree(data []byte) (map[string]any, bool) {
	var tree map[string]any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if !json.Valid(data) || !utf8.Valid(data) || dec.Decode(&tree) != nil || tree == nil {
		return nil, false
	}
	dec = json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return tree, distinct(dec) == nil
}

var errTwice = errors.New("a name occurs twice")

// distinct reads one value.
func distinct(dec *json.Decoder) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		names := map[any]bool{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return err
			}
			if names[name] {
				return errTwice
			}
			names[name] = true
			if err := distinct(dec); err != nil {
				return err
			}
		}
		_, err = dec.Token()
	case json.Delim('['):
		for dec.More() {
			if err := distinct(dec); err != nil {
				return err
			}
		}
		_, err = dec.Token()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
