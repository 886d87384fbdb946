package plugins

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/policy"
)

// sections is the order in which an operator reads a plugin's page.
var sections = []string{"What it does", "Inputs", "Parameters", "When data is missing", "Cost"}

var (
	heading = regexp.MustCompile(`(?m)^## (.+)$`)
	example = regexp.MustCompile("(?s)```yaml\n(.+?)```")
)

func TestEachTypeHasAPageWithEverySectionAndAnExampleThatLoads(t *testing.T) {
	var pages []string
	for _, where := range []string{"*", "../filters/*", "../scorers/*"} {
		found, err := filepath.Glob(where + "/README.md")
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	var documented []string
	for _, path := range pages {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		page := string(raw)
		title, _, _ := strings.Cut(page, "\n")
		kind := strings.TrimPrefix(title, "# ")
		documented = append(documented, kind)

		var got []string
		for _, h := range heading.FindAllStringSubmatch(page, -1) {
			got = append(got, h[1])
		}
		if !slices.Equal(got, sections) {
			t.Errorf("%s has the sections %q, want %q", path, got, sections)
		}
		yaml := example.FindStringSubmatch(page)
		if yaml == nil || !strings.Contains(yaml[1], "type: "+kind) {
			t.Errorf("%s has no example of %s", path, kind)
			continue
		}
		if _, _, err := policy.Parse(path, []byte(yaml[1]), t.TempDir(), Catalog{}); err != nil {
			t.Errorf("the example does not load: %v", err)
		}
	}
	slices.Sort(documented)
	if !slices.Equal(documented, Types()) {
		t.Errorf("pages are about %v, want one for each of %v", documented, Types())
	}
}
