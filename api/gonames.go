package api

import (
	"math"
	"strings"
)

// goScalars are the Go types of C scalars.
var goScalars = map[string]string{
	"char": "byte", "signed char": "int8", "unsigned char": "uint8", "short": "int16", "unsigned short": "uint16",
	"int":          "int32",
	"unsigned int": "uint32", "long": "int64", "unsigned long": "uint64", "long long": "int64",
	"unsigned long long": "uint64",
	"size_t":             "uint64", "uint32_t": "uint32", "uint64_t": "uint64", "float": "float32", "double": "float64",
}

// GoName is the Go name of a C type or function: capital first letter; a type's trailing _t is dropped (nvmlDevice_t:
// NvmlDevice).
func GoName(c string) string {
	if c == "" {
		return ""
	}
	return strings.ToUpper(c[:1]) + c[1:]
}

// GoTypeName is the Go name of a typedef.
func GoTypeName(c string) string { return GoName(strings.TrimSuffix(c, "_t")) }

// GoType is the Go type of a C type that stands by itself or in a structure; pointers and function pointers are uintptr
// there.
func (lib *Library) GoType(ctype string) string {
	ctype = strings.TrimSpace(strings.TrimPrefix(ctype, "const "))
	if g, ok := goScalars[ctype]; ok {
		return g
	}
	if t, ok := lib.Types[ctype]; ok {
		if t.Kind == "func" || t.Kind == "pointer" {
			return "uintptr"
		}
		return GoTypeName(ctype)
	}
	return "uintptr"
}

// GoParam is the Go type of a parameter: typed pointers to scalars and structures, unsafe.Pointer for everything else
// that points.
func (lib *Library) GoParam(ctype string) string {
	t, ok := lib.Lookup(ctype)
	switch {
	case !ok || t.Kind == "func":
		return "unsafe.Pointer"
	case t.Kind != "pointer":
		return lib.GoType(ctype)
	}
	elem := Elem(ctype)
	et, ok := lib.Lookup(elem)
	if !ok || elem == "void" || elem == "char" || et.Kind == "pointer" || et.Kind == "func" {
		return "unsafe.Pointer"
	}
	return "*" + lib.GoType(elem)
}

// UnsignedEnum says whether the enum of a typedef has values that only fit an unsigned integer.
func (lib *Library) UnsignedEnum(typedef string) bool {
	for _, v := range lib.Enums[lib.enumTag(typedef)] {
		if v > math.MaxInt32 {
			return true
		}
	}
	return false
}
