package api

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

//go:embed facts/*.json facts/*-exports.txt facts/operations.tsv *.semantics *.records wire.spec
var files embed.FS

// ErrInput is the cause of every error about the description files: a file of this package contradicts another one.
var ErrInput = errors.New("inconsistent API description")

// InputError names the file and the thing in it that is wrong.
type InputError struct {
	File string // file below api/
	Item string // function, type or line
	Why  string
}

func (e *InputError) Error() string {
	return fmt.Sprintf("api/%s: %s: %s; correct the file and run the generator again", e.File, e.Item, e.Why)
}

// Unwrap makes errors.Is(err, ErrInput) true.
func (e *InputError) Unwrap() error { return ErrInput }

// libraryFiles says which files describe a library.
type libraryFiles struct {
	name                                       string // in operations.tsv
	soname, facts, exports, semantics, records string
	later                                      string // facts about functions that are younger than the header
	// facts about functions that take an older structure than the header's prototype says
	older  string
	result string // C type of the status every function returns
	device string // C type of a device
}

var (
	cudaFiles = libraryFiles{name: "cuda", soname: "libcuda.so.1", facts: "facts/cuda-driver-api.json",
		exports:   "facts/libcuda-exports.txt",
		semantics: "cuda.semantics", result: "CUresult", device: "CUdevice"}
	nvmlFiles = libraryFiles{name: "nvml", soname: "libnvidia-ml.so.1", facts: "facts/nvml-api.json",
		later: "facts/nvml-later.json", older: "facts/nvml-older.json", exports: "facts/libnvidia-ml-exports.txt",
		semantics: "nvml.semantics", records: "nvml.records", result: "nvmlReturn_t", device: "nvmlDevice_t"}
)

// FirstWireOp is the least number of a hand-written operation.
const FirstWireOp = 0xF000

// Load reads the description and resolves it.
func Load() (*Spec, error) { return loadFrom(files) }

// loadFrom reads the description from a file system whose top folder is api/.
func loadFrom(files fs.FS) (*Spec, error) {
	s := &Spec{}
	text, err := fs.ReadFile(files, operationsFile)
	if err != nil {
		return nil, err
	}
	numbers, err := parseOperations(string(text))
	if err != nil {
		return nil, err
	}
	if s.CUDA, err = s.loadLibrary(files, cudaFiles, numbers); err != nil {
		return nil, err
	}
	if s.NVML, err = s.loadLibrary(files, nvmlFiles, numbers); err != nil {
		return nil, err
	}
	wire, err := fs.ReadFile(files, "wire.spec")
	if err != nil {
		return nil, err
	}
	parsed, err := parseWire(string(wire))
	if err != nil {
		return nil, err
	}
	s.Wire, s.Removed, s.Consts, s.Sets = parsed.structs, parsed.removed, parsed.consts, parsed.sets
	for i, w := range s.Wire {
		s.Wire[i].Group = s.CUDA.sem.groupOf(w.Name)
	}
	if err := s.CUDA.sem.checkGroups(s.CUDA, s.Wire); err != nil {
		return nil, err
	}
	if err := s.checkCarried(); err != nil {
		return nil, err
	}
	s.Digest = s.digest()
	return s, nil
}

// Facts is what the importer reads from a header; the schema of facts/*.json.
type Facts struct {
	Functions map[string]FactFunc         `json:"functions"`
	Enums     map[string]map[string]int64 `json:"enums"`
	Typedefs  map[string]string           `json:"typedefs"`
	Sizes     map[string]*[2]int          `json:"sizes"`
	Layouts   []FactRecord                `json:"layouts"`
}

// FactFunc is a prototype.
type FactFunc struct {
	Params []FactParam `json:"params"`
	Ret    string      `json:"ret"`
}

// FactParam is a parameter of a prototype.
type FactParam struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// FactRecord is the layout of a struct or union; nested records' fields follow their field with a greater depth.
type FactRecord struct {
	Align  int         `json:"align"`
	Fields []FactField `json:"fields"`
	Record string      `json:"record"`
	Size   int         `json:"size"`
}

// FactField is a field declaration ("type[dims] name") at its offset.
type FactField struct {
	Decl   string `json:"decl"`
	Depth  int    `json:"depth"`
	Offset int    `json:"offset"`
}

// add takes in facts that the header does not have, another file of the same form: about functions that are younger
// than it, or, with older, about functions that have kept the structure of their first days while the header's
// prototype names today's, which is longer.
func (f *Facts) add(files fs.FS, file string, older bool) error {
	raw, err := fs.ReadFile(files, file)
	if err != nil {
		return err
	}
	var more Facts
	if err := json.Unmarshal(raw, &more); err != nil {
		return err
	}
	for name := range more.Functions {
		switch _, ok := f.Functions[name]; {
		case ok && !older:
			return &InputError{file, name, "is a function of the header too: take it out here"}
		case !ok && older:
			return &InputError{file, name, "is no function of the header: take it out here"}
		}
	}
	maps.Copy(f.Functions, more.Functions)
	maps.Copy(f.Enums, more.Enums)
	maps.Copy(f.Typedefs, more.Typedefs)
	maps.Copy(f.Sizes, more.Sizes)
	f.Layouts = append(f.Layouts, more.Layouts...)
	return nil
}

func (s *Spec) loadLibrary(files fs.FS, lf libraryFiles, numbers []Operation) (*Library, error) {
	raw, err := fs.ReadFile(files, lf.facts)
	if err != nil {
		return nil, err
	}
	var f Facts
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("api/%s: %w", lf.facts, err)
	}
	for _, more := range []string{lf.later, lf.older} {
		if more == "" {
			continue
		}
		if err := f.add(files, more, more == lf.older); err != nil {
			return nil, fmt.Errorf("api/%s: %w", more, err)
		}
	}
	lib := &Library{Soname: lf.soname, ByName: map[string]*Func{}, Enums: f.Enums, Types: map[string]Type{}}
	r := &resolver{lib: lib, facts: &f, file: lf.facts}
	if lf.records != "" {
		text, err := fs.ReadFile(files, lf.records)
		if err != nil {
			return nil, err
		}
		if err := r.nameRecords(lf.records, string(text)); err != nil {
			return nil, err
		}
	}
	if err := r.resolve(); err != nil {
		return nil, err
	}
	exports, err := fs.ReadFile(files, lf.exports)
	if err != nil {
		return nil, err
	}
	if err := lib.addExports(strings.Fields(string(exports)), &f, lf); err != nil {
		return nil, err
	}
	operations, err := numberOperations(lf.name, lib, numbers)
	if err != nil {
		return nil, err
	}
	s.Operations = append(s.Operations, operations...)
	text, err := fs.ReadFile(files, lf.semantics)
	if err != nil {
		return nil, err
	}
	sem, err := parseSemantics(lf.semantics, string(text))
	if err != nil {
		return nil, err
	}
	lib.Groups, lib.sem = []string{OtherGroup}, sem
	for _, g := range sem.groups {
		lib.Groups = append(lib.Groups, g.name)
	}
	if err := sem.apply(lib, lf); err != nil {
		return nil, err
	}
	return lib, nil
}

// addExports makes a Func of every exported symbol.
func (lib *Library) addExports(symbols []string, f *Facts, lf libraryFiles) error {
	slices.Sort(symbols)
	for _, name := range symbols {
		fn := &Func{Name: name}
		if base, ok := perThreadBase(name); ok {
			fn.Base, fn.PTSZ = base, true
		}
		if p, ok := f.Functions[name]; ok {
			fn.Ret = p.Ret
			for _, a := range p.Params {
				fn.Params = append(fn.Params, Param{Name: a.Name, CType: a.Type})
			}
		} else {
			fn.NoProto = true
		}
		if lib.ByName[name] != nil {
			return &InputError{lf.exports, name, "listed twice"}
		}
		lib.ByName[name] = fn
		lib.Funcs = append(lib.Funcs, fn)
	}
	for name := range f.Functions {
		if lib.ByName[name] == nil {
			return &InputError{lf.exports, name, "has a prototype but is not exported"}
		}
	}
	return nil
}

// perThreadBase gives the function of which name is the per-thread default-stream form.
func perThreadBase(name string) (string, bool) {
	if base, ok := strings.CutSuffix(name, "_ptsz"); ok {
		return base, true
	}
	return strings.CutSuffix(name, "_ptds")
}
