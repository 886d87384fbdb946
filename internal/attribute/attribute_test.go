package attribute

import (
	"slices"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestWhatEachOperatorMeansForEachCase(t *testing.T) {
	absent, empty := Value{}, List(" , ")
	one, several, contradicted := List("a"), List("a,b"), List("a").Join(List("b"))
	seven, two := List("7"), List("7,8")
	for _, c := range []struct {
		op     v1alpha1.Operator
		values []string
		name   string
		v      Value
		want   bool
	}{
		{v1alpha1.In, []string{"a"}, "absent", absent, false},
		{v1alpha1.In, []string{"a"}, "empty", empty, false},
		{v1alpha1.In, []string{"a"}, "one", one, true},
		{v1alpha1.In, []string{"c", "a"}, "one", one, true},
		{v1alpha1.In, []string{" a\t"}, "one", one, true},
		{v1alpha1.In, []string{"A"}, "one", one, false},
		{v1alpha1.In, []string{"c", "b"}, "several", several, true},
		{v1alpha1.In, []string{"c"}, "several", several, false},
		{v1alpha1.In, []string{"a,b"}, "several", several, false},
		{v1alpha1.In, []string{"a"}, "contradicted", contradicted, false},
		{v1alpha1.In, nil, "one", one, false},

		{v1alpha1.NotIn, []string{"a"}, "absent", absent, false},
		{v1alpha1.NotIn, []string{"a"}, "empty", empty, true},
		{v1alpha1.NotIn, []string{"a"}, "one", one, false},
		{v1alpha1.NotIn, []string{" a"}, "one", one, false},
		{v1alpha1.NotIn, []string{"b"}, "one", one, true},
		{v1alpha1.NotIn, []string{"c", "b"}, "several", several, false},
		{v1alpha1.NotIn, []string{"c"}, "contradicted", contradicted, false},

		{v1alpha1.Exists, nil, "absent", absent, false},
		{v1alpha1.Exists, nil, "empty", empty, false},
		{v1alpha1.Exists, nil, "one", one, true},
		{v1alpha1.Exists, nil, "contradicted", contradicted, false},

		{v1alpha1.DoesNotExist, nil, "absent", absent, true},
		{v1alpha1.DoesNotExist, nil, "empty", empty, false},
		{v1alpha1.DoesNotExist, nil, "one", one, false},
		{v1alpha1.DoesNotExist, nil, "contradicted", contradicted, false},

		{v1alpha1.Gt, []string{"6"}, "seven", seven, true},
		{v1alpha1.Gt, []string{"7"}, "seven", seven, false},
		{v1alpha1.Lt, []string{"8"}, "seven", seven, true},
		{v1alpha1.Lt, []string{"7"}, "seven", seven, false},
		{v1alpha1.Gt, []string{"-1"}, "absent", absent, false},
		{v1alpha1.Gt, []string{"-1"}, "empty", empty, false},
		{v1alpha1.Gt, []string{"1"}, "two numbers", two, false},
		{v1alpha1.Gt, []string{"1"}, "no number", one, false},
		{v1alpha1.Gt, []string{"1"}, "too large", List("9223372036854775808"), false},
		{v1alpha1.Gt, []string{"1", "2"}, "seven", seven, false},
		{v1alpha1.Gt, nil, "seven", seven, false},
		{v1alpha1.Lt, []string{"1e3"}, "seven", seven, false},
		{v1alpha1.Lt, []string{"9"}, "contradicted", Invalid(), false},

		{"", []string{"a"}, "one", one, false},
		{"in", []string{"a"}, "one", one, false},
		{"Unknown", nil, "absent", absent, false},
	} {
		if got := c.v.Meets(c.op, c.values); got != c.want {
			t.Errorf("%s %q over %s: %v, want %v", c.op, c.values, c.name, got, c.want)
		}
	}
}

func TestAListIsASetOfTrimmedItems(t *testing.T) {
	for text, want := range map[string][]string{
		"":               {},
		" ":              {},
		",,":             {},
		"a":              {"a"},
		" b ,\ta,b,,A ":  {"A", "a", "b"},
		"two words, one": {"one", "two words"},
		"\n x \r\n":      {"x"},
	} {
		v := List(text)
		if !slices.Equal(v.Items(), want) || !v.Present() {
			t.Errorf("List(%q) is %q, want %q", text, v.Items(), want)
		}
	}
}

func TestTwoSourcesAgreeOrContradictEachOther(t *testing.T) {
	for _, c := range []struct {
		labels, annotations map[string]string
		want                Value
	}{
		{nil, nil, Value{}},
		{map[string]string{"k": "a"}, nil, Of("a")},
		{nil, map[string]string{"k": "b, a"}, Of("a", "b")},
		{map[string]string{"k": "a"}, map[string]string{"k": " a ,a"}, Of("a")},
		{map[string]string{"k": "a"}, map[string]string{"k": "a,b"}, Invalid()},
		{map[string]string{"k": "a"}, map[string]string{"k": ""}, Invalid()},
		{map[string]string{"k": ""}, map[string]string{"k": ""}, Of()},
	} {
		got := FromMetadata(c.labels, c.annotations)["k"]
		if got.Present() != c.want.Present() || got.Contradicted() != c.want.Contradicted() || !slices.Equal(got.Items(), c.want.Items()) {
			t.Errorf("labels %v and annotations %v give %+v, want %+v", c.labels, c.annotations, got, c.want)
		}
	}
}

func TestAContradictionStays(t *testing.T) {
	s := Set{"k": Of("a").Join(Of("b"))}
	s.State("k", Of("a"))
	if !s["k"].Contradicted() {
		t.Errorf("%+v, want a contradiction", s["k"])
	}
}

func FuzzList(f *testing.F) {
	for _, seed := range []string{"", "a,b", " a , ,b", "\x00,\xff", "1", "-9223372036854775808"} {
		f.Add(seed, "a")
	}
	f.Fuzz(func(t *testing.T, text, want string) {
		v := List(text)
		for _, item := range v.Items() {
			if item == "" || item != Trim(item) {
				t.Errorf("item %q of %q", item, text)
			}
			if !v.Meets(v1alpha1.In, []string{item}) || v.Meets(v1alpha1.NotIn, []string{item}) {
				t.Errorf("%q is an item of %q and is not found", item, text)
			}
		}
		if v.Meets(v1alpha1.In, []string{want}) == v.Meets(v1alpha1.NotIn, []string{want}) {
			t.Errorf("In and NotIn %q of %q agree", want, text)
		}
	})
}

// Joining is the same in whatever order sources are asked.
func TestTheOrderOfSourcesMeansNothing(t *testing.T) {
	values := []Value{{}, Of(), Of("a"), Of("b"), Of("b", "a"), Of("a", "b", "a"), Invalid()}
	same := func(a, b Value) bool {
		return a.Present() == b.Present() && a.Contradicted() == b.Contradicted() && slices.Equal(a.Items(), b.Items())
	}
	for _, a := range values {
		for _, b := range values {
			if !same(a.Join(b), b.Join(a)) {
				t.Errorf("%+v and %+v: %+v, the other way round %+v", a, b, a.Join(b), b.Join(a))
			}
			for _, c := range values {
				if one, two := a.Join(b).Join(c), a.Join(b.Join(c)); !same(one, two) {
					t.Errorf("%+v, %+v, %+v: %+v, the last two first %+v", a, b, c, one, two)
				}
			}
		}
		if !same(a.Join(a), a) {
			t.Errorf("%+v said twice is %+v", a, a.Join(a))
		}
	}
}

// What contradicts itself meets nothing, and what is absent meets DoesNotExist alone.
func TestWhatIsNotKnownForCertainMeetsNothing(t *testing.T) {
	for _, op := range []v1alpha1.Operator{v1alpha1.In, v1alpha1.NotIn, v1alpha1.Exists, v1alpha1.DoesNotExist, v1alpha1.Gt, v1alpha1.Lt} {
		for _, values := range [][]string{nil, {}, {""}, {"a"}, {"0"}, {"a", "b"}} {
			if Invalid().Meets(op, values) {
				t.Errorf("a contradiction meets %s %q", op, values)
			}
			if (Value{}).Meets(op, values) != (op == v1alpha1.DoesNotExist) {
				t.Errorf("an absent attribute meets %s %q", op, values)
			}
		}
	}
}
