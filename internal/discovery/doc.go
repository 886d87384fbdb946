// Package discovery keeps a pool's Registry in step with where its endpoints
// are declared.
//
// A File follows a StaticPool file: the pool of a picker that runs without
// Kubernetes. The file may be replaced by a rename, written in place, or be
// reached through symbolic links that are swapped, as in a mounted ConfigMap.
//
// The first load must succeed: a picker does not start on a pool that it cannot
// read. From then on the last good set stays whatever happens to the file. It
// may become unreadable, vanish and come back; its endpoints serve on, and the
// error is logged once, not at each attempt.
package discovery
