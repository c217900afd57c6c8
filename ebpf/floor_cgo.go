package ebpf

/*
#include <stdint.h>
#include <time.h>

// Two empty functions, one for each kind of entry. Other processors than x86-64 have one kind.
#ifdef __x86_64__
#define SCUDA_STEPPED "leaq 0(%rsp), %rsp"
#else
#define SCUDA_STEPPED "nop"
#endif
__asm__(".pushsection .text\n"
        ".p2align 4\n.globl scuda_floor_stepped\n.hidden scuda_floor_stepped\n.type scuda_floor_stepped, @function\n"
        "scuda_floor_stepped: " SCUDA_STEPPED "\n ret\n.size scuda_floor_stepped, . - scuda_floor_stepped\n"
        ".p2align 4\n.globl scuda_floor_emulated\n.hidden scuda_floor_emulated\n.type scuda_floor_emulated, @function\n"
        "scuda_floor_emulated: nop\n ret\n.size scuda_floor_emulated, . - scuda_floor_emulated\n"
        ".popsection\n");
void scuda_floor_stepped(void);
void scuda_floor_emulated(void);

static void (*const scuda_floors[])(void) = {scuda_floor_stepped, scuda_floor_emulated};

static uintptr_t scuda_floor_address(int kind) { return (uintptr_t)scuda_floors[kind]; }

static int64_t scuda_floor_time(int kind, int n) {
  void (*f)(void) = scuda_floors[kind];
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (int i = 0; i < n; i++) f();
  clock_gettime(CLOCK_MONOTONIC, &b);
  return (b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec;
}
*/
import "C"

// floorAddress is where the empty function of a kind lies in this process.
func floorAddress(kind Entry) uint64 { return uint64(C.scuda_floor_address(C.int(kind))) }

// floorTime calls it n times and gives the nanoseconds of all calls.
func floorTime(kind Entry, n int) int64 { return int64(C.scuda_floor_time(C.int(kind), C.int(n))) }
