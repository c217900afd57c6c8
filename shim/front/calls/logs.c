/* The log of errors, the profiler's switches, and user objects. */
#define _GNU_SOURCE
#include "calls/calls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- the log of errors: the last hundred lines, of the calls of this process (the server's driver serves the executor
 * as well) ---- */

enum { LINES = 100, LINE_MAX = 256, CALLBACKS = 64 };
struct line { char text[LINE_MAX]; char stamp[64]; };
typedef void (*callback_fn)(void *user, int32_t level, char *text, size_t bytes); /* CUlogsCallback */
struct callback { struct callback *next; callback_fn fn; void *user; };

static scuda_lock_t lock;
static struct line *lines;  /* LINES of them once there was an error */
static uint32_t written;    /* lines so far; line n lies at n % LINES */
static struct callback *callbacks;

static void log_line(const char *text) {
  struct callback told[CALLBACKS];
  uint32_t count = 0;
  scuda_lock(&lock);
  if (!lines) lines = calloc(LINES, sizeof *lines);
  if (lines) {
    struct line *l = &lines[written++ % LINES];
    struct timespec now;
    struct tm day;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &day);
    snprintf(l->stamp, sizeof l->stamp, "[%02d:%02d:%02d.%03ld][%lu][CUDA][E] ", day.tm_hour, day.tm_min, day.tm_sec,
             now.tv_nsec / 1000000,
             (unsigned long)pthread_self());
    snprintf(l->text, sizeof l->text, "%s", text);
  }
  for (struct callback *c = callbacks; c && count < CALLBACKS; c = c->next) told[count++] = *c;
  scuda_unlock(&lock);
  char copy[LINE_MAX]; /* the program's to change */
  for (uint32_t i = 0; i < count; i++) {
    snprintf(copy, sizeof copy, "%s", text);
    told[i].fn(told[i].user, CU_LOG_LEVEL_ERROR, copy, strlen(copy));
  }
}

int32_t scuda_answer_error(uint32_t i, int32_t result) {
  if (result == CUDA_ERROR_NOT_READY) return result; /* an answer, not an error */
  scuda_trace_error(result);
  if (result == CUDA_ERROR_NOT_SUPPORTED) scuda_not_supported(i);
  const char *name = NULL;
  char text[LINE_MAX];
  scuda_hand_cuGetErrorName(result, (void **)&name);
  snprintf(text, sizeof text, "Returning %d (%s) from %s", result, name ? name : "unrecognized error code",
           scuda_exports[i].name);
  log_line(text);
  return result;
}

static int32_t refuse(const char *why) {
  log_line(why);
  return CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuLogsRegisterCallback(void *callback, void *user, uint64_t *handle) {
  if (!callback) return refuse("callbackFunc cannot be NULL");
  struct callback *c = malloc(sizeof *c);
  if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
  *c = (struct callback){NULL, (callback_fn)callback, user};
  scuda_lock(&lock);
  struct callback **last = &callbacks;
  while (*last) last = &(*last)->next;
  *last = c;
  scuda_unlock(&lock);
  if (handle) *handle = (uint64_t)(uintptr_t)c; /* without it the registration cannot be ended */
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuLogsUnregisterCallback(uint64_t handle) {
  scuda_lock(&lock);
  struct callback **link = &callbacks, *c;
  while ((c = *link) && (uint64_t)(uintptr_t)c != handle) link = &c->next;
  if (c) *link = c->next;
  scuda_unlock(&lock);
  free(c);
  return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuLogsCurrent(uint32_t *iterator, uint32_t flags) {
  (void)flags;
  if (!iterator) return refuse("Iterator cannot be NULL");
  scuda_lock(&lock);
  *iterator = written;
  scuda_unlock(&lock);
  return CUDA_SUCCESS;
}

static size_t line_bytes(uint32_t n) { return strlen(lines[n % LINES].stamp) + strlen(lines[n % LINES].text) + 1; }

/* Writes the lines from the iterator on, or all; where there is too little room the newest, behind a line that says
 * so. */
static int32_t dump(uint32_t *iterator, char *buffer, size_t *size) {
  static const char missing[] =
      "The provided buffer is not large enough to hold all messages. Some messages will be missing\n";
  size_t room = *size, want = 0, head = 0;
  scuda_lock(&lock);
  uint32_t end = written, oldest = end > LINES ? end - LINES : 0, from = iterator && *iterator > oldest ? *iterator :
      oldest;
  if (iterator && *iterator > end) {
    scuda_unlock(&lock);
    *size = 0;
    return refuse("CUlogIterator is beyond the end of the logs");
  }
  for (uint32_t n = from; n < end; n++) want += line_bytes(n);
  if (want > room && room < sizeof missing - 1) {
    scuda_unlock(&lock);
    *size = 0;
    return refuse("Provided buffer is not large enough to write any logs to");
  }
  if (want > room) {
    head = sizeof missing - 1;
    memcpy(buffer, missing, head);
    while (want > room - head) want -= line_bytes(from++);
  }
  char *at = buffer + head;
  for (uint32_t n = from; n < end; n++) {
    const struct line *l = &lines[n % LINES];
    at = stpcpy(at, l->stamp); /* the NUL of the last line is overwritten by its end */
    size_t bytes = strlen(l->text);
    memcpy(at, l->text, bytes);
    at += bytes;
    *at++ = '\n';
  }
  scuda_unlock(&lock);
  if ((size_t)(at - buffer) < room) *at = 0;
  *size = (size_t)(at - buffer);
  if (iterator) *iterator = end;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuLogsDumpToMemory(uint32_t *iterator, char *buffer, uint64_t *size, uint32_t flags) {
  (void)flags;
  if (!buffer) return refuse("buffer cannot be NULL");
  if (!size) return refuse("size cannot be NULL");
  if (!*size) return refuse("Provided buffer is not large enough to write any logs to");
  size_t bytes = *size;
  int32_t r = dump(iterator, buffer, &bytes);
  *size = bytes;
  return r;
}

int32_t scuda_hand_cuLogsDumpToFile(uint32_t *iterator, const char *path, uint32_t flags) {
  (void)flags;
  if (!path) return refuse("pathToFile cannot be NULL");
  size_t bytes = LINES * (LINE_MAX + sizeof lines->stamp);
  char *text = malloc(bytes);
  if (!text) return CUDA_ERROR_OUT_OF_MEMORY;
  int32_t r = dump(iterator, text, &bytes);
  FILE *f = r ? NULL : fopen(path, "we");
  int done = f && fwrite(text, 1, bytes, f) == bytes;
  if (f && fclose(f)) done = 0;
  free(text);
  if (r || done) return r;
  char why[LINE_MAX];
  snprintf(why, sizeof why, "Unable to open file at %s for dumping logs", path);
  return refuse(why);
}

/* No profiler is attached to the driver that runs the kernels; then these do nothing natively either. */
static int32_t switch_profiler(void) { return scuda_thread()->current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
int32_t scuda_hand_cuProfilerStart(void) { return switch_profiler(); }
int32_t scuda_hand_cuProfilerStop(void) { return switch_profiler(); }

/* The destructor is a function of the program; it runs here when the last reference is gone. */
int32_t scuda_hand_cuUserObjectCreate(uint64_t *object, void *ptr, void *destroy, uint32_t references, uint32_t flags) {
  if (!object || !destroy || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  uint64_t handle = scuda_slot_new(KIND_CUuserObject);
  if (!handle) return CUDA_ERROR_OUT_OF_MEMORY;
  struct wire_user_object m = {handle, scuda_core.hostfn(scuda_server(), destroy, ptr, 0, 0, 0), references, flags};
  int32_t r = scuda_simple(OP_USER_OBJECT, SCUDA_ANSWER, &m, sizeof m);
  if (r) {
    scuda_slot_free(handle);
    return r;
  }
  *object = handle;
  return CUDA_SUCCESS;
}
