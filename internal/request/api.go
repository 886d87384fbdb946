package request

import (
	"slices"
	"strings"
)

// API is the inference API that a request calls.
type API uint8

// The APIs, each with the path that it is found at. The package documentation
// lists what is read of each.
const (
	// Unknown is any path that is not listed below. Such a request is still
	// routed, as opaque traffic.
	Unknown API = iota
	// ChatCompletions is OpenAI's /v1/chat/completions.
	ChatCompletions
	// Completions is OpenAI's /v1/completions. Its prompt is a text, a list of
	// texts, a list of token ids, or a list of such lists.
	Completions
	// Responses is OpenAI's /v1/responses.
	Responses
	// Embeddings is OpenAI's /v1/embeddings.
	Embeddings
	// Messages is Anthropic's /v1/messages.
	Messages
	// MessageTokens is Anthropic's /v1/messages/count_tokens.
	MessageTokens
	// AudioTranscriptions is OpenAI's /v1/audio/transcriptions.
	AudioTranscriptions
	// AudioTranslations is OpenAI's /v1/audio/translations.
	AudioTranslations
	// AudioSpeech is OpenAI's /v1/audio/speech.
	AudioSpeech
	// ImageGenerations is OpenAI's /v1/images/generations.
	ImageGenerations
	// ImageEdits is OpenAI's /v1/images/edits.
	ImageEdits
	// ImageVariations is OpenAI's /v1/images/variations.
	ImageVariations
	// Tokenize is vLLM's /tokenize, of a prompt or of a chat's messages.
	Tokenize
	// Detokenize is vLLM's /detokenize.
	Detokenize
	// Pooling is vLLM's /pooling.
	Pooling
	// Classify is vLLM's /classify.
	Classify
	// Score is vLLM's /score and /v1/score.
	Score
	// Rerank is /rerank, also under Jina's /v1 and Cohere's /v2.
	Rerank
	// Models is the list of models, /v1/models.
	Models
	// TritonInfer is /v2/models/{model}/infer: tensors, in KServe's protocol.
	TritonInfer
	// TritonGenerate is Triton's /v2/models/{model}/generate.
	TritonGenerate
	// TritonGenerateStream is Triton's /v2/models/{model}/generate_stream.
	TritonGenerateStream
	// TritonModel is what KServe's protocol and Triton tell of one model:
	// /v2/models/{model} and /ready, /config, /stats and /trace/setting behind
	// it.
	TritonModel

	apiCount
)

// beforeModel stands before the model in each path that names it; behind it
// may stand /versions/ and a version, then the operation.
const beforeModel = "/v2/models/"

// traits are what sets one API apart.
type traits struct {
	name string // for metric labels and records
	// paths are what a request path may end with; if modelInPath, what it may
	// end with behind the model and its version.
	paths       []string
	modelInPath bool
	body        bodyKind
	// Names of top-level members, "" where there is none. Of two, the first one
	// counts that the body has (prompt), or that states a limit (limit).
	instructions string
	prompt       [2]string
	limit        [2]string
	// streams is true if the path alone says that the answer is a stream.
	streams bool
}

// bodyKind is how an API's body is to be taken.
type bodyKind uint8

const (
	// jsonBody: JSON, also if no content type says so.
	jsonBody bodyKind = iota
	// formBody: multipart/form-data, if not announced as JSON.
	formBody
	// opaqueBody: holds nothing that is read.
	opaqueBody
)

// apis is indexed by API and never written to.
var apis = [apiCount]traits{
	Unknown: {name: "unknown", body: opaqueBody},
	ChatCompletions: {name: "chat_completions", paths: []string{"/v1/chat/completions"},
		prompt: [2]string{"messages"}, limit: [2]string{"max_completion_tokens", "max_tokens"}},
	Completions: {name: "completions", paths: []string{"/v1/completions"},
		prompt: [2]string{"prompt"}, limit: [2]string{"max_tokens"}},
	Responses: {name: "responses", paths: []string{"/v1/responses"},
		instructions: "instructions", prompt: [2]string{"input"}, limit: [2]string{"max_output_tokens"}},
	Embeddings: {name: "embeddings", paths: []string{"/v1/embeddings"}, prompt: [2]string{"input"}},
	Messages: {name: "messages", paths: []string{"/v1/messages"},
		instructions: "system", prompt: [2]string{"messages"}, limit: [2]string{"max_tokens"}},
	MessageTokens: {name: "message_tokens", paths: []string{"/v1/messages/count_tokens"},
		instructions: "system", prompt: [2]string{"messages"}},
	AudioTranscriptions: {name: "audio_transcriptions", paths: []string{"/v1/audio/transcriptions"}, body: formBody},
	AudioTranslations:   {name: "audio_translations", paths: []string{"/v1/audio/translations"}, body: formBody},
	AudioSpeech:         {name: "audio_speech", paths: []string{"/v1/audio/speech"}},
	ImageGenerations:    {name: "image_generations", paths: []string{"/v1/images/generations"}},
	ImageEdits:          {name: "image_edits", paths: []string{"/v1/images/edits"}, body: formBody},
	ImageVariations:     {name: "image_variations", paths: []string{"/v1/images/variations"}, body: formBody},
	Tokenize:            {name: "tokenize", paths: []string{"/tokenize"}, prompt: [2]string{"prompt", "messages"}},
	Detokenize:          {name: "detokenize", paths: []string{"/detokenize"}},
	Pooling:             {name: "pooling", paths: []string{"/pooling"}},
	Classify:            {name: "classify", paths: []string{"/classify"}},
	Score:               {name: "score", paths: []string{"/score"}},
	Rerank:              {name: "rerank", paths: []string{"/rerank"}},
	Models:              {name: "models", paths: []string{"/v1/models"}, body: opaqueBody},
	TritonInfer:         {name: "triton_infer", paths: []string{"/infer"}, modelInPath: true, body: opaqueBody},
	TritonGenerate: {name: "triton_generate", paths: []string{"/generate"}, modelInPath: true,
		prompt: [2]string{"text_input"}, limit: [2]string{"max_tokens"}},
	TritonGenerateStream: {name: "triton_generate_stream", paths: []string{"/generate_stream"}, modelInPath: true,
		prompt: [2]string{"text_input"}, limit: [2]string{"max_tokens"}, streams: true},
	TritonModel: {name: "triton_model", paths: []string{"", "/ready", "/config", "/stats", "/trace/setting"},
		modelInPath: true, body: opaqueBody},
}

// Infers reports whether the engine's core answers, as far as the path tells. The
// lists and tokenizers of an engine also answer while its core is dead.
func (a API) Infers() bool {
	switch a {
	case Models, TritonModel, Tokenize, Detokenize, MessageTokens:
		return false
	default:
		return true
	}
}

// of returns an API's traits; those of Unknown for a value that is none.
func of(a API) *traits {
	if a >= apiCount {
		a = Unknown
	}
	return &apis[a]
}

// String returns a stable lower-case name that is fit for metric labels and
// records.
func (a API) String() string { return of(a).name }

// APIOf tells which API a request path (the :path pseudo-header) calls.
//
// Only the path part counts: a query or fragment is cut off, and one trailing
// slash is allowed. A prefix in front of the API's path is allowed, since
// gateways and vendors mount the API below one; anything behind it, such as
// /v1/chat/completions/render, is another operation and Unknown. The match is
// case sensitive and percent-encoding is not decoded. APIOf never allocates.
func APIOf(path string) API {
	api, _ := match(path)
	return api
}

// Target is APIOf, and for the APIs whose path names the model also that name,
// percent-decoded; for all others model is "".
//
// The name is decoded once, and strictly: it is refused if a percent sign is
// not followed by two hexadecimal digits, or if what is decoded is longer than
// MaxModelBytes, is not UTF-8 or holds control characters. The error is then an
// [*Error] that matches [ErrPathMalformed], beside the API.
func Target(path string) (api API, model string, err error) {
	api, name := match(path)
	if name == (Region{}) {
		return api, "", nil
	}
	if model, err = pathModel(path, name); err != nil {
		return api, "", err
	}
	return api, model, nil
}

// match finds the API, and where its path holds the model.
func match(path string) (API, Region) {
	if end := strings.IndexAny(path, "?#"); end >= 0 {
		path = path[:end]
	}
	path = strings.TrimSuffix(path, "/")
	// The model comes first: it may have a name such as "score".
	if name, operation, ok := cutModel(path); ok {
		for api := range apis {
			if t := &apis[api]; t.modelInPath && slices.Contains(t.paths, operation) {
				return API(api), name
			}
		}
	}
	for api := range apis {
		if t := &apis[api]; !t.modelInPath {
			for _, end := range t.paths {
				if strings.HasSuffix(path, end) {
					return API(api), Region{}
				}
			}
		}
	}
	return Unknown, Region{}
}

// cutModel finds the model in a path, and the operation behind it: "/infer",
// "/trace/setting", "". It follows the pattern by which Triton's server splits
// paths: neither name nor version is empty, and a version is digits.
func cutModel(path string) (name Region, operation string, ok bool) {
	at := strings.LastIndex(path, beforeModel)
	if at < 0 {
		return Region{}, "", false
	}
	name = Region{at + len(beforeModel), len(path)}
	// Triton's /v2/models/stats is about all models.
	if name.Start == name.End || path[name.Start:] == "stats" {
		return Region{}, "", false
	}
	if length := strings.IndexByte(path[name.Start:], '/'); length >= 0 {
		name.End = name.Start + length
	}
	operation = path[name.End:]
	if version, found := strings.CutPrefix(operation, "/versions/"); found {
		operation = strings.TrimLeft(version, "0123456789")
		ok = operation != version && (operation == "" || operation[0] == '/')
		return name, operation, ok
	}
	return name, operation, name.Start < name.End
}

// isJSON reports whether a Content-Type value announces JSON.
func isJSON(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	const tree, suffix = "application/", "+json"
	mediaType = trimSpace(mediaType)
	if len(mediaType) < len(tree) || !strings.EqualFold(mediaType[:len(tree)], tree) {
		return false
	}
	subtype := mediaType[len(tree):]
	if strings.EqualFold(subtype, "json") {
		return true
	}
	// A media type holds no blanks or commas: "application/x, text/y+json" is
	// two header values that a proxy joined.
	return len(subtype) > len(suffix) && strings.EqualFold(subtype[len(subtype)-len(suffix):], suffix) &&
		!strings.ContainsAny(subtype, " \t,")
}

// isIdentity reports whether a Content-Encoding value leaves the body as it
// is. The value is a list; empty entries count for nothing (RFC 9110, 5.6.1).
func isIdentity(contentEncoding string) bool {
	for rest, more := contentEncoding, true; more; {
		var coding string
		coding, rest, more = strings.Cut(rest, ",")
		coding = trimSpace(coding)
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return false
		}
	}
	return true
}

// trimSpace trims what HTTP calls optional white space.
func trimSpace(s string) string { return strings.Trim(s, " \t") }
