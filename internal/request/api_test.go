package request

import (
	"errors"
	"strings"
	"testing"
)

func TestX18_APIOfMatchesThePathPart(t *testing.T) {
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
		{"a sub-path of a known one in front counts as a prefix", "/v1/chat/completions/v1/embeddings", Embeddings},
		{"a response by its id is another operation", "/v1/responses/resp_1", Unknown},
		{"one model by its name is another operation", "/v1/models/llama", Unknown},
		{"images alone are unknown", "/v1/images", Unknown},
		{"an operation of vLLM's must end with its segment", "/untokenize", Unknown},
		{"a model's operation is not looked for in the query", "/?/v2/models/a/infer", Unknown},
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

func TestEveryAPIIsFoundByItsPath(t *testing.T) {
	untested := map[API]bool{}
	for api := Unknown + 1; api < apiCount; api++ {
		untested[api] = true
	}
	for _, test := range []struct {
		path string
		want API
		name string
	}{
		{"/v1/chat/completions", ChatCompletions, "chat_completions"},
		{"/v1/completions", Completions, "completions"},
		{"/v1/responses", Responses, "responses"},
		{"/v1/embeddings", Embeddings, "embeddings"},
		{"/v1/messages", Messages, "messages"},
		{"/v1/messages?beta=true", Messages, "messages"},
		{"/anthropic/v1/messages", Messages, "messages"},
		{"/v1/messages/count_tokens", MessageTokens, "message_tokens"},
		{"/v1/messages/count_tokens?beta=true", MessageTokens, "message_tokens"},
		{"/v1/audio/transcriptions", AudioTranscriptions, "audio_transcriptions"},
		{"/v1/audio/translations", AudioTranslations, "audio_translations"},
		{"/v1/audio/speech", AudioSpeech, "audio_speech"},
		{"/v1/images/generations", ImageGenerations, "image_generations"},
		{"/v1/images/edits", ImageEdits, "image_edits"},
		{"/v1/images/variations", ImageVariations, "image_variations"},
		{"/tokenize", Tokenize, "tokenize"},
		{"/v1/tokenize", Tokenize, "tokenize"},
		{"/detokenize", Detokenize, "detokenize"},
		{"/pooling", Pooling, "pooling"},
		{"/classify", Classify, "classify"},
		{"/score", Score, "score"},
		{"/v1/score", Score, "score"},
		{"/rerank", Rerank, "rerank"},
		{"/v1/rerank", Rerank, "rerank"},
		{"/v2/rerank", Rerank, "rerank"},
		{"/v2/models/a/infer", TritonInfer, "triton_infer"},
		{"/v2/models/a/versions/1/infer", TritonInfer, "triton_infer"},
		{"/v2/models/a/generate", TritonGenerate, "triton_generate"},
		{"/v2/models/a/versions/1/generate", TritonGenerate, "triton_generate"},
		{"/v2/models/a/generate_stream", TritonGenerateStream, "triton_generate_stream"},
		{"/v2/models/a/versions/1/generate_stream", TritonGenerateStream, "triton_generate_stream"},
		{"/v1/models", Models, "models"},
		{"/v2/models/a", TritonModel, "triton_model"},
		{"/v2/models/a/versions/1", TritonModel, "triton_model"},
		{"/v2/models/a/ready", TritonModel, "triton_model"},
		{"/v2/models/a/config", TritonModel, "triton_model"},
		{"/v2/models/a/versions/1/stats", TritonModel, "triton_model"},
		{"/v2/models/a/trace/setting", TritonModel, "triton_model"},
	} {
		delete(untested, test.want)
		path, query, _ := strings.Cut(test.path, "?")
		for _, variant := range []string{test.path, "/team-a" + test.path, path + "/", "/x" + path + "/?" + query} {
			if got := APIOf(variant); got != test.want {
				t.Errorf("APIOf(%q) = %v, want %v", variant, got, test.want)
			}
			if n := testing.AllocsPerRun(5, func() { APIOf(variant) }); n != 0 {
				t.Errorf("APIOf(%q) allocates %v times, want 0", variant, n)
			}
		}
		if got := APIOf(path + "/render"); got != Unknown {
			t.Errorf("APIOf(%q) = %v, want unknown", path+"/render", got)
		}
		if got := test.want.String(); got != test.name {
			t.Errorf("API(%d).String() = %q, want %q", test.want, got, test.name)
		}
	}
	if len(untested) > 0 {
		t.Errorf("no path is tested of %v", untested)
	}
	for _, api := range []API{Unknown, apiCount, 255} {
		if got := api.String(); got != "unknown" {
			t.Errorf("API(%d).String() = %q, want unknown", api, got)
		}
	}
}

func TestTargetReadsTheModelFromThePath(t *testing.T) {
	for _, test := range []struct {
		name, path string
		api        API
		model      string
	}{
		{"a plain name", "/v2/models/ensemble/infer", TritonInfer, "ensemble"},
		{"with a version", "/v2/models/ensemble/versions/12/generate", TritonGenerate, "ensemble"},
		{"with a version, a slash and a query", "/v2/models/m/versions/1/?x=/v2/models/n", TritonModel, "m"},
		{"behind a prefix", "/team-a/v2/models/m/generate_stream", TritonGenerateStream, "m"},
		{"behind a prefix that looks like a model", "/v2/models/a/v2/models/b/infer", TritonInfer, "b"},
		{"the name is decoded", "/v2/models/llama%2D3%2e1/infer", TritonInfer, "llama-3.1"},
		{"a slash in the name", "/v2/models/meta-llama%2FLlama-3.1-8B/generate", TritonGenerate, "meta-llama/Llama-3.1-8B"},
		{"once only", "/v2/models/a%252Fb/generate", TritonGenerate, "a%2Fb"},
		{"text outside ASCII", "/v2/models/%E3%83%A2/ready", TritonModel, "モ"},
		{"text outside ASCII, not encoded", "/v2/models/é/ready", TritonModel, "é"},
		{"a plus sign stands for itself", "/v2/models/a+b/infer", TritonInfer, "a+b"},
		{"a question mark that is encoded", "/v2/models/a%3Fb/infer", TritonInfer, "a?b"},
		{"the longest name", "/v2/models/" + strings.Repeat("%61", 1024) + "/infer", TritonInfer, strings.Repeat("a", 1024)},
		{"a model that is named as an operation is", "/v2/models/infer", TritonModel, "infer"},
		{"a model that is named as an API is", "/v2/models/score", TritonModel, "score"},
		{"a model named models", "/v2/models/models/infer", TritonInfer, "models"},
		{"a model named versions", "/v2/models/versions/versions/3/infer", TritonInfer, "versions"},
		{"a model named stats", "/v2/models/stats/infer", TritonInfer, "stats"},

		{"the statistics of all models name none", "/v2/models/stats", Unknown, ""},
		{"the list of models names none", "/v2/models", Unknown, ""},
		{"an empty name", "/v2/models//infer", Unknown, ""},
		{"an empty version", "/v2/models/a/versions//infer", Unknown, ""},
		{"no version", "/v2/models/a/versions", Unknown, ""},
		{"a version that is no number", "/v2/models/a/versions/1b/infer", Unknown, ""},
		{"a name of two segments", "/v2/models/a/b/infer", Unknown, ""},
		{"an operation that is not known", "/v2/models/a/explain", Unknown, ""},
		{"a part of an operation", "/v2/models/a/generate_streams", Unknown, ""},
		{"an operation that is encoded", "/v2/models/a/%69nfer", Unknown, ""},
		{"the model repository", "/v2/repository/models/a/load", Unknown, ""},
		{"KServe's first protocol", "/v1/models/a:predict", Unknown, ""},
		{"the API behind a model counts as behind a prefix", "/v2/models/a/v1/chat/completions", ChatCompletions, ""},
		{"a path without a model is not decoded", "/%zz/v1/chat/completions", ChatCompletions, ""},
		{"an unknown path is not decoded", "/%zz", Unknown, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			api, model, err := Target(test.path)
			if err != nil || api != test.api || model != test.model {
				t.Errorf("Target(%q) = %v, %q, %v, want %v, %q", test.path, api, model, err, test.api, test.model)
			}
		})
	}
}

func TestTargetRefusesAModelThatIsNoName(t *testing.T) {
	for _, test := range []struct {
		name, path string
		api        API
		offset     int
		detail     string // must occur in Detail
	}{
		{"a percent sign alone", "/v2/models/a%/infer", TritonInfer, 12, "two hexadecimal digits"},
		{"one digit", "/v2/models/a%4/infer", TritonInfer, 12, "two hexadecimal digits"},
		{"one digit at the end of the path", "/v2/models/a%4", TritonModel, 12, "two hexadecimal digits"},
		{"no digits", "/v2/models/%zz/generate", TritonGenerate, 11, "two hexadecimal digits"},
		{"a second digit that is none", "/x/v2/models/%4g/generate", TritonGenerate, 13, "two hexadecimal digits"},
		{"a sign before a digit", "/v2/models/%+4/generate", TritonGenerate, 11, "two hexadecimal digits"},
		{"a NUL", "/v2/models/a%00/infer", TritonInfer, 11, "no control characters"},
		{"a line feed", "/v2/models/a%0Ab/infer", TritonInfer, 11, "no control characters"},
		{"a tab that is not encoded", "/v2/models/a\tb/infer", TritonInfer, 11, "no control characters"},
		{"DEL", "/v2/models/%7f/ready", TritonModel, 11, "no control characters"},
		{"a C1 control character", "/v2/models/%C2%85/ready", TritonModel, 11, "no control characters"},
		{"bytes that are not UTF-8", "/v2/models/%ff/ready", TritonModel, 11, "UTF-8"},
		{"an overlong slash", "/v2/models/a%c0%afb/ready", TritonModel, 11, "UTF-8"},
		{"a name of 1025 bytes", "/v2/models/" + strings.Repeat("a", 1025) + "/infer", TritonInfer, 11 + 1024, "1024 bytes"},
		{"a name of 1025 bytes when decoded", "/v2/models/" + strings.Repeat("%61", 1025), TritonModel, 11 + 3*1024, "1024 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			api, model, err := Target(test.path)
			if api != test.api || model != "" {
				t.Errorf("Target(%q) = %v, %q, want %v and no model", test.path, api, model, test.api)
			}
			var fault *Error
			if !errors.As(err, &fault) {
				t.Fatalf("Target(%q): %v, want an *Error", test.path, err)
			}
			if fault.Token != TokenBodyMalformed || !fault.InPath || fault.Offset != test.offset || !strings.Contains(fault.Detail, test.detail) {
				t.Errorf("got %+v, want a fault in the path at %d with %q in the detail", fault, test.offset, test.detail)
			}
			if !errors.Is(err, ErrPathMalformed) || errors.Is(err, ErrBodyMalformed) || errors.Is(err, ErrModelAmbiguous) {
				t.Errorf("%v matches another error than ErrPathMalformed alone", err)
			}
			if !strings.Contains(err.Error(), "request path") {
				t.Errorf("the message does not name the path: %v", err)
			}
			facts, readErr := Read(test.path, "", "", []byte(`{`))
			if want := (Facts{API: test.api, BodyBytes: 1}); !errors.Is(readErr, ErrPathMalformed) || facts != want {
				t.Errorf("Read = %+v, %v, want %+v and the same error", facts, readErr, want)
			}
		})
	}
}

func TestX17_BodyIsReadByPathEncodingAndContentType(t *testing.T) {
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
		{"an API outside the list", API(200), "application/json", "", body, UnreadPath},
		{"an empty body", Completions, "application/json", "", "", UnreadEmptyBody},
		{"bytes that are not JSON pass when not read", ChatCompletions, "", "gzip", "\x1f\x8b{", UnreadContentEncoding},
		{"a form of an audio API", AudioTranscriptions, "multipart/form-data; boundary=x", "", "--x--", UnreadContentType},
		{"an absent content type on an API of forms", ImageEdits, "", "", "--x--", UnreadContentType},
		{"JSON on an API of forms", ImageEdits, "application/json", "", body, ""},
		{"JSON without a content type for speech", AudioSpeech, "", "", body, ""},
		{"tensors", TritonInfer, "application/octet-stream", "", body + "\x00", UnreadAPI},
		{"tensors without a content type", TritonInfer, "", "", body + "\x00", UnreadAPI},
		{"tensors that are announced as JSON", TritonInfer, "application/json", "", body, UnreadAPI},
		{"no body for what a model is", TritonModel, "", "", "", UnreadAPI},
		{"the API is the reason before the empty body", TritonInfer, "text/plain", "gzip", "", UnreadAPI},
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
