package api

import (
	"slices"
	"strings"
)

// NamesMemory says whether a parameter carries addresses of memory that a GPU may use: itself, in an array, or in
// structures that it points to. Pointers of the program's (void*) are no such addresses, except those by the names that
// copies, launches and tensor maps have for them.
func (l *Library) NamesMemory(p Param) bool {
	elem := elemOf(p.CType)
	if elem == "void" {
		return slices.Contains([]string{"srcHost", "dstHost", "kernelParams", "globalAddress"}, p.Name)
	}
	return elem == "CUdeviceptr" || l.holdsAddress(elem, 0)
}

// Record is the structure that a parameter is or points to.
func (l *Library) Record(p Param) (Type, bool) {
	t, ok := l.Lookup(elemOf(p.CType))
	return t, ok && t.Kind == "struct"
}

func elemOf(ctype string) string {
	elem := strings.TrimSpace(strings.TrimPrefix(ctype, "const "))
	return strings.TrimSpace(strings.TrimRight(elem, "* "))
}

func (l *Library) holdsAddress(record string, depth int) bool {
	i := slices.IndexFunc(l.Structs, func(s *Struct) bool { return s.Name == record })
	if i < 0 {
		t, ok := l.Types[record]
		return ok && t.Text != record && depth < 8 && l.holdsAddress(t.Text, depth+1)
	}
	return l.fieldsHoldAddress(l.Structs[i], depth)
}

func (l *Library) fieldsHoldAddress(s *Struct, depth int) bool {
	return depth < 8 && slices.ContainsFunc(s.Fields, func(f Field) bool {
		return elemOf(f.CType) == "CUdeviceptr" || f.Sub != nil && l.fieldsHoldAddress(f.Sub, depth+1) ||
			l.holdsAddress(elemOf(f.CType), depth+1)
	})
}
