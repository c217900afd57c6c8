/* What the two driver libraries of the shim share: configuration, logging, a lock, and the search for the machine's own
 * library. */
#ifndef SCUDA_COMMON_H
#define SCUDA_COMMON_H
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>

#define SCUDA_LIKELY(x) __builtin_expect(!!(x), 1)
#define SCUDA_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SCUDA_EXPORT __attribute__((visibility("default")))

/* A lock of one word that spins a little and then sleeps on a futex. Zero-initialised: free. */
typedef struct { _Atomic uint32_t word; } scuda_lock_t;
void scuda_lock_slow(scuda_lock_t *l);
void scuda_unlock_slow(scuda_lock_t *l);

static inline void scuda_lock(scuda_lock_t *l) {
  uint32_t free_word = 0;
  if (SCUDA_UNLIKELY(!atomic_compare_exchange_strong_explicit(&l->word, &free_word, 1, memory_order_acquire,
                                                              memory_order_relaxed)))
    scuda_lock_slow(l);
}
static inline void scuda_unlock(scuda_lock_t *l) {
  if (SCUDA_UNLIKELY(atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2)) scuda_unlock_slow(l);
}

/* Sleeps while *word == value, at most timeout_ms (0: for ever). Wakes: n waiters. */
void scuda_futex_wait(_Atomic uint32_t *word, uint32_t value, uint32_t timeout_ms);
void scuda_futex_wake(_Atomic uint32_t *word, int n);

enum { SCUDA_DEBUG = -4, SCUDA_INFO = 0, SCUDA_WARN = 4, SCUDA_ERROR = 8 };
int scuda_log_enabled(int level);
__attribute__((format(printf, 2, 3))) void scuda_log(int level, const char *format, ...);

/* A part of a structure that a call writes ("writes" in api/cuda.semantics); a list ends with to = 0. */
enum { SCUDA_PIECE_TEXT = 0xffff };   /* as `each`: up to its NUL */
struct scuda_piece { uint16_t from, to, each, count_at; };
/* Copies a structure, or the pieces of it where there is a list. */
void scuda_store(void *to, const void *from, size_t size, const struct scuda_piece *pieces);

/* Whether a server is configured: by SCUDA_SERVER (empty: none), else by the user's host file. What it says is read by
 * package config alone; the two agree on config/configtest/server.json. */
int scuda_configured(void);

/* Folder of the library that holds address `self`; 1 on success. */
int scuda_folder_of(const void *self, char *buf, size_t cap);
/* Opens the machine's own library of that name, never the one that holds `self`; NULL when there is none. env_override
 * names a variable with its path. */
void *scuda_find_real(const char *soname, const char *env_override, const void *self);
/* The same, but where the loader would have found it for whoever calls comes first: paths of the caller's library. */
void *scuda_find_for(const void *caller, const char *soname, const char *env_override, const void *self);
/* The front's private table with an id, of the front in the process or of the one beside the library `self` lies in,
 * whose name is ours; NULL: there is none. *front: the front's library, which stays loaded. */
const void *scuda_find_table(const uint8_t id[16], uint64_t bytes, const char *ours, const void *self, void **front);
/* a library at a path, unless it is scuda's own or there is none; why: for the log */
void *scuda_open_other(const char *path, const void *self, const char *why);

#endif
