//go:build unix

package collect

import (
	"errors"
	"net"
	"syscall"
)

// quiet reports that nothing has come over a connection that nobody reads, not its
// end either. It never waits; what has come is lost.
func quiet(conn net.Conn) bool {
	under, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := under.SyscallConn()
	if err != nil {
		return false
	}
	nothing := false
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		_, err := syscall.Read(int(fd), one[:])
		nothing = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
	})
	return err == nil && nothing
}
