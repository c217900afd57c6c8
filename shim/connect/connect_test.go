package connect

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func request() *Request {
	r := &Request{ABI: ABI, PID: 7, First: 3, Keep: 1}
	SetText(r.Kind[:], "nvml")
	SetText(r.Program[:], strings.Repeat("p", 300))
	return r
}

func TestRequest(t *testing.T) {
	packet := append(request().Append(nil), "abc"...)
	r, first, err := ParseRequest(packet)
	if err != nil || *r != *request() || string(first) != "abc" || Text(r.Kind[:]) != "nvml" ||
		len(Text(r.Program[:])) != len(r.Program)-1 {
		t.Errorf("%+v, %q, %v", r, first, err)
	}
	other := request()
	other.ABI++
	much := request()
	much.First = MaxFirst + 1
	for name, c := range map[string]struct {
		packet []byte
		err    error
	}{
		"nothing":       {nil, ErrMalformed},
		"short":         {packet[:len(packet)-4], ErrMalformed},
		"a byte less":   {packet[:len(packet)-1], ErrMalformed},
		"a byte more":   {append(bytes.Clone(packet), 0), ErrMalformed},
		"another build": {other.Append(nil), ErrBuild},
		"too much":      {append(much.Append(nil), make([]byte, MaxFirst+1)...), ErrMalformed},
	} {
		if _, _, err := ParseRequest(c.packet); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswer(t *testing.T) {
	a := &Answer{ABI: ABI, Code: Failed, DriverVersion: 13000}
	SetText(a.Server[:], "gpu:1")
	packet := a.Append(nil)
	if got, err := ParseAnswer(packet); err != nil || *got != *a || Text(got.Server[:]) != "gpu:1" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ParseAnswer(packet[1:]); !errors.Is(err, ErrMalformed) {
		t.Errorf("short: %v", err)
	}
	if _, err := ParseAnswer(append(packet, 0)); !errors.Is(err, ErrMalformed) {
		t.Errorf("long: %v", err)
	}
	a.ABI++
	if _, err := ParseAnswer(a.Append(nil)); !errors.Is(err, ErrBuild) {
		t.Errorf("another build: %v", err)
	}
}

func TestHeader(t *testing.T) {
	h := Header(5)
	for _, want := range []string{"SCUDA_CONNECT_ABI 0x5u", "  int32_t driver_version;\n", "  char server[320];\n",
		"  uint32_t abi;\n", "  int32_t pid;\n"} {
		if !strings.Contains(h, want) {
			t.Errorf("no %q in\n%s", want, h)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add(append(request().Append(nil), "abc"...))
	f.Fuzz(func(t *testing.T, packet []byte) {
		r, first, err := ParseRequest(packet)
		if err == nil && !bytes.Equal(append(r.Append(nil), first...), packet) {
			t.Errorf("%q came back different", packet)
		}
	})
}

func FuzzParseAnswer(f *testing.F) {
	f.Add((&Answer{ABI: ABI}).Append(nil))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if a, err := ParseAnswer(packet); err == nil && !bytes.Equal(a.Append(nil), packet) {
			t.Errorf("%q came back different", packet)
		}
	})
}
