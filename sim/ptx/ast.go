package ptx

// The parsed form of a text. Names are resolved against scopes when functions are compiled, because labels, functions
// and demoted variables may be used before they are declared.

type symbolKind uint8

const (
	symRegister symbolKind = iota + 1
	symVariable
	symFunction
	symLabel
	symPrototype
	symTargets // .branchtargets
	symVector  // a vector register
)

type symbol struct {
	kind    symbolKind
	reg     typ // of a register
	slot    int // of a register once it is used, counted from 1
	v       *variable
	fn      *function
	label   int // statement index
	proto   *signature
	targets []string
	vector  int // components of a vector register; they have symbols of their own, by the names "v.x" …
}

// vectorParts are the names of a vector's components.
var vectorParts = []string{".x", ".y", ".z", ".w"}

// scope is what lies between braces.
type scope struct {
	parent *scope
	names  map[string]*symbol
	ranges map[string]regRange // %r<12> by its prefix
}

type regRange struct {
	count  uint64
	reg    typ
	vector int // components, 1 for scalars
}

func newScope(parent *scope) *scope { return &scope{parent: parent, names: map[string]*symbol{}} }

// newRegister names a register and, if it is a vector, its components.
func (s *scope) newRegister(name string, reg typ, vector int) *symbol {
	sym := &symbol{kind: symRegister, reg: reg}
	if vector > 1 {
		sym = &symbol{kind: symVector, vector: vector}
		for _, part := range vectorParts[:vector] {
			s.names[name+part] = &symbol{kind: symRegister, reg: reg}
		}
	}
	s.names[name] = sym
	return sym
}

func (s *scope) lookup(name string) *symbol {
	stem := len(name)
	var n, pow uint64 = 0, 1
	for stem > 0 && len(name)-stem < 9 && digit(name[stem-1]) {
		stem--
		n += uint64(name[stem]-'0') * pow
		pow *= 10
	}
	for ; s != nil; s = s.parent {
		if sym := s.names[name]; sym != nil {
			return sym
		}
		// A range's prefix may itself end in digits, so every split of the trailing digits is tried.
		n, pow := uint64(0), uint64(1)
		for i := len(name) - 1; i >= stem && len(s.ranges) != 0; i-- {
			n += uint64(name[i]-'0') * pow
			pow *= 10
			if name[i] == '0' && i != len(name)-1 {
				continue // a number with a leading zero
			}
			if r, ok := s.ranges[name[:i]]; ok && n < r.count {
				return s.newRegister(name, r.reg, r.vector)
			}
		}
	}
	return nil
}

type varSpace uint8

const (
	vsReg varSpace = iota + 1
	vsGlobal
	vsConst
	vsShared
	vsLocal
	vsParam
)

// variable is anything in memory that has a name.
type variable struct {
	name   string
	space  varSpace
	elem   typ
	vector int
	size   uint64
	dims   int // of an array
	align  uint64
	extern bool
	global *Global // of global and const ones
	// kernel parameters and call parameters have offsets; local ones too
	kernelParam bool
	offset      uint64
	reg         *symbol // a function's register parameter
	pos         pos
}

// signature is what a call must match.
type signature struct {
	rets, params []*variable
}

type operandKind uint8

const (
	oName operandKind = iota + 1 // register, variable, label, function, special register
	oInt
	oFloat32
	oFloat64
	oAddr
	oVec     // {a, b}
	oParen   // (a, b)
	oSink    // _
	oMinus   // -r, whose r is the list
	oElement // a[n]
)

type operand struct {
	kind operandKind
	name string
	comp string // ".x" behind a special register
	neg  bool   // !p
	val  uint64 // number, the offset of name and address, or an element's index
	list []operand
	pair *operand // the q of p|q
	pos  pos
}

type stmt struct {
	pos      pos
	scope    *scope
	guard    string
	guardNot bool
	op       string
	mods     []string // each with its dot
	args     []operand
}

// function is an entry or a device function, parsed and compiled.
type function struct {
	name  string
	entry bool
	has   bool // a body
	index int
	pos   pos
	sig   signature
	stmts []stmt

	// Where a body begins that is read when the function is first used, and the names it may use.
	body   *lexer
	scope  *scope
	failed error // to do so

	// Sizes while parsing; local variables and call parameters have their offsets from then on.
	local     uint64
	params    uint64
	maxParams uint64

	// The compiled form, see compile.go.
	code      []instr
	slots     int // registers of 32 lanes
	allocated int // of these, the first ones, for the function's own registers
	pressure  int // 32-bit registers that live at once
	preds     int
	inits     []initSlot
	shared    []*variable
	calls     []*function
	indirect  bool
}
