package v1alpha1

import (
	"encoding/json"
	"testing"
)

// A router's usual intent: about 900 bytes, six requirements.
const usualIntent = `{
  "version": "berth.dev/v1alpha1", "intentID": "rd-7f3a", "issuer": "semantic-router",
  "issuedAt": "2026-01-02T03:04:05Z", "expiresAt": "2026-01-02T03:05:05Z",
  "logicalModel": "fast",
  "requirements": [
    {"class": "authorization", "key": "berth.dev/tenants", "operator": "In", "values": ["acme"]},
    {"class": "safety", "key": "berth.dev/safety", "operator": "In", "values": ["strict"]},
    {"class": "residency", "key": "berth.dev/residency", "operator": "In", "values": ["eu", "ch"]},
    {"class": "capability", "key": "berth.dev/capabilities", "operator": "In", "values": ["tools"]},
    {"class": "capability", "key": "berth.dev/revision", "operator": "Exists"},
    {"class": "placement", "key": "berth.dev/tier", "operator": "NotIn", "values": ["batch"]}
  ],
  "context": {"inputTokens": 3200, "outputTokens": 512},
  "slo": {"ttft": 0.5}, "priority": 2
}`

func BenchmarkDecodeIntent(b *testing.B) {
	data := []byte(usualIntent)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := DecodeIntent(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIntentFromValue(b *testing.B) {
	var tree map[string]any
	if err := json.Unmarshal([]byte(usualIntent), &tree); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := IntentFromValue(tree); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeIntent(b *testing.B) {
	i, _, err := DecodeIntent([]byte(usualIntent))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodeIntent(i); err != nil {
			b.Fatal(err)
		}
	}
}
