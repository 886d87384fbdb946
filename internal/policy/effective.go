package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
	configapi "sigs.k8s.io/gateway-api-inference-extension/apix/config/v1alpha1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Effective is the policy as a configuration file that leaves nothing out. To
// parse it from the same directory, with the same profiles in that of
// telemetry.profiles, gives a policy with the same digest.
func (p *Policy) Effective() string { return p.effective }

// seal sets the digest and the effective text.
func (p *Policy) seal(picker *configapi.EndpointPickerConfig, settings *v1alpha1.BerthConfiguration) error {
	first, err := pickerJSON(picker)
	if err != nil {
		return err
	}
	second, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	sum := sha256.New()
	sum.Write(first)
	sum.Write([]byte{0})
	sum.Write(second)
	for _, own := range p.ownEngines {
		sum.Write([]byte{0})
		sum.Write([]byte(own.Digest()))
	}
	p.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))[:12]

	docs := [][]byte{first, second}
	if p.Pool != nil {
		third, err := json.Marshal(p.Pool.source)
		if err != nil {
			return err
		}
		docs = append(docs, third)
	}
	var text strings.Builder
	for i, doc := range docs {
		if i > 0 {
			text.WriteString("---\n")
		}
		if err := block(&text, doc); err != nil {
			return err
		}
	}
	p.effective = text.String()
	return nil
}

// pickerJSON is the document without the sections that Berth refuses; their
// types do not leave themselves out when empty.
func pickerJSON(c *configapi.EndpointPickerConfig) ([]byte, error) {
	type plugin struct {
		Name       string          `json:"name"`
		Type       string          `json:"type"`
		Parameters json.RawMessage `json:"parameters,omitempty"`
	}
	type reference struct {
		PluginRef string   `json:"pluginRef"`
		Weight    *float64 `json:"weight,omitempty"`
	}
	type profile struct {
		Name    string      `json:"name"`
		Plugins []reference `json:"plugins"`
	}
	out := struct {
		APIVersion         string    `json:"apiVersion"`
		Kind               string    `json:"kind"`
		Plugins            []plugin  `json:"plugins"`
		SchedulingProfiles []profile `json:"schedulingProfiles"`
	}{APIVersion: c.APIVersion, Kind: c.Kind}
	for _, p := range c.Plugins {
		out.Plugins = append(out.Plugins, plugin(p))
	}
	for _, p := range c.SchedulingProfiles {
		sp := profile{Name: p.Name}
		for _, r := range p.Plugins {
			sp.Plugins = append(sp.Plugins, reference(r))
		}
		out.SchedulingProfiles = append(out.SchedulingProfiles, sp)
	}
	return json.Marshal(out)
}

// block writes JSON as YAML in block style, with the keys in the order of the
// JSON text. JSON is YAML already: only the style of its nodes changes.
func block(w *strings.Builder, data []byte) error {
	var n yaml.Node
	if err := yaml.Unmarshal(data, &n); err != nil {
		return err
	}
	unstyle(&n)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&n); err != nil {
		return err
	}
	return enc.Close()
}

func unstyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		unstyle(c)
	}
}
