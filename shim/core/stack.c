// Go asks for the stack of every thread that calls it. For a program's first thread glibc answers by reading all of
// /proc/self/maps, 1 KiB at a time, which in a PyTorch process is hundreds of system calls; the answer follows from the
// resource limit as well. The linker puts this function in place of the Go runtime's (-Wl,--wrap in build.sh).
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_stack_end; // where the first thread's stack began, just below the arguments
extern __attribute__((weak)) void __real_x_cgo_getstackbound(uintptr_t bounds[2]);

enum { page = 4096, largest = 64 << 20 };

void __wrap_x_cgo_getstackbound(uintptr_t bounds[2]) {
  struct rlimit limit;
  if (syscall(SYS_gettid) != getpid() || getrlimit(RLIMIT_STACK, &limit) != 0) {
    __real_x_cgo_getstackbound(bounds);
    return;
  }
  bounds[1] = ((uintptr_t)__libc_stack_end + page) & ~(uintptr_t)(page - 1);
  bounds[0] = bounds[1] - (limit.rlim_cur > largest ? largest : limit.rlim_cur);
}
