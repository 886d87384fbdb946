package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// parseObject reads a page that is one JSON object and nothing else. What is in it
// is looked at where it stands, so that a page takes the memory of its own length,
// and not that of a tree of all it has.
func parseObject(page []byte) (gjson.Result, error) {
	page = bytes.TrimSpace(page)
	switch {
	case len(page) == 0 || page[0] != '{':
		return gjson.Result{}, errors.New("want a JSON object")
	case !utf8.Valid(page):
		return gjson.Result{}, errors.New("the page is not UTF-8")
	}
	// The decoder bounds how deep a page may be, and does not build what it only
	// copies.
	var whole json.RawMessage
	if err := json.Unmarshal(page, &whole); err != nil {
		return gjson.Result{}, err
	}
	return gjson.ParseBytes(whole), nil
}

// memberOf finds a member of an object by its whole name. twice reports that it is
// there more than once: nobody knows which of them counts.
func memberOf(object gjson.Result, name string) (v gjson.Result, twice bool) {
	if !object.IsObject() {
		return v, false
	}
	object.ForEach(func(key, value gjson.Result) bool {
		if key.Str == name {
			twice = v.Exists()
			v = value
		}
		return !twice
	})
	return v, twice
}
