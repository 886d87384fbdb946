package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// A replica keeps what it was sent and answers with the body's sum.
type replica struct {
	address netip.AddrPort
	mu      sync.Mutex
	seen    []received
}

// A received is one request as the replica saw it.
type received struct {
	Header http.Header
	Size   int64
	Sum    string // SHA-256 of the body, hex
}

func newReplica(t *testing.T, address string) *replica {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{address: netip.MustParseAddrPort(listener.Addr().String())}
	server := &http.Server{Handler: r}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return r
}

func (r *replica) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	sum := sha256.New()
	n, err := io.Copy(sum, request.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	got := received{Header: request.Header.Clone(), Size: n, Sum: hex.EncodeToString(sum.Sum(nil))}
	r.mu.Lock()
	r.seen = append(r.seen, got)
	r.mu.Unlock()
	_, _ = io.WriteString(w, got.Sum)
}

func (r *replica) requests() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// refusing is an address that refuses connections for as long as the test runs:
// the port is taken, and nobody listens there.
func refusing(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	bound, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		t.Fatalf("bound to %T", name)
	}
	return netip.AddrPortFrom(netip.AddrFrom4(bound.Addr), uint16(bound.Port))
}
