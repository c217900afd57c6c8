package dispatch

import "scuda.dev/scuda/api/cuda"

// direction is how a parameter travels, as api.Dir.
type direction uint8

const (
	dirValue  direction = iota // a word, or a structure by value
	dirIn                      // the driver reads elements
	dirOut                     // the driver writes elements
	dirInOut                   // both
	dirStr                     // the driver reads a string
	dirNew                     // the driver writes a handle for which the client has chosen its own
	dirRet                     // the driver writes handles that the server finds or makes
	dirNull                    // NULL
	dirOpaque                  // a number in a pointer's place
)

// param says what the server does with a parameter of an operation. The zero value is a plain number of 8 bytes.
type param struct {
	dir    direction
	parent uint8  // 1 + index of the parameter under whose handle the table enters what the call brings forth; 0: none
	by     uint8  // 1 + index of the parameter that counts the elements; 0: there are count
	less   uint8  // the driver touches so many elements fewer than that parameter says
	size   uint16 // bytes of an element, or of a value that has less than 8
	count  uint16

	value   bool // dirValue: a structure
	stream  bool // a stream that may be the calling form's default stream
	deletes bool // the call ends the object
	needed  bool // the driver would follow NULL: CUDA_ERROR_INVALID_VALUE
	enum    bool // of an enumeration

	handle  cuda.Kind
	object  cuda.Kind
	token   cuda.Kind
	unknown cuda.CUresult // the answer to an object, or a token, of nobody
	record  *record
}

// record says what the server does with the elements of a parameter that are structures.
type record struct {
	patches []patch
	words   []word
	refuse  []when
	by      uint8   // 1 + index of the parameter that says what a union holds; 0: none
	known   []int64 // the values of that parameter that the description knows
}

// function is an operation.
type function struct {
	params []param
	words  bool   // every parameter is a word, and none ends an object
	outs   bool   // outputs are there with failures too
	async  uint16 // the form with a stream of a function without one: the per-thread form works on the thread's own
	waits  bool   // the per-thread form has waited for that stream when it returns
}

// maxParams is what a function may have.
const maxParams = 16
