package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/screen"
)

func TestAnIntentIsReadAsItIsMeantInEachForm(t *testing.T) {
	reader, err := intent.NewReader(metadataOptions)
	if err != nil {
		t.Fatal(err)
	}
	forms, err := intentForms()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			read, err := reader.Read(&intent.Input{Metadata: f.metadata}, wall)
			if err != nil {
				t.Fatal(err)
			}
			demand := demandOf(read)
			if demand.Context != 3712 || !demand.Trusted || !reflect.DeepEqual(demand.Models, []string{model}) {
				t.Errorf("it demands %d tokens of %q, trusted %v; want 3712 of %q", demand.Context, demand.Models, demand.Trusted, model)
			}
			if f.name != "flat" && !reflect.DeepEqual(demand.Requirements, requirements) {
				t.Errorf("requirements are %v, want %v", demand.Requirements, requirements)
			}
			// Flat keys say the same in other words: by them, too, every endpoint will do.
			registry, err := freshFleet(demanded(10))
			if err != nil {
				t.Fatal(err)
			}
			var result screen.Result
			screen.NewIndex().Screen(registry.Set(), demand, rules, now, &result)
			if len(result.Slots) != 10 || len(demand.Requirements) != 6 {
				t.Errorf("%d of 10 endpoints meet %d requirements, want all and 6", len(result.Slots), len(demand.Requirements))
			}
		})
	}
}

func TestEachRequirementCutsWhoDoesNotMeetIt(t *testing.T) {
	for i := range requirements {
		list := demanded(3)
		delete(list[1].Labels, requirements[i].Key)
		delete(list[1].Annotations, requirements[i].Key)
		registry, err := freshFleet(list)
		if err != nil {
			t.Fatal(err)
		}
		var result screen.Result
		demand := screen.Request{Models: models, Trusted: true, Requirements: requirements}
		screen.NewIndex().Screen(registry.Set(), &demand, rules, now, &result)
		if got := result.Slots; !reflect.DeepEqual(got, []int32{0, 2}) {
			t.Errorf("without %s on slot 1, slots %v are left, want 0 and 2", requirements[i].Key, got)
		}
	}
}

func TestOnlyATokenThatIsIntactIsMeasured(t *testing.T) {
	keys, err := signingKeys()
	if err != nil {
		t.Fatal(err)
	}
	options, err := signedOptions(keys)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := signedPayload()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		t.Run(string(k.algorithm), func(t *testing.T) {
			token, err := k.sign(payload)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := newIntentReading(options, intent.Input{Signed: []string{token}}); err != nil {
				t.Error(err)
			}
			if err := k.check(token); err != nil {
				t.Errorf("the bare check: %v", err)
			}
			// The first character of the signature has no spare bits.
			at := strings.LastIndexByte(token, '.') + 1
			other := byte('A')
			if token[at] == other {
				other = 'B'
			}
			token = token[:at] + string(other) + token[at+1:]
			if _, err := newIntentReading(options, intent.Input{Signed: []string{token}}); err == nil {
				t.Error("a token with another signature is read")
			}
			if k.check(token) == nil {
				t.Error("the bare check passes a token with another signature")
			}
		})
	}
}

func TestScreeningIsMeasuredOverTwoStatesOfAPool(t *testing.T) {
	s, err := newScreener(10)
	if err != nil {
		t.Fatal(err)
	}
	if s.sets[0].Generation == s.sets[1].Generation {
		t.Error("both states are of one generation")
	}
	before := s.turn
	if s.unchanged(); s.turn != before {
		t.Error("the pool that stays became the other one")
	}
	if s.changed(); s.turn == before {
		t.Error("the pool that changes stayed")
	}
}

func TestADecisionByAnIntentHasAllEndpointsToChooseFrom(t *testing.T) {
	d, err := newIntentDecider(10)
	if err != nil {
		t.Fatal(err)
	}
	d.input.Metadata = map[string]any{"intent": 1.0}
	if d.decide(); d.err == nil {
		t.Error("an intent that cannot be read is decided by")
	}
}
