// Package v1alpha1 holds Berth's versioned documents: what it observed of a
// replica, what it decided for a request, and the configuration it runs by.
//
// The documents are engine-neutral and JSON-representable. The package imports
// the standard library only, so that a router or a control plane written in Go
// can depend on it without depending on Berth.
package v1alpha1

// Version is the value of every document's "version".
const Version = "berth.dev/v1alpha1"
