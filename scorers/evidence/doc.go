// Package evidence carries what is known of endpoints across GIE's interfaces,
// so that a scorer gives the same scores there as in Berth's own placement.
//
// In Berth a scorer is a pure function over columns of estimates, and placement
// decides once for all scorers what missing evidence means. GIE instead hands
// each scorer a list of endpoints and expects a map of scores. An Adapter
// closes the gap: it gathers one row per endpoint and lets placement run the
// scorer over them, so that neither the function nor the rule for missing
// evidence exists twice.
//
// A row comes from one of two places:
//
//	Row attribute   Berth's host puts it on each endpoint: what its own
//	                placement knows, missing values already imputed
//	GetMetrics      a stock EPP without Berth's host; a zero UpdateTime and an
//	                impossible value (NaN, infinite, negative, a ratio above 1)
//	                are missing, never zero
//
// Missing rows are then treated as placement treats them: imputed as the median
// of the known ones where half of the endpoints are known, otherwise nothing is
// said of any endpoint and all score 0, which changes no order.
package evidence
