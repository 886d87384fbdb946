package host

import (
	"bufio"
	"crypto/rand"
	"sync"

	"github.com/google/uuid"
)

// idSource makes decision ids: UUIDv7, ordered by time and otherwise random. It
// reads randomness in blocks, since a system call per request would cost more
// than the decision.
type idSource struct {
	mu     sync.Mutex
	random *bufio.Reader
}

// randomBlock is read from the system at once, bytes: some hundred ids.
const randomBlock = 4096

func newIDSource() *idSource {
	return &idSource{random: bufio.NewReaderSize(rand.Reader, randomBlock)}
}

func (s *idSource) next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	// crypto/rand never fails: it ends the process where the system has no
	// randomness.
	return uuid.Must(uuid.NewV7FromReader(s.random)).String()
}
