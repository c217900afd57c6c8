// The programs that run in the kernel. Entry and return probes of the driver libraries' functions all lead to enter()
// and leave(), which keep, for each thread, the calls that it is in, and add what ended to per-CPU histograms; the
// attach cookie is the function's index. Tracepoints follow the same processes' forks, ends, system calls and time
// without a CPU. Compiled by bpf2go (see ../ebpf.go); probes.go beside it reads the maps.

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

// What the loader decides.
volatile const __u32 follow;      // 1: only processes in `processes`; 0: whoever calls a probed function gets into it
volatile const __u32 per_process; // 1: count for each process too
volatile const __u64 stall_ns;    // calls of at least this length are kept with their stacks; 0: none

enum { BUCKETS = 40, DEPTH = 8, SYSCALLS = 512, CLASSES = 5, STACK = 64 };
enum { LOST_THREADS, LOST_NESTED, LOST_RETURNS, LOST_STALLS, LOST_KINDS };
enum { CLASS_NONE, CLASS_FILE, CLASS_NETWORK, CLASS_DEVICE, CLASS_OTHER };

// calls is what is known of one function. What was entered and neither ended nor was abandoned (by longjmp, or by the
// thread's end) is in flight.
struct calls {
  __u64 entered, ended, abandoned, ns, longest, off_cpu, bytes;
  __u64 histogram[BUCKETS]; // by the position of the highest bit of the nanoseconds
};

// operand says where a copy's size is: argument number `arg` (from 1), or, where fields > 0, the product of size_t
// fields of the structure that it points to.
struct operand {
  __u8 arg, fields;
  __u16 offset[3];
};

struct frame {
  __u64 start, off_cpu;
  __u32 function, unused;
};

struct thread {
  // beyond: calls nested deeper than the frames; number: the system call it is in, plus one
  __u32 process, depth, beyond, number;
  __u64 system_start, off_since;
  struct frame frames[DEPTH];
};

struct process {
  char name[16];
  __u64 over; // it has ended
};

struct key {
  __u32 process, function;
};

struct system {
  __u64 calls, ns, longest;
};

struct stall_key {
  __u32 process, function;
  __s64 stack;
};

struct stall {
  __u64 calls, ns, off_cpu;
};

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1); // set by the loader
  __type(key, __u32);
  __type(value, struct calls);
} functions SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1); // set by the loader
  __type(key, __u32);
  __type(value, struct operand);
} operands SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 65536);
  __type(key, struct key);
  __type(value, struct calls);
} by_process SEC(".maps");

struct { // ends with its task, and is found faster than by a number
  __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, int);
  __type(value, struct thread);
} threads SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 16384);
  __type(key, __u32);
  __type(value, struct process);
} processes SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, SYSCALLS * CLASSES);
  __type(key, __u32);
  __type(value, struct system);
} system_calls SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 16384);
  __type(key, struct stall_key);
  __type(value, struct stall);
} stalls SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_STACK_TRACE);
  __uint(max_entries, 8192);
  __uint(key_size, sizeof(__u32));
  __uint(value_size, STACK * sizeof(__u64));
} stacks SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, LOST_KINDS);
  __type(key, __u32);
  __type(value, __u64);
} lost SEC(".maps");

static void lose(__u32 kind) {
  __u64 *n = bpf_map_lookup_elem(&lost, &kind);
  if (n) (*n)++;
}

static bool followed(__u32 process) {
  struct process *p = bpf_map_lookup_elem(&processes, &process);
  return p && !p->over;
}

static __always_inline void abandon(__u32 process, __u32 function) {
  struct calls *f = bpf_map_lookup_elem(&functions, &function);
  if (f) f->abandoned++;
  if (!per_process) return;
  struct key k = {process, function};
  f = bpf_map_lookup_elem(&by_process, &k);
  if (f) f->abandoned++;
}

// known gives what is kept of the current thread, or NULL; begin makes it.
static __always_inline struct thread *known(void) {
  return bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
}

static __always_inline struct thread *begin(__u32 process) {
  struct thread *t = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
  if (t)
    t->process = process;
  else
    lose(LOST_THREADS);
  return t;
}

// caller gives the calling thread, or NULL when its process is not looked at.
static __always_inline struct thread *caller(void) {
  struct thread *t = known();
  if (t) return t;
  __u32 process = bpf_get_current_pid_tgid() >> 32;
  if (!followed(process)) {
    if (follow) return 0;
    struct process p = {};
    bpf_get_current_comm(p.name, sizeof p.name);
    bpf_map_update_elem(&processes, &process, &p, BPF_ANY);
  }
  return begin(process);
}

// A register of the context, loaded at a constant offset; the compiler would compute an address, which the verifier
// refuses.
#define REGISTER(c, field) \
  ({ \
    __u64 v; \
    __asm__ volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(v) : "r"(c), "i"(__builtin_offsetof(struct pt_regs, field))); \
    v; \
  })

static __always_inline __u64 argument(struct pt_regs *c, __u32 n) {
  switch (n) {
  case 1: return REGISTER(c, rdi);
  case 2: return REGISTER(c, rsi);
  case 3: return REGISTER(c, rdx);
  case 4: return REGISTER(c, rcx);
  case 5: return REGISTER(c, r8);
  case 6: return REGISTER(c, r9);
  }
  return 0;
}

static __always_inline __u64 size_of(struct pt_regs *c, __u32 function) {
  struct operand *o = bpf_map_lookup_elem(&operands, &function);
  if (!o || !o->arg) return 0;
  __u64 value = argument(c, o->arg);
  if (!o->fields) return value;
  __u64 product = 1;
  for (int i = 0; i < 3; i++) {
    if (i >= o->fields) break;
    __u64 field = 0;
    bpf_probe_read_user(&field, sizeof field, (void *)(value + o->offset[i]));
    product *= field;
  }
  return product;
}

// enter says whether the call's return is wanted.
static __always_inline bool enter(struct pt_regs *c) {
  struct thread *t = caller();
  if (!t) return false;
  __u32 function = bpf_get_attach_cookie(c);
  struct calls *f = bpf_map_lookup_elem(&functions, &function);
  if (!f) return false;
  f->entered++;
  f->bytes += size_of(c, function);
  if (per_process) {
    struct key k = {t->process, function};
    struct calls *p = bpf_map_lookup_elem(&by_process, &k);
    if (p) {
      p->entered++;
      p->bytes += size_of(c, function);
    } else {
      struct calls first = {.entered = 1, .bytes = size_of(c, function)};
      bpf_map_update_elem(&by_process, &k, &first, BPF_NOEXIST);
    }
  }
  __u32 depth = t->depth;
  if (depth >= DEPTH) {
    t->beyond++;
    lose(LOST_NESTED);
    return true;
  }
  struct frame *now = &t->frames[depth & (DEPTH - 1)];
  now->function = function;
  now->off_cpu = 0;
  t->depth = depth + 1;
  now->start = bpf_ktime_get_ns();
  return true;
}

static __always_inline __u32 bucket(__u64 v) {
  __u32 b = 0;
  if (v >> 32) { b += 32; v >>= 32; }
  if (v >> 16) { b += 16; v >>= 16; }
  if (v >> 8) { b += 8; v >>= 8; }
  if (v >> 4) { b += 4; v >>= 4; }
  if (v >> 2) { b += 2; v >>= 2; }
  if (v >> 1) b += 1;
  return b < BUCKETS ? b : BUCKETS - 1;
}

static __always_inline void add(struct calls *f, __u64 ns, __u64 off_cpu, __u32 b) {
  f->ended++;
  f->ns += ns;
  f->off_cpu += off_cpu;
  if (ns > f->longest) f->longest = ns;
  if (b < BUCKETS) f->histogram[b]++;
}

static __always_inline void stalled(struct pt_regs *c, struct stall_key *k, __u64 ns, __u64 off_cpu) {
  k->stack = bpf_get_stackid(c, &stacks, BPF_F_USER_STACK);
  if (k->stack < 0) k->stack = -1;
  struct stall *s = bpf_map_lookup_elem(&stalls, k);
  if (!s) {
    struct stall none = {};
    bpf_map_update_elem(&stalls, k, &none, BPF_NOEXIST);
    s = bpf_map_lookup_elem(&stalls, k);
    if (!s) return lose(LOST_STALLS);
  }
  __sync_fetch_and_add(&s->calls, 1);
  __sync_fetch_and_add(&s->ns, ns);
  __sync_fetch_and_add(&s->off_cpu, off_cpu);
}

static __always_inline void leave(struct pt_regs *c) {
  __u64 now = bpf_ktime_get_ns();
  struct thread *t = known();
  if (!t) return;
  if (t->beyond) {
    t->beyond--;
    return;
  }
  __u32 function = bpf_get_attach_cookie(c);
  struct frame *f = 0;
  for (int i = 0; i < DEPTH; i++) { // frames above it were left by longjmp or an exception
    __u32 depth = t->depth;
    if (!depth) break;
    t->depth = --depth;
    struct frame *top = &t->frames[depth & (DEPTH - 1)];
    if (top->function == function) {
      f = top;
      break;
    }
    abandon(t->process, top->function);
  }
  if (!f) return lose(LOST_RETURNS);
  __u64 ns = now - f->start, off_cpu = f->off_cpu;
  if (t->depth) t->frames[(t->depth - 1) & (DEPTH - 1)].off_cpu += off_cpu;
  __u32 b = bucket(ns);
  struct calls *all = bpf_map_lookup_elem(&functions, &function);
  if (!all) return;
  add(all, ns, off_cpu, b);
  if (per_process) {
    struct key k = {t->process, function};
    struct calls *own = bpf_map_lookup_elem(&by_process, &k);
    // it was entered on another CPU; per-CPU values come into being on all at once, so this is an entry that did not
    // fit
    if (!own) {
      lose(LOST_THREADS);
    } else {
      add(own, ns, off_cpu, b);
    }
  }
  if (stall_ns && ns >= stall_ns) {
    struct stall_key k = {t->process, function, 0};
    stalled(c, &k, ns, off_cpu);
  }
}

extern bool bpf_session_is_return(void) __ksym;

SEC("uprobe.session")
int session(struct pt_regs *c) {
  if (!bpf_session_is_return()) return !enter(c); // 1: no return probe
  leave(c);
  return 0;
}

SEC("uprobe.multi")
int multi_enter(struct pt_regs *c) {
  enter(c);
  return 0;
}

SEC("uprobe.multi")
int multi_leave(struct pt_regs *c) {
  leave(c);
  return 0;
}

SEC("uprobe")
int single_enter(struct pt_regs *c) {
  enter(c);
  return 0;
}

SEC("uretprobe")
int single_leave(struct pt_regs *c) {
  leave(c);
  return 0;
}

// The few fields of the kernel's structures that are read; their offsets are the running kernel's (CO-RE).
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock_common { unsigned short skc_family; };
struct sock { struct sock_common __sk_common; };
struct socket { struct sock *sk; };
struct inode { unsigned short i_mode; };
struct file { struct inode *f_inode; void *private_data; };
struct fdtable { unsigned int max_fds; struct file **fd; };
struct files_struct { struct fdtable *fdt; };
struct task_struct { int pid, tgid; struct files_struct *files; };
#pragma clang attribute pop

static __always_inline __u32 class_of(__u32 fd) {
  struct task_struct *task = (void *)bpf_get_current_task();
  struct fdtable *table = BPF_CORE_READ(task, files, fdt);
  if (fd >= BPF_CORE_READ(table, max_fds)) return CLASS_OTHER;
  struct file **slots = BPF_CORE_READ(table, fd), *file = 0;
  bpf_probe_read_kernel(&file, sizeof file, &slots[fd]);
  if (!file) return CLASS_OTHER;
  switch (BPF_CORE_READ(file, f_inode, i_mode) & 0170000) {
  case 0100000: return CLASS_FILE;
  case 0020000: return CLASS_DEVICE;
  case 0140000: {
    struct socket *socket = BPF_CORE_READ(file, private_data);
    unsigned short family = BPF_CORE_READ(socket, sk, __sk_common.skc_family);
    return family == 2 || family == 10 ? CLASS_NETWORK : CLASS_OTHER; // AF_INET, AF_INET6
  }
  }
  return CLASS_OTHER;
}

// by_descriptor says whether a system call works on the descriptor in its first argument (numbers of x86-64).
static __always_inline bool by_descriptor(__u32 number) {
  switch (number) {
  case 0: case 1: case 3: case 17: case 18: case 19: case 20: // read write close pread64 pwrite64 readv writev
  case 44: case 45: case 46: case 47: case 299: case 307:     // sendto recvfrom sendmsg recvmsg recvmmsg sendmmsg
  case 295: case 296: case 327: case 328:                     // preadv pwritev preadv2 pwritev2
    return true;
  }
  return false;
}

enum { URETPROBE = 335, UPROBE = 336 }; // what probes themselves are made of on x86-64

SEC("raw_tp/sys_enter")
int system_enter(struct bpf_raw_tracepoint_args *c) {
  __u32 number = c->args[1];
  if (number == UPROBE || number == URETPROBE) return 0;
  struct thread *t = known();
  if (!t) {
    __u32 process = bpf_get_current_pid_tgid() >> 32;
    if (!followed(process)) return 0;
    t = begin(process);
    if (!t) return 0;
  }
  if (number >= SYSCALLS) return 0;
  __u32 index = number * CLASSES;
  if (by_descriptor(number)) {
    __u64 fd = 0;
    struct pt_regs *regs = (void *)c->args[0];
    bpf_probe_read_kernel(&fd, sizeof fd, &regs->rdi);
    index += class_of(fd);
  }
  struct system *s = bpf_map_lookup_elem(&system_calls, &index);
  if (!s) return 0;
  s->calls++;
  t->number = index + 1;
  t->system_start = bpf_ktime_get_ns();
  return 0;
}

SEC("raw_tp/sys_exit")
int system_leave(struct bpf_raw_tracepoint_args *c) {
  struct thread *t = known();
  if (!t || !t->number) return 0;
  __u32 index = t->number - 1;
  t->number = 0;
  struct system *s = bpf_map_lookup_elem(&system_calls, &index);
  if (!s) return 0;
  __u64 ns = bpf_ktime_get_ns() - t->system_start;
  s->ns += ns;
  if (ns > s->longest) s->longest = ns;
  return 0;
}

SEC("tp_btf/sched_switch")
int switched(__u64 *c) {
  struct thread *t = bpf_task_storage_get(&threads, (struct task_struct *)c[1], 0, 0);
  if (t && t->depth) t->off_since = bpf_ktime_get_ns();
  t = bpf_task_storage_get(&threads, (struct task_struct *)c[2], 0, 0);
  if (!t || !t->off_since) return 0;
  if (t->depth) t->frames[(t->depth - 1) & (DEPTH - 1)].off_cpu += bpf_ktime_get_ns() - t->off_since;
  t->off_since = 0;
  return 0;
}

SEC("raw_tp/sched_process_fork")
int forked(struct bpf_raw_tracepoint_args *c) {
  __u32 parent = BPF_CORE_READ((struct task_struct *)c->args[0], tgid),
      child = BPF_CORE_READ((struct task_struct *)c->args[1], tgid);
  if (parent == child || !follow) return 0;
  struct process *p = bpf_map_lookup_elem(&processes, &parent);
  if (!p || p->over) return 0;
  struct process copy = {};
  __builtin_memcpy(copy.name, p->name, sizeof copy.name);
  bpf_map_update_elem(&processes, &child, &copy, BPF_ANY);
  return 0;
}

SEC("raw_tp/sched_process_exec")
int executed(struct bpf_raw_tracepoint_args *c) {
  __u32 process = bpf_get_current_pid_tgid() >> 32;
  struct process *p = bpf_map_lookup_elem(&processes, &process);
  if (p) bpf_get_current_comm(p->name, sizeof p->name);
  return 0;
}

SEC("raw_tp/sched_process_exit")
int ended(struct bpf_raw_tracepoint_args *c) {
  __u64 both = bpf_get_current_pid_tgid();
  __u32 id = both, process = both >> 32;
  struct thread *t = known();
  if (t) {
    for (__u32 i = 0; i < DEPTH; i++) {
      if (i >= t->depth) break;
      abandon(t->process, t->frames[i].function);
    }
    t->depth = 0;
  }
  if (id == process) {
    struct process *p = bpf_map_lookup_elem(&processes, &process);
    if (p) p->over = 1;
  }
  return 0;
}
