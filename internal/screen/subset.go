package screen

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/pool"
)

// Subset is a set of addresses with ports that the gateway restricts a request
// to. The zero value contains nothing.
type Subset struct {
	members map[netip.AddrPort]struct{}
	invalid int
}

// maxSubset bounds how many entries are read; a gateway's subset is a pool's
// members, and pools above this size are not supported.
const maxSubset = 65536

// NewSubset reads entries of the form ip:port, with IPv6 in brackets or bare
// (the last group is then the port). An entry that is none of these matches
// nothing; it never widens the set.
func NewSubset(entries []string) *Subset {
	s := &Subset{members: make(map[netip.AddrPort]struct{}, min(len(entries), maxSubset))}
	for i, entry := range entries {
		if i == maxSubset {
			s.invalid += len(entries) - i
			break
		}
		if a, ok := parseAddrPort(strings.TrimSpace(entry)); ok {
			s.members[a] = struct{}{}
		} else {
			s.invalid++
		}
	}
	return s
}

// SplitSubset reads the comma-separated form.
func SplitSubset(list string) *Subset {
	return NewSubset(strings.Split(list, ","))
}

// Contains reports whether the subset names exactly this address and port.
func (s *Subset) Contains(a netip.AddrPort) bool {
	_, ok := s.members[a]
	return ok
}

// slots adds the members of a pool that the subset names.
func (s *Subset) slots(set *pool.Set, to Members) {
	for a := range s.members {
		if slot, ok := set.ByAddress(a); ok {
			to.add(slot)
		}
	}
}

// Len counts the entries that can match, each once.
func (s *Subset) Len() int { return len(s.members) }

// Invalid counts the entries that cannot: those of no such form, and those above
// the bound.
func (s *Subset) Invalid() int { return s.invalid }

func parseAddrPort(text string) (netip.AddrPort, bool) {
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		i := strings.LastIndexByte(text, ':')
		if i < 0 || strings.HasPrefix(text, "[") {
			return netip.AddrPort{}, false
		}
		addr, err := netip.ParseAddr(text[:i])
		if err != nil {
			return netip.AddrPort{}, false
		}
		port, err := strconv.ParseUint(text[i+1:], 10, 16)
		if err != nil {
			return netip.AddrPort{}, false
		}
		a = netip.AddrPortFrom(addr, uint16(port))
	}
	// Before Unmap, which drops the zone.
	if a.Port() == 0 || a.Addr().Zone() != "" {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), true
}
