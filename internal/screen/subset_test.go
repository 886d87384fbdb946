package screen

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestWhatOneSubsetEntryMatches(t *testing.T) {
	const none = ""
	for _, tc := range []struct {
		name, entry string
		matches     string // the one address and port, or none
	}{
		{"IPv4", "10.0.0.1:8000", "10.0.0.1:8000"},
		{"spaces around it", " \t10.0.0.1:8000\n ", "10.0.0.1:8000"},
		{"IPv6 in brackets", "[fd00::1]:8000", "[fd00::1]:8000"},
		{"IPv6 in brackets, written out", "[fd00:0:0:0:0:0:0:1]:8000", "[fd00::1]:8000"},
		{"IPv6 in brackets, in capitals", "[FD00::A]:8000", "[fd00::a]:8000"},
		{"bare IPv6", "fd00::1:8000", "[fd00::1]:8000"},
		{"bare IPv6, written out", "fd00:0:0:0:0:0:0:1:8000", "[fd00::1]:8000"},
		{"bare IPv6 that ends in zeros", "fd00:::8000", "[fd00::]:8000"},
		{"the last group of bare IPv6 is decimal", "fd00::1:80a", none},
		{"IPv4 mapped into IPv6", "[::ffff:10.0.0.1]:8000", "10.0.0.1:8000"},
		{"bare IPv4 mapped into IPv6", "::ffff:10.0.0.1:8000", "10.0.0.1:8000"},
		{"IPv4 mapped into IPv6, in groups", "[::ffff:a00:1]:8000", "10.0.0.1:8000"},
		{"the highest port", "10.0.0.1:65535", "10.0.0.1:65535"},
		{"port 0", "10.0.0.1:0", none},
		{"port 0 of IPv6", "[fd00::1]:0", none},
		{"port 0 of bare IPv6", "fd00::1:0", none},
		{"a port too high", "10.0.0.1:70000", none},
		{"a port with a sign", "10.0.0.1:+8000", none},
		{"a negative port", "10.0.0.1:-1", none},
		{"a named port", "10.0.0.1:http", none},
		{"no port", "10.0.0.1", none},
		{"an empty port", "10.0.0.1:", none},
		{"an empty port of IPv6", "[fd00::1]:", none},
		{"IPv6 in brackets without a port", "[fd00::1]", none},
		{"bare IPv6 without a port", "fd00:1:2:3:4:5:6:7", none},
		{"a port alone", ":8000", none},
		{"IPv4 in brackets", "[10.0.0.1]:8000", none},
		{"a bracket that does not close", "[fd00::1:8000", none},
		{"a bracket that does not open", "fd00::1]:8000", none},
		{"a zone", "[fe80::1%eth0]:8000", none},
		{"a zone of bare IPv6", "fe80::1%eth0:8000", none},
		{"a zone of IPv4 mapped into IPv6", "[::ffff:10.0.0.1%eth0]:8000", none},
		{"a hostname", "replica-0.pool.svc:8000", none},
		{"localhost", "localhost:8000", none},
		{"a URL", "http://10.0.0.1:8000", none},
		{"a path behind", "10.0.0.1:8000/v1", none},
		{"a network", "10.0.0.0/8:8000", none},
		{"a wildcard", "*", none},
		{"a wildcard host", "*:8000", none},
		{"a space inside", "10.0.0.1 :8000", none},
		{"a space before the port", "10.0.0.1: 8000", none},
		{"octets with leading zeros", "10.0.0.01:8000", none},
		{"three octets", "10.0.1:8000", none},
		{"an address as a number", "167772161:8000", none},
		{"two addresses", "10.0.0.1:8000;10.0.0.2:8000", none},
		{"nothing", "", none},
		{"blanks", "   ", none},
		{"a NUL", "10.0.0.1:8000\x00", none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := NewSubset([]string{tc.entry})
			if tc.matches == none {
				if s.Len() != 0 || s.Invalid() != 1 {
					t.Fatalf("%q: %d entries that match and %d that cannot, want 0 and 1", tc.entry, s.Len(), s.Invalid())
				}
				return
			}
			want := netip.MustParseAddrPort(tc.matches)
			if s.Len() != 1 || s.Invalid() != 0 || !s.Contains(want) {
				t.Fatalf("%q: %d entries that match and %d that cannot, contains %s: %v", tc.entry, s.Len(), s.Invalid(), want, s.Contains(want))
			}
			for _, other := range []netip.AddrPort{
				netip.AddrPortFrom(want.Addr(), want.Port()-1),
				netip.AddrPortFrom(want.Addr().Next(), want.Port()),
				{},
			} {
				if s.Contains(other) {
					t.Errorf("%q matches %s too", tc.entry, other)
				}
			}
		})
	}
}

func TestListsAndCommaStringsAreReadAlike(t *testing.T) {
	for _, tc := range []struct {
		list         string
		len, invalid int
	}{
		{"10.0.0.1:80", 1, 0},
		{"10.0.0.1:80,10.0.0.2:80", 2, 0},
		{" 10.0.0.1:80 , [fd00::1]:80 ", 2, 0},
		{"10.0.0.1:80,10.0.0.1:80", 1, 0},
		{"10.0.0.1:80,,10.0.0.2:80,", 2, 2},
		{"10.0.0.1:80,garbage", 1, 1},
		{"garbage", 0, 1},
		{"", 0, 1},
		{",", 0, 2},
	} {
		split, listed := SplitSubset(tc.list), NewSubset(strings.Split(tc.list, ","))
		for how, s := range map[string]*Subset{"comma string": split, "list": listed} {
			if s.Len() != tc.len || s.Invalid() != tc.invalid {
				t.Errorf("%q as a %s: %d entries that match and %d that cannot, want %d and %d", tc.list, how, s.Len(), s.Invalid(), tc.len, tc.invalid)
			}
		}
	}
}

func TestAnEmptySubsetContainsNothing(t *testing.T) {
	for name, s := range map[string]*Subset{
		"zero": {}, "of no entries": NewSubset(nil), "of an empty list": NewSubset([]string{}), "of an empty string": SplitSubset(""),
	} {
		if s.Len() != 0 || s.Contains(netip.AddrPort{}) || s.Contains(netip.MustParseAddrPort("10.0.0.1:80")) {
			t.Errorf("a subset %s contains something", name)
		}
	}
}

func TestASubsetBeyondItsBoundMatchesNothingMore(t *testing.T) {
	entries := make([]string, maxSubset+3)
	for i := range entries {
		entries[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80).String()
	}
	s := NewSubset(entries)
	if s.Len() != maxSubset || s.Invalid() != 3 {
		t.Errorf("%d entries that match and %d that cannot, want %d and 3", s.Len(), s.Invalid(), maxSubset)
	}
	if s.Contains(netip.MustParseAddrPort(entries[maxSubset])) || !s.Contains(netip.MustParseAddrPort(entries[maxSubset-1])) {
		t.Error("the bound is not where it is said to be")
	}
}

// FuzzSubset feeds comma strings. Whatever the text, a subset holds at most what
// its entries name one by one, in a form that compares with a pool's addresses.
func FuzzSubset(f *testing.F) {
	for _, seed := range []string{
		"", ",", "10.0.0.1:8000", "10.0.0.1:8000,10.0.0.2:8000", " 10.0.0.1:8000 ,\t[fd00::1]:8000",
		"fd00::1:8000", "[::ffff:10.0.0.1]:80", "::ffff:1.2.3.4:5", "fe80::1%eth0:80", "[fe80::1%25eth0]:80",
		"host:80", "10.0.0.1:0", "10.0.0.1:70000", "[::]:65535", ":::1", "1::", "::1", "[", "]:1", "%:1", "10.0.0.1:8000\x00", "\xff:80",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		s := SplitSubset(list)
		entries := strings.Split(list, ",")
		if s.Len()+s.Invalid() > len(entries) || s.Len() > len(entries) {
			t.Fatalf("%d entries gave %d that match and %d that cannot", len(entries), s.Len(), s.Invalid())
		}
		if s.Len() == 0 && s.Invalid() != len(entries) {
			t.Fatalf("nothing matches, but only %d of %d entries are counted invalid", s.Invalid(), len(entries))
		}
		union := map[netip.AddrPort]bool{}
		for _, entry := range entries {
			one := NewSubset([]string{entry})
			if one.Len()+one.Invalid() != 1 {
				t.Fatalf("entry %q counts as %d and %d", entry, one.Len(), one.Invalid())
			}
			for a := range one.members {
				union[a] = true
			}
		}
		if len(union) != s.Len() {
			t.Fatalf("together %d, one by one %d", s.Len(), len(union))
		}
		for a := range s.members {
			if !union[a] || !s.Contains(a) {
				t.Fatalf("%s is in the subset, but of no entry", a)
			}
			if !a.IsValid() || a.Port() == 0 || a.Addr().Zone() != "" || a.Addr().Is4In6() {
				t.Fatalf("%s can be no endpoint's address", a)
			}
			if !NewSubset([]string{a.String()}).Contains(a) {
				t.Fatalf("%s is not read back from its own text", a)
			}
			port := a.String()[strings.LastIndexByte(a.String(), ':')+1:]
			if !slices.ContainsFunc(entries, func(entry string) bool { return strings.HasSuffix(strings.TrimSpace(entry), port) }) {
				t.Fatalf("no entry of %q ends in port %s", list, port)
			}
		}
	})
}
