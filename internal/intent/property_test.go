package intent

import (
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// offer is what one channel of a request brings.
type offer struct {
	name string
	// put adds it to a request; nil: the channel is not present.
	put func(*Input)
	// token is "" if it is good.
	token string
}

// offers are for the channels in order of trust.
func offers(t testing.TB) [3][]offer {
	metadata := func(token string, m map[string]any) offer {
		return offer{"metadata", func(in *Input) { in.Metadata = m }, token}
	}
	signed := func(token string, copies ...string) offer {
		return offer{"signed", func(in *Input) { in.Signed = copies }, token}
	}
	plain := func(token string, headers ...Header) offer {
		return offer{"headers", func(in *Input) { in.Plain = headers }, token}
	}
	valid := token(signEd, edHeader, good)
	return [3][]offer{
		{
			{}, metadata("", map[string]any{"logicalModel": "a"}), metadata("", map[string]any{"intent": tree("logicalModel", "b")}),
			metadata(TokenMalformed, map[string]any{"logicalModel": ""}), metadata(TokenMalformed, map[string]any{"intent": nil}),
			metadata(TokenVersion, map[string]any{"intent": map[string]any{}}), metadata(TokenMalformed, map[string]any{"x": 1.0}),
			metadata(TokenExpired, map[string]any{"intent": tree("expiresAt", "2026-03-01T12:00:00Z")}),
			metadata(TokenUntrusted, map[string]any{"intent": tree("audience", []any{"x"})}),
		},
		{
			{}, signed("", valid), signed("", token(signHMAC(hmacSecret), `{"alg":"HS256","kid":"hs"}`, good)),
			signed(TokenMalformed, ""), signed(TokenMalformed, valid, valid), signed(TokenMalformed, "x.y.z"),
			signed(TokenUntrusted, token(signOther, edHeader, good)), signed(TokenMalformed, token(signEd, edHeader, "{")),
			signed(TokenVersion, token(signEd, edHeader, "{}")),
		},
		{
			{}, plain("", Header{"x-selected-model", "c"}), plain("", Header{"x-tenant", "t"}),
			plain(TokenMalformed, Header{"x-selected-model", ""}), plain(TokenMalformed, Header{"x-selected-model", "\xff"}),
			plain(TokenMalformed, Header{"x-tenant", "t"}, Header{"x-tenant", "t"}),
		},
	}
}

func TestNoChannelStandsInForOneOfMoreTrust(t *testing.T) {
	all := offers(t)
	o := everything(t)
	rapid.Check(t, func(t *rapid.T) {
		o := o
		o.Required = rapid.Bool().Draw(t, "required")
		on := [3]bool{rapid.Bool().Draw(t, "metadata is on"), rapid.Bool().Draw(t, "signed is on"), rapid.Bool().Draw(t, "headers are on")}
		o.Metadata = on[0]
		if !on[1] {
			o.Keys = nil
		}
		if !on[2] {
			o.PlainHeaders = nil
		}
		r, err := NewReader(o)
		if err != nil {
			t.Fatal(err)
		}

		var in Input
		var made [3]offer
		first := -1
		for i := range all {
			made[i] = rapid.SampledFrom(all[i]).Draw(t, "channel")
			if made[i].put != nil {
				made[i].put(&in)
				if first < 0 && on[i] {
					first = i
				}
			}
		}
		got, err := r.Read(&in, noon)

		// What is less trusted than the first channel does not matter, nor what is off.
		var alone Input
		if first >= 0 {
			made[first].put(&alone)
		}
		again, errAgain := r.Read(&alone, noon)
		if !reflect.DeepEqual(got, again) || !reflect.DeepEqual(err, errAgain) {
			t.Fatalf("with all channels %+v, %v; with the first alone %+v, %v", got, err, again, errAgain)
		}

		switch {
		case first < 0 && o.Required:
			if refused := new(*Error); !errors.As(err, refused) || (*refused).Token != TokenRequired {
				t.Fatalf("no channel: %+v, error %v", got, err)
			}
		case first < 0:
			if err != nil || got.Source != SourceNone {
				t.Fatalf("no channel: %+v, error %v", got, err)
			}
		case made[first].token != "":
			if refused := new(*Error); !errors.As(err, refused) || (*refused).Token != made[first].token || got.Source != "" {
				t.Fatalf("%+v, error %v, want %s", got, err, made[first].token)
			}
		default:
			if err != nil || string(got.Source) != made[first].name || got.Routing == nil {
				t.Fatalf("%+v, error %v, want an intent by %s", got, err, made[first].name)
			}
		}

		// Without a channel that is refused, the others give what they gave without it.
		for i := range all {
			if made[i].put == nil || made[i].token == "" {
				continue
			}
			var rest Input
			next := -1
			for k := range all {
				if k != i && made[k].put != nil {
					made[k].put(&rest)
					if next < 0 && on[k] {
						next = k
					}
				}
			}
			got, err := r.Read(&rest, noon)
			if next >= 0 && made[next].token == "" && (err != nil || string(got.Source) != made[next].name) {
				t.Fatalf("without %s: %+v, error %v, want an intent by %s", made[i].name, got, err, made[next].name)
			}
		}
	})
}
