package v1alpha1

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// check says whether the members of an intent are within their bounds. What is
// empty is taken for absent.
func (i *RoutingIntent) check() *IntentError {
	if i == nil {
		return malformed("", "there is none")
	}
	if bad := checkVersion(i.Version); bad != nil {
		return bad
	}
	for _, t := range [...]struct {
		name, text string
		most       int
	}{
		{"intentID", i.IntentID, nameBytes},
		{"issuer", i.Issuer, nameBytes},
		{"logicalModel", i.LogicalModel, modelBytes},
		{"sessionKey", i.SessionKey, modelBytes},
	} {
		if t.text != "" {
			if bad := checkText(t.name, t.text, t.most); bad != nil {
				return bad
			}
		}
	}
	if bad := checkTexts("audience", i.Audience, audienceItems, nameBytes); bad != nil {
		return bad
	}
	if bad := checkTime("issuedAt", i.IssuedAt); bad != nil {
		return bad
	}
	if bad := checkTime("expiresAt", i.ExpiresAt); bad != nil {
		return bad
	}
	if bad := checkTexts("servedModels", i.ServedModels, modelItems, modelBytes); bad != nil {
		return bad
	}
	if len(i.Requirements) > requireItems {
		return malformed("requirements", "has %d items; allowed are at most %d", len(i.Requirements), requireItems)
	}
	for n := range i.Requirements {
		if bad := i.Requirements[n].check(); bad != nil {
			return bad.within(item("requirements", n))
		}
	}
	if c := i.Context; c != nil {
		if bad := checkTokens(c.InputTokens, c.OutputTokens); bad != nil {
			return bad.within("context")
		}
	}
	if s := i.SLO; s != nil {
		bad := checkSeconds("ttft", s.TTFT)
		if bad == nil {
			bad = checkSeconds("tpot", s.TPOT)
		}
		if bad != nil {
			return bad.within("slo")
		}
	}
	if d := i.Demand; d != nil {
		if bad := checkTokens(d.InputTokens, d.OutputTokens); bad != nil {
			return bad.within("demand")
		}
	}
	switch i.Energy {
	case "", EnergyNeutral, EnergyPreferLow:
		return nil
	default:
		return malformed("energy", "%s is unknown; allowed are neutral and preferLow", quote(string(i.Energy)))
	}
}

func (r *Requirement) check() *IntentError {
	switch r.Class {
	case Authorization, Safety, Residency, Capability, Placement:
	case "":
		return malformed("class", "is missing; allowed are %s", requirementClasses)
	default:
		return malformed("class", "%s is unknown; allowed are %s", quote(string(r.Class)), requirementClasses)
	}
	if r.Key == "" {
		return malformed("key", "is missing; allowed are 1 to %d bytes", keyBytes)
	}
	if bad := checkText("key", r.Key, keyBytes); bad != nil {
		return bad
	}
	switch r.Operator {
	case In, NotIn:
		if len(r.Values) == 0 || len(r.Values) > valueItems {
			return malformed("values", "has %d items; %s takes 1 to %d texts", len(r.Values), r.Operator, valueItems)
		}
		for n, text := range r.Values {
			if bad := checkText("", trimBlanks(text), valueBytes); bad != nil {
				return bad.within(item("values", n))
			}
		}
		return nil
	case Gt, Lt:
		if len(r.Values) != 1 {
			return malformed("values", "has %d items; %s takes one whole number, as a text", len(r.Values), r.Operator)
		}
		if _, err := strconv.ParseInt(trimBlanks(r.Values[0]), 10, 64); err != nil {
			return malformed(item("values", 0), "%s is not allowed; %s takes a whole number of at most 64 bits, as a text",
				quote(r.Values[0]), r.Operator)
		}
		return nil
	case Exists, DoesNotExist:
		if len(r.Values) > 0 {
			return malformed("values", "has %d items; %s takes none", len(r.Values), r.Operator)
		}
		return nil
	case "":
		return malformed("operator", "is missing; allowed are %s", operators)
	default:
		return malformed("operator", "%s is unknown; allowed are %s", quote(string(r.Operator)), operators)
	}
}

const (
	requirementClasses = "authorization, safety, residency, capability and placement"
	operators          = "In, NotIn, Exists, DoesNotExist, Gt and Lt"
)

func checkTexts(name string, texts []string, items, bytes int) *IntentError {
	if len(texts) > items {
		return malformed(name, "has %d items; allowed are at most %d", len(texts), items)
	}
	for n, text := range texts {
		if bad := checkText("", text, bytes); bad != nil {
			return bad.within(item(name, n))
		}
	}
	return nil
}

func checkText(name, text string, most int) *IntentError {
	if text == "" {
		return malformed(name, "is empty; allowed are 1 to %d bytes", most)
	}
	if len(text) > most {
		return malformed(name, "has %d bytes; allowed are 1 to %d", len(text), most)
	}
	for n, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[n:], "\uFFFD") {
			return malformed(name, "%s is not UTF-8", quote(text))
		}
		if unicode.IsControl(r) {
			return malformed(name, "%s has a control character", quote(text))
		}
	}
	return nil
}

// checkTime takes what RFC 3339 can say.
func checkTime(name string, t time.Time) *IntentError {
	if year := t.UTC().Year(); year < 0 || year > 9999 {
		return malformed(name, "is in the year %d; allowed are 0 to 9999", year)
	}
	return nil
}

func checkTokens(input, output int64) *IntentError {
	name, n := "inputTokens", input
	if n >= 0 && n <= intentTokens {
		name, n = "outputTokens", output
	}
	if n >= 0 && n <= intentTokens {
		return nil
	}
	return malformed(name, "%d is not allowed; allowed are 0 to %d", n, int64(intentTokens))
}

func checkSeconds(name string, s float64) *IntentError {
	if s >= 0 && !math.IsInf(s, 0) {
		return nil
	}
	return malformed(name, "%v is not allowed; allowed are seconds, 0 or more", s)
}
