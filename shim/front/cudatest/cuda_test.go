package cudatest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"scuda.dev/scuda/api"
)

var (
	library, fakeCore string
	programs          = map[string]string{}
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cudatest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	library, fakeCore = filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "fakecore.so")
	builds := [][]string{
		{"sh", "../../build-cuda.sh", library},
		{"cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-I..", "-o", fakeCore, "testdata/fakecore.c",
			"-lpthread"},
	}
	for _, name := range []string{"callall", "procaddress", "tables", "wild", "init"} {
		programs[name] = filepath.Join(dir, name)
		builds = append(builds, []string{
			"cc", "-std=gnu11", "-O1", "-Wall", "-o", programs[name], "testdata/" + name + ".c", "-ldl", "-lpthread",
		})
	}
	for _, args := range builds {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil || len(out) > 0 {
			fmt.Fprintf(os.Stderr, "%v: %v\n%s", args, err, out)
			return 1
		}
	}
	return m.Run()
}

// program runs a C program in an environment that reaches no driver, with the fake core when remote.
func program(t *testing.T, name string, remote bool, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs[name], append([]string{library}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "SCUDA_REAL_LIBCUDA=/nonexistent",
		"SCUDA_LOG=error",
		"SCUDA_CORE=" + fakeCore}, env...)
	if remote {
		cmd.Env = append(cmd.Env, "SCUDA_SERVER=fake:1")
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, tail(out), &stderr)
	}
	return string(out)
}

func tail(b []byte) []byte { return b[max(0, len(b)-1000):] }

func spec(t *testing.T) *api.Library {
	t.Helper()
	s, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	return s.CUDA
}

// symbols gives the dynamic symbols of the library by name.
func symbols(t *testing.T) map[string]elf.Symbol {
	t.Helper()
	f, err := elf.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]elf.Symbol{}
	for _, s := range list {
		if s.Section != elf.SHN_UNDEF {
			m[s.Name] = s
		}
	}
	if names, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(names, []string{"libcuda.so.1"}) {
		t.Errorf("SONAME %v, %v", names, err)
	}
	imports, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range imports {
		var minor int
		if n, _ := fmt.Sscanf(s.Version, "GLIBC_2.%d", &minor); n == 1 && minor > 31 {
			t.Errorf("%s needs %s, newer than 2.31", s.Name, s.Version)
		}
	}
	return m
}

func TestExports(t *testing.T) {
	lib, have := spec(t), symbols(t)
	if len(lib.Funcs) < 707 {
		t.Fatalf("the facts have %d exports", len(lib.Funcs))
	}
	for _, f := range lib.Funcs {
		s, ok := have[f.Name]
		if !ok {
			t.Errorf("%s is not exported", f.Name)
		} else if typ := elf.ST_TYPE(s.Info); f.Data != (typ == elf.STT_OBJECT) {
			t.Errorf("%s is exported as %v", f.Name, typ)
		}
		delete(have, f.Name)
	}
	for name := range have {
		t.Errorf("%s is exported but stands in no facts", name)
	}
}

// TestCallAll calls all functions with zeros for all arguments. None may crash, whatever the server answers.
func TestCallAll(t *testing.T) {
	lib := spec(t)
	var names []string
	for _, f := range lib.Funcs {
		if !f.Data {
			names = append(names, f.Name)
		}
	}
	file := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(file, []byte(strings.Join(names, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	const notInitialized, notSupported, noDevice = "3", "801", "100"
	tests := []struct {
		name   string
		remote bool
		when   string
		env    []string
		check  func(f *api.Func, result string) (want string)
	}{
		{"no driver", false, "", nil, func(f *api.Func, _ string) string {
			return map[string]string{
				"cuInit": noDevice, "cuMemAlloc_v2": notInitialized, "cuCtxSynchronize": notInitialized,
			}[f.Name]
		}},
		{"before cuInit", true, "", nil, func(f *api.Func, _ string) string {
			return map[string]string{"cuCtxSynchronize": ""}[f.Name]
		}},
		{"after cuInit", true, "init", nil, func(f *api.Func, _ string) string {
			if f.Class == api.Missing || f.Class == api.Unsupported {
				return notSupported
			}
			return map[string]string{"cuCtxSynchronize": "201", "cuInit": "0"}[f.Name]
		}},
		{"with a context", true, "context", nil, func(f *api.Func, _ string) string {
			if f.Class == api.Missing || f.Class == api.Unsupported {
				return notSupported
			}
			return map[string]string{"cuMemAlloc_v2": "1", "cuCtxSynchronize": "0"}[f.Name]
		}},
		{"server answers zeros", true, "context", []string{"FAKECORE_REPLY=zeros"}, nil},
		{"server answers noise", true, "context", []string{"FAKECORE_REPLY=noise"}, nil},
		{"server answers errors", true, "context", []string{"FAKECORE_RESULT=0", "FAKECORE_REPLY=none"}, nil},
		{"forked child", true, "fork", nil, func(f *api.Func, _ string) string {
			return map[string]string{
				"cuInit": notInitialized, "cuMemAlloc_v2": notInitialized, "cuCtxSynchronize": notInitialized,
				"cuLaunchKernel": notInitialized,
			}[f.Name]
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := program(t, "callall", tt.remote, tt.env, file, tt.when)
			results := map[string]string{}
			for line := range strings.Lines(out) {
				name, result, _ := strings.Cut(strings.TrimSpace(line), " ")
				results[name] = result
			}
			for _, name := range names {
				result, ok := results[name]
				if !ok || result == "missing" {
					t.Errorf("%s was not called", name)
					continue
				}
				if tt.check == nil {
					continue
				}
				if want := tt.check(lib.ByName[name], result); want != "" && result != want {
					t.Errorf("%s answers %s, want %s", name, result, want)
				}
			}
		})
	}
}

// TestGetProcAddress compares every measured row: name, flags and version to symbol, or to result and status.
func TestGetProcAddress(t *testing.T) {
	for _, when := range []string{"", "init"} {
		out := program(t, "procaddress", true, nil, "../../../api/facts/getprocaddress.tsv", when)
		if !strings.HasSuffix(out, " 0 wrong\n") || strings.HasPrefix(out, "0 rows") {
			t.Errorf("after %q:\n%s", when, out)
		}
	}
}

// TestOtherDrivers: what an older driver of the server's does not have, it does not know by name either (1,
// SYMBOL_NOT_FOUND); what it has is there from the version on that is asked for, whichever the caller names. Of a newer
// driver there is what this library has.
func TestOtherDrivers(t *testing.T) {
	table, err := os.ReadFile("../../../api/facts/getprocaddress.tsv")
	if err != nil {
		t.Fatal(err)
	}
	type name struct{ symbol, flags string }
	type row struct {
		since int
		gives string
	}
	rows := map[name][]row{}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if line[0] == '#' || len(f) != 4 {
			continue
		}
		since, err := strconv.Atoi(f[2])
		if err != nil {
			t.Fatal(err)
		}
		n := name{f[0], f[1]}
		rows[n] = append(rows[n], row{since, f[3]})
	}
	lacks := 0
	for _, driver := range []int{13020, 13000, 12080, 12060, 12040, 12020, 12000, 11080, 11040} {
		var b strings.Builder
		absent := 0
		for n, known := range rows {
			for _, asked := range []int{2000, 6000, 11000, 11040, 12000, 12020, 12040, 12080, 13000, 13020, 99999} {
				newest, there := row{gives: "-0/1"}, false
				for _, r := range known {
					there = there || r.since <= driver && !strings.HasPrefix(r.gives, "-")
					if r.since <= driver && r.since <= asked && r.since >= newest.since {
						newest = r
					}
				}
				if !there {
					newest.gives = "-0/1"
					absent++
				}
				fmt.Fprintln(&b, n.symbol, n.flags, asked, newest.gives)
			}
		}
		if driver < 13000 && absent <= lacks {
			t.Errorf("a driver of %d lacks no more than the one after it", driver)
		}
		lacks = absent
		file := filepath.Join(t.TempDir(), "rows")
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		out := program(t, "procaddress", true, []string{"FAKECORE_DRIVER=" + strconv.Itoa(driver)}, file, "init")
		if !strings.HasSuffix(out, " 0 wrong\n") {
			t.Errorf("driver %d: %.2000s", driver, out)
		}
	}
}

// privateTables by UUID: their size in bytes and which slots are NULL, or the result that refuses them.
var privateTables = []struct{ uuid, want string }{
	{"6bd5fb6c5bf4e74a8987d93912fd9df9", "0 size 104 null 10"},
	{"a094798c2e742e7493f20800200c0a66", "0 size 56 null"},
	{"42d85a8123f6cb478298f6e78a3aecdc", "0 size 24 null"},
	{"c693336e1121df11a8c368f355d89593", "0 size 0 null 3"},
	{"263e88607cd2614392f6bbd5006dfa7e", "0 size 120 null"},
	{"d4082055bde6704b8d34ba123c66e1f2", "0 size 24 null"},
	{"21318c60971432488ca641ff7324c8f2", "0 size 744 null 91"},
	{"6e163fbeb958444d835ce182aff1991e", "0 size 792 null 93"},
	{"1734dc26800d47458726c0f1e7dd8bca", "0 size 136 null"},
	{"cd3ea2c67076db4b882e52ae6c2d86f7", "1"}, // until the server's driver is known
	{"f8cff95121468b4eb9e2fb469e7c0dd9", "1"},
	{"195bcbf4d67d024aacc51d29cea631ae", "1"},
	{"7cb63f9b9ca48e42a484beb66e6aed7f", "1"},
	{"9af0707b8e2dd84c8e4eb994c82ddc35", "1"},
	{"b10541e1f7c7c74a9f64f223be99f1e2", "1"},
	{"00000000000000000000000000000001", "1"},
}

const wantTables = `hooks 2: 1024 entries, 0 set
hooks 6: 14 entries, 0 set
nothing current: get 201 put 201 delete 201, v kept
tls without a context: 0 NULL; checks 201
primary: 0 set
state: flags 0 active 0
unretained: set 0 api 201 device 0/0
unretained: tls 0/same get 201 put 709
retain 0 same
absent: get 400 delete 400, v kept
put 1: 0
put 2: 0
put 3: 0
put 4: 0
again: 400 get 0 value 2
delete 3: 0
null value: put 0 get 0 NULL
checks: 0 flag 0 slot3 0
release 0; destructors 4 2 1
minus one: get 201
unknown slot: 801
fp8: table 0 size 16 slot 1 1
`

func TestPrivateTables(t *testing.T) {
	var ids []string
	want := "before cuInit\n"
	for _, p := range privateTables {
		ids = append(ids, p.uuid)
		want += "table " + p.uuid + ": " + p.want + "\n"
	}
	want += "cuInit 0, table at the same place\n"
	for env, line := range map[string]string{"FAKECORE_FP8=0": "fp8: table 0 size 16 slot 1 0\n",
		"FAKECORE_FP8=-1": "fp8: table 1\n"} {
		if out := program(t, "tables", true, []string{env}, ids...); !strings.HasSuffix(out, line) {
			t.Errorf("%s: got %s, want it to end with %s", env, out, line)
		}
	}
	out := program(t, "tables", true, []string{"FAKECORE_DEVICES=2", "FAKECORE_FP8=1"}, ids...)
	var rest strings.Builder
	checked := 0
	for line := range strings.Lines(out) {
		if sum, ok := strings.CutPrefix(line, "integrity "); ok {
			checkIntegrity(t, sum)
			checked++
			continue
		}
		rest.WriteString(line)
	}
	if checked != 14 {
		t.Errorf("%d integrity values, want 7 from each of 2 threads", checked)
	}
	if want += wantTables; rest.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &rest, want)
	}
}

// integrityFacts is testdata of the specification.
type integrityFacts struct {
	Key   string `json:"hmac_key_hex"`
	Sbox  string `json:"md2_sbox_hex"`
	Fixed struct {
		Zero string `json:"version_mod10_eq_0"`
		One  string `json:"version_mod10_eq_1"`
	} `json:"fixed_outputs"`
	Vectors []struct {
		Name    string
		Version uint32
		Message string `json:"message_hex"`
		Out     string `json:"expected_out_hex"`
	}
}

func facts(t *testing.T) *integrityFacts {
	t.Helper()
	b, err := os.ReadFile("../../../api/facts/integrity-check.json")
	if err != nil {
		t.Fatal(err)
	}
	f := new(integrityFacts)
	if err := json.Unmarshal(b, f); err != nil {
		t.Fatal(err)
	}
	return f
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// md2 is RFC 1319.
func (f *integrityFacts) md2(t *testing.T, m []byte) []byte {
	sbox := unhex(t, f.Sbox)
	m = slices.Clone(m)
	pad := 16 - len(m)%16
	m = append(m, bytes.Repeat([]byte{byte(pad)}, pad)...)
	var sum [16]byte
	last := byte(0)
	for i, c := range m {
		sum[i%16] ^= sbox[c^last]
		last = sum[i%16]
	}
	m = append(m, sum[:]...)
	var x [48]byte
	for ; len(m) > 0; m = m[16:] {
		for i := range 16 {
			x[16+i], x[32+i] = m[i], m[i]^x[i]
		}
		state := byte(0)
		for r := range 18 {
			for k := range x {
				x[k] ^= sbox[state]
				state = x[k]
			}
			state += byte(r)
		}
	}
	return x[:16]
}

// answer is what the check gives for a message that was built for version.
func (f *integrityFacts) answer(t *testing.T, version uint32, message []byte) string {
	switch version % 10 {
	case 0:
		return f.Fixed.Zero
	case 1:
		return f.Fixed.One
	}
	inner, outer := unhex(t, f.Key), unhex(t, f.Key)
	for i := range inner {
		inner[i] ^= 0x36
		outer[i] ^= 0x5c
	}
	return hex.EncodeToString(f.md2(t, append(outer, f.md2(t, append(inner, message...))...)))
}

// TestIntegrityVectors checks this test's own HMAC against the recorded values.
func TestIntegrityVectors(t *testing.T) {
	f := facts(t)
	if len(f.Vectors) < 5 {
		t.Fatalf("%d vectors", len(f.Vectors))
	}
	for _, v := range f.Vectors {
		if got := f.answer(t, v.Version, unhex(t, v.Message)); got != v.Out {
			t.Errorf("%s: %s, want %s", v.Name, got, v.Out)
		}
	}
}

// checkIntegrity computes what the library should have answered from what the program saw: driver version, version,
// process, thread, the addresses of both tables and of the function, seconds, devices, result, output.
func checkIntegrity(t *testing.T, line string) {
	t.Helper()
	f := strings.Fields(line)
	if len(f) != 11 {
		t.Fatalf("%q", line)
	}
	num := func(i int) uint64 {
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	le := binary.LittleEndian
	var m []byte
	for i := range 4 {
		m = le.AppendUint32(m, uint32(num(i)))
	}
	for i := 4; i < 8; i++ {
		m = le.AppendUint64(m, num(i))
	}
	for device := range strings.SplitSeq(strings.TrimSuffix(f[8], ";"), ";") {
		parts := strings.Split(device, ",")
		m = append(m, unhex(t, parts[0])...)
		for _, p := range parts[1:] {
			n, err := strconv.Atoi(p)
			if err != nil {
				t.Fatal(err)
			}
			m = le.AppendUint32(m, uint32(n))
		}
	}
	if want := facts(t).answer(t, uint32(num(1)), m); f[9] != "0" || f[10] != want {
		t.Errorf("version %s: result %s, %s; want %s", f[1], f[9], f[10], want)
	}
}

// TestWildAccesses: a range of unified memory that the program does not have yet, or has given back, is no memory: a
// thread that touches it gets a fault as natively, and does not wait for somebody to bring it.
func TestWildAccesses(t *testing.T) {
	for _, pager := range []string{"uffd", "uffd-sync", "uffd-user", "sigsegv"} {
		t.Run(pager, func(t *testing.T) {
			const want = "before it is there: an access faults\nafter it has gone: an access faults\nCUresult 0\n"
			if out := program(t, "wild", true, []string{"FAKECORE_WILD=1", "SCUDA_PAGER=" + pager}); out != want {
				t.Errorf("got\n%swant\n%s", out, want)
			}
		})
	}
}
