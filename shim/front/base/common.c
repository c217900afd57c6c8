#define _GNU_SOURCE
#include "base/common.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void scuda_futex_wait(_Atomic uint32_t *word, uint32_t value, uint32_t timeout_ms) {
  struct timespec limit = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ms ? &limit : NULL, NULL, 0);
}

void scuda_futex_wake(_Atomic uint32_t *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

void scuda_lock_slow(scuda_lock_t *l) {
  for (int i = 0; i < 200; i++) {
    uint32_t free_word = 0;
    if (atomic_load_explicit(&l->word, memory_order_relaxed) == 0 &&
        atomic_compare_exchange_weak_explicit(&l->word, &free_word, 1, memory_order_acquire, memory_order_relaxed))
      return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0) scuda_futex_wait(&l->word, 2, 0);
}

void scuda_unlock_slow(scuda_lock_t *l) { scuda_futex_wake(&l->word, 1); }

void scuda_store(void *to, const void *from, size_t size, const struct scuda_piece *pieces) {
  if (!pieces) {
    memcpy(to, from, size);
    return;
  }
  for (; pieces->to; pieces++) {
    size_t n = pieces->to - pieces->from;
    const char *at = (const char *)from + pieces->from;
    if (pieces->each == SCUDA_PIECE_TEXT) {
      size_t length = strnlen(at, n);
      if (length < n) n = length + 1;
    } else if (pieces->each) {
      uint32_t count;
      memcpy(&count, (const char *)from + pieces->count_at, sizeof count);
      if (count < n / pieces->each) n = count * (size_t)pieces->each;
    }
    memcpy((char *)to + pieces->from, at, n);
  }
}

/* --- log: SCUDA_LOG=level[,file=PATH] --- */

static _Atomic int log_level = INT_MIN;
static _Atomic int log_fd = 2;

static const char blanks[] = " \t\r\v\f\n";

/* Reads LEVEL, LEVEL,file=PATH or file=PATH; what is none of them is no setting. Package config reads it by the same
 * rules (config/configtest/values.json). */
static int log_setting(const char *text, int *level, char *path, size_t cap) {
  static const struct { const char *name; int level; } levels[] = {
      {"debug", SCUDA_DEBUG}, {"info", SCUDA_INFO}, {"warn", SCUDA_WARN}, {"error", SCUDA_ERROR}};
  text += strspn(text, blanks);
  size_t left = strlen(text);
  while (left && strchr(blanks, text[left - 1])) left--;
  for (int first = 1; left; first = 0) {
    const char *comma = memchr(text, ',', left);
    size_t n = comma ? (size_t)(comma - text) : left;
    int good = 0;
    if (n > 5 && !strncmp(text, "file=", 5)) good = (size_t)snprintf(path, cap, "%.*s", (int)n - 5, text + 5) < cap;
    for (size_t i = 0; first && i < sizeof levels / sizeof *levels; i++)
      if (strlen(levels[i].name) == n && !strncmp(text, levels[i].name, n)) { *level = levels[i].level; good = 1; }
    if (!good || (comma && n + 1 == left)) return -1;
    text += n + (comma != NULL);
    left -= n + (comma != NULL);
  }
  return 0;
}

static void log_setup(void) {
  char path[PATH_MAX] = "";
  int level = SCUDA_WARN;
  const char *text = getenv("SCUDA_LOG");
  if (text && log_setting(text, &level, path, sizeof path) != 0) {
    level = SCUDA_WARN;
    *path = 0;
  }
  if (*path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) atomic_store(&log_fd, fd);
  }
  atomic_store(&log_level, level);
}

int scuda_log_enabled(int level) {
  if (atomic_load(&log_level) == INT_MIN) log_setup();
  return level >= atomic_load(&log_level);
}

/* What a terminal may not be shown beside the control characters of ASCII: the others (C1), what has no form of its own
 * or changes the direction of what follows (Unicode's Cf), separators of lines, and what nobody has assigned. A test
 * compares it with Go's tables, by which transport.Printable goes. */
static int is_hidden(uint32_t c) {
  static const struct { uint32_t first, last; } ranges[] = {
      {0x80, 0x9f}, {0xad, 0xad}, {0x600, 0x605}, {0x61c, 0x61c}, {0x6dd, 0x6dd}, {0x70f, 0x70f}, {0x890, 0x891},
      {0x8e2, 0x8e2}, {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0xd800, 0xf8ff},
      {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0xfffe, 0xffff}, {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
      {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xffffffff}};
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
    if (c >= ranges[i].first && c <= ranges[i].last) return 1;
  return 0;
}

/* How many bytes of text are a character beyond ASCII in well-formed UTF-8; 0: none. */
static size_t utf8(const unsigned char *text, size_t n, uint32_t *c) {
  size_t k = *text >= 0xf0 ? 4 : *text >= 0xe0 ? 3 : *text >= 0xc0 ? 2 : 0;
  if (k == 0 || k > n || *text > 0xf4) return 0;
  *c = *text & (0x7fu >> k);
  for (size_t i = 1; i < k; i++) {
    if ((text[i] & 0xc0) != 0x80) return 0;
    *c = *c << 6 | (text[i] & 0x3fu);
  }
  static const uint32_t least[] = {0x80, 0x800, 0x10000};
  return *c < least[k - 2] ? 0 : k;
}

/* Texts of a server are among the lines: what moves the cursor, turns what follows around or begins a line of its own
 * is left out. */
static void make_printable(char *text, size_t n) {
  unsigned char *p = (unsigned char *)text;
  for (size_t i = 0, k; i < n; i += k) {
    uint32_t c = 0;
    k = 1;
    if (p[i] == '\n' || p[i] == '\t') p[i] = ' ';
    else if (p[i] < 0x20 || p[i] == 0x7f) p[i] = '?';
    else if (p[i] >= 0x80) {
      size_t length = utf8(p + i, n - i, &c);
      if (length != 0) k = length;
      if (length == 0 || is_hidden(c)) memset(p + i, '?', k);
    }
  }
}

void scuda_log(int level, const char *format, ...) {
  if (!scuda_log_enabled(level)) return;
  int saved = errno;
  const char *word = level >= SCUDA_ERROR ? "error" : level >= SCUDA_WARN ? "warning" : level >= SCUDA_INFO ? "info" :
                     "debug";
  char line[1024];
  int n = snprintf(line, sizeof line, "scuda: %s: ", word);
  va_list args;
  va_start(args, format);
  int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
  va_end(args);
  n += m < (int)sizeof line - n - 2 ? m : (int)sizeof line - n - 2;
  make_printable(line, (size_t)n);
  line[n++] = '\n';
  if (write(atomic_load(&log_fd), line, (size_t)n) < 0) { /* nowhere to say it */ }
  errno = saved;
}

/* --- configuration: package config has the rules --- */

/* Whether a file, which is looked at up to SETTINGS_MAX, has a line that is neither empty nor a comment. */
static int says_something(const char *path) {
  enum { SETTINGS_MAX = 64 << 10 };
  char text[1024];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  int found = 0, comment = 0;
  for (size_t at = 0; !found && at < SETTINGS_MAX;) {
    ssize_t n = read(fd, text, sizeof text);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      found = n < 0;   /* it is there and cannot be read; the one who reads it says so */
      break;
    }
    for (ssize_t i = 0; i < n && !found; i++) {
      if (text[i] == '\n') comment = 0;
      else if (text[i] == '#') comment = 1;
      else if (!comment) found = !memchr(blanks, text[i], sizeof blanks - 1);
    }
    at += (size_t)n;
  }
  close(fd);
  return found;
}

int scuda_configured(void) {
  char path[PATH_MAX];
  const char *server = getenv("SCUDA_SERVER"), *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
  if (server) return server[strspn(server, blanks)] != 0;
  int n = 0;
  if (base && *base == '/') n = snprintf(path, sizeof path, "%s/scuda/host", base);
  else if (home && *home) n = snprintf(path, sizeof path, "%s/.config/scuda/host", home);
  return n > 0 && (size_t)n < sizeof path && says_something(path);
}

/* --- the machine's own library --- */

/* stat by system call: the function is new in glibc 2.33. */
static int stat_of(const char *path, struct stat *st) {
#if defined(__x86_64__)
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
#else
  return stat(path, st);
#endif
}

int scuda_folder_of(const void *self, char *buf, size_t cap) {
  Dl_info info;
  char real[PATH_MAX];
  if (!dladdr(self, &info) || !info.dli_fname || !realpath(info.dli_fname, real)) return 0;
  char *slash = strrchr(real, '/');
  if (!slash) return 0;
  *slash = 0;
  return (size_t)snprintf(buf, cap, "%s", real) < cap;
}

static void *open_other(const char *path, const struct stat *own, const char *why);
void *scuda_open_other(const char *path, const void *self, const char *why) {
  struct stat own = {0};
  Dl_info info;
  if (dladdr(self, &info) && info.dli_fname) stat_of(info.dli_fname, &own);
  return open_other(path, &own, why);
}

static void *open_other(const char *path, const struct stat *own, const char *why) {
  struct stat st;
  if (stat_of(path, &st) || !S_ISREG(st.st_mode) || (st.st_dev == own->st_dev && st.st_ino == own->st_ino)) return NULL;
  /* Another copy of this library (a second installation) carries a symlink-free sibling core; it is not a driver
   * either. */
  char sibling[PATH_MAX], real[PATH_MAX];
  if (realpath(path, real)) {
    char *slash = strrchr(real, '/');
    if (slash) {
      *slash = 0;
      if ((size_t)snprintf(sibling, sizeof sibling, "%s/libscuda-core.so", real) < sizeof sibling &&
          !access(sibling, F_OK)) return NULL;
    }
  }
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle) scuda_log(SCUDA_DEBUG, "calls pass to %s (%s)", path, why);
  else scuda_log(SCUDA_WARN, "cannot open %s: %s", path, dlerror());
  return handle;
}

void *scuda_find_real(const char *soname, const char *env_override, const void *self) {
  static const char *const folders[] = {
      "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/usr/lib/wsl/lib",
      "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/run/opengl-driver/lib", "/usr/lib/nvidia",
      "/usr/lib/aarch64-linux-gnu"};
  struct stat own = {0};
  Dl_info info;
  if (dladdr(self, &info) && info.dli_fname) stat_of(info.dli_fname, &own);

  const char *override = getenv(env_override);
  if (override && *override) return open_other(override, &own, env_override);

  char path[PATH_MAX];
  const char *list = getenv("LD_LIBRARY_PATH");
  while (list && *list) {
    size_t n = strcspn(list, ":;");
    if (n && n < sizeof path - 64) {
      snprintf(path, sizeof path, "%.*s/%s", (int)n, list, soname);
      void *handle = open_other(path, &own, "LD_LIBRARY_PATH");
      if (handle) return handle;
    }
    list += n;
    if (*list) list++;
  }
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    snprintf(path, sizeof path, "%s/%s", folders[i], soname);
    void *handle = open_other(path, &own, "system folder");
    if (handle) return handle;
  }
  return NULL;
}

const void *scuda_find_table(const uint8_t id[16], uint64_t bytes, const char *ours, const void *self, void **front) {
  char folder[PATH_MAX], path[PATH_MAX + 16];
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library && scuda_folder_of(self, folder, sizeof folder)) {
    snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    library = dlopen(path, RTLD_LAZY);
  }
  if (!library) return NULL;
  int32_t (*get)(const void **, const void *);
  get = (int32_t (*)(const void **, const void *))dlsym(library, "cuGetExportTable");
  const void *table = NULL;
  if (!get || get(&table, id) || !table) return NULL;
  *front = library;
  if (*(const uint64_t *)table == bytes) return table;
  scuda_log(SCUDA_ERROR, "%s and libcuda.so.1 are of different releases of scuda; install one of them anew", ours);
  return NULL;
}

/* A library of the name in a folder of a list such as DT_RPATH; $ORIGIN is the folder of the one that has the list. */
static void *find_in(const char *list, const char *origin, const char *name, const void *self) {
  static const char *const words[] = {"$ORIGIN", "${ORIGIN}"};
  char path[PATH_MAX];
  for (; list && *list; list += strcspn(list, ":"), list += *list == ':') {
    size_t n = strcspn(list, ":"), skip = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
      if (!strncmp(list, words[i], strlen(words[i]))) skip = strlen(words[i]);
    int length = snprintf(path, sizeof path, "%s%.*s/%s", skip ? origin : "", (int)(n - skip), list + skip, name);
    if (!n || (size_t)length >= sizeof path) continue;
    void *found = scuda_open_other(path, self, "a search path of the library that calls it");
    if (found) return found;
  }
  return NULL;
}

void *scuda_find_for(const void *caller, const char *soname, const char *env_override, const void *self) {
  char origin[PATH_MAX];
  Dl_info info;
  struct link_map *map = NULL;
  void *found = NULL;
  if (dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) && map && scuda_folder_of(caller, origin, sizeof origin)) {
    const char *strings = NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
      if (d->d_tag == DT_STRTAB) strings = (const char *)d->d_un.d_ptr;
    for (const ElfW(Dyn) *d = map->l_ld; strings && !found && d->d_tag != DT_NULL; d++)
      if (d->d_tag == DT_RPATH || d->d_tag == DT_RUNPATH)
        found = find_in(strings + d->d_un.d_val, origin, soname, self);
  }
  return found ? found : scuda_find_real(soname, env_override, self);
}
