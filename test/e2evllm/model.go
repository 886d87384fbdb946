package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// servedModel is the id that both replicas serve.
const servedModel = "tiny"

// Sizes of the model.
const (
	// contextLimit is the longest request, tokens.
	contextLimit = 2048
	// A token is a byte, or one of these two.
	beginOfText, endOfText = 256, 257
	vocabulary             = 258
)

// writeModel writes all files of the model but its weights into dir, which must
// exist: vLLM makes the weights up. It is a Llama of two layers.
func writeModel(dir string) error {
	files := map[string]any{
		"config.json": map[string]any{
			"architectures":           []string{"LlamaForCausalLM"},
			"model_type":              "llama",
			"dtype":                   "float32",
			"vocab_size":              vocabulary,
			"hidden_size":             128,
			"intermediate_size":       256,
			"num_hidden_layers":       2,
			"num_attention_heads":     4,
			"num_key_value_heads":     2,
			"head_dim":                32,
			"hidden_act":              "silu",
			"max_position_embeddings": contextLimit,
			"rms_norm_eps":            1e-5,
			"rope_theta":              10000.0,
			"bos_token_id":            beginOfText,
			"eos_token_id":            endOfText,
			"tie_word_embeddings":     false,
		},
		"tokenizer.json": tokenizer(),
		"tokenizer_config.json": map[string]any{
			"tokenizer_class":  "PreTrainedTokenizerFast",
			"bos_token":        "<s>",
			"eos_token":        "</s>",
			"model_max_length": contextLimit,
			"chat_template":    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}",
		},
	}
	for name, content := range files {
		text, err := json.MarshalIndent(content, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// tokenizer is a byte-level BPE without merges, in the form of Hugging Face's
// tokenizers.
func tokenizer() map[string]any {
	tokens := map[string]int{}
	for b, r := range byteRunes() {
		tokens[string(r)] = b
	}
	special := func(id int, content string) map[string]any {
		return map[string]any{
			"id": id, "content": content, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		}
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	return map[string]any{
		"version":        "1.0",
		"truncation":     nil,
		"padding":        nil,
		"added_tokens":   []any{special(beginOfText, "<s>"), special(endOfText, "</s>")},
		"normalizer":     nil,
		"pre_tokenizer":  byteLevel,
		"post_processor": nil,
		"decoder":        byteLevel,
		"model": map[string]any{
			"type": "BPE", "vocab": tokens, "merges": []string{},
			"dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
		},
	}
}

// byteRunes is how byte-level BPE writes each byte: printable bytes of Latin-1 as
// themselves, the others by the code points from 256 on, in their order.
func byteRunes() (runes [256]rune) {
	next := rune(256)
	for b := range runes {
		switch {
		case b >= '!' && b <= '~', b >= 0xA1 && b <= 0xAC, b >= 0xAE:
			runes[b] = rune(b)
		default:
			runes[b] = next
			next++
		}
	}
	return runes
}
