/* Shows what nvidia-smi asks of NVML's private table: stands before the real library (slots.sh), gives out the table
 * with a recorder before every slot, and writes each call's arguments, the memory that they point to before and after
 * it, and its result to $SLOTS_OUT. The same for some public functions whose prototypes are not known. x86-64 only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SLOTS = 1024, NAMED = 2000, SHOWN = 160, DEPTH = 16 };

static void *real_slot[SLOTS];
static void *library;
static const char *const names[] = {"nvmlDeviceGetRemappedRows_v2", "nvmlDeviceGetUnrepairableMemoryFlag_v1",
                                    "nvmlDeviceReadPRMCounters_v1",
                                    "nvmlGpmMetricsGet", "nvmlGpmSampleGet", "nvmlGpmSampleAlloc"};

struct seen { size_t bytes; uint8_t data[SHOWN]; };
static __thread struct { uint32_t id; uint64_t args[6]; uint64_t back; struct seen before[6]; } calls[DEPTH];
static __thread int depth;

static FILE *out(void) {
  static FILE *f;
  if (!f) {
    const char *path = getenv("SLOTS_OUT");
    f = path ? fopen(path, "a") : stderr;
    if (!f) f = stderr;
    setvbuf(f, NULL, _IOLBF, 0);
  }
  return f;
}

static void look(uint64_t at, struct seen *s) {
  s->bytes = 0;
  if (at < 0x10000) return;
  for (size_t n = SHOWN; n >= 8 && s->bytes == 0; n /= 2) {
    struct iovec to = {s->data, n}, from = {(void *)at, n};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)n) s->bytes = n;
  }
}

static void hex(const char *label, int i, const struct seen *s) {
  size_t n = s->bytes;
  while (n > 32 && s->data[n - 1] == 0) n--;
  fprintf(out(), "    arg%d %s", i, label);
  for (size_t k = 0; k < n; k++) fprintf(out(), "%s%02x", k % 4 ? "" : " ", s->data[k]);
  fprintf(out(), "\n");
}

/* regs: r9 r8 rcx rdx rsi rdi, then the return address. Gives the function to go to. */
__attribute__((used, visibility("hidden"))) void *slots_enter(uint32_t id, const uint64_t *regs) {
  if (depth >= DEPTH) abort();
  int d = depth++;
  calls[d].id = id;
  calls[d].back = regs[6];
  for (int i = 0; i < 6; i++) {
    calls[d].args[i] = regs[5 - i];
    look(calls[d].args[i], &calls[d].before[i]);
  }
  if (id < SLOTS) return real_slot[id];
  void *fn = dlsym(library, names[id - NAMED]);
  if (!fn) abort();
  return fn;
}

__attribute__((used, visibility("hidden"))) uint64_t slots_leave(uint64_t result) {
  int d = --depth;
  const uint64_t *a = calls[d].args;
  if (calls[d].id < SLOTS) fprintf(out(), "slot %u", calls[d].id);
  else fprintf(out(), "%s", names[calls[d].id - NAMED]);
  fprintf(out(), "(%llx, %llx, %llx, %llx, %llx, %llx) = %d\n", (long long)a[0], (long long)a[1], (long long)a[2],
          (long long)a[3],
          (long long)a[4], (long long)a[5], (int)result);
  for (int i = 0; i < 6; i++) {
    struct seen now;
    if (calls[d].before[i].bytes == 0) continue;
    look(a[i], &now);
    int same = now.bytes == calls[d].before[i].bytes && memcmp(now.data, calls[d].before[i].data, now.bytes) == 0;
    hex(same ? "same  " : "before", i, &calls[d].before[i]);
    if (!same) hex("after ", i, &now);
  }
  if (calls[d].id == 145) {   /* samples of processes: the words that are not 0, with their offsets */
    static uint32_t words[16384];
    struct iovec to = {words, sizeof words}, from = {(void *)a[4], sizeof words};
    for (; to.iov_len >= 1024 &&
         process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)to.iov_len; to.iov_len /= 2, from.iov_len /= 2) {}
    fprintf(out(), "    samples of %zu bytes:", to.iov_len);
    for (size_t k = 0; k < to.iov_len / 4; k++)
      if (words[k]) fprintf(out(), " %zu:%x", 4 * k, words[k]);
    fprintf(out(), "\n");
  }
  return calls[d].back;
}

__asm__(
    ".hidden slots_common\n.globl slots_common\nslots_common:\n"
    "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n"
    "  mov %rsp, %rsi\n  mov %eax, %edi\n  sub $8, %rsp\n  call slots_enter\n  add $8, %rsp\n"
    "  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"
    "  lea slots_after(%rip), %r11\n  mov %r11, (%rsp)\n  jmp *%rax\n"
    "slots_after:\n"
    "  push %rax\n  sub $8, %rsp\n  mov %rax, %rdi\n  call slots_leave\n  mov %rax, %r11\n  add $8, %rsp\n  pop %rax\n"
    "  jmp *%r11\n");
extern char slots_common[];

#define NAMED_STUB(n, name) __asm__(".globl " #name "\n" #name ": mov $2000+" #n ", %eax\n jmp slots_common\n")
NAMED_STUB(0, nvmlDeviceGetRemappedRows_v2);
NAMED_STUB(1, nvmlDeviceGetUnrepairableMemoryFlag_v1);
NAMED_STUB(2, nvmlDeviceReadPRMCounters_v1);
NAMED_STUB(3, nvmlGpmMetricsGet);
NAMED_STUB(4, nvmlGpmSampleGet);
NAMED_STUB(5, nvmlGpmSampleAlloc);

__attribute__((constructor)) static void begin(void) {
  library = dlopen(REAL, RTLD_NOW);
  if (!library) {
    fprintf(stderr, "slots: %s\n", dlerror());
    exit(2);
  }
}

int nvmlInternalGetExportTable(const void **table, const unsigned char *uuid) {
  static uint64_t words[SLOTS];
  int (*fn)(const void **, const unsigned char *) = (int (*)(const void **, const unsigned char *))dlsym(library,
      "nvmlInternalGetExportTable");
  const uint64_t *theirs;
  int r = fn((const void **)&theirs, uuid);
  if (r != 0) return r;
  size_t n = theirs[0] / 8;
  if (n > SLOTS) abort();
  fprintf(out(), "table ");
  for (int i = 0; i < 16; i++) fprintf(out(), "%02x", uuid[i]);
  fprintf(out(), ": %zu words\n", n);
  if (words[0] == 0) {
    uint8_t *code = mmap(NULL, SLOTS * 32, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) abort();
    for (uint32_t k = 1; k < n; k++) {
      uint8_t *p = code + 32 * k;
      uint64_t to = (uint64_t)(uintptr_t)slots_common;
      real_slot[k] = (void *)(uintptr_t)theirs[k];
      p[0] = 0xb8;                            /* mov $k, %eax */
      memcpy(p + 1, &k, 4);
      p[5] = 0x49, p[6] = 0xbb;               /* movabs $to, %r11 */
      memcpy(p + 7, &to, 8);
      p[15] = 0x41, p[16] = 0xff, p[17] = 0xe3;   /* jmp *%r11 */
      words[k] = theirs[k] ? (uint64_t)(uintptr_t)p : 0;
    }
    words[0] = theirs[0];
  }
  *table = words;
  return 0;
}
