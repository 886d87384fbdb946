package enginesim

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Arrivals says what reached an engine since its Server was made, across deaths and restarts.
type Arrivals struct {
	// Served counts inference requests whose body arrived whole, whatever they were answered.
	Served uint64 `json:"served"`
	// Other counts requests to paths that the engine does not know.
	Other uint64 `json:"other"`
	// Drained counts reads of a page that empties when it is read.
	Drained uint64 `json:"drained"`
	// Last is the latest of the inference requests.
	Last *Arrival `json:"last"`
	// Recent are the latest inference requests, at most 64, the last one last.
	Recent []Arrival `json:"recent"`
	// BySHA256 counts inference requests by the digest of their body, for the first 4096 digests.
	BySHA256 map[string]uint64 `json:"bySHA256"`
}

// Arrival is one inference request as it arrived.
type Arrival struct {
	Path string `json:"path"`
	// Bytes and SHA256 (lower-case hex) are of the body.
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
	// Headers are content-type, user-agent, traceparent and all that begin with x-, in lower case; several values of one name
	// are joined with ", ".
	Headers map[string]string `json:"headers"`
}

const (
	maxRecent  = 64
	maxDigests = 4096
)

// arrivalBook collects Arrivals. It is safe for concurrent use.
type arrivalBook struct {
	mu   sync.Mutex
	book Arrivals
}

func (a *arrivalBook) inference(r *http.Request, body []byte) {
	sum := sha256.Sum256(body)
	arrival := Arrival{Path: r.URL.Path, Bytes: len(body), SHA256: hex.EncodeToString(sum[:]), Headers: map[string]string{}}
	for name, values := range r.Header {
		name = strings.ToLower(name)
		if strings.HasPrefix(name, "x-") || name == "content-type" || name == "user-agent" || name == "traceparent" {
			arrival.Headers[name] = strings.Join(values, ", ")
		}
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.book.Served++
	a.book.Last = &arrival
	if len(a.book.Recent) == maxRecent {
		a.book.Recent = slices.Delete(a.book.Recent, 0, 1)
	}
	a.book.Recent = append(a.book.Recent, arrival)
	if a.book.BySHA256 == nil {
		a.book.BySHA256 = map[string]uint64{}
	}
	if a.book.BySHA256[arrival.SHA256] > 0 || len(a.book.BySHA256) < maxDigests {
		a.book.BySHA256[arrival.SHA256]++
	}
}

func (a *arrivalBook) other() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.book.Other++
}

func (a *arrivalBook) drained() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.book.Drained++
}

// read returns a copy that shares only what never changes.
func (a *arrivalBook) read() Arrivals {
	a.mu.Lock()
	defer a.mu.Unlock()
	book := a.book
	book.Recent = slices.Clone(book.Recent)
	book.BySHA256 = maps.Clone(book.BySHA256)
	return book
}
