/* What every exported function begins with: the five-byte nop that the kernel replaces when a probe is attached (0.3 µs
 * for each probed call instead of 0.4 for the one-byte nops that -fpatchable-function-entry=1 gives, or 2.6 for
 * anything else). The compiler asks the assembler for a `nop`; here the assembler is told what that is. Elsewhere the
 * compiler writes `nop` only as padding. */
#if defined(__x86_64__) && !defined(__ASSEMBLER__) && !defined(__clang__)
__asm__(".macro nop\n\t.byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n.endm");
#endif
