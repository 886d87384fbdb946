package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestTheModelHasATokenForEachByteAndItsTwoMarks(t *testing.T) {
	dir := t.TempDir()
	if err := writeModel(dir); err != nil {
		t.Fatal(err)
	}
	var tokenizer struct {
		Added []struct {
			ID      int
			Content string
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]int
			Merges []string
		}
	}
	readJSON(t, filepath.Join(dir, "tokenizer.json"), &tokenizer)
	if n := len(tokenizer.Model.Vocab); n != 256 || len(tokenizer.Model.Merges) != 0 {
		t.Errorf("%d tokens and %d merges, want one for each byte and none", n, len(tokenizer.Model.Merges))
	}
	// From the table that GPT-2 introduced: bytes that print are themselves, the
	// first others are counted from U+0100.
	for _, tc := range []struct {
		token string
		id    int
	}{
		{"!", 0x21}, {"A", 'A'}, {"~", 0x7E}, {"¡", 0xA1}, {"¬", 0xAC}, {"®", 0xAE}, {"ÿ", 0xFF},
		{"Ā", 0x00}, {"Ċ", '\n'}, {"Ġ", ' '}, {"ġ", 0x7F}, {"Ń", 0xAD},
	} {
		if got, ok := tokenizer.Model.Vocab[tc.token]; !ok || got != tc.id {
			t.Errorf("%s is token %d (%t), want %d", tc.token, got, ok, tc.id)
		}
	}
	var config struct {
		VocabSize            int `json:"vocab_size"`
		Begin                int `json:"bos_token_id"`
		End                  int `json:"eos_token_id"`
		MaxPositionEmbedding int `json:"max_position_embeddings"`
	}
	readJSON(t, filepath.Join(dir, "config.json"), &config)
	if config.VocabSize != 258 || config.MaxPositionEmbedding != 2048 {
		t.Errorf("vocabulary %d, positions %d; want 258 and 2048", config.VocabSize, config.MaxPositionEmbedding)
	}
	marks := map[int]string{}
	for _, a := range tokenizer.Added {
		marks[a.ID] = a.Content
	}
	if len(marks) != 2 || marks[config.Begin] != "<s>" || marks[config.End] != "</s>" {
		t.Errorf("marks %v, of which %d begins and %d ends; want 256 <s> and 257 </s>", marks, config.Begin, config.End)
	}
}

func TestNoTwoBytesAreWrittenAlike(t *testing.T) {
	seen := map[rune]int{}
	for b, r := range byteRunes() {
		if other, ok := seen[r]; ok {
			t.Errorf("bytes %d and %d are both %q", other, b, r)
		}
		seen[r] = b
	}
}

func TestAModelThatCannotBeWrittenIsAnError(t *testing.T) {
	if err := writeModel(filepath.Join(t.TempDir(), "nowhere")); err == nil {
		t.Error("no error")
	}
}
