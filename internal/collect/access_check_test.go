package collect

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/engine"
)

func TestFilesThatEnginesAreAskedWithAreCheckedBeforehand(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name   string
		access engine.Access
		want   []string
	}{
		{"none", engine.Access{}, nil},
		{"a token", engine.Access{TokenFile: file("good", "key\n")}, nil},
		{"none of them is there", engine.Access{TokenFile: dir + "/no", CAFile: dir + "/no.pem"}, []string{
			`auth.bearerTokenFile: "%/no": no such file or directory`, `tls.caFile: "%/no.pem": no such file or directory`}},
		{"an empty token", engine.Access{TokenFile: file("empty", " \n")}, []string{`auth.bearerTokenFile: "%/empty": it is empty`}},
		{"no certificate", engine.Access{CAFile: file("key.pem", "key")}, []string{`tls.caFile: "%/key.pem": it has no certificate in PEM`}},
	} {
		for i := range c.want {
			c.want[i] = strings.ReplaceAll(c.want[i], "%", dir)
		}
		if got := CheckAccess(c.access); !slices.Equal(got, c.want) {
			t.Errorf("%s\n got  %q\n want %q", c.name, got, c.want)
		}
	}
}
