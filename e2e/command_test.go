package e2e

import (
	"encoding/json"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRemember(t *testing.T) {
	s := serve(t)
	home := "XDG_CONFIG_HOME=" + t.TempDir()
	p := start(t, []string{home}, scuda, s.addr)
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	if out := p.out.String(); !strings.Contains(out, "answers, 1 GPU") || !strings.Contains(out, "remembered in") {
		t.Errorf("got %s", out)
	}
	run := start(t, []string{home}, scuda, "run", "--", program("init"))
	if code := run.wait(patience); code != 0 || !strings.HasPrefix(run.out.String(), "cuInit = 0\n") {
		t.Errorf("exit status %d\n%s%s", code, run.out, run.err)
	}
}

func TestInfo(t *testing.T) {
	s := serve(t)
	p := start(t, []string{"SCUDA_SERVER=" + s.addr}, scuda, "info", "--json")
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	var facts struct {
		Server  string  `json:"server"`
		GPU     string  `json:"gpu"`
		Same    bool    `json:"same_api"`
		Trip    float64 `json:"round_trip_us"`
		Devices []struct {
			Name   string `json:"name"`
			Memory uint64 `json:"memory_bytes"`
		} `json:"devices"`
	}
	if err := json.Unmarshal([]byte(p.out.String()), &facts); err != nil {
		t.Fatal(err)
	}
	if facts.Server != s.addr || facts.GPU != gpu || !facts.Same || facts.Trip <= 0 || len(facts.Devices) != 1 ||
		facts.Devices[0].Memory < 1<<30 {
		t.Errorf("got %+v", facts)
	}
	text := start(t, []string{"SCUDA_SERVER=" + s.addr}, scuda, "info")
	if code := text.wait(patience); code != 0 || !strings.Contains(text.out.String(), "round trip") {
		t.Errorf("exit status %d\n%s%s", code, text.out, text.err)
	}
}

// Every line of the logs is JSON where that is asked for: of the server, of its workers, and of a program's core.
func TestLogFormat(t *testing.T) {
	s := serve(t, "--log-format", "json", "--log", "debug")
	p := start(t, s.env("SCUDA_LOG=debug", "SCUDA_LOG_FORMAT=json"), program("init"))
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	s.await(s.err, `"msg":"session closed"`)
	s.await(s.err, `"worker":[0-9]+`)
	for who, text := range map[string]string{"server": s.err.String(), "program": p.err.String()} {
		lines := 0
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "scuda: ") && who == "program" { // the C front's own
				continue
			}
			var fields struct{ Time, Level, Msg string }
			if err := json.Unmarshal([]byte(line), &fields); err != nil || fields.Level == "" || fields.Msg == "" {
				t.Errorf("the %s logs %q: %v", who, line, err)
			}
			lines++
		}
		if lines == 0 {
			t.Errorf("the %s logs nothing", who)
		}
	}
}

// scuda run passes on exit status, signals, arguments and environment.
func TestRun(t *testing.T) {
	s := serve(t)
	folder := t.TempDir()
	plain := filepath.Join(folder, "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		out  string
	}{
		"success":        {[]string{"true"}, 0, ""},
		"status":         {[]string{"sh", "-c", "exit 37"}, 37, ""},
		"no program":     {[]string{"no-such-program"}, 127, ""},
		"no such file":   {[]string{folder + "/missing"}, 127, ""},
		"not executable": {[]string{plain}, 126, ""},
		"arguments":      {[]string{"printf", "%s|", "a b", "--json", "-l"}, 0, "a b|--json|-l|\n"},
		"GPU":            {[]string{program("dlopen")}, 0, "cuInit = 0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, []string{"SCUDA_SERVER=" + s.addr}, scuda, append([]string{"run", "--"}, c.args...)...)
			if code := p.wait(patience); code != c.code {
				t.Errorf("exit status %d, not %d\n%s%s", code, c.code, p.out, p.err)
			}
			if !strings.HasPrefix(p.out.String(), c.out) {
				t.Errorf("got %q", p.out)
			}
		})
	}
	p := start(t, []string{"SCUDA_SERVER=" + s.addr}, scuda, "run", "--", "sh", "-c",
		`trap 'echo got it; exit 5' USR1; echo ready; while :; do read line || exit 9; done`)
	p.await(p.out, "^ready$")
	p.signal(syscall.SIGUSR1)
	p.stdin.Close()
	if code := p.wait(patience); code != 5 || !strings.Contains(p.out.String(), "got it") {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// TestJulia: the program makes the picture that it should, which is computed here again.
func TestJulia(t *testing.T) {
	folder, target := filepath.Join(root, "examples/julia"), filepath.Join(programs, "julia")
	if err := compile(filepath.Join(folder, "julia.c"), target); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "julia.png")
	p := start(t, serve(t).env(), target, filepath.Join(folder, "julia.ptx"), file)
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	if size := picture.Bounds().Size(); size.X != 640 || size.Y != 400 {
		t.Fatalf("%v pixels", size)
	}
	wrong := 0
	for y := range 400 {
		for x := range 640 {
			r, g, b, _ := picture.At(x, y).RGBA()
			for i, want := range julia(x, y) {
				if got := float64([]uint32{r, g, b}[i] >> 8); math.Abs(got-want) > 1.5 {
					wrong++
					break
				}
			}
		}
	}
	// The kernel's fma rounds once and ours twice, which few pixels at the edge of the set are sensitive to.
	if wrong > 640*400/1000 {
		t.Errorf("%d pixels are not those of the Julia set", wrong)
	}
}

// julia computes the red, green and blue of a pixel as examples/julia/julia.ptx does.
func julia(x, y int) (colour [3]float64) {
	const scale, cx, cy = float32(0.0048), float32(-0.7269), float32(0.1889)
	re, im := float32(float32(x)-320)*scale, float32(float32(y)-200)*scale
	for n := range 300 {
		r2, i2 := float32(re*re), float32(im*im)
		if r2+i2 > 256 {
			v := 0.06 * (float64(n) - math.Log2(math.Log2(float64(r2+i2))))
			for i, phase := range []float64{-1.57, -2, -1} {
				colour[i] = math.Floor(127 + 127*math.Sin(v+phase))
			}
			return colour
		}
		product := float32(re * im)
		re = float32(r2-i2) + cx
		im = float32(math.FMA(float64(product), 2, float64(cy)))
	}
	return colour
}
