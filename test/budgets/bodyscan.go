package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/berth-dev/berth/internal/request"
	"github.com/berth-dev/berth/test/finding"
)

const scanRounds = 15

var scannedBodies = []struct {
	name     string
	bytes    int
	codeOnly bool
}{{"64KB", 64_000, false}, {"1MiB", 1 << 20, false}, {"64KB-code", 64_000, true}}

func bodyScanSubject() (subject, error) {
	var names []string
	for _, c := range scannedBodies {
		names = append(names, c.name)
	}
	return subject{
		configuration: "none: a body is scanned before any policy is asked",
		served:        model,
		traffic:       "chat request bodies, turns of prose and code or of code alone, from a fixed seed: " + strings.Join(names, ", ") + "; each scanned back to back, in turns with gjson",
	}, nil
}

func measureBodyScan(s *session) error {
	for _, c := range scannedBodies {
		body := chatBody(c.bytes, c.codeOnly)
		facts, err := request.Scan(request.ChatCompletions, "application/json", "", body)
		if err != nil {
			return err
		}
		if named, prompt := walkBody(body); facts.Model != named || facts.Prompt != prompt {
			return fmt.Errorf("the scan finds model %q and prompt %v, the walk %q and %v", facts.Model, facts.Prompt, named, prompt)
		}
		cost, err := compare(s, scanRounds,
			func() { _, _ = request.Scan(request.ChatCompletions, "application/json", "", body) },
			func() { walkBody(body) })
		if err != nil {
			return err
		}
		what := "prose and code"
		if c.codeOnly {
			what = "code alone, an escape every few bytes"
		}
		s.report(finding.Finding{
			Name: "body-scan/" + c.name, Value: cost.theirs / cost.ours, Unit: "x", Limit: finding.AtLeast(0.8), Advisory: c.codeOnly,
			About: fmt.Sprintf("speed to that of gjson's ForEach without a copy, over %s, best of %d alternating rounds; %s MB/s beside %s MB/s",
				what, scanRounds, finding.Number(float64(len(body))*1e3/cost.ours), finding.Number(float64(len(body))*1e3/cost.theirs)),
		})
	}
	return nil
}

// walkBody is what a scan is compared with: gjson over the same top level,
// without a copy of the body and without validation.
func walkBody(body []byte) (named string, prompt request.Region) {
	document := gjson.Parse(unsafe.String(unsafe.SliceData(body), len(body)))
	document.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "model":
			named = string([]byte(value.Str))
		case "messages":
			prompt = request.Region{Start: value.Index, End: value.Index + len(value.Raw)}
		}
		return true
	})
	return named, prompt
}

// Words and lines that turns are made of, as they stand in JSON.
var (
	proseWords = strings.Fields("the replica that answers first is not always one with shortest queue because its cache may hold what " +
		"this request begins with and then most of prompt needs no computing so look at both before you decide Übergänge " +
		"plutôt 待ち行列 ждать")
	codeLines = []string{
		`func (q *queue) pop() (*item, bool) {\n`, `\tif len(q.items) == 0 {\n\t\treturn nil, false\n\t}\n`, `\treturn first, true\n}\n\n`,
		`\t\treturn fmt.Errorf(\"page %s: %w\", url, err)\n`, `\ttotal += weight[i] * score(endpoint, now)\n`, `\t// The newest counts.\n`,
	}
)

// chatBody is a conversation of about size bytes: turns of prose in paragraphs,
// and in one of four also a piece of code; or nothing but code. What comes next
// is drawn from a fixed seed: a branch predictor would learn a text that
// repeats.
func chatBody(size int, codeOnly bool) []byte {
	random := rand.New(rand.NewPCG(3, 5))
	var b bytes.Buffer
	b.WriteString(`{"model":"` + model + `","stream":true,"temperature":0.7,"max_tokens":512,"messages":[{"role":"system","content":"Be brief."}`)
	for turn := 0; b.Len() < size; turn++ {
		b.WriteString(`,{"role":"` + [...]string{"user", "assistant"}[turn%2] + `","content":"`)
		if !codeOnly {
			for range 1 + random.IntN(4) {
				for range 20 + random.IntN(60) {
					b.WriteString(proseWords[random.IntN(len(proseWords))])
					b.WriteByte(' ')
				}
				b.WriteString(`\n\n`)
			}
		}
		if codeOnly || turn%4 == 3 {
			for range 5 + random.IntN(20) {
				b.WriteString(codeLines[random.IntN(len(codeLines))])
			}
		}
		b.WriteString(`"}`)
	}
	b.WriteString(`],"user":"u-` + strconv.Itoa(size) + `"}`)
	return b.Bytes()
}
