// Calls every function of libcuda.so.1 or libnvidia-ml.so.1 in many ways and prints what it answers: rightly, with
// wrong arguments one at a time, before the library is initialised, and in a forked child. The calls are the lines of
// testdata/answers/{cuda,nvml}.calls (written by api/gen).
//
//   answers FILE.calls [-w] [-j PROCESSES] [FUNCTION|FUNCTION:CASE|:CASE ...]
//
// A line of output: function, case, answer (a number, the signal that ended the process, TIMEOUT, or "no X" where
// something that the call needs cannot be made), then what the call wrote. Each call runs in a process that may end;
// the next one goes on behind it. With -w it prints which bytes of its buffers a call writes: buffers are filled with
// marks, twice, with one the complement of the other, so that every byte written changes in one of the two calls.
// Behind the answer stands PARAMETER=BEGIN-END[,BEGIN-END…] for each buffer that could be marked; what the call reads
// is marked only behind its end, PARAMETER+SIZE=…, unless the call answers the same to a buffer full of marks.
// With ANSWERS_SENT=OFFSET a fourth column says whether a call that succeeded sent anything: OFFSET is where the
// library keeps how much it has sent.
#define _GNU_SOURCE
#include "answers.h"

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PARAMS = 24, MAX_CASES = 12000, TEXT = 600, AGAIN = 7, PATIENCE = 8 };

struct param {
  const char *name, *out, *token;
  // marks: 'o' the buffer is only written, 'i' its first `reads` bytes are read, 't' as 'i', but it may hold any
  // numbers; 0 no output
  char kind, marks;
  size_t reads;
};
struct function {
  const char *name;
  void *address;
  int params;
  struct param param[MAX_PARAMS];
};
struct answer {
  int done, quiet; // quiet: a success without a command
  char text[TEXT];
};
struct test {
  struct function *f;
  const char *name; // "right", "before", "child", or PARAM=WHAT
  int param;        // that is wrong, or -1
  const char *what;
};

static struct function functions[1600];
static struct test tests[MAX_CASES];
static struct answer *answers;
static int function_count, test_count, nvml, marked;
static const volatile uint64_t *sent; // by the library; NULL: not asked for

// ---- The lines.

static char *word(char **at, char end) {
  char *begin = *at, *p = begin;
  while (*p && *p != end) p++;
  if (*p) *p++ = 0;
  *at = p;
  return begin;
}

static void add(struct function *f, const char *name, int param, const char *what) {
  if (test_count == MAX_CASES) FAIL("more than %d cases", MAX_CASES);
  tests[test_count++] = (struct test){f, name, param, what};
}

// The maker's name in a token.
static const char *object(const char *token) { return strchr(token, ':') ? strchr(token, ':') + 1 : token + 1; }

static void add_wrong(struct function *f, int i, const char *skip) {
  static const struct { char kind; const char *what[4]; } ways[] = {
      {'P', {"null"}}, {'H', {"null", "junk", "dead"}}, {'h', {"null", "junk"}}, {'D', {"-1", "99"}},
      {'A', {"null", "junk"}}, {'S', {"0", "huge"}},
      {'C', {"0"}},    {'F', {"-1"}},                   {'E', {"999"}},      {'V', {"-1"}},
  };
  for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
    for (int w = 0; ways[k].kind == f->param[i].kind && w < 4 && ways[k].what[w]; w++) {
      char name[200], needle[208];
      snprintf(name, sizeof name, "%s=%s", f->param[i].name, ways[k].what[w]);
      snprintf(needle, sizeof needle, ",%s,", name);
      if (!strcmp(ways[k].what[w], "dead") && !(nvml ? ends_nvml : ends_cuda)(object(f->param[i].token))) continue;
      if (!strstr(skip, needle)) add(f, strdup(name), i, ways[k].what[w]);
    }
}

// NAME SKIPPED PARAM… where SKIPPED is ",case,case," and a PARAM name/kind/out/marks/token.
static void parse(char *line) {
  struct function *f = &functions[function_count++];
  f->name = word(&line, ' ');
  const char *skip = word(&line, ' ');
  while (*line) {
    char *text = word(&line, ' ');
    struct param *p = &f->param[f->params++];
    p->name = word(&text, '/'), p->kind = *word(&text, '/'), p->out = word(&text, '/');
    const char *marks = word(&text, '/');
    if (*marks) p->marks = *marks, p->reads = strtoul(marks + 1, NULL, 10);
    p->token = text;
  }
  if (!strstr(skip, ",before,")) add(f, "before", -1, NULL);
  if (!strstr(skip, ",right,")) add(f, "right", -1, NULL);
  for (int i = 0; i < f->params; i++)
    if (!strstr(skip, ",wrong,")) add_wrong(f, i, skip);
  if (!strstr(skip, ",child,")) add(f, "child", -1, NULL);
}

// ---- Arguments.

static char *arena, *arena_next, *last_room;
static size_t last_size;
enum { ARENA = 8 << 20 };

void *room(size_t n) {
  char *p = arena_next;
  last_room = p, last_size = n;
  arena_next += (n + 255) & ~(size_t)255;
  if (arena_next > arena + ARENA) FAIL("the arena is full");
  return p;
}

// Marks: those of one call are the complement of the other's.
static int marking;   // 0: buffers are zero; 1 and 2: the two marks
static int mark_read; // also what the call reads, or may read, where that may be any number

static void mark(const struct param *p, char *buffer, size_t size) {
  if (!marking || !p->marks) return;
  for (size_t i = mark_read && p->marks != 'i' ? 0 : p->reads; i < size; i++)
    buffer[i] = (char)((i * 37 + 11) ^ (marking == 2 ? 0xff : 0));
}

static const char *missing; // what could not be made for this call

static uint64_t maker(const char *name, int initialised) {
  if (!initialised) return 0;
  uint64_t value = 0;
  int r = nvml ? make_nvml(name, &value) : make_cuda(name, &value);
  if (r && !missing) {
    char text[100];
    snprintf(text, sizeof text, "no %s (%d)", name, r);
    missing = strdup(text);
  }
  return value;
}

// A value of a buffer at *at, up to , or the end: x<hex bytes>, m<maker>.
static void place(char *buffer, const char *text, int initialised) {
  while (*text) {
    char *end;
    long offset = strtol(text, &end, 10);
    text = end + 1; // =
    if (*text == 'x') {
      for (text++; *text && *text != ','; text += 2) {
        int byte;
        sscanf(text, "%2x", &byte);
        buffer[offset++] = (char)byte;
      }
    } else {
      char name[100];
      int n = 0;
      for (text++; *text && *text != ','; text++) name[n++] = *text;
      name[n] = 0;
      uint64_t v = maker(name, initialised);
      memcpy(buffer + offset, &v, 8);
    }
    if (*text == ',') text++;
  }
}

struct value {
  uint64_t word;
  int is_float, words; // words: a structure by value that lies at word
  size_t size;         // of the buffer at word, 0: none
};

static struct value value(const struct param *p, int initialised) {
  const char *token = p->token;
  char *end;
  switch (*token) {
  case 'i': return (struct value){
    .word = token[1] == '-' ? (uint64_t)strtoll(token + 1, NULL, 0) : strtoull(token + 1, NULL, 0)
  };
  case 'f': {
    float f = strtof(token + 1, NULL);
    struct value v = {.is_float = 1};
    memcpy(&v.word, &f, 4);
    return v;
  }
  case 'm': {
    struct value v = {.word = maker(token + 1, initialised)};
    if (v.word && v.word == (uintptr_t)last_room && p->marks == 'o') v.size = last_size, mark(p, last_room, last_size);
    return v;
  }
  case 't': {
    char *text = room(strlen(token) + 1);
    strcpy(text, token + 1);
    return (struct value){.word = (uintptr_t)text};
  }
  case 'w': {
    struct value v = {.words = (int)strtol(token + 1, &end, 10)};
    v.word = *end ? maker(end + 1, initialised) : 0;
    if (!v.word) v.word = (uintptr_t)room(8 * v.words);
    return v;
  }
  case 'b': {
    size_t size = strtoul(token + 1, &end, 10);
    char *buffer = room(size);
    mark(p, buffer, size);
    if (*end == ':') place(buffer, end + 1, initialised);
    return (struct value){.word = (uintptr_t)buffer, .size = size};
  }
  }
  FAIL("no token: %s", token);
}

static uint64_t wrong(const struct param *p, const char *what) {
  if (!strcmp(what, "null") || !strcmp(what, "0")) return 0;
  if (!strcmp(what, "huge")) return 1ull << 60;
  if (!strcmp(what, "junk")) return p->kind == 'A' ? 0xdead0000 : (uintptr_t)room(4096);
  if (!strcmp(what, "dead")) {
    char name[100];
    snprintf(name, sizeof name, "dead:%s", object(p->token));
    return maker(name, 1);
  }
  return (uint64_t)strtoll(what, NULL, 0);
}

// ---- A call.

typedef uint64_t any_function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, double, double, uint64_t,
                              uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                              uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                              uint64_t);

// The x86-64 convention: six words in registers, floats in others, the rest and large structures on the stack in order.
static int call(void *address, const struct value *v, int n) {
  uint64_t r[6] = {0}, s[16] = {0};
  double x[2] = {0};
  int nr = 0, ns = 0, nx = 0;
  for (int i = 0; i < n; i++) {
    if (v[i].is_float) memcpy(&x[nx++], &v[i].word, 4);
    else if (v[i].words) {
      memcpy(&s[ns], (void *)v[i].word, 8 * v[i].words);
      ns += v[i].words;
    } else if (nr < 6) r[nr++] = v[i].word;
    else s[ns++] = v[i].word;
  }
  return (int)((any_function *)address)(r[0], r[1], r[2], r[3], r[4], r[5], x[0], x[1], s[0], s[1], s[2], s[3], s[4],
                                        s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12],
                                        s[13], s[14], s[15]);
}

// What a successful call wrote: h (a handle or address: only whether it is one), u/i/f with a size, t (text), s with a
// size (digest), ~ (varies).
static void show(char *text, const struct function *f, const struct value *v) {
  for (int i = 0; i < f->params; i++) {
    const struct param *p = &f->param[i];
    const void *at = (void *)v[i].word;
    if (!*p->out || !at) continue;
    size_t used = strlen(text);
    char *to = text + used;
    size_t left = TEXT - used;
    int n = snprintf(to, left, " %s=", p->name);
    to += n, left -= n;
    uint64_t u = 0;
    int size = atoi(p->out + 1);
    switch (*p->out) {
    case '~': snprintf(to, left, "~"); break;
    case 'h': memcpy(&u, at, 8), snprintf(to, left, u ? "*" : "0"); break;
    case 'u': memcpy(&u, at, size), snprintf(to, left, "%llu", (unsigned long long)u); break;
    case 'i':
      memcpy(&u, at, size);
      snprintf(to, left, "%lld", size == 4 ? (long long)(int32_t)u : size == 2 ? (long long)(int16_t)u :
               size == 1 ? (long long)(int8_t)u : (long long)u);
      break;
    case 'f': {
      float x;
      memcpy(&x, at, 4), snprintf(to, left, "%g", x);
      break;
    }
    case 't': snprintf(to, left < 100 ? left : 100, "\"%s\"", (const char *)at); break;
    case 's': snprintf(to, left, "%016llx", (unsigned long long)digest(at, size)); break;
    }
  }
}

// Makes the arguments of a call; 0: something is missing.
static int prepare(const struct test *t, struct value *v) {
  int initialised = strcmp(t->name, "before") != 0;
  if (initialised && marking && !nvml) cuCtxSetCurrent(context); // the call before may have taken it away
  arena_next = arena, missing = NULL;
  memset(arena, 0, 1 << 20);
  for (int i = 0; i < t->f->params; i++) {
    v[i] = value(&t->f->param[i], initialised);
    if (i == t->param) v[i].word = wrong(&t->f->param[i], t->what), v[i].size = 0;
  }
  return !missing;
}

// The buffers of a call before and after it.
struct buffers {
  char *before[MAX_PARAMS], *after[MAX_PARAMS];
};

static char *copy(const void *from, size_t n) {
  char *to = malloc(n + 1);
  if (!to) FAIL("no memory");
  return memcpy(to, from, n);
}

static int call_marked(const struct test *t, struct value *v, struct buffers *b) {
  if (!prepare(t, v)) return -1;
  for (int i = 0; i < t->f->params; i++) b->before[i] = copy((void *)v[i].word, v[i].size);
  alarm(PATIENCE);
  int r = call(t->f->address, v, t->f->params);
  alarm(0);
  for (int i = 0; i < t->f->params; i++) b->after[i] = copy((void *)v[i].word, v[i].size);
  return r;
}

// The extents of bytes that were marked, and that one of the two calls changed.
static void show_written(char *text, const struct param *p, size_t size, const struct buffers *b, int i) {
  size_t used = strlen(text), from = 0;
  for (from = 0; from < size && b[0].before[i][from] == b[1].before[i][from];) from++;
  if (from == size) return;
  used += snprintf(text + used, TEXT - used, p->marks == 'i' || !mark_read ? " %s+%zu=" : " %s=", p->name, p->reads);
  const char *comma = "";
  for (size_t at = 0, end; at < size && used < TEXT - 40; at = end) {
    for (end = at; end < size && b[0].before[i][end] != b[1].before[i][end] &&
         (b[0].before[i][end] != b[0].after[i][end] || b[1].before[i][end] != b[1].after[i][end]);) end++;
    if (end > at) used += snprintf(text + used, TEXT - used, "%s%zu-%zu", comma, at, end), comma = ",";
    else end++;
  }
}

// What a call writes.
static void run_marked(int index) {
  const struct test *t = &tests[index];
  struct answer *a = &answers[index];
  struct value v[MAX_PARAMS];
  struct buffers b[2];
  char text[TEXT];
  int plain = 0, same = 0;
  marking = 0;
  if (prepare(t, v)) {
    alarm(PATIENCE);
    plain = call(t->f->address, v, t->f->params);
    alarm(0);
  }
  for (mark_read = 1; mark_read >= 0 && !missing && !same; mark_read--) {
    int r[2];
    for (marking = 1; marking <= 2 && !missing; marking++) r[marking - 1] = call_marked(t, v, &b[marking - 1]);
    if (missing) break;
    same = r[0] == plain && r[1] == plain;
    snprintf(text, TEXT, same ? "%d" : "%d, with marks %d and %d", plain, r[0], r[1]);
    if (same) break;
  }
  if (missing) snprintf(text, TEXT, "%s", missing);
  for (int i = 0; i < t->f->params && same; i++)
    if (v[i].size && t->f->param[i].marks) show_written(text, &t->f->param[i], v[i].size, b, i);
  strcpy(a->text, text);
  a->done = 1;
}

static void run(int index) {
  struct test *t = &tests[index];
  struct answer *a = &answers[index];
  struct value v[MAX_PARAMS];
  if (!prepare(t, v)) {
    snprintf(a->text, TEXT, "%s", missing);
    a->done = 1;
    return;
  }
  if (strcmp(t->name, "child") == 0) {
    pid_t child = fork();
    if (child == 0) {
      alarm(PATIENCE);
      snprintf(a->text, TEXT, "%d", call(t->f->address, v, t->f->params));
      a->done = 1;
      _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) FAIL("fork: %s", strerror(errno));
    if (!a->done)
      snprintf(a->text, TEXT, WIFSIGNALED(status) ? "%s" : "EXIT",
               WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "");
    a->done = 1;
    return;
  }
  alarm(PATIENCE);
  uint64_t before = sent ? *sent : 0;
  int r = call(t->f->address, v, t->f->params);
  a->quiet = sent && !r && *sent == before;
  alarm(0);
  char text[TEXT];
  snprintf(text, TEXT, "%d", r);
  if (r == 0) show(text, t->f, v);
  strcpy(a->text, text);
  a->done = 1;
}

// ---- Processes.

// Wrong calls come last: they may leave damage behind that shows later.
enum phase { BEFORE, RIGHT, WRONG };
static enum phase phase_of(const struct test *t) {
  return !strcmp(t->name, "before") ? BEFORE : !strcmp(t->name, "right") || !strcmp(t->name, "child") ? RIGHT : WRONG;
}

// A session runs the cases of one worker from *next on, until all are done or its state is damaged.
static void session(const int *mine, int count, int *next, enum phase phase) {
  int initialised = phase != BEFORE;
  signal(SIGALRM, SIG_DFL);
  dup2(2, 1); // the driver may say something
  int started = !initialised;
  // a server may be slow with many at once
  for (int i = 0; i < 10 && !started; i++) started = (nvml ? start_nvml() : start_cuda()) == 0;
  if (!started) FAIL("cannot start");
  for (; *next < count; ++*next) {
    struct test *t = &tests[mine[*next]];
    if (phase_of(t) != phase) continue;
    alarm(PATIENCE);
    if (initialised && !(nvml ? sound_nvml : sound_cuda)()) _exit(AGAIN);
    (marked ? run_marked : run)(mine[*next]);
    alarm(0);
  }
  _exit(0);
}

static void worker(const int *mine, int count, int *next, enum phase phase) {
  for (*next = 0; *next < count;) {
    int before = *next;
    pid_t child = fork();
    if (child == 0) session(mine, count, next, phase);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) FAIL("fork: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    struct answer *a = &answers[mine[*next]];
    if (WIFEXITED(status) && WEXITSTATUS(status) == AGAIN && *next > before) continue;
    if (!a->done) {
      if (WIFSIGNALED(status))
        snprintf(a->text, TEXT, "%s", WTERMSIG(status) == SIGALRM ? "TIMEOUT" :
                 WTERMSIG(status) == SIGSEGV ? "SIGSEGV" : strsignal(WTERMSIG(status)));
      else snprintf(a->text, TEXT, "EXIT %d", WEXITSTATUS(status));
      a->done = 1;
    }
    ++*next;
  }
}

static int wanted(const struct test *t, int argc, char **argv) {
  if (marked) {
    int outputs = 0;
    for (int i = 0; i < t->f->params; i++) outputs += t->f->param[i].marks != 0;
    if (!outputs || !strcmp(t->name, "child")) return 0;
  }
  for (int i = 0; i < argc; i++) {
    size_t n = strlen(t->f->name);
    if (!strcmp(argv[i], t->f->name) || (argv[i][0] == ':' && !strcmp(argv[i] + 1, t->name)) ||
        (!strncmp(argv[i], t->f->name, n) && argv[i][n] == ':' && !strcmp(argv[i] + n + 1, t->name))) return 1;
  }
  return argc == 0;
}

static void report(int number) { // also what there is so far, when told to end
  for (int i = 0; i < test_count; i++)
    if (answers[i].done)
      printf("%s\t%s\t%s%s\n", tests[i].f->name, tests[i].name, answers[i].text,
             !sent ? "" : answers[i].quiet ? "\tquiet" : "\tsent");
  fflush(stdout);
  _exit(number);
}

int main(int argc, char **argv) {
  if (argc < 2) FAIL("which calls?");
  kernels_folder = argv[1];
  char *slash = strrchr(argv[1], '/'), *base = slash ? slash + 1 : argv[1];
  nvml = strncmp(base, "nvml", 4) == 0;
  FILE *f = fopen(argv[1], "r");
  if (!f) FAIL("%s: %s", argv[1], strerror(errno));
  int jobs = 1;
  argc -= 2, argv += 2;
  if (argc >= 1 && !strcmp(argv[0], "-w")) marked = 1, argc--, argv++;
  if (argc >= 2 && !strcmp(argv[0], "-j")) jobs = atoi(argv[1]), argc -= 2, argv += 2;
  void *library = dlopen(nvml ? "libnvidia-ml.so.1" : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) FAIL("%s", dlerror());
  Dl_info info;
  if (getenv("ANSWERS_SENT") && dladdr(dlsym(library, "cuInit"), &info))
    sent = (const uint64_t *)((char *)info.dli_fbase + strtoull(getenv("ANSWERS_SENT"), NULL, 16));
  char *line = NULL;
  size_t size = 0;
  ssize_t n;
  while ((n = getline(&line, &size, f)) > 0) {
    if (line[n - 1] == '\n') line[n - 1] = 0;
    if (*line && *line != '#') parse(strdup(line));
  }
  fclose(f);
  for (int i = 0; i < function_count; i++) functions[i].address = dlsym(library, functions[i].name);
  arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  answers = mmap(NULL, sizeof *answers * MAX_CASES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int *next = mmap(NULL, sizeof(int) * (jobs + 1), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED || answers == MAP_FAILED || next == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
  library_of_makers = library;
  for (int k = 0; k < jobs; k++) {
    if (jobs > 1 && fork() != 0) continue;
    int *mine = calloc(test_count, sizeof *mine), count = 0;
    for (int i = 0; i < test_count; i++) {
      if (!wanted(&tests[i], argc, argv)) continue;
      if ((tests[i].f - functions) % jobs != k) continue;
      if (!tests[i].f->address) {
        snprintf(answers[i].text, TEXT, "absent");
        answers[i].done = 1;
      } else mine[count++] = i;
    }
    for (enum phase p = BEFORE; p <= WRONG; p++) worker(mine, count, &next[k], p);
    if (jobs > 1) _exit(0);
  }
  signal(SIGTERM, report);
  while (wait(NULL) > 0) {}
  report(0);
}
