package plugins

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/scorers/parameters"
)

func TestFiltersReadTheirKeySetAtTheStartAndTheCatalogDoesNot(t *testing.T) {
	dir := t.TempDir()
	path := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good := path("keys.json", `{"keys": [{"kty": "oct", "kid": "a", "alg": "HS256", "k": "`+strings.Repeat("A", 43)+`"}]}`)
	for _, kind := range []string{"context-fit", "eligibility", "served-model"} {
		e, err := find(kind)
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			path  string
			reads bool
		}{
			"a key set":            {good, true},
			"a file that is gone":  {filepath.Join(dir, "gone"), false},
			"a directory":          {dir, false},
			"a file without keys":  {path("empty.json", `{"keys": []}`), false},
			"a file that is large": {path("large.json", strings.Repeat(" ", 1<<20)), false},
		} {
			params, err := json.Marshal(map[string]string{"keySet": c.path, "audience": "berth"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := (Catalog{}).Check(kind, params); err != nil {
				t.Errorf("%s with %s: the catalog says %v", kind, name, err)
			}
			made, err := e.factory("mine", params, nil)
			if refused := (*parameters.Error)(nil); c.reads != (err == nil) || err != nil && (!errors.As(err, &refused) || refused.Field != "keySet") {
				t.Errorf("%s with %s: %v", kind, name, err)
			}
			if _, ok := made.(scheduling.Filter); ok != c.reads {
				t.Errorf("%s with %s makes %v", kind, name, made)
			}
		}
	}
}
