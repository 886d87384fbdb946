package spelling

import "testing"

func TestTheDistanceOfTwoNames(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0},
		{"abc", "abd", 1}, {"abc", "abcd", 1}, {"abc", "bc", 1}, {"ab", "ba", 2},
		{"kitten", "sitting", 3}, {"requests_deferred", "requests_defered", 1},
	} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
