package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"scuda.dev/scuda/transport"
)

func TestSaved(t *testing.T) {
	folder := home(t)
	os.Unsetenv("SCUDA_SERVER") // t.Setenv in home restores it
	one := Saved{Name: "gpu1", Address: "gpu1.lan:1", Token: []byte("a b#%\xff")}
	two := Saved{Name: "two", Address: "gpu2:1", Cert: "/a b/c.crt", Key: "/k", CA: "/ca"}
	for _, s := range []Saved{two, one} {
		if err := Save(s); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(folder, "servers"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if list, err := Servers(); err != nil || !reflect.DeepEqual(list, []Saved{two, one}) {
		t.Errorf("%+v, %v", list, err)
	}
	if err := Save(Saved{Name: "gpu1", Address: "other:1"}); !errors.Is(err, ErrNameTaken) {
		t.Errorf("a taken name: %v", err)
	}
	if err := Save(Saved{Name: "-x", Address: "other:1"}); !errors.Is(err, ErrName) {
		t.Errorf("a bad name: %v", err)
	}
	for word, want := range map[string]string{"gpu1": one.Address, "gpu1.lan:1": one.Address, "two": two.Address} {
		if s, err := Find(word); err != nil || s.Address != want {
			t.Errorf("%s: %+v, %v", word, s, err)
		}
	}
	if _, err := Find("three"); !errors.Is(err, ErrNoSuch) || !strings.Contains(err.Error(), "two, gpu1") {
		t.Error(err)
	}

	// What programs read.
	if err := SetServers(one.Address); err != nil {
		t.Fatal(err)
	}
	if to, err := Target(); err != nil || string(to.Token) != string(one.Token) || to.TokenOf != "scuda login" {
		t.Errorf("%+v, %v", to, err)
	}
	t.Setenv("SCUDA_SERVER", "two")
	if to, err := Target(); !errors.Is(err, os.ErrNotExist) || to.Address != two.Address {
		t.Errorf("a certificate that is gone: %+v, %v", to, err)
	}
	t.Setenv("SCUDA_TOKEN", string(one.Token))
	if to, _ := To("elsewhere:1", ""); !strings.Contains(to.TokenOf, "SCUDA_TOKEN, which is that of the server gpu1") {
		t.Errorf("another server's token: %+v", to)
	}
	t.Setenv("SCUDA_TOKEN", "")
	os.Unsetenv("SCUDA_SERVER")

	// Of a server that is forgotten nothing stays, and programs have none.
	if err := Forget(&two); err != nil {
		t.Fatal(err)
	}
	if now, _, err := Server(); now != one.Address || err != nil {
		t.Errorf("%q, %v", now, err)
	}
	if err := Forget(&one); err != nil {
		t.Fatal(err)
	}
	if now, _, err := Server(); now != "" || err != nil {
		t.Errorf("%q, %v", now, err)
	}
	if list, err := Servers(); len(list) != 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
}

// A server that only the host file has is one of them, too.
func TestHostIsSaved(t *testing.T) {
	folder := home(t)
	os.Unsetenv("SCUDA_SERVER")
	write(t, filepath.Join(folder, "host"), "gpu7.lan:5\n")
	list, err := Servers()
	if err != nil || len(list) != 1 || list[0].Name != "gpu7" || list[0].Address != "gpu7.lan:5" {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := Forget(&list[0]); err != nil {
		t.Fatal(err)
	}
	if now, _, err := Server(); now != "" || err != nil {
		t.Errorf("%q, %v", now, err)
	}
}

// All servers of the host file are, and one that is forgotten leaves the others.
func TestHostHasSeveral(t *testing.T) {
	folder := home(t)
	os.Unsetenv("SCUDA_SERVER")
	two := Saved{Name: "two", Address: "gpu2.lan:2"}
	if err := Save(two); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "host"), "gpu1.lan, two,gpu3.lan:3\n")
	list, err := FindAll("gpu3, two,gpu1.lan:14833")
	if err != nil || len(list) != 3 || list[0].Address != "gpu3.lan:3" || list[1].Name != "two" || list[2].Name != "gpu1" {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := FindAll("two,four"); !errors.Is(err, ErrNoSuch) {
		t.Error(err)
	}
	for i, want := range []string{"gpu1.lan:14833,gpu2.lan:2", "gpu1.lan:14833", ""} {
		if err := Forget(&list[i]); err != nil {
			t.Fatal(err)
		}
		if now, _, err := Configured(); Join(now) != want || err != nil {
			t.Errorf("%q, %v", now, err)
		}
	}
}

func TestFreeName(t *testing.T) {
	list := []Saved{{Name: "gpu1", Address: "gpu1.a:1"}, {Name: "gpu1.b", Address: "gpu1.b:2"}}
	for address, want := range map[string]string{
		"gpu1.a:1": "gpu1", "gpu2.a:1": "gpu2", "gpu1.c:1": "gpu1.c", "gpu1.b:1": "gpu1.b:1", "10.0.0.1:1": "10.0.0.1",
		"[::1]:1": "::1",
	} {
		if got := FreeName(list, address); got != want || CheckServerName(got) != nil {
			t.Errorf("%s: %s", address, got)
		}
	}
}

func TestParseServers(t *testing.T) {
	for text, why := range map[string]string{
		"gpu1\n":                            "line 1: write NAME",
		"\n# x\ng/1 gpu:1\n":                "line 3: bad name",
		"gpu1 gpu:x\n":                      "is not a number",
		"a gpu:1\na gpu:2\n":                "line 2: a or its address",
		"a gpu:1\nb gpu:1\n":                "line 2: b or its address",
		"0\f#":                              "line 1: write NAME", // a form feed is no blank, to comments neither
		"a gpu:1 token=\n":                  "token= has no usable value",
		"a gpu:1 token=x%1\n":               "token= has no usable value",
		"a gpu:1 token=x%+1y\n":             "token= has no usable value",
		"a gpu:1 secret\n":                  "no usable value",
		"a gpu:1 tokens=x\n":                "none of token=",
		"a gpu:1 token=" + long(1+maxToken): "the limit is",
	} {
		if _, err := parseServers(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

const maxToken = transport.MaxToken

func long(n int) string { return strings.Repeat("x", n) }

func FuzzParseServers(f *testing.F) {
	f.Add("# x\ngpu1 gpu1:2 token=a%20b cert=/c key=/k ca=/ca # y\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseServers(text)
		if err != nil {
			return
		}
		again, err := parseServers(string(appendServers(nil, list)))
		if err != nil || len(list) > 0 && !reflect.DeepEqual(list, again) {
			t.Errorf("%q: %+v, then %+v, %v", text, list, again, err)
		}
	})
}
