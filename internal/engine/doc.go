// Package engine turns what an LLM serving engine says of itself into readings.
//
// A Profile describes one kind of engine. It is a YAML file that names pages,
// metric families and the rules by which the series of a page become one value
// for each field of the catalogue:
//
//	apiVersion: berth.dev/v1alpha1
//	kind: EngineProfile
//	name: vllm                    # the engine's name in pools and reports
//	aliases: [vllm-openai]        # other names that a pool may use for it
//	role: engine                  # or exporter: a page of GPUs that joins pods
//	detect:
//	  prefixes: ["vllm:"]         # families that only this engine shows: any with such a prefix,
//	  families: [a, b]            # or all of these
//	  ownedBy: [vllm]             # what the cards of /v1/models say
//	never: [/metrics]             # paths that must not be asked: reading them changes something
//	pages:                        # the first is the metrics page, asked for at every scrape
//	- path: /metrics
//	  format: prometheus
//	  accept: text/plain;version=0.0.4
//	  scheme: http                # or https
//	  port: 8002                  # where that is not the serving port
//	  ttl: 2s                     # a reading's shortest life
//	  needs: start it with -m     # of the metrics page alone: what it takes that it is there, told to people
//	- path: /v1/models
//	  format: openai-models       # servedModels, adaptersLoaded, contextLimit
//	  fields: [servedModels]      # only these of them
//	  every: 30s
//	- path: /health
//	  format: status              # 200 says yes
//	  field: health               # or ready
//	  no: [503]                   # these say no; 404 says unsupported; any other says nothing
//	  every: 10s
//	- path: /server_info
//	  format: json
//	  every: 1m
//	  fields:
//	    engineVersion: {member: version}
//	    maxConcurrency: {member: "loads[].max_running_requests", combine: sum}
//	    prefixCacheEnabled: {member: disable_radix_cache, invert: true}
//	auth: {bearerTokenFile: FILE} # sent to the metrics page and the others
//	tls: {caFile: FILE, serverName: NAME}
//	labels:
//	  model: model_name           # tells the models of one page apart
//	  placeholders: [undefined]   # values of model that name no model
//	  ranks: [dp_rank]            # tells the ranks of one replica apart
//	  lowest: [pp_rank, tp_rank]  # of series that differ in these, the lowest counts
//	  drop: [pid]                 # artefacts: the largest of the series that differ in these counts
//	  refuse: [worker_addr]       # a page with such a label joins several replicas
//	  namespace: namespace        # of an exporter: whose pod
//	  pod: pod
//	valid: {metric: m, because: words}    # 0 there: the page says nothing yet
//	engineTime: {metric: m, where: {name: value}, maxAge: 30s, whileBusy: true}
//	stillAfter: 10s               # how long a page may stand still while the engine works; 10s if left out
//	fields:
//	  queueDepth:
//	    unit: requests            # must be the unit of the catalogue
//	    ttl: 2s                   # overrides the page's
//	    absent: unknown           # or unsupported: what it means that no source is on the page
//	    sources:                  # in order of preference; the first that is present decides
//	    - metric: vllm:num_requests_waiting
//	      label: ""               # read this label's text instead of the sample's value
//	      where: {name: value}    # only series with these labels; "" is absent, "*" any value
//	      combine: sum            # sum, mean, max, newest (by the sample's value, a time), or one: all must agree
//	      weight: {metric: m, label: l}  # of a mean; joined by the rank labels
//	      plus: [{metric: m}]     # added if on the page
//	      times: {metric: m, label: l, combine: one}  # a factor
//	      over: [{metric: m, combine: sum}]  # divided by the sum of these
//	      scale: 0.01             # to the unit of the catalogue
//	      window: 30s             # the family counts: what it grew by in this time; not of a share without over
//	      count: {metric: m}      # of a distribution without buckets: metric is the sum, this the count
//	      differs: label          # of names: where this label says the same, they mean nothing
//	      invert: false           # of a yes-or-no field: true where the value is 0
//	      quality: 1              # 0.01 to 1; below 1 it needs because
//	      because: ""
//	    contradicted:             # a value is invalid where the sum of these is more than that of those
//	    - {more: [{metric: m, where: {name: value}}], than: [{metric: m}], by: 0.05, because: words}  # by: so much of it is let pass
//	    off:                      # asked where no source has a value: is the field switched off here?
//	    - {metric: m, label: l, where: {name: value}, is: "False", because: words}
//	    - {metric: m, above: 0, because: words}  # not where a family of a field with the same words is on the page
//	unsupported:                  # fields that this engine has no source for, and why
//	  power: not exported
//
// What is for people, because, needs and the reasons of unsupported, is one line of
// printable characters and at most 1024 bytes, and changes nothing of what is read. It
// is part of the text that the digest is of, as comments are.
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
//     it is not known what it serves, the fields are invalid: ambiguous. A
//     family whose sources all choose by the model label is left out of this.
//   - What counts is read as its growth over a window: per second for a number,
//     as a share with over, as mean and quantiles for a distribution, which
//     needs a histogram or count. The first page, a window in which nothing was
//     observed, and a window in which a counter fell, a series went or the
//     buckets changed yield no value, and each says so.
//   - A page that is not text, that was cut, that joins several replicas or
//     that has not one family of the engine yields no snapshot at all. A control
//     character outside of labels' values and help texts makes it no text. A last
//     sample that is read must end in a line feed: no transfer vouches for the
//     digits of a number. "# EOF" needs none.
//   - The timestamp of a sample is its age: whole milliseconds, or seconds on a page
//     that ends in "# EOF". The oldest of a value's samples counts. One that is no
//     time makes the value invalid, one that is ahead makes it doubtful.
//   - A label that is empty is none, and a name in quotes is the same name.
//   - A mean is weighted by what both families say of the same rank. Where a weight is
//     lacking each rank counts the same, and the rule of the reading says so.
//   - A rank that one load family shows and another does not is not zero: the sum is
//     missing, a mean or a largest doubtful.
//   - A counter that fell, or all that had counted gone, is another process. One of
//     several that is gone may come back.
//
// A reading that is young may still be wrong. Read doubts it by what else is
// known: the time that the engine states, a page that stands still although
// the engine says it works or this picker has requests there (see History and
// Traffic). Doubt lowers the quality and gives a reason, and some of it makes
// the reading stale.
//
// Only the lines of the families that a profile names are parsed, with the
// streaming parser of Prometheus; a series that was seen before is recognised
// by its text. The package does no I/O and knows no clock.
package engine
