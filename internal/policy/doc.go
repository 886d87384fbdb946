// Package policy turns configuration files into one immutable, validated and
// digested value. Nothing reads YAML after it.
//
// A configuration is one YAML file of one to three documents, in this order:
//
//	EndpointPickerConfig   inference.networking.x-k8s.io/v1alpha1   required
//	BerthConfiguration     berth.dev/v1alpha1                       defaults if left out
//	StaticPool             berth.dev/v1alpha1                       or a file of its own
//
// The stock loader of the Inference Extension reads the first document only, so
// the same file works there too.
//
// Decoding is strict. Unknown and duplicate keys, values of another type,
// nulls, anchors and aliases, and files above 1 MiB are refused; so is, by
// name, every key whose behaviour this version does not have. An [Error] says
// file, line, field, value and what is allowed; up to 20 of them are joined. A
// file is taken whole or not at all.
//
// What may be left out of the EndpointPickerConfig:
//
//   - A plugin's name is its type.
//   - A scorer's weight is 1. Weight 0 keeps the scorer out of the score.
//   - A profile without a picker gets the only picker among the plugins, or else
//     a berth-picker.
//   - Without schedulingProfiles, the profile "default" has all filters, scorers
//     and the picker among the plugins.
//   - Without plugins as well, it is queue-depth and kv-cache-utilization with
//     weight 2 and active-requests, named load, with weight 1.
//
// The order of plugins has no meaning: scorers are sorted by name, so that sums
// of scores are the same bit for bit. Only filters keep their order.
//
// Engines are read by the profiles that are built in and, instead of or beside
// them, by those in the directory that telemetry.profiles names. They are as
// strict as the configuration, and a part of it: one that is bad, or whose names
// or families are those of another one, makes the whole be refused. Endpoints and
// exporters name a profile by its name or an alias; the policy has the name.
//
// Where routing intents may come from, by whose keys they are verified and what
// their names of models mean is a part of the configuration too. The key set is a
// file of its own, since it may be a secret: a bad one makes the whole be refused.
//
// The digest of a [Policy] covers its effective value, without the endpoints of
// an inline pool, which are an input of each decision on their own, and the text
// of the profiles in the directory; of the key set it covers the path alone, and
// [Policy.SameKeys] compares the keys. Comments in the configuration, the order of
// keys, units and spelled-out defaults do not change it.
//
// Stock plugin types with a better twin in Berth run as that twin, with a
// [Warning]. [Watch] and [WatchPool] follow files through editors and
// Kubernetes ConfigMap updates. [Lint] finds what is valid and still
// questionable, and [LintIntents] the intents that a pool cannot satisfy.
package policy
