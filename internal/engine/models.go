package engine

import (
	"errors"
	"fmt"
	"math"

	"github.com/tidwall/gjson"

	"github.com/berth-dev/berth/internal/telemetry"
)

// maxOwners bounds who is looked at of those that serve the models.
const maxOwners = 64

// Owners are what the cards of /v1/models say of who serves them. whole reports
// that the page is a list, and that each of its cards says so.
func Owners(page []byte) (owners []string, whole bool) {
	var list modelList
	if list.decode(page) != nil || list.cards == 0 {
		return nil, false
	}
	return list.owners.names, list.owned
}

// modelList is the answer of /v1/models: cards of base models, under each of
// their served names, and of adapters, which name a parent.
type modelList struct {
	cards          int
	base, adapters modelNames
	owners         nameSet
	// owned: each card says who serves it.
	owned bool
	// limit is the lowest that a base model states, 0 if none does, NaN if one
	// states what is none.
	limit float64
}

// modelNames are the names of one kind of card; fault is what is wrong with one.
type modelNames struct {
	nameSet
	fault string
}

// modelCard is what a card says; a member that is not there has no Raw.
type modelCard struct{ id, parent, owner, limit gjson.Result }

// decode reads the page. An object without the list is an error that the engine
// tells, and not a list without models.
func (l *modelList) decode(page []byte) error {
	root, err := parseObject(page)
	if err != nil {
		return err
	}
	data, twice := memberOf(root, "data")
	switch {
	case twice:
		return errors.New("data is given twice")
	case !data.IsArray():
		return errors.New("no list of models, want data")
	}
	l.owned = true
	data.ForEach(func(_, value gjson.Result) bool {
		var card modelCard
		if card, err = cardOf(value); err != nil {
			return false
		}
		l.cards++
		l.add(&card)
		return true
	})
	return err
}

func cardOf(value gjson.Result) (card modelCard, err error) {
	if !value.IsObject() {
		return card, errors.New("a model is no object")
	}
	value.ForEach(func(key, value gjson.Result) bool {
		var to *gjson.Result
		switch key.Str {
		case "id":
			to = &card.id
		case "parent":
			to = &card.parent
		case "owned_by":
			to = &card.owner
		case "max_model_len":
			to = &card.limit
		default:
			return true
		}
		if to.Exists() {
			err = fmt.Errorf("a model has %s twice", key.Str)
			return false
		}
		*to = value
		return true
	})
	return card, err
}

func (l *modelList) add(card *modelCard) {
	owner := card.owner.Str
	l.owned = l.owned && owner != "" && len(l.owners.names) < maxOwners
	if owner != "" && len(l.owners.names) < maxOwners {
		l.owners.add(owner)
	}
	if card.parent.Type != gjson.Null && card.parent.Type != gjson.String {
		const words = "the parent of a model is not a text"
		l.base.fault, l.adapters.fault, l.limit = words, words, math.NaN()
		return
	}
	names := &l.base
	if card.parent.Str != "" {
		names = &l.adapters
	} else if card.limit.Type != gjson.Null && !math.IsNaN(l.limit) {
		v := card.limit.Num
		if card.limit.Type != gjson.Number || v < 1 || v != math.Trunc(v) || !telemetry.ContextLimit.Possible(v) {
			l.limit = math.NaN()
		} else if l.limit == 0 || v < l.limit {
			l.limit = v
		}
	}
	if names.fault != "" {
		return
	}
	switch reason := unfit(card.id.Str); {
	case card.id.Type != gjson.Null && card.id.Type != gjson.String:
		names.fault = "a model name is not a text"
	case reason != "":
		names.fault = "a model name " + reason
	default:
		names.add(card.id.Str)
		names.fault = names.tooMuch()
	}
}

func (n *modelNames) reading() telemetry.Reading {
	if n.fault != "" {
		return faulty(n.fault)
	}
	return telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Names: n.names}}
}

// contextLimit is the lowest that a base model states.
func (l *modelList) contextLimit() telemetry.Reading {
	switch {
	case math.IsNaN(l.limit):
		return faulty("max_model_len is not a whole number of at least 1")
	case l.limit == 0:
		return missing("max_model_len is not stated")
	default:
		return telemetry.Reading{Recorded: telemetry.Fresh, Value: l.limit}
	}
}
