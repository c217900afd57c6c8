package tenant

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport/certificate"
)

// shown is a connection whose certificate the authority's is, with that name.
func shown(t *testing.T, folder, name string) (*tls.ConnectionState, string) {
	t.Helper()
	a, err := certificate.OpenAuthority(folder)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile, err := a.Issue(name, false)
	if err != nil {
		t.Fatal(err)
	}
	c, err := certificate.Load(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	chain := []*x509.Certificate{c.Leaf}
	return &tls.ConnectionState{PeerCertificates: chain, VerifiedChains: [][]*x509.Certificate{chain}},
		certificate.Fingerprint(c.Leaf)
}

func TestAdmit(t *testing.T) {
	folder := t.TempDir()
	if err := certificate.NewAuthority(folder); err != nil {
		t.Fatal(err)
	}
	alice, _ := shown(t, folder, "alice")
	bob, bobsKey := shown(t, folder, "bob")
	// Another tool's authority may say any name.
	named := func(name string) *tls.ConnectionState {
		state := *alice
		leaf := *alice.PeerCertificates[0]
		leaf.Subject.CommonName = name
		state.PeerCertificates = []*x509.Certificate{&leaf}
		return &state
	}
	unverified := &tls.ConnectionState{PeerCertificates: alice.PeerCertificates}
	sum := sha256.Sum256([]byte("token of carol"))
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := write("tenants", "# who\n\nalice certificate token=first-token token=second-token # both\n"+
		"carol token-sha256="+hex.EncodeToString(sum[:])+"\ndave certificate="+bobsKey)
	own, err := certificate.Keep(folder)
	if err != nil {
		t.Fatal(err)
	}
	withTLS := Files{Certificate: filepath.Join(folder, certificate.ServerFile),
		Key: filepath.Join(folder, certificate.KeyFile), ClientCA: filepath.Join(folder, certificate.AuthorityFile)}
	withFile := withTLS
	withFile.Tenants = file
	both := withFile
	both.Token = func() ([]byte, error) { return []byte("of the file"), nil }
	for name, c := range map[string]struct {
		files Files
		token string
		state *tls.ConnectionState
		want  string // "": nobody
	}{
		"nothing is asked for":      {Files{}, "x", nil, Anyone},
		"a name of the authority's": {withTLS, "", alice, "alice"},
		"a name with blanks":        {withTLS, "", named("a b"), ""},
		"a name of the server's":    {withTLS, "", named(Default), ""},
		"another of the server's":   {withTLS, "", named(Anyone), ""},
		"not verified":              {withTLS, "", unverified, ""},
		"nothing is shown":          {withTLS, "", nil, ""},
		"first token":               {withFile, "first-token", nil, "alice"},
		"second token":              {withFile, "second-token", nil, "alice"},
		"hash of a token":           {withFile, "token of carol", nil, "carol"},
		"the hash itself":           {withFile, hex.EncodeToString(sum[:]), nil, ""},
		"wrong token":               {withFile, "first-tokem", nil, ""},
		"named in the file":         {withFile, "", alice, "alice"},
		"a key of the file":         {withFile, "", bob, "dave"},
		"wrong token, certificate":  {withFile, "?", alice, "alice"},
		"token file":                {both, "of the file", nil, Default},
		"token file beside others":  {both, "second-token", nil, "alice"},
	} {
		r, err := Read(c.files)
		if err != nil {
			t.Fatal(err)
		}
		who, ok := r.Admit([]byte(c.token), c.state)
		if who.Name != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v", name, who.Name, ok)
		}
		if ok && !r.Holds(who) {
			t.Errorf("%s: does not hold", name)
		}
		if r.Open() != (name == "nothing is asked for") || (r.TLS() != nil) != (c.files.Certificate != "") {
			t.Errorf("%s: open %v, TLS %v", name, r.Open(), r.TLS())
		}
		if f := r.Fingerprint(); c.files.Certificate != "" && f != certificate.Fingerprint(own.Leaf) {
			t.Errorf("%s: %s", name, f)
		}
	}

	// What changes in the files counts for those who are there already.
	r, err := Read(withFile)
	if err != nil {
		t.Fatal(err)
	}
	one, _ := r.Admit([]byte("first-token"), nil)
	two, _ := r.Admit([]byte("second-token"), nil)
	dave, _ := r.Admit(nil, bob)
	holds := func(a, b, c bool) {
		t.Helper()
		if r.Holds(one) != a || r.Holds(two) != b || r.Holds(dave) != c {
			t.Errorf("%v %v %v", r.Holds(one), r.Holds(two), r.Holds(dave))
		}
	}
	holds(true, true, true)
	write("tenants", "alice token=second-token\nbob certificate")
	if err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	holds(false, true, false)
	write("tenants", "bob token=second-token")
	if err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	holds(false, false, false)
	write("tenants", "alice token")
	if err := r.Reload(); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Error(err)
	}
	if who, ok := r.Admit([]byte("second-token"), nil); !ok || who.Name != "bob" {
		t.Errorf("after a bad file: %v", who)
	}
}

// A tenant's limits go before the server's, and change with the file.
func TestLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a max-vram=2GiB token=12345678 idle-timeout=1h\nb token=23456789 max-host-memory=0")
	r, err := Read(Files{Tenants: path})
	if err != nil {
		t.Fatal(err)
	}
	usual := config.Limits{HostMemory: config.GiB, Sessions: 3}
	a, b := usual, usual
	a.VRAM, a.Idle, b.HostMemory = 2*config.GiB, time.Hour, 0
	for name, want := range map[string]config.Limits{"a": a, "b": b, "c": usual} {
		if got := r.Limits(name, usual); got != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	write("a token=12345678")
	if err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := r.Limits("a", usual); got != usual {
		t.Errorf("read again: %+v", got)
	}
}

// A tenant's profiles go before the server's.
func TestProfiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants")
	text := "a profiles=profile,nccl token=12345678\nb token=23456789 profiles=base\nc token=34567890"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Read(Files{Tenants: path})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]isolation.Profile{
		"a": isolation.Profiling | isolation.NCCL, "b": isolation.Base, "c": isolation.NCCL, "nobody": isolation.NCCL,
	} {
		if got := r.Profile(name, isolation.NCCL); got != want {
			t.Errorf("%s: %v, not %v", name, got, want)
		}
	}
}

// A tenant's sessions have the terms of its line, which change with the file.
func TestTerms(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a class=high share=300 token=12345678\nb token=23456789 class=low\nc token=34567890")
	r, err := Read(Files{Tenants: path})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want map[string]lease.Terms) {
		t.Helper()
		for name, terms := range want {
			if got := r.Terms(name); !reflect.DeepEqual(got, terms) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
	expect(map[string]lease.Terms{"a": {Share: 300, Class: lease.High}, "b": {Share: 100, Class: lease.Low},
		"c": {Share: 100}, "nobody": {Share: 100}})
	write("a token=12345678 share=2\nb share=7 token=23456789")
	if err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	expect(map[string]lease.Terms{"a": {Share: 2}, "b": {Share: 7}})
	write("a token=12345678\nb share=seven token=23456789")
	if err := r.Reload(); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "line 2: b: bad terms: share") {
		t.Error(err)
	}
	expect(map[string]lease.Terms{"a": {Share: 2}, "b": {Share: 7}})
}

// Who administers is said by the file as it is now, and by nothing else.
func TestRole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ops token=token-of-ops role=admin token=another-of-ops\nalice token=token-of-alice")
	r, err := Read(Files{Tenants: path, Token: func() ([]byte, error) { return []byte("of the file"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	who := func(token string) Identity {
		id, ok := r.Admit([]byte(token), nil)
		if !ok {
			t.Fatalf("%s is not admitted", token)
		}
		return id
	}
	first, second, alice := who("token-of-ops"), who("another-of-ops"), who("token-of-alice")
	is := func(id Identity, want bool) {
		t.Helper()
		if got := r.Administers(id); got != want {
			t.Errorf("%s administers: %v", id.Name, got)
		}
	}
	is(first, true)
	is(second, true)
	is(alice, false)
	is(who("of the file"), false)
	is(Identity{Name: "ops"}, false) // the name alone shows nothing
	write("ops role=administrator token=token-of-ops")
	if err := r.Reload(); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "line 1: ops: role") {
		t.Errorf("a role that there is not: %v", err)
	}
	is(first, true)
	write("ops token=token-of-ops\nalice token=token-of-alice role=admin token=another-of-ops")
	if err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	is(first, false)
	is(second, false) // its token is another's now, and what it showed was ops
	is(alice, true)
	open, err := Read(Files{})
	if err != nil {
		t.Fatal(err)
	}
	if anyone, _ := open.Admit(nil, nil); open.Administers(anyone) {
		t.Error("anyone administers a server that asks for nothing")
	}
}

func TestStatic(t *testing.T) {
	r := Static([]byte("a token"), nil)
	if who, ok := r.Admit([]byte("a token"), nil); !ok || who.Name != Default || r.Open() {
		t.Error(who, ok)
	}
	if _, ok := r.Admit(nil, nil); ok {
		t.Error("without a token")
	}
	if err := r.Reload(); err != nil {
		t.Error(err)
	}
	if who, ok := Static(nil, nil).Admit(nil, nil); !ok || who.Name != Anyone {
		t.Error(who, ok)
	}
}

func TestParseErrors(t *testing.T) {
	for text, says := range map[string]string{
		"alice":                                      "line 1: alice: no credential",
		"alice token=short":                          "at least",
		"\na certificate\na certificate":             "line 3: a has a line already",
		"a token=12345678\nb token=12345678":         "b: a credential of a",
		"a token-sha256=12":                          "64 hexadecimal digits",
		"a certificate=x":                            "bad fingerprint",
		"a password=12345678":                        "a known kind",
		"a/b certificate":                            "bad name",
		"default token=12345678":                     "the server gives by itself",
		"anyone certificate":                         "the server gives by itself",
		"-x certificate":                             "bad name",
		strings.Repeat("#", maxBytes+1):              "the limit is",
		"a certificate=sha256:" + "zz":               "bad fingerprint",
		"a token=12345678 password=let-me-in-please": "a known kind",
		"a token=12345678 max-vram=lots":             "max-vram: bad size",
		"a certificate idle-timeout=3":               "30m",
		"a certificate max-vram=1 max-vram=1":        "max-vram stands there twice",
		"a max-vram=1":                               "no credential",
		"a certificate share=0":                      "line 1: a: bad terms: share: \"0\"",
		"a certificate share":                        "bad terms: share",
		"a certificate class=top":                    "low, normal or high",
		"a certificate class=low class=low":          "class stands there twice",
		"a certificate gpus=0":                       "no GPU's UUID",
		"a share=5":                                  "no credential",
		"a certificate role=":                        "line 1: a: role: \"\" is none; write role=admin",
		"a certificate role":                         "write role=admin",
		"\na certificate role=Admin":                 "line 2: a: role: \"Admin\" is none",
		"a certificate role=admin role=admin":        "role stands there twice",
		"a role=admin":                               "no credential",
		"a certificate profiles=":                    "profiles: \"\" is no profile",
		"a certificate profiles=rdma":                "offers RDMA",
		"a certificate profiles=nccl profiles=nccl":  "profiles: they stand there twice",
	} {
		_, err := Parse(text)
		if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %v", text, err)
		}
		if err != nil && strings.Contains(err.Error(), "let-me-in") {
			t.Errorf("the error has the secret: %v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("alice token=12345678 certificate # x\nbob token-sha256=" + strings.Repeat("0", 64))
	f.Add("a certificate=sha256:" + strings.Repeat("0", 64))
	f.Add("a certificate share=300 class=high")
	f.Add("a certificate role=admin")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := Parse(text)
		if err != nil {
			return
		}
		for c, name := range list.names {
			if c == "" || certificate.CheckName(name) != nil {
				t.Errorf("%q is %q's", c, name)
			}
		}
	})
}
