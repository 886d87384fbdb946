package request

import "testing"

func TestAPIOfMatchesThePathPart(t *testing.T) {
	for _, test := range []struct {
		name, path string
		want       API
	}{
		{"chat", "/v1/chat/completions", ChatCompletions},
		{"completions", "/v1/completions", Completions},
		{"a query is cut off", "/v1/chat/completions?beta=true", ChatCompletions},
		{"a query may hold another path", "/v1/completions?next=/v1/chat/completions", Completions},
		{"a path in the query alone is unknown", "/metrics?next=/v1/completions", Unknown},
		{"a fragment is cut off", "/v1/completions#top", Completions},
		{"one trailing slash is allowed", "/v1/completions/", Completions},
		{"one trailing slash before a query is allowed", "/v1/chat/completions/?a=b", ChatCompletions},
		{"two trailing slashes are unknown", "/v1/completions//", Unknown},
		{"a vendor prefix is allowed", "/openai/deployments/x/v1/chat/completions", ChatCompletions},
		{"an empty segment in front counts as a prefix", "//v1/completions", Completions},
		{"an empty segment inside is unknown", "/v1//completions", Unknown},
		{"a prefix must end with its segment", "/xv1/completions", Unknown},
		{"a sub-path is another operation", "/v1/chat/completions/render", Unknown},
		{"a longer last segment is unknown", "/v1/completionsx", Unknown},
		{"chat without completions is unknown", "/v1/chat", Unknown},
		{"another version is unknown", "/v2/completions", Unknown},
		{"upper case is unknown", "/V1/Completions", Unknown},
		{"percent-encoding is not decoded", "/v1/chat%2Fcompletions", Unknown},
		{"without a leading slash it is unknown", "v1/completions", Unknown},
		{"other endpoints are unknown", "/v1/embeddings", Unknown},
		{"the root is unknown", "/", Unknown},
		{"an empty path is unknown", "", Unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := APIOf(test.path); got != test.want {
				t.Errorf("APIOf(%q) = %v, want %v", test.path, got, test.want)
			}
			if n := testing.AllocsPerRun(10, func() { APIOf(test.path) }); n != 0 {
				t.Errorf("APIOf(%q) allocates %v times, want 0", test.path, n)
			}
		})
	}
}

func TestAPIStringIsStable(t *testing.T) {
	for api, want := range map[API]string{
		Unknown: "unknown", ChatCompletions: "chat_completions", Completions: "completions", API(200): "unknown",
	} {
		if got := api.String(); got != want {
			t.Errorf("API(%d).String() = %q, want %q", api, got, want)
		}
	}
}

func TestBodyIsReadByPathEncodingAndContentType(t *testing.T) {
	const body = `{"model":"m"}`
	for _, test := range []struct {
		name                         string
		api                          API
		contentType, contentEncoding string
		body                         string
		unread                       string
	}{
		{"JSON on a known path", ChatCompletions, "application/json", "", body, ""},
		{"parameters are allowed", ChatCompletions, "application/json; charset=utf-8", "", body, ""},
		{"blanks around the media type are allowed", Completions, " application/json ;charset=utf-8", "", body, ""},
		{"any case", Completions, "Application/JSON", "", body, ""},
		{"a JSON suffix", Completions, "application/vnd.api+json", "", body, ""},
		{"a JSON suffix in any case with parameters", Completions, "APPLICATION/x+JSON;v=1", "", body, ""},
		{"an absent content type counts as JSON", Completions, "", "", body, ""},
		{"a blank content type counts as absent", Completions, "  ", "", body, ""},
		{"a suffix without a name is not JSON", Completions, "application/+json", "", body, UnreadContentType},
		{"JSON sequences are not JSON", Completions, "application/json-seq", "", body, UnreadContentType},
		{"text is not JSON", Completions, "text/plain", "", body, UnreadContentType},
		{"a JSON suffix of another tree is not JSON", Completions, "text/x+json", "", body, UnreadContentType},
		{"two joined values are not JSON", Completions, "application/x, text/y+json", "", body, UnreadContentType},
		{"parameters alone are not JSON", Completions, ";charset=utf-8", "", body, UnreadContentType},
		{"a form is not JSON", Completions, "multipart/form-data; boundary=json", "", body, UnreadContentType},
		{"identity leaves the body readable", Completions, "", "identity", body, ""},
		{"identity in any case, listed twice", Completions, "", "Identity, ,identity", body, ""},
		{"a blank encoding counts as absent", Completions, "", " ", body, ""},
		{"gzip", Completions, "", "gzip", body, UnreadContentEncoding},
		{"zstd", Completions, "", "zstd", body, UnreadContentEncoding},
		{"a list with one coding", Completions, "", "identity, br", body, UnreadContentEncoding},
		{"an encoding that is not known", Completions, "", "x", body, UnreadContentEncoding},
		{"an unknown path", Unknown, "application/json", "", body, UnreadPath},
		{"an API outside the list", API(9), "application/json", "", body, UnreadPath},
		{"an empty body", Completions, "application/json", "", "", UnreadEmptyBody},
		{"bytes that are not JSON pass when not read", ChatCompletions, "", "gzip", "\x1f\x8b{", UnreadContentEncoding},
		{"the path is the first reason", Unknown, "text/plain", "gzip", "", UnreadPath},
		{"the empty body is the second", Completions, "text/plain", "gzip", "", UnreadEmptyBody},
		{"the encoding is the third", Completions, "text/plain", "gzip", body, UnreadContentEncoding},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Scan(test.api, test.contentType, test.contentEncoding, []byte(test.body))
			if err != nil {
				t.Fatalf("Scan: %v", err)
			}
			want := Facts{API: test.api, Unread: test.unread, BodyBytes: len(test.body)}
			if test.unread == "" {
				want.Model, want.HasModel = "m", true
			}
			if got != want {
				t.Errorf("Scan = %+v, want %+v", got, want)
			}
		})
	}
}
