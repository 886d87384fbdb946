// Package plugins is the registry of Berth's scheduling plugins: one table of
// types from which everything else follows.
//
//	Register   hands all types to GIE, for a stock EPP that runs them
//	Catalog    tells the configuration which types exist, what class they are
//	           of, and whether their parameters are right
//	Scorer     builds a scorer as Berth's own placement runs it
//	Types      lists the names
//
// The package has no state and no init function. Register writes to GIE's own
// registry, which is a plain map, and must be called before anything reads it.
package plugins
