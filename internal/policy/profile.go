package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	configapi "sigs.k8s.io/gateway-api-inference-extension/apix/config/v1alpha1"
)

// maxWeight keeps sums of weighted scores far inside float64.
const maxWeight = 1e6

// refusedPickerKeys are sections of the EndpointPickerConfig that Berth does
// not act on.
var refusedPickerKeys = []string{"featureGates", "saturationDetector", "dataLayer", "flowControl", "parser"}

// declared is one entry of plugins.
type declared struct {
	PluginRef
	path string
	// class is 0 for a plugin that was refused.
	class Class
	used  bool
}

// profile decodes the EndpointPickerConfig. The second result names the plugins
// that the profile has no use for, the third is the same profile as a document,
// with everything written out.
func (d *document) profile(catalog Catalog) (Profile, []string, configapi.EndpointPickerConfig) {
	var c configapi.EndpointPickerConfig
	d.decode(&c, refusedPickerKeys)
	if len(c.Plugins) == 0 && len(c.SchedulingProfiles) == 0 && !d.failed["plugins"] && !d.failed["schedulingProfiles"] {
		c.Plugins, c.SchedulingProfiles = defaultProfile()
	}
	plugins := d.plugins(c.Plugins, catalog)

	var p Profile
	switch {
	case d.failed["schedulingProfiles"]:
	case len(c.SchedulingProfiles) == 0:
		all := configapi.SchedulingProfile{Name: "default"}
		for _, plugin := range plugins {
			if plugin.class == Filter || plugin.class == Scorer || plugin.class == Picker {
				all.Plugins = append(all.Plugins, configapi.SchedulingPlugin{PluginRef: plugin.Name})
			}
		}
		p = d.resolve("schedulingProfiles", all, plugins)
	default:
		for i := 1; i < len(c.SchedulingProfiles); i++ {
			d.refuse(index("schedulingProfiles", i), "must be left out: several scheduling profiles are not supported by this version")
		}
		if first := index("schedulingProfiles", 0); !d.failed[first] {
			p = d.resolve(first, c.SchedulingProfiles[0], plugins)
		}
	}
	var unused []string
	for _, plugin := range plugins {
		if plugin.class != 0 && !plugin.used {
			unused = append(unused, plugin.Name)
			d.warn(plugin.path, fmt.Sprintf("%s has no effect: no profile refers to it", printable(plugin.Name, 64)))
		}
	}
	return p, unused, writeOut(p)
}

func defaultProfile() ([]configapi.PluginSpec, []configapi.SchedulingProfile) {
	two, one := 2.0, 1.0
	return []configapi.PluginSpec{
			{Type: "queue-depth"},
			{Type: "kv-cache-utilization"},
			{Name: "load", Type: "active-requests"},
			{Type: defaultPicker},
		}, []configapi.SchedulingProfile{{Name: "default", Plugins: []configapi.SchedulingPlugin{
			{PluginRef: "queue-depth", Weight: &two},
			{PluginRef: "kv-cache-utilization", Weight: &two},
			{PluginRef: "load", Weight: &one},
			{PluginRef: defaultPicker},
		}}}
}

// plugins checks each entry of plugins by itself.
func (d *document) plugins(specs []configapi.PluginSpec, catalog Catalog) []*declared {
	first := map[string]string{}
	var plugins []*declared
	for i, spec := range specs {
		path := index("plugins", i)
		if d.failed[path] {
			continue
		}
		if spec.Type == "" {
			d.refuse(child(path, "type"), "must be a plugin type")
		}
		if spec.Name == "" {
			if d.has(child(path, "name")) {
				d.refuse(child(path, "name"), "must be a name; left out, it is the type")
			}
			spec.Name = spec.Type
		}
		earlier, twice := first[spec.Name]
		if twice && spec.Name != "" {
			at := child(path, "name")
			if !d.has(at) {
				at = child(path, "type")
			}
			d.refuse(at, fmt.Sprintf("must come with a name of its own: %s in line %d has this one", earlier, d.line(earlier)))
		} else {
			first[spec.Name] = path
		}
		plugin := &declared{PluginRef: PluginRef{spec.Name, spec.Type, spec.Parameters}, path: path}
		if spec.Type == stockHandler {
			d.warn(child(path, "type"), stockHandler+" has no effect: Berth runs the one profile itself")
			plugin.class, plugin.used = OffProfile, true
		} else {
			d.runTwin(plugin)
			d.check(plugin, catalog)
		}
		if !twice {
			plugins = append(plugins, plugin)
		}
	}
	return plugins
}

// runTwin replaces a stock type by Berth's own.
func (d *document) runTwin(p *declared) {
	t, stock := twins[p.Type]
	if !stock {
		return
	}
	d.warn(child(p.path, "type"), fmt.Sprintf("%s runs as Berth's %s", p.Type, t.runs))
	p.Type = t.runs
	if len(t.drops) == 0 || p.Parameters == nil {
		return
	}
	var parameters map[string]json.RawMessage
	if json.Unmarshal(p.Parameters, &parameters) != nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(t.drops)) {
		if _, given := parameters[key]; given {
			d.warn(child(child(p.path, "parameters"), key), "has no effect: "+t.drops[key])
			delete(parameters, key)
		}
	}
	p.Parameters = nil
	if len(parameters) > 0 {
		// A map of valid JSON always marshals, with sorted keys.
		p.Parameters, _ = json.Marshal(parameters)
	}
}

// check asks the catalog what the plugin is.
func (d *document) check(p *declared, catalog Catalog) {
	at := child(p.path, "parameters")
	if d.failed[at] || d.failed[child(p.path, "type")] {
		return
	}
	class, err := catalog.Check(p.Type, slices.Clone(p.Parameters))
	var unknown *UnknownTypeError
	switch {
	case errors.As(err, &unknown):
		d.refuse(child(p.path, "type"), "is an unknown type; known types: "+strings.Join(slices.Sorted(slices.Values(unknown.Known)), ", "))
	case err != nil:
		d.refuseParameters(at, err)
		p.class = class
	default:
		p.class = class
	}
}

// refuseParameters reports each error with the line of its own parameter.
func (d *document) refuseParameters(at string, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			d.refuseParameters(at, e)
		}
		return
	}
	var pe *ParameterError
	if errors.As(err, &pe) && pe.Key != "" {
		d.refuse(at+"."+pe.Key, pe.predicate())
		return
	}
	d.refuse(at, "cannot be used: "+err.Error())
}

// resolve follows a profile's references.
func (d *document) resolve(path string, sp configapi.SchedulingProfile, plugins []*declared) Profile {
	p := Profile{Name: sp.Name}
	if sp.Name == "" {
		d.refuse(child(path, "name"), "must be a name")
	}
	byName := make(map[string]*declared, len(plugins))
	names := make([]string, 0, len(plugins))
	for _, plugin := range plugins {
		if byName[plugin.Name] == nil {
			byName[plugin.Name] = plugin
			names = append(names, plugin.Name)
		}
	}
	picker, pickerAt := (*declared)(nil), ""
	referred := map[string]string{}
	for i, ref := range sp.Plugins {
		entry := index(child(path, "plugins"), i)
		at := child(entry, "pluginRef")
		plugin := byName[ref.PluginRef]
		earlier, twice := referred[ref.PluginRef]
		switch {
		case d.failed[entry]:
			continue
		case ref.PluginRef == "":
			d.refuse(at, "must be the name of a plugin")
			continue
		case plugin == nil:
			d.refuse(at, "must be the name of a plugin; plugins has "+list(names))
			continue
		case twice:
			d.refuse(at, fmt.Sprintf("must be referred to once: line %d does so already", d.line(earlier)))
			continue
		}
		referred[ref.PluginRef] = at
		plugin.used = true
		if plugin.class == Scorer {
			p.Scorers = append(p.Scorers, ScorerRef{plugin.Name, plugin.Type, plugin.Parameters, d.weight(entry, ref.Weight)})
			continue
		}
		if ref.Weight != nil && plugin.class != 0 {
			d.warn(child(entry, "weight"), fmt.Sprintf("has no effect on a %s", plugin.class))
		}
		switch plugin.class {
		case Filter:
			p.Filters = append(p.Filters, plugin.PluginRef)
		case Picker:
			if picker != nil {
				d.refuse(at, fmt.Sprintf("must not be a second picker: %s in line %d is the first", printable(picker.Name, 64), d.line(pickerAt)))
				continue
			}
			picker, pickerAt = plugin, at
		case OffProfile:
			d.refuse(at, fmt.Sprintf("must be a filter, scorer or picker: %s is none of them", plugin.Type))
		}
	}
	p.Picker = d.pickerOr(picker, path, plugins, byName)
	slices.SortFunc(p.Scorers, func(a, b ScorerRef) int { return strings.Compare(a.Name, b.Name) })
	if !slices.ContainsFunc(p.Scorers, func(s ScorerRef) bool { return s.Weight > 0 }) {
		d.warn(path, "no scorer has a weight above 0: requests spread uniformly")
	}
	return p
}

func (d *document) weight(entry string, w *float64) float64 {
	at := child(entry, "weight")
	if w == nil || d.failed[at] {
		return 1
	}
	// NaN fails every comparison.
	if !(*w >= 0 && *w <= maxWeight) {
		d.refuse(at, "must be a finite number from 0 to 1000000; 0 keeps the scorer out")
		return 1
	}
	// Negative zero is zero, also in the digest.
	return math.Abs(*w)
}

// pickerOr is the picker that the profile named, or the default.
func (d *document) pickerOr(named *declared, path string, plugins []*declared, byName map[string]*declared) PluginRef {
	if named != nil {
		return named.PluginRef
	}
	var pickers []*declared
	for _, plugin := range plugins {
		if plugin.class == Picker {
			pickers = append(pickers, plugin)
		}
	}
	switch {
	case len(pickers) == 1:
		pickers[0].used = true
		return pickers[0].PluginRef
	case len(pickers) > 1:
		d.refuse(child(path, "plugins"), fmt.Sprintf("must refer to one picker: plugins has %s and %s",
			printable(pickers[0].Name, 64), printable(pickers[1].Name, 64)))
	case byName[defaultPicker] != nil && byName[defaultPicker].class != 0:
		d.refuse(byName[defaultPicker].path, "must have another name: the profile has no picker, and the default one is named "+defaultPicker)
	}
	return PluginRef{Name: defaultPicker, Type: defaultPicker}
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return printable(strings.Join(names, ", "), 400)
}

// writeOut is the document that means the profile, with everything said.
func writeOut(p Profile) configapi.EndpointPickerConfig {
	var c configapi.EndpointPickerConfig
	c.APIVersion, c.Kind = pickerVersion, kindPicker
	sp := configapi.SchedulingProfile{Name: p.Name}
	add := func(ref PluginRef, weight *float64) {
		c.Plugins = append(c.Plugins, configapi.PluginSpec{Name: ref.Name, Type: ref.Type, Parameters: ref.Parameters})
		sp.Plugins = append(sp.Plugins, configapi.SchedulingPlugin{PluginRef: ref.Name, Weight: weight})
	}
	for _, f := range p.Filters {
		add(f, nil)
	}
	for _, s := range p.Scorers {
		add(PluginRef{s.Name, s.Type, s.Parameters}, &s.Weight)
	}
	add(p.Picker, nil)
	c.SchedulingProfiles = []configapi.SchedulingProfile{sp}
	return c
}
