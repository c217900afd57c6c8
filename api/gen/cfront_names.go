package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// messages are the texts of cuGetErrorString that the name alone does not give.
var messages = map[string]string{
	"CUDA_SUCCESS":                          "no error",
	"CUDA_ERROR_INVALID_VALUE":              "invalid argument",
	"CUDA_ERROR_NOT_INITIALIZED":            "the driver is not initialized",
	"CUDA_ERROR_DEINITIALIZED":              "the driver is shutting down",
	"CUDA_ERROR_NO_DEVICE":                  "no CUDA-capable device was found",
	"CUDA_ERROR_INVALID_DEVICE":             "invalid device ordinal",
	"CUDA_ERROR_DEVICE_UNAVAILABLE":         "the device is not available (scuda: the connection to the server is lost)",
	"CUDA_ERROR_SYSTEM_NOT_READY":           "the system is not ready (scuda: the server did not answer)",
	"CUDA_ERROR_INVALID_CONTEXT":            "invalid device context",
	"CUDA_ERROR_INVALID_HANDLE":             "invalid resource handle",
	"CUDA_ERROR_NOT_FOUND":                  "the named symbol was not found",
	"CUDA_ERROR_NOT_READY":                  "the device is not ready",
	"CUDA_ERROR_ILLEGAL_ADDRESS":            "a kernel accessed an illegal address",
	"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES":    "the launch asks for too many resources",
	"CUDA_ERROR_LAUNCH_TIMEOUT":             "the launch timed out",
	"CUDA_ERROR_LAUNCH_FAILED":              "the launch failed",
	"CUDA_ERROR_ASSERT":                     "an assertion failed on the device",
	"CUDA_ERROR_NOT_SUPPORTED":              "the operation is not supported",
	"CUDA_ERROR_NO_BINARY_FOR_GPU":          "the image holds no kernel for this device",
	"CUDA_ERROR_UNKNOWN":                    "unknown error",
	"CUDA_ERROR_STUB_LIBRARY":               "the CUDA driver is a stub library",
	"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED": "the host memory is not registered",
}

func message(name string) string {
	if text, ok := messages[name]; ok {
		return text
	}
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "CUDA_ERROR_")), "_", " ")
}

// results writes the tables of result names and texts.
func (c *cfront) results(out *Output) error {
	results := c.lib.Enums["cudaError_enum"]
	if results == nil {
		return fmt.Errorf("the facts have no cudaError_enum")
	}
	type result struct {
		name  string
		value int64
	}
	var list []result
	for name, value := range results {
		list = append(list, result{name, value})
	}
	slices.SortFunc(list, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.value, b.value), strings.Compare(a.name, b.name))
	})
	list = slices.CompactFunc(list, func(a, b result) bool { return a.value == b.value })
	b := &buffer{}
	b.f("#include \"calls/proc.h\"\n\nconst struct scuda_result scuda_results[] = {\n")
	for _, r := range list {
		b.f("  {%d, %q, %q},\n", r.value, r.name, message(r.name))
	}
	b.f("};\nconst uint32_t scuda_result_count = %d;\n", len(list))
	b.f("\nconst char *const scuda_parts[SCUDA_PARTS] = {\n")
	for _, p := range c.lib.Parts {
		b.f("  [PART_%s] = %q,\n", p.Key, p.Text)
	}
	b.f("};\n")
	return out.CFile("shim/front/gen/results_gen.c", b.Bytes())
}

// procRow is a measured answer of cuGetProcAddress: the symbol of a name from a version on, or why there is none.
type procRow struct {
	flags, since int
	symbol       string
	status       int
}

// readNames reads what cuGetProcAddress was measured to answer.
func (c *cfront) readNames(root string) error {
	text, err := os.ReadFile(filepath.Join(root, "api/facts/getprocaddress.tsv"))
	if err != nil {
		return err
	}
	c.names, c.since = map[string][]procRow{}, map[string]int{}
	for n, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 {
			return fmt.Errorf("getprocaddress.tsv:%d: want 4 columns", n+1)
		}
		flags, err1 := strconv.Atoi(f[1])
		since, err2 := strconv.Atoi(f[2])
		if err1 != nil || err2 != nil {
			return fmt.Errorf("getprocaddress.tsv:%d: flags and version are numbers", n+1)
		}
		r := procRow{flags: flags, since: since, symbol: f[3]}
		if missing, ok := strings.CutPrefix(f[3], "-"); ok {
			_, status, ok := strings.Cut(missing, "/")
			if r.status, err = strconv.Atoi(status); !ok || err != nil {
				return fmt.Errorf("getprocaddress.tsv:%d: want -RESULT/STATUS", n+1)
			}
			r.symbol = ""
		} else if c.lib.ByName[r.symbol] == nil {
			return fmt.Errorf("getprocaddress.tsv:%d: %s is not exported", n+1, r.symbol)
		} else if first, ok := c.since[r.symbol]; !ok || since < first {
			c.since[r.symbol] = since
		}
		c.names[f[0]] = append(c.names[f[0]], r)
	}
	return nil
}

// procAddress writes the measured table of cuGetProcAddress: for each name and flag the versions from which a symbol
// (or none) is given.
func (c *cfront) procAddress(out *Output) error {
	rows := c.names
	names := slices.Sorted(maps.Keys(rows))
	b := &buffer{}
	b.f("#include \"calls/proc.h\"\n\nconst struct scuda_proc_row scuda_proc_rows[] = {\n")
	first := map[string]int{}
	at := 0
	for _, name := range names {
		first[name] = at
		slices.SortStableFunc(rows[name], func(a, b procRow) int {
			return cmp.Or(cmp.Compare(a.flags, b.flags), cmp.Compare(a.since, b.since))
		})
		for _, r := range rows[name] {
			index := "-1"
			if r.symbol != "" {
				index = "I_" + r.symbol
			}
			b.f("  {%d, %d, %s, %d},\n", r.since, r.flags, index, r.status)
			at++
		}
	}
	b.f("};\n\nconst struct scuda_proc_name scuda_proc_names[] = {\n")
	for _, name := range names {
		b.f("  {%q, %d, %d},\n", name, first[name], len(rows[name]))
	}
	b.f("};\nconst uint32_t scuda_proc_name_count = %d;\n", len(names))
	return out.CFile("shim/front/gen/procaddress_gen.c", b.Bytes())
}
