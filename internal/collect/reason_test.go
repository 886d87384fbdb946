package collect

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// documentedReasons are the tokens of the package documentation's list.
func documentedReasons(t *testing.T) (tokens []string) {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "// reasons:\n//\n")
	for line := range strings.Lines(list) {
		row, in := strings.CutPrefix(line, "//\t")
		if !in {
			break
		}
		if row[0] != ' ' {
			tokens = append(tokens, strings.Fields(row)[0])
		}
	}
	return tokens
}

func TestReasonsAreThoseOfTheDocumentation(t *testing.T) {
	documented := documentedReasons(t)
	i := slices.Index(documented, "status_NNN")
	if i < 0 {
		t.Fatalf("the documentation lists %q, without status_NNN", documented)
	}
	if words := slices.Delete(documented, i, i+1); !slices.Equal(words, Reasons()) {
		t.Errorf("documented are %q\nReasons has %q", words, Reasons())
	}
}

// Each text that becomes a reason somewhere in the package is one of them, and each of
// them becomes one.
func TestReasonsAreThoseThatScrapesFailWith(t *testing.T) {
	set := token.NewFileSet()
	used := map[string]bool{}
	files, err := fs.Glob(os.DirFS("."), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		use := func(e ast.Expr) {
			if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && text != "" && !strings.HasPrefix(text, "status_") {
					used[text] = true
				}
			}
		}
		judges := false
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				judges = n.Name.Name == "connectionReason" || n.Name.Name == "readReason"
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) == 2 && (f.Sel.Name == "fail" || f.Sel.Name == "fault") {
					use(n.Args[0])
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "reason" {
					use(n.Value)
				}
			case *ast.ReturnStmt:
				if judges && len(n.Results) == 1 {
					use(n.Results[0])
				}
			case *ast.CompositeLit:
				if judges && len(n.Elts) == 2 {
					use(n.Elts[1])
				}
			}
			return true
		})
	}
	for _, reason := range Reasons() {
		if !used[reason] {
			t.Errorf("nothing fails with %s", reason)
		}
		delete(used, reason)
	}
	for reason := range used {
		t.Errorf("something fails with %q, which Reasons has not", reason)
	}
}
