package extproc

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// decoded is the message as the gateway gets it.
func decoded(t interface{ Fatal(...any) }, msg *extprocv3.ProcessingResponse) *extprocv3.ProcessingResponse {
	wire, err := proto.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	got := &extprocv3.ProcessingResponse{}
	if err := proto.Unmarshal(wire, got); err != nil {
		t.Fatal(err)
	}
	if unknown := got.ProtoReflect().GetUnknown(); len(unknown) > 0 {
		t.Fatal("the gateway does not know a field of the answer")
	}
	return got
}

func TestMetadataIsWhatStructpbWouldSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		destination := rapid.SampledFrom([]string{"", "10.0.0.1:8000", "[fd00::1]:8000,10.0.0.2:8000"}).Draw(t, "destination")
		want := map[string]*structpb.Value{}
		var members []Member
		for range rapid.IntRange(0, 12).Draw(t, "members") {
			name := rapid.StringMatching(`[a-zA-Z.]{1,20}`).Draw(t, "name")
			if want[name] != nil {
				continue
			}
			if rapid.Bool().Draw(t, "numeric") {
				v := rapid.Float64Range(-1e9, 1e9).Draw(t, "number")
				members, want[name] = append(members, Number(name, v)), structpb.NewNumberValue(v)
			} else {
				v := rapid.String().Draw(t, "text")
				members, want[name] = append(members, Text(name, v)), structpb.NewStringValue(v)
			}
		}
		msg := &extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
		}
		setMetadata(msg, destination, members)

		namespaces := map[string]*structpb.Value{
			berthNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				acknowledgement: structpb.NewStructValue(&structpb.Struct{Fields: want}),
			}}),
		}
		if destination != "" {
			namespaces[lbNamespace] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				destinationKey: structpb.NewStringValue(destination),
			}})
		}
		got := decoded(t, msg)
		if !proto.Equal(got.GetDynamicMetadata(), &structpb.Struct{Fields: namespaces}) {
			t.Fatalf("got %v, want %v", got.GetDynamicMetadata(), namespaces)
		}
		if got.GetRequestHeaders() == nil {
			t.Fatal("the answer itself is gone")
		}
	})
}

func TestHeadersAreSetAsTheyAreGiven(t *testing.T) {
	if m := headerMutation(nil); m != nil {
		t.Errorf("no headers make %v, want no mutation", m)
	}
	given := []Header{{"x-first", "a value"}, {"x-empty", ""}, {"x-last", "10.0.0.1:8000,10.0.0.2:8000"}}
	set := headerMutation(given).GetSetHeaders()
	if len(set) != len(given) {
		t.Fatalf("%d headers are set, want %d", len(set), len(given))
	}
	for i, h := range given {
		got := set[i]
		if got.GetHeader().GetKey() != h.Name || string(got.GetHeader().GetRawValue()) != h.Value ||
			got.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			t.Errorf("%s: %q is set as %v", h.Name, h.Value, got)
		}
	}
	// The values lie side by side: one that is changed must not run into the next.
	first := set[0].GetHeader()
	first.RawValue = append(first.RawValue, "and more"...)
	if got := string(set[2].GetHeader().GetRawValue()); got != given[2].Value {
		t.Errorf("a longer %s changes %s to %q", given[0].Name, given[2].Name, got)
	}
}

// BenchmarkAnswer makes the answer that carries most: headers and metadata of a
// decision with two fallbacks.
func BenchmarkAnswer(b *testing.B) {
	const destination = "10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000"
	headers := []Header{{destinationKey, destination}, {decisionHeader, "01a228ef-16be-798d-893d-7e7d44c4eb70"}}
	members := []Member{
		Text("version", "berth.dev/v1alpha1"), Text("decision", "01a228ef-16be-798d-893d-7e7d44c4eb70"),
		Text("rung", "full"), Text("policy", "sha256:c2e6b3ab6971"), Number("candidates", 10),
		Text("intentSource", "none"), Text("recommended", "10.0.0.1:8000"),
	}
	b.ReportAllocs()
	for b.Loop() {
		msg := &extprocv3.ProcessingResponse{}
		headerMutation(headers)
		setMetadata(msg, destination, members)
	}
}
