package main

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/hack/testevent"
)

func TestTheReportShowsPackagesAndWhatFailed(t *testing.T) {
	for _, c := range []struct {
		name, events, want string
	}{
		{"all passed", `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"run","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA/sub","Elapsed":0.1}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.25s\n"}
{"Action":"pass","Package":"p","Elapsed":0.25}
`, `
ok    p  0.25s  (2 passed, 0 failed, 0 skipped)
2 passed, 0 failed, 0 skipped
`},
		{"packages at the same time, one of them failed", `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Test":"TestB","Output":"    b_test.go:9: got 1, want 2\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}
{"Action":"output","Package":"q","Test":"TestB","Output":"--- FAIL: TestB (0.00s)\n"}
{"Action":"fail","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Output":"FAIL\n"}
{"Action":"output","Package":"q","Output":"exit status 1\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.01s\n"}
{"Action":"fail","Package":"q","Elapsed":0.01}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"ok  \tp\t(cached)\n"}
{"Action":"pass","Package":"p","Elapsed":0.5}
`, `
    b_test.go:9: got 1, want 2
--- FAIL: TestB (0.00s)
FAIL  q  0.01s  (0 passed, 1 failed, 0 skipped)
ok    p  cached  (1 passed, 0 failed, 0 skipped)
1 passed, 1 failed, 0 skipped
`},
		{"a skipped test", `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: no GPU here\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":0}
`, `
--- SKIP: p TestA: a_test.go:7: no GPU here
ok    p  0.00s  (0 passed, 0 failed, 1 skipped)
0 passed, 0 failed, 1 skipped
`},
		{"a package without tests", `
{"Action":"output","Package":"p","Output":"?   \tp\t[no test files]\n"}
{"Action":"skip","Package":"p"}
`, `
0 passed, 0 failed, 0 skipped
`},
		{"a package that does not build", `
{"ImportPath":"p [p.test]","Action":"build-output","Output":"# p [p.test]\n"}
{"ImportPath":"p [p.test]","Action":"build-output","Output":"./a.go:3:1: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}
`, `
# p [p.test]
./a.go:3:1: undefined: x
FAIL	p [build failed]
FAIL  p  0.00s  (0 passed, 1 failed, 0 skipped)
0 passed, 1 failed, 0 skipped
`},
		{"a crash in the middle of a test", `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: boom\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p","Elapsed":0.1}
`, `
--- FAIL: p TestA did not end
panic: boom
FAIL  p  0.10s  (0 passed, 1 failed, 0 skipped)
0 passed, 1 failed, 0 skipped
`},
		{"a package that fails although its tests passed", `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"TestMain: goroutine leak\n"}
{"Action":"fail","Package":"p","Elapsed":0.1}
`, `
TestMain: goroutine leak
FAIL  p  0.10s  (1 passed, 1 failed, 0 skipped)
1 passed, 1 failed, 0 skipped
`},
		{"a run that was cut off", `
{"Action":"run","Package":"p","Test":"TestA"}
stray line
`, `
stray line
--- FAIL: p TestA did not end
FAIL  p  0.00s  (0 passed, 1 failed, 0 skipped)
0 passed, 1 failed, 0 skipped
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got strings.Builder
			r := newReport(&got)
			if err := testevent.Read(strings.NewReader(strings.TrimPrefix(c.events, "\n")), r.add); err != nil {
				t.Fatal(err)
			}
			r.summary()
			if want := strings.TrimPrefix(c.want, "\n"); got.String() != want {
				t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
			}
		})
	}
}
