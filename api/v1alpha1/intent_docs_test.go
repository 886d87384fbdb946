package v1alpha1_test

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/attribute"
)

const intentDocument = "../../docs/intent.md"

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks are the fenced blocks of a language.
func blocks(t *testing.T, file, language string) []string {
	t.Helper()
	var found []string
	for _, rest := range strings.Split(read(t, file), "\n```"+language+"\n")[1:] {
		block, _, ok := strings.Cut(rest, "\n```\n")
		if !ok {
			t.Fatalf("%s: a block of %s has no end", file, language)
		}
		found = append(found, block)
	}
	return found
}

func TestEveryIntentThatTheDocumentShowsIsRead(t *testing.T) {
	shown := blocks(t, intentDocument, "json")
	if len(shown) < 3 {
		t.Fatalf("%d blocks of JSON, want 3 at least", len(shown))
	}
	set := map[string]bool{}
	for _, text := range shown {
		i, unknown, err := v1alpha1.DecodeIntent([]byte(text))
		if err != nil || len(unknown) > 0 {
			t.Errorf("%v, unknown %q\n%s", err, unknown, text)
			continue
		}
		v := reflect.ValueOf(*i)
		for n := range v.NumField() {
			set[v.Type().Field(n).Name] = set[v.Type().Field(n).Name] || !v.Field(n).IsZero()
		}
	}
	for name, ok := range set {
		if !ok {
			t.Errorf("no example has %s", name)
		}
	}
}

func TestTheDocumentNamesEveryMemberOfAnIntent(t *testing.T) {
	text := read(t, intentDocument)
	for _, v := range []any{
		v1alpha1.RoutingIntent{}, v1alpha1.Requirement{}, v1alpha1.ContextNeed{}, v1alpha1.SLO{}, v1alpha1.Demand{},
	} {
		of := reflect.TypeOf(v)
		for n := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(n).Tag.Get("json"), ",")
			if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, "."+name+"`") {
				t.Errorf("%s of %s is not in it", name, of.Name())
			}
		}
	}
}

func TestTheDocumentShowsTheGoExampleThatRuns(t *testing.T) {
	example := strings.ReplaceAll(read(t, "intent_docs_test.go"), "\n\t", "\n")
	shown := blocks(t, intentDocument, "go")
	if len(shown) != 1 {
		t.Fatalf("%d blocks of Go, want 1", len(shown))
	}
	if !strings.Contains(example, shown[0]) {
		t.Errorf("ExampleEncodeIntent is not\n%s", shown[0])
	}
}

func TestTheTableOfOperatorsIsWhatTheyDo(t *testing.T) {
	attributes := []attribute.Value{{}, attribute.Of(), attribute.Invalid(), attribute.Of("7"), attribute.Of("7", "9")}
	_, rest, _ := strings.Cut(read(t, intentDocument), "<!-- operators -->")
	table, _, _ := strings.Cut(rest, "<!-- /operators -->")
	var seen []string
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 1+len(attributes) {
			t.Fatalf("%q has %d cells", line, len(cells))
		}
		operator, texts, _ := strings.Cut(strings.TrimPrefix(cells[0], "`"), "`")
		var values []string
		if texts != "" {
			values = strings.Split(strings.TrimSpace(texts), ", ")
		}
		requirement := v1alpha1.Requirement{Class: v1alpha1.Safety, Key: "k", Operator: v1alpha1.Operator(operator), Values: values}
		intent := v1alpha1.RoutingIntent{Version: v1alpha1.Version, Requirements: []v1alpha1.Requirement{requirement}}
		if err := intent.Validate(); err != nil {
			t.Errorf("%s: %v", cells[0], err)
		}
		for n, a := range attributes {
			want := map[bool]string{true: "yes", false: "no"}[a.Meets(requirement.Operator, values)]
			if cells[1+n] != want {
				t.Errorf("%s, attribute %d: the table says %s, it is %s", cells[0], n, cells[1+n], want)
			}
		}
		seen = append(seen, operator)
	}
	for _, operator := range []v1alpha1.Operator{
		v1alpha1.In, v1alpha1.NotIn, v1alpha1.Exists, v1alpha1.DoesNotExist, v1alpha1.Gt, v1alpha1.Lt,
	} {
		if !slices.Contains(seen, string(operator)) {
			t.Errorf("the table does not have %s", operator)
		}
	}
}

func ExampleEncodeIntent() {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	text, err := v1alpha1.EncodeIntent(&v1alpha1.RoutingIntent{
		Version:      v1alpha1.Version,
		ExpiresAt:    now.Add(time.Minute),
		LogicalModel: "fast",
		Requirements: []v1alpha1.Requirement{{
			Class: v1alpha1.Authorization, Key: v1alpha1.AttributeTenants, Operator: v1alpha1.In, Values: []string{"acme"},
		}},
	})
	if err != nil {
		fmt.Println(err) // an *IntentError: the member, what is wrong, what is allowed
		return
	}
	fmt.Printf("%s\n", text)
	// Output: {"version":"berth.dev/v1alpha1","expiresAt":"2026-01-02T03:05:05Z","logicalModel":"fast","requirements":[{"class":"authorization","key":"berth.dev/tenants","operator":"In","values":["acme"]}]}
}
