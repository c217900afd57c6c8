package ptx

import "fmt"

// typ is a fundamental or packed type of an instruction or a register.
type typ uint8

const (
	tNone typ = iota
	tPred
	tB8
	tB16
	tB32
	tB64
	tB128
	tU8
	tU16
	tU32
	tU64
	tS8
	tS16
	tS32
	tS64
	tF16
	tBF16
	tF32
	tF64
	tF16x2
	tBF16x2
	tU16x2
	tS16x2
	tTF32
	tE4M3x2
	tE5M2x2
)

type typeFact struct {
	name string
	bits int
}

var typeFacts = [...]typeFact{
	tNone: {"", 0}, tPred: {".pred", 1},
	tB8: {".b8", 8}, tB16: {".b16", 16}, tB32: {".b32", 32}, tB64: {".b64", 64}, tB128: {".b128", 128},
	tU8: {".u8", 8}, tU16: {".u16", 16}, tU32: {".u32", 32}, tU64: {".u64", 64},
	tS8: {".s8", 8}, tS16: {".s16", 16}, tS32: {".s32", 32}, tS64: {".s64", 64},
	tF16: {".f16", 16}, tBF16: {".bf16", 16}, tF32: {".f32", 32}, tF64: {".f64", 64},
	tF16x2: {".f16x2", 32}, tBF16x2: {".bf16x2", 32}, tU16x2: {".u16x2", 32}, tS16x2: {".s16x2", 32},
	tTF32: {".tf32", 32}, tE4M3x2: {".e4m3x2", 16}, tE5M2x2: {".e5m2x2", 16},
}

var typeByName = func() map[string]typ {
	m := make(map[string]typ)
	for t, f := range typeFacts {
		if f.name != "" {
			m[f.name] = typ(t)
		}
	}
	return m
}()

func (t typ) String() string {
	if int(t) < len(typeFacts) && t != tNone {
		return typeFacts[t].name
	}
	return fmt.Sprintf("typ(%d)", uint8(t))
}

func (t typ) bits() int    { return typeFacts[t].bits }
func (t typ) bytes() int   { return typeFacts[t].bits / 8 }
func (t typ) signed() bool { return t >= tS8 && t <= tS64 }
func (t typ) isInt() bool  { return t >= tU8 && t <= tS64 }
func (t typ) isBits() bool { return t >= tB8 && t <= tB128 }
func (t typ) float() bool  { return t >= tF16 && t <= tF64 }

// half says that t is a 16-bit float or a pair of them.
func (t typ) half() bool { return t == tF16 || t == tBF16 || t == tF16x2 || t == tBF16x2 }

func (t typ) packed() bool { return t >= tF16x2 && t <= tS16x2 }
