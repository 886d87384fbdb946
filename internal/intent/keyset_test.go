package intent

import (
	"fmt"
	"strings"
	"testing"
)

func TestAKeySetMayHoldKeysOfEachAlgorithm(t *testing.T) {
	s := testKeys(t)
	for kid, alg := range map[string]string{"ed": "EdDSA", "ec": "ES256", "hs": "HS256"} {
		if got := string(s.keys[kid].algorithm); got != alg {
			t.Errorf("key %s is for %q, want %s", kid, got, alg)
		}
	}
	if len(s.keys) != 3 || len(s.algorithms) != 3 {
		t.Errorf("%d keys for %v, want 3 for 3", len(s.keys), s.algorithms)
	}
}

func TestWhatAKeySetAcceptsBesidesTheKeys(t *testing.T) {
	ed := edKey("ed", edPrivate)
	long := strings.Repeat("k", 253)
	many := make([]string, 64)
	for i := range many {
		many[i] = edKey(fmt.Sprint("k", i), edPrivate)
	}
	for name, text := range map[string]string{
		"use sig":                         keySetText(with(ed, `"use":"sig"`)),
		"key_ops with verify":             keySetText(with(ed, `"key_ops":["sign","verify"]`)),
		"a kid of 253 bytes":              keySetText(edKey(long, edPrivate)),
		"a kid of one byte":               keySetText(edKey("k", edPrivate)),
		"a kid outside ASCII":             keySetText(edKey("schlüssel 1", edPrivate)),
		"a secret of exactly 32 bytes":    keySetText(octKey("hs", hmacSecret[:32])),
		"64 keys":                         keySetText(many...),
		"blanks around":                   " \n" + keySetText(ed) + "\n",
		"one key under two names":         keySetText(ed, edKey("other", edPrivate)),
		"kid in escapes":                  keySetText(edKey(`\u0065d`, edPrivate)),
		"keys of one algorithm, two kids": keySetText(ed, edKey("other", edOther)),
	} {
		if _, err := ParseKeySet([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// with adds a member to an object.
func with(object, member string) string { return strings.TrimSuffix(object, "}") + "," + member + "}" }

func TestAKeySetIsRefusedWithTheMemberItsValueAndWhatIsAllowed(t *testing.T) {
	ed, ec, oct := edKey("ed", edPrivate), ecKey(t, "ec"), octKey("hs", hmacSecret)
	point := ecPublic(t)
	off := append([]byte(nil), point[33:]...)
	off[31] ^= 1
	many := make([]string, 65)
	for i := range many {
		many[i] = edKey(fmt.Sprint("k", i), edPrivate)
	}
	replace := func(key, old, new string) string {
		if !strings.Contains(key, old) {
			t.Fatalf("%s has no %s", key, old)
		}
		return keySetText(strings.Replace(key, old, new, 1))
	}
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "key set: must be JSON, and is not from byte 0 on"},
		{"no JSON", `{"keys":[}`, "key set: must be JSON, and is not from byte 10 on"},
		{"text after it", keySetText(ed) + "x", fmt.Sprintf("key set: must be JSON, and is not from byte %d on", len(keySetText(ed))+1)},
		{"two documents", `{}{}`, "key set: must be JSON, and is not from byte 3 on"},
		{"invalid UTF-8", "{\"keys\":[\"\xff\"]}", "key set: must be valid UTF-8"},
		{"a list", `[]`, "key set: [...]: must be an object"},
		{"null", `null`, "key set: null: must be an object"},
		{"no keys", `{}`, "keys: 0 keys: must be 1 to 64"},
		{"an empty list", `{"keys":[]}`, "keys: 0 keys: must be 1 to 64"},
		{"65 keys", keySetText(many...), "keys: 65 keys: must be 1 to 64"},
		{"more than 64 KiB", keySetText(ed) + strings.Repeat(" ", 64<<10), fmt.Sprintf("key set: %d bytes: must be at most 65536", len(keySetText(ed))+64<<10)},
		{"keys is no list", `{"keys":{"kid":"a"}}`, "keys: {...}: must be a list of keys"},
		{"keys is null", `{"keys":null}`, "keys: null: must be a list of keys"},
		{"keys twice", `{"keys":[],"keys":[` + ed + `]}`, "keys: must be there once"},
		{"another member beside keys", `{"keys":[` + ed + `],"Keys":[]}`, "Keys: must not be there: a key set has keys alone"},
		{"a key that is no object", `{"keys":["x"]}`, `keys[0]: "x": must be an object`},
		{"a key that is null", keySetText(ed, "null"), "keys[1]: null: must be an object"},
		{"a member twice", keySetText(with(ed, `"alg":"EdDSA"`)), "keys[0].alg: must be there once"},
		{"a member twice in two spellings", keySetText(with(ed, `"\u0061lg":"EdDSA"`)), "keys[0].alg: must be there once"},

		{"no kid", keySetText(`{"alg":"EdDSA"}`), "keys[0].kid: missing: must be a printable text of 1 to 253 bytes"},
		{"an empty kid", keySetText(edKey("", edPrivate)), `keys[0].kid: "": must be a printable text of 1 to 253 bytes`},
		{"a number as kid", replace(ed, `"kid":"ed"`, `"kid":7`), "keys[0].kid: 7: must be a printable text of 1 to 253 bytes"},
		{"a kid of 254 bytes", keySetText(edKey(strings.Repeat("k", 254), edPrivate)),
			`keys[0].kid: "` + strings.Repeat("k", 64) + `": must be a printable text of 1 to 253 bytes`},
		{"a kid with a line end", keySetText(edKey(`a\nb`, edPrivate)), `keys[0].kid: "a\nb": must be a printable text of 1 to 253 bytes`},
		{"a kid that is there", keySetText(ed, ec, edKey("ed", edOther)), `keys[2].kid: "ed": must be unique in the set`},

		{"no alg", replace(ed, `"alg":"EdDSA",`, ""), "keys[0].alg: missing: must be EdDSA, ES256 or HS256"},
		{"alg none", replace(ed, `"EdDSA"`, `"none"`), `keys[0].alg: "none": must be EdDSA, ES256 or HS256`},
		{"alg RS256", replace(ed, `"EdDSA"`, `"RS256"`), `keys[0].alg: "RS256": must be EdDSA, ES256 or HS256`},
		{"alg in small letters", replace(ec, `"ES256"`, `"es256"`), `keys[0].alg: "es256": must be EdDSA, ES256 or HS256`},
		{"alg as a list", replace(ec, `"ES256"`, `["ES256"]`), `keys[0].alg: [...]: must be EdDSA, ES256 or HS256`},
		{"kty of another algorithm", replace(ed, `"OKP"`, `"EC"`), `keys[0].kty: "EC": must be OKP with alg EdDSA`},
		{"an Ed25519 key for HS256", replace(ed, `"EdDSA"`, `"HS256"`), `keys[0].kty: "OKP": must be oct with alg HS256`},
		{"a P-256 key for HS256", replace(ec, `"ES256"`, `"HS256"`), `keys[0].kty: "EC": must be oct with alg HS256`},
		{"a secret for EdDSA", replace(oct, `"HS256"`, `"EdDSA"`), `keys[0].kty: "oct": must be OKP with alg EdDSA`},
		{"no kty", replace(ed, `"kty":"OKP",`, ""), `keys[0].kty: missing: must be OKP with alg EdDSA`},
		{"Ed448", replace(ed, `"Ed25519"`, `"Ed448"`), `keys[0].crv: "Ed448": must be Ed25519 with alg EdDSA`},
		{"P-384", replace(ec, `"P-256"`, `"P-384"`), `keys[0].crv: "P-384": must be P-256 with alg ES256`},
		{"no crv", replace(ec, `"crv":"P-256",`, ""), `keys[0].crv: missing: must be P-256 with alg ES256`},
		{"a curve for a secret", keySetText(with(oct, `"crv":"P-256"`)), `keys[0].crv: "P-256": must not be there with alg HS256`},
		{"use enc", keySetText(with(ed, `"use":"enc"`)), `keys[0].use: "enc": must be sig`},
		{"use null", keySetText(with(ed, `"use":null`)), `keys[0].use: null: must be sig`},
		{"key_ops without verify", keySetText(with(ed, `"key_ops":["sign"]`)), `keys[0].key_ops: [...]: must be a list of texts that contains verify`},
		{"key_ops empty", keySetText(with(ed, `"key_ops":[]`)), `keys[0].key_ops: [...]: must be a list of texts that contains verify`},
		{"key_ops as a text", keySetText(with(ed, `"key_ops":"verify"`)), `keys[0].key_ops: "verify": must be a list of texts that contains verify`},
		{"key_ops with a number", keySetText(with(ed, `"key_ops":["verify",1]`)), `keys[0].key_ops: [...]: must be a list of texts that contains verify`},

		{"a private Ed25519 key", keySetText(ed, with(edKey("e2", edOther), `"d":"`+b64(edOther.Seed())+`"`)),
			"keys[1].d: must not be there: it is private, and verifying needs the public key alone"},
		{"a private P-256 key", keySetText(with(ec, `"d":"x"`)), "keys[0].d: must not be there: it is private, and verifying needs the public key alone"},
		{"a secret in an Ed25519 key", keySetText(with(ed, `"k":"x"`)),
			"keys[0].k: must not be there: a key for EdDSA has kid, alg, kty, crv, use, key_ops, x"},
		{"y in an Ed25519 key", keySetText(with(ed, `"y":"x"`)), "keys[0].y: must not be there: a key for EdDSA has kid, alg, kty, crv, use, key_ops, x"},
		{"a certificate", keySetText(with(ec, `"x5c":[]`)), "keys[0].x5c: must not be there: a key for ES256 has kid, alg, kty, crv, use, key_ops, x, y"},
		{"a member in capitals", keySetText(with(ec, `"USE":"sig"`)), "keys[0].USE: must not be there: a key for ES256 has kid, alg, kty, crv, use, key_ops, x, y"},
		{"a member that could forge a line", keySetText(with(ec, `"a\nb":1`)), `keys[0]."a\nb": must not be there: a key for ES256 has kid, alg, kty, crv, use, key_ops, x, y`},

		{"no x", replace(ed, `"x"`, `"use":"sig","x5t"`), "keys[0].x5t: must not be there: a key for EdDSA has kid, alg, kty, crv, use, key_ops, x"},
		{"no k", replace(oct, `,"k":"`+b64(hmacSecret)+`"`, ""), "keys[0].k: must be at least 32 bytes in base64url without padding"},
		{"a secret of 31 bytes", keySetText(octKey("hs", hmacSecret[:31])), "keys[0].k: must be at least 32 bytes in base64url without padding"},
		{"an x of 31 bytes", replace(ed, b64(edPublic(edPrivate)), b64(edPublic(edPrivate)[:31])), "keys[0].x: must be exactly 32 bytes in base64url without padding"},
		{"an x of 33 bytes", replace(ec, b64(point[1:33]), b64(point[:33])), "keys[0].x: must be exactly 32 bytes in base64url without padding"},
		{"padding", replace(ed, b64(edPublic(edPrivate)), b64(edPublic(edPrivate))+"="), "keys[0].x: must be exactly 32 bytes in base64url without padding"},
		{"a line end in the secret", replace(oct, b64(hmacSecret), b64(hmacSecret)+`\n`), "keys[0].k: must be at least 32 bytes in base64url without padding"},
		{"a number as the secret", replace(oct, `"`+b64(hmacSecret)+`"`, "1"), "keys[0].k: must be at least 32 bytes in base64url without padding"},
		{"a point off the curve", replace(ec, b64(point[33:]), b64(off)), "keys[0].x: must be a public key on the curve"},
		{"an Ed25519 point of low order", replace(ed, b64(edPublic(edPrivate)), b64(make([]byte, 32))), "keys[0].x: must be a public key on the curve"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := ParseKeySet([]byte(c.text))
			if err == nil || s != nil {
				t.Fatalf("accepted as %v", s)
			}
			if err.Error() != c.want {
				t.Errorf("error\n %s\nwant\n %s", err, c.want)
			}
		})
	}
}

func TestErrorsAndPrintsOfKeySetsShowNoKey(t *testing.T) {
	secret := b64(hmacSecret)
	for name, text := range map[string]string{
		"a short secret":        keySetText(octKey("hs", hmacSecret[:31])),
		"a secret of two texts": strings.Replace(keySetText(octKey("hs", hmacSecret)), secret, secret+"="+secret, 1),
		"a secret without alg":  `{"keys":[{"kid":"hs","kty":"oct","k":"` + secret + `"}]}`,
		"no JSON after it":      keySetText(octKey("hs", hmacSecret)) + secret,
		"a private key":         keySetText(with(edKey("ed", edPrivate), `"d":"`+secret+`"`)),
	} {
		_, err := ParseKeySet([]byte(text))
		if err == nil {
			t.Fatalf("%s: accepted", name)
		}
		if strings.Contains(err.Error(), secret[:12]) {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}

	keys := testKeys(t)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, printed := range []string{fmt.Sprintf(verb, keys), fmt.Sprintf(verb, struct{ Keys *KeySet }{keys})} {
			if strings.Contains(printed, "ed") && strings.Contains(printed, "alg") || strings.Contains(printed, string(hmacSecret)) {
				t.Errorf("%s prints %s", verb, printed)
			}
		}
	}
	if got := fmt.Sprint(keys); got != "key set of 3" {
		t.Errorf("printed as %q", got)
	}
}

func TestKeySetsAreEqualByTheirKeysAlone(t *testing.T) {
	ed, ec, oct := edKey("ed", edPrivate), ecKey(t, "ec"), octKey("hs", hmacSecret)
	base := mustKeys(t, ed, ec, oct)
	for _, c := range []struct {
		name  string
		other *KeySet
		want  bool
	}{
		{"itself", base, true},
		{"another order and more members", mustKeys(t, oct, with(ec, `"use":"sig"`), ed), true},
		{"nil", nil, false},
		{"one key less", mustKeys(t, ed, ec), false},
		{"one key more", mustKeys(t, ed, ec, oct, edKey("e2", edOther)), false},
		{"another key under a name", mustKeys(t, edKey("ed", edOther), ec, oct), false},
		{"another secret", mustKeys(t, ed, ec, octKey("hs", hmacSecret[1:])), false},
		{"another algorithm under a name", mustKeys(t, ed, edKey("ec", edOther), oct), false},
		{"other names", mustKeys(t, ed, ec, octKey("h2", hmacSecret)), false},
	} {
		if got := base.Equal(c.other); got != c.want {
			t.Errorf("%s: equal %v, want %v", c.name, got, c.want)
		}
		if got := c.other.Equal(base); got != c.want {
			t.Errorf("%s: equal the other way round %v, want %v", c.name, got, c.want)
		}
	}
	var none *KeySet
	if !none.Equal(nil) {
		t.Error("no key set does not equal no key set")
	}
}
