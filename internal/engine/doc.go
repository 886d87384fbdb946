// Package engine turns what an LLM serving engine says of itself into readings.
//
// A Profile describes one kind of engine. It is a YAML file that names pages,
// metric families and the rules by which the series of a page become one value
// for each field of the catalogue:
//
//	apiVersion: berth.dev/v1alpha1
//	kind: EngineProfile
//	name: vllm                    # the engine's name in pools and reports
//	detect: ["vllm:"]             # family prefixes that only this engine shows
//	pages:                        # the first is the metrics page, asked for at every scrape
//	- path: /metrics
//	  format: prometheus          # prometheus, openai-models or version
//	  accept: text/plain;version=0.0.4
//	  ttl: 2s                     # a reading's shortest life
//	- path: /v1/models
//	  format: openai-models       # servedModels, adaptersLoaded, contextLimit
//	  every: 30s
//	labels:
//	  model: model_name           # tells the models of one page apart
//	  ranks: [engine]             # tells the ranks of one replica apart
//	  drop: [pid]                 # artefacts: the largest of the series that differ in these counts
//	fields:
//	  queueDepth:
//	    unit: requests            # must be the unit of the catalogue
//	    ttl: 2s                   # overrides the page's
//	    absent: unknown           # or unsupported: what it means that no source is on the page
//	    sources:                  # in order of preference; the first that is present decides
//	    - metric: vllm:num_requests_waiting
//	      label: ""               # read this label's text instead of the sample's value
//	      where: {name: value}    # only series with these labels
//	      combine: sum            # sum, mean, max, or one: all series must agree
//	      weight: {metric: m, label: l}  # of a mean; joined by the rank labels
//	      times: {metric: m, label: l, combine: one}  # a factor
//	      invert: false           # of a yes-or-no field: true where the value is 0
//	      quality: 1              # below 1 it needs because
//	      because: ""
//	unsupported:                  # fields that this engine has no source for, and why
//	  power: not exported
//
// Reading follows these rules, whatever the order of the lines on a page:
//
//   - Families are matched by their whole name, in the spelling of the profile
//     or with every colon replaced by an underscore. HELP and TYPE alone are
//     not a value: the reading is missing, never zero.
//   - A value that is not finite, negative or beyond its field's range, a line
//     that does not parse, and two series with the same labels and different
//     values make the field invalid. No other field suffers.
//   - With several models on a page, those that the endpoint serves count. If
//     it is not known what it serves, the fields are invalid: ambiguous.
//   - A page that is not text, that was cut, or that has not one family of the
//     engine yields no snapshot at all.
//
// Only the lines of the families that a profile names are parsed, with the
// streaming parser of Prometheus. The package does no I/O and knows no clock.
package engine
