package request

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/tidwall/gjson"
)

// Bodies as clients send them. The text is drawn at random from a fixed seed:
// a repeated paragraph would be learnt by the branch predictor, and byte-wise
// scanners would look faster than they are on real text.

var (
	words = strings.Fields("the replica keeps blocks of a finished sequence until pool needs them so second request with same " +
		"beginning finds most its prompt already computed how long that holds depends on load last minutes block size and " +
		"much two requests share router can only estimate it from what has sent where I you is was not in to for quantization")
	statements = []string{`if err != nil {\n    return fmt.Errorf(\"scrape %s: %w\", url, err)\n}\n`, `total += weights[i] * score(endpoint, now)\n`,
		`// The last reading counts.\n`, `for i, endpoint := range endpoints {\n`, `\t\tlog.Info(\"picked\", \"endpoint\", name)\n`, `}\n\n`}
	phrases = []string{"Wie lange bleibt ein Präfix im Cache? ", "キャッシュの先頭部分はどれくらい残りますか。", `\u00e9t\u00e9 \ud83d\ude80 `, "Сколько это стоит? "}
)

// chatBody is a conversation of about size bytes in which prose, code with
// escapes, content parts with text outside ASCII, and tool calls alternate.
// length scales the messages: at 1 they are short chat turns of 350 bytes on
// average, at 4 what assistants that work on documents and code exchange.
func chatBody(size, length int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	some := func(least, spread int, from []string, between string) {
		for range length * (least + random.IntN(spread)) {
			b.WriteString(from[random.IntN(len(from))])
			b.WriteString(between)
		}
	}
	b.WriteString(`{"model":"meta-llama/Llama-3.1-8B-Instruct","stream":true,"stream_options":{"include_usage":true},` +
		`"temperature":0.7,"max_completion_tokens":1024,"messages":[{"role":"system","content":"You are terse and exact."}`)
	for b.Len() < size {
		switch random.IntN(5) {
		case 0, 1:
			b.WriteString(`,{"role":"user","content":"`)
			some(10, 100, words, " ")
			b.WriteString(`"}`)
		case 2:
			b.WriteString(`,{"role":"assistant","content":"Here it is:\n\n` + "```go\\n")
			some(4, 12, statements, "")
			b.WriteString("```" + `\n\n`)
			some(10, 30, words, " ")
			b.WriteString(`"}`)
		case 3:
			b.WriteString(`,{"role":"user","content":[{"type":"text","text":"`)
			some(1, 4, phrases, "")
			b.WriteString(`"},{"type":"text","text":"`)
			some(10, 50, words, " ")
			b.WriteString(`"}]}`)
		case 4:
			b.WriteString(`,{"role":"assistant","content":null,"tool_calls":[{"id":"call_` + strconv.Itoa(random.IntN(1000)) +
				`","type":"function","function":{"name":"search","arguments":"{\"query\":\"`)
			some(2, 6, words, " ")
			b.WriteString(`\",\"limit\":` + strconv.Itoa(random.IntN(50)) + `}"}}]}`)
		}
	}
	b.WriteString(`],"user":"u-17"}`)
	return b.Bytes()
}

// tokenIDBody is a completion whose prompt is token ids: numbers, no strings.
func tokenIDBody(size int) []byte {
	b := []byte(`{"model":"base","max_tokens":16,"prompt":[128000`)
	for id := 1; len(b) < size; id++ {
		b = append(b, ',')
		b = strconv.AppendInt(b, int64(id*7919%128256), 10)
	}
	return append(b, `]}`...)
}

var benchBodies = []struct {
	name string
	api  API
	body []byte
}{
	{"64KB", ChatCompletions, chatBody(64_000, 4)},
	{"1MiB", ChatCompletions, chatBody(1<<20, 4)},
	{"64KB-short-turns", ChatCompletions, chatBody(64_000, 1)},
	{"1MiB-short-turns", ChatCompletions, chatBody(1<<20, 1)},
	{"64KB-token-ids", Completions, tokenIDBody(64_000)},
}

func BenchmarkScan(b *testing.B) {
	for _, bench := range benchBodies {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.body)))
			b.ReportAllocs()
			for b.Loop() {
				facts, err := Scan(bench.api, "application/json", "", bench.body)
				if err != nil || !facts.HasModel || facts.Prompt == (Region{}) {
					b.Fatalf("Scan = %+v, %v", facts, err)
				}
			}
		})
	}
}

// BenchmarkGJSONForEach is what BenchmarkScan is compared with: gjson's walk
// over the same top level, without a copy of the body and without validation.
func BenchmarkGJSONForEach(b *testing.B) {
	for _, bench := range benchBodies {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.body)))
			b.ReportAllocs()
			for b.Loop() {
				var model string
				var prompt Region
				document := gjson.Parse(unsafe.String(unsafe.SliceData(bench.body), len(bench.body)))
				document.ForEach(func(key, value gjson.Result) bool {
					switch key.Str {
					case "model":
						model = string([]byte(value.Str))
					case "messages", "prompt":
						prompt = Region{value.Index, value.Index + len(value.Raw)}
					}
					return true
				})
				if model == "" || prompt == (Region{}) {
					b.Fatal("the walk missed the model or the prompt")
				}
			}
		})
	}
}
