package lease

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	for i, word := range Classes {
		if c, err := ParseClass(word); err != nil || int(c) != i-1 || c.String() != word {
			t.Errorf("%s: %v, %v", word, c, err)
		}
	}
	if Class(5).String() != "5" {
		t.Error(Class(5))
	}
	for _, word := range []string{"", "High", "top", "0"} {
		if _, err := ParseClass(word); !errors.Is(err, ErrTerms) {
			t.Errorf("class %q: %v", word, err)
		}
	}
	if n, err := ParseShare("250"); n != 250 || err != nil {
		t.Error(n, err)
	}
	for _, word := range []string{"", "0", "10001", "-1", "1.5", "50%"} {
		if _, err := ParseShare(word); !errors.Is(err, ErrTerms) {
			t.Errorf("share %q: %v", word, err)
		}
	}
	one, two := UUID([16]byte{0xab}), UUID([16]byte{2})
	if list, err := ParseUUIDs(one + "," + two); err != nil || len(list) != 2 {
		t.Error(list, err)
	}
	for _, word := range []string{"", "0", one + ",", one + "," + one, one[:20], strings.ToUpper(one), "GPU-" + one} {
		if _, err := ParseUUIDs(word); !errors.Is(err, ErrTerms) {
			t.Errorf("GPUs %q: %v", word, err)
		}
	}
}

func TestWish(t *testing.T) {
	a, b, c, d := UUID([16]byte{1}), UUID([16]byte{2}), UUID([16]byte{2, 1}), UUID([16]byte{3})
	have := []GPU{{a, "NVIDIA H200"}, {b, "NVIDIA L4"}, {c, "NVIDIA L4"}, {d, "NVIDIA H200 NVL"}}
	taken := map[string]uint64{a: 100, b: 50, d: 0}
	for _, tt := range []struct {
		wish string
		want []string
		says string
	}{
		{"", nil, ""},
		{a, []string{a}, ""},
		{d + "," + a, []string{d, a}, ""},
		{"GPU-01", []string{a}, ""},
		{"GPU-02", nil, "2 GPUs begin with"},
		{"GPU-77", nil, "no GPU"},
		{"GPU-01," + a, nil, "twice"},
		{"1", []string{c}, ""},
		{"2", []string{c, d}, ""}, // of which nothing has been leased
		{"4", []string{c, d, b, a}, ""},
		{"5", nil, "has 4 GPUs, and 5 are wanted"},
		{"h200", []string{d}, ""},
		{"H200:2", []string{d, a}, ""},
		{"NVIDIA L4:2", []string{c, b}, ""},
		{"L4:3", nil, `2 GPUs of the kind "L4"`},
		{"B200", nil, `0 GPUs of the kind "B200"`},
		{"0", nil, "neither"},
		{"65", nil, "neither"},
		{"-1", nil, "neither"},
		{"H200:", nil, "kind with a number"},
		{":2", nil, "kind with a number"},
		{"0,1", nil, "neither"},
		{strings.Repeat("GPU-1,", 65), nil, "too many"},
	} {
		w, err := ParseWish(tt.wish)
		var got []string
		if err == nil {
			got, err = w.Choose(have, taken)
		}
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.says == "") {
			t.Errorf("%q: %v, %v", tt.wish, got, err)
		}
		if err != nil && (!errors.Is(err, ErrTerms) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%q: %v", tt.wish, err)
		}
	}
}
