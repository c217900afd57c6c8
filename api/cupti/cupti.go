// Package cupti has what is known of CUPTI, NVIDIA's profiling interface, in Go: constants and the layout of records.
// They are generated from the tables of api/facts, as are their C forms for the client's libcupti.so (shim/cupti).
package cupti

// Record is a structure of CUPTI's, as a 64-bit Linux program sees it.
type Record struct {
	Name   string
	Size   int
	Fields []Field
}

// Field is a field of a record.
type Field struct {
	Name         string
	Offset, Size int
}

// Family is a kind of record that grew. Each generation begins with the one before.
type Family struct {
	Name        string
	Generations []Generation
}

// Generation is a form of a record by its number, which NVIDIA's name of the structure ends with from the second on.
type Generation struct{ Number, Size int }

// Of finds a record by its name.
func Of(name string) (Record, bool) {
	for _, r := range Records {
		if r.Name == name {
			return r, true
		}
	}
	return Record{}, false
}

// Field finds a field by its name.
func (r Record) Field(name string) (Field, bool) {
	for _, f := range r.Fields {
		if f.Name == name {
			return f, true
		}
	}
	return Field{}, false
}
