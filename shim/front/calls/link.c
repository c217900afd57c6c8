/* The linker: inputs go to the server in pieces, errors and logs come with the call that adds; the cubin is fetched
 * when it is complete. */
#define _GNU_SOURCE
#include "calls/jit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct link { /* data of a link state's slot */
  struct scuda_jit jit;  /* the program keeps these valid until the state is destroyed */
  uint8_t *cubin;
  void *info, *error;    /* sizes of the log buffers; the values come to hold what was filled */
};
enum { PIECE = 512 << 10, REPLY_MAX = 1 << 16 };

int32_t scuda_hand_cuLinkCreate_v2(uint32_t count, int32_t *options, void **values, uint64_t *state) {
  struct scuda_jit jit = {count, options, values};
  struct scuda_pair pairs[SCUDA_PAIRS_MAX];
  uint32_t pair_count;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_header_context(scuda_thread())) return scuda_no_context();
  struct scuda_symbols symbols;
  int32_t r = scuda_jit_pairs(&jit, pairs, &pair_count, &symbols);
  if (r) return r;
  struct link *l = calloc(1, sizeof *l);
  uint64_t *addresses = l ? scuda_symbols_addresses(&symbols) : NULL, pair_bytes = pair_count * sizeof *pairs;
  uint64_t handle = addresses ? scuda_slot_new(KIND_CUlinkState) : 0;
  struct scuda_cmd c;
  struct wire_link_create w = {
    .link = handle, .jit_count = pair_count, .symbols = symbols.count, .symbol_bytes = symbols.bytes
  };
  r = handle ? scuda_begin(&c, OP_LINK_CREATE, SCUDA_ANSWER, sizeof w + pair_bytes + scuda_symbols_size(&symbols)) :
      CUDA_ERROR_OUT_OF_MEMORY;
  if (!r) {
    scuda_symbols_put(scuda_put_struct(scuda_put_struct(c.payload, &w, sizeof w), pairs, pair_bytes), &symbols,
                      addresses);
    r = scuda_call(&c, NULL, 0, NULL);
  }
  free(addresses);
  if (r) {
    if (handle) scuda_slot_free(handle);
    free(l);
    return r;
  }
  l->jit = jit;
  for (uint32_t n = 0; n < count; n++) {
    if (options[n] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) l->info = values[n];
    if (options[n] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) l->error = values[n];
  }
  scuda_slot(handle)->data = l;
  *state = handle;
  return CUDA_SUCCESS;
}
int32_t scuda_hand_cuLinkCreate(uint32_t count, int32_t *options, void **values, uint64_t *state) {
  return scuda_hand_cuLinkCreate_v2(count, options, values, state);
}

/* The logs are of everything so far, so each time the whole buffers count. */
static const struct scuda_jit *whole(struct link *l) {
  for (uint32_t n = 0; n < l->jit.count; n++) {
    if (l->jit.options[n] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) l->jit.values[n] = l->info;
    if (l->jit.options[n] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) l->jit.values[n] = l->error;
  }
  return &l->jit;
}

static int32_t add(uint64_t state, int32_t type, const void *data, uint64_t size, const char *name,
                   const struct scuda_jit *own) {
  struct scuda_slot *s = scuda_slot_of(state, KIND_CUlinkState);
  struct scuda_pair pairs[SCUDA_PAIRS_MAX];
  uint32_t pair_count;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!data || !size || (uint32_t)type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_JIT_INPUT_PTX) size = strnlen(data, size - 1) + 1; /* a text ends where it ends */
  else if (!scuda_host_reaches((uint64_t)(uintptr_t)data, size)) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_symbols symbols;
  int32_t r = scuda_jit_pairs(own, pairs, &pair_count, &symbols);
  if (r) return r;
  struct link *l = s->data;
  struct scuda_cmd c;
  for (uint64_t done = 0; done < size;) {
    uint64_t n = size - done < PIECE ? size - done : PIECE;
    struct wire_link_data w = {state, n};
    if ((r = scuda_begin(&c, OP_LINK_DATA, 0, sizeof w + n))) return r;
    memcpy(c.payload, &w, sizeof w);
    scuda_put_struct(c.payload + sizeof w, (const uint8_t *)data + done, n);
    if ((r = scuda_send(&c))) return r;
    done += n;
  }
  uint32_t name_bytes = name ? (uint32_t)strnlen(name, 4095) + 1 : 0;
  uint8_t *reply = malloc(REPLY_MAX);
  uint64_t *addresses = reply ? scuda_symbols_addresses(&symbols) : NULL, pair_bytes = pair_count * sizeof *pairs;
  struct wire_link_add w = {
    .link = state, .type = (uint32_t)type, .name_bytes = name_bytes, .jit_count = pair_count, .symbols = symbols.count,
    .symbol_bytes = symbols.bytes
  };
  uint64_t payload = sizeof w + scuda_pad(name_bytes) + pair_bytes + scuda_symbols_size(&symbols);
  r = addresses ? scuda_begin(&c, OP_LINK_ADD, SCUDA_ANSWER, payload) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!r) {
    uint32_t len = 0;
    uint8_t *p = c.payload + sizeof w;
    memcpy(c.payload, &w, sizeof w);
    memset(p, 0, scuda_pad(name_bytes));
    if (name_bytes) memcpy(p, name, name_bytes - 1);
    scuda_symbols_put(scuda_put_struct(p + scuda_pad(name_bytes), pairs, pair_bytes), &symbols, addresses);
    r = scuda_call(&c, reply, REPLY_MAX, &len);
    scuda_jit_report(whole(l), r, reply, len);
  }
  free(addresses);
  free(reply);
  return r;
}

int32_t scuda_hand_cuLinkAddData_v2(uint64_t state, int32_t type, void *data, uint64_t size, const char *name,
                                    uint32_t count, int32_t *options, void **values) {
  struct scuda_jit own = {count, options, values};
  return add(state, type, data, size, name, &own);
}
int32_t scuda_hand_cuLinkAddData(uint64_t state, int32_t type, void *data, uint64_t size, const char *name,
                                 uint32_t count, int32_t *options, void **values) {
  return scuda_hand_cuLinkAddData_v2(state, type, data, size, name, count, options, values);
}

int32_t scuda_hand_cuLinkAddFile_v2(uint64_t state, int32_t type, const char *path, uint32_t count, int32_t *options,
                                    void **values) {
  struct scuda_jit own = {count, options, values};
  if (!scuda_slot_of(state, KIND_CUlinkState)) return CUDA_ERROR_INVALID_HANDLE;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_FILE_NOT_FOUND;
  off_t size = lseek(fd, 0, SEEK_END);
  uint8_t *data = size > 0 ? malloc((size_t)size + 1) : NULL;
  int32_t r = size > 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_IMAGE;
  if (data) {
    off_t done = 0;
    for (ssize_t n = 1; n > 0 && done < size; done += n > 0 ? n : 0)
      n = pread(fd, data + done, (size_t)(size - done), done);
    data[done] = 0; /* PTX is text; its end is a NUL */
    r = done == size ? add(state, type, data, (uint64_t)size + (type == CU_JIT_INPUT_PTX), path, &own) :
        CUDA_ERROR_INVALID_IMAGE;
  }
  free(data);
  close(fd);
  return r;
}
int32_t scuda_hand_cuLinkAddFile(uint64_t state, int32_t type, const char *path, uint32_t count, int32_t *options,
                                 void **values) {
  return scuda_hand_cuLinkAddFile_v2(state, type, path, count, options, values);
}

static int32_t fetch(uint64_t state, uint8_t *to, uint64_t size) {
  int32_t r = CUDA_SUCCESS;
  for (uint64_t done = 0; done < size && !r;) {
    struct wire_link_read w = {state, done, size - done < PIECE ? size - done : PIECE};
    struct scuda_cmd c;
    uint32_t len = 0;
    if ((r = scuda_begin(&c, OP_LINK_READ, SCUDA_ANSWER, sizeof w))) return r;
    memcpy(c.payload, &w, sizeof w);
    r = scuda_call(&c, to + done, (uint32_t)w.bytes, &len);
    if (!r && len != w.bytes) r = scuda_bad_reply("cuLinkComplete");
    done += w.bytes;
  }
  return r;
}

int32_t scuda_hand_cuLinkComplete(uint64_t state, void **cubin, uint64_t *size) {
  struct scuda_slot *s = scuda_slot_of(state, KIND_CUlinkState);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!cubin) return CUDA_ERROR_INVALID_VALUE;
  struct link *l = s->data;
  struct wire_link_complete w = {state};
  struct wire_link_result result = {0};
  uint8_t *reply = malloc(REPLY_MAX);
  struct scuda_cmd c;
  uint32_t len = 0;
  int32_t r = reply ? scuda_begin(&c, OP_LINK_COMPLETE, SCUDA_ANSWER, sizeof w) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!r) {
    memcpy(c.payload, &w, sizeof w);
    r = scuda_call(&c, reply, REPLY_MAX, &len);
    if (len >= sizeof result) {
      memcpy(&result, reply, sizeof result);
      if ((uint64_t)result.info_bytes + result.error_bytes <= len - sizeof result)
        scuda_jit_logs(whole(l), r, (const char *)reply + sizeof result, result.info_bytes, result.error_bytes);
    } else if (!r) {
      r = scuda_bad_reply("cuLinkComplete");
    }
  }
  free(reply);
  if (r) return r;
  uint8_t *data = result.bytes < 1ull << 32 ? malloc(result.bytes + 1) : NULL;
  if (!data) return CUDA_ERROR_OUT_OF_MEMORY;
  if ((r = fetch(state, data, result.bytes))) {
    free(data);
    return r;
  }
  data[result.bytes] = 0;
  free(l->cubin);
  l->cubin = data;
  *cubin = data;
  if (size) *size = result.bytes;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuLinkDestroy(uint64_t state) {
  struct scuda_slot *s = scuda_slot_of(state, KIND_CUlinkState);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  struct link *l = s->data;
  struct wire_link_destroy w = {state};
  int32_t r = scuda_simple(OP_LINK_DESTROY, 0, &w, sizeof w);
  if (r) return r;
  scuda_slot_free(state);
  free(l->cubin);
  free(l);
  return CUDA_SUCCESS;
}
