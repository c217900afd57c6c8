/* What a pointer is: its attributes, from the tables of ranges where they know it. */
#define _GNU_SOURCE
#include "base/server.h"
#include "calls/calls.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

static uint32_t attribute_size(int32_t attribute) {
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    return 8;
  case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
    return 16;
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
  case CU_POINTER_ATTRIBUTE_MAPPED:
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
  case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    return 4;
  }
  return 0;
}

static int32_t store(void *to, int32_t attribute, uint64_t value) {
  memcpy(to, &value, attribute_size(attribute)); /* truth values take 4 bytes */
  return CUDA_SUCCESS;
}

/* What only the client knows of pinned memory; ids are numbers that no allocation on the GPU has. */
static int pinned_attribute(const struct scuda_range *r, int32_t attribute, uint64_t *value) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), base = r->start & ~(page - 1);
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    *value = 1ull << 63 | r->start;
    return 1;
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    *value = base;
    return 1;
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    *value = (r->start + r->bytes - base + page - 1) & ~(page - 1);
    return 1;
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    *value = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    return 1;
  }
  return attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS; /* all else is 0 */
}

/* Answers from the tables: 1 when it did. `alone`: the one attribute was asked for by itself, which for a device
 * pointer of pinned memory is a request to use it from kernels; asking for everything (cudaPointerGetAttributes) is
 * not. */
static int local_attribute(void *to, int32_t attribute, uint64_t p, struct scuda_range *r, int alone, int32_t *result) {
  int device = scuda_range_is_device(r);
  if (!r->flags) return 0;
  *result = CUDA_SUCCESS;
  uint64_t value = 0;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    if (device && !(r->flags & SCUDA_RANGE_ALLOC)) return 0;
    value = r->context;
    break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    value = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    value = p;
    if (!device && alone) *result = scuda_mapped_address(r, p, &value);
    if (*result) return 1;
    break;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (device && scuda_range_is_managed(r)) value = p;
    else if (device) *result = CUDA_ERROR_INVALID_VALUE; /* the driver stores a 0 all the same */
    else value = p;
    break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    value = (uint64_t)scuda_range_is_managed(r);
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    value = (uint32_t)r->device;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    if (device && !(r->flags & SCUDA_RANGE_ALLOC)) return 0;
    value = r->start;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    if (device && !(r->flags & SCUDA_RANGE_ALLOC)) return 0;
    value = r->bytes;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    value = 1;
    break;
  default:
    if (device && attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
      *result = scuda_refuse(I_cuPointerGetAttribute, PART_peer_tokens);
    if (device) return *result != CUDA_SUCCESS;
    if (!pinned_attribute(r, attribute, &value)) *result = CUDA_ERROR_INVALID_VALUE;
    if (*result) return 1;
  }
  store(to, attribute, value);
  return 1;
}

/* Whether the address is mapped in this process: then it is not one of the server's that we have not seen. */
static int is_own_memory(uint64_t p) {
  unsigned char present;
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  return mincore((void *)(uintptr_t)(p & ~(page - 1)), 1, &present) == 0 || errno != ENOMEM;
}

int scuda_range_is_host(const struct scuda_range *r, uint64_t p) {
  return scuda_range_is_pinned(r) || (!r->flags && is_own_memory(p));
}

struct value { int32_t result; uint32_t bytes; uint8_t value[64]; };

static int32_t ask_there(uint64_t p, uint32_t count, const int32_t *attributes, struct value *values) {
  struct scuda_cmd c;
  struct wire_pointer_attributes m = {p, count, 0};
  int32_t r = scuda_begin(&c, OP_POINTER_ATTRIBUTES, SCUDA_ANSWER, sizeof m + scuda_pad(4ull * count));
  if (r) return r;
  memcpy(c.payload, &m, sizeof m);
  scuda_put_struct(c.payload + sizeof m, attributes, 4ull * count);
  struct { struct wire_pointer_values head; struct value values[32]; } reply;
  uint32_t len = 0;
  r = scuda_call(&c, &reply, sizeof reply, &len);
  if (r) return r;
  if (len < sizeof reply.head + count * sizeof *values || reply.head.count != count)
    return scuda_bad_reply("cuPointerGetAttribute");
  memcpy(values, reply.values, count * sizeof *values);
  for (uint32_t i = 0; i < count; i++) {
    int32_t device = (int32_t)scuda_field(values[i].value);
    if (attributes[i] != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL || values[i].result) continue;
    device = scuda_from_server(device); /* the answering one's */
    memcpy(values[i].value, &device, sizeof device);
  }
  return CUDA_SUCCESS;
}

static int32_t ask(uint64_t p, uint32_t count, const int32_t *attributes, struct value *values) {
  if (SCUDA_LIKELY(!scuda_several())) return ask_there(p, count, attributes, values);
  const struct scuda_range range = scuda_range_of(p, SCUDA_AS_GPU);
  struct scuda_named n = {0};
  struct scuda_visit v;
  if (scuda_range_is_managed(&range)) scuda_name_object(&n, range.context); /* wherever its pages are */
  else scuda_name_range(&n, &range);
  int32_t r = scuda_visit_named(&v, &n, "");
  if (r) return r;
  r = ask_there(p, count, attributes, values);
  scuda_visit_end(v);
  return r;
}

static int32_t take(void *to, int32_t attribute, struct value *v) {
  uint32_t size = attribute_size(attribute);
  if (v->result) return v->result;
  uint64_t word;
  memcpy(&word, v->value, 8);
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) word = (uint32_t)word;
  if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) scuda_adopt(word, KIND_CUcontext);
  if (size == 16) {
    memcpy(to, v->value, 16);
    return CUDA_SUCCESS;
  }
  return store(to, attribute, word);
}

int32_t scuda_hand_cuPointerGetAttribute(void *data, int32_t attribute, uint64_t p) {
  int32_t r;
  if (!data || !attribute_size(attribute)) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_range range = scuda_range_of(p, SCUDA_AS_ANY);
  if (local_attribute(data, attribute, p, &range, 1, &r)) return r;
  if (!scuda_range_is_device(&range) && is_own_memory(p)) return CUDA_ERROR_INVALID_VALUE; /* ordinary memory */
  struct value v;
  r = ask(p, 1, &attribute, &v);
  return r ? r : take(data, attribute, &v);
}

int32_t scuda_hand_cuPointerGetAttributes(uint32_t count, int32_t *attributes, void **data, uint64_t p) {
  if (!count || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  int32_t r;
  struct scuda_range range = scuda_range_of(p, SCUDA_AS_ANY);
  int ordinary = !range.flags && is_own_memory(p);
  for (uint32_t i = 0; i < count; i++) /* before anything is written */
    if (!attribute_size(attributes[i]) || !data[i] || attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
      return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t size = attribute_size(attributes[i]);
    /* This form does not fail for what does not apply: it gives zeros, and -2 as device of ordinary or no memory, whose
     * range it leaves alone. */
    if (ordinary && (attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                     attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE)) continue;
    memset(data[i], 0, size);
    if (ordinary) {
      if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) memcpy(data[i], &(int32_t){-2}, 4);
      if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) memcpy(data[i], &p, 8);
      continue;
    }
    if (local_attribute(data[i], attributes[i], p, &range, 0, &r)) continue;
    struct value v;
    if ((r = ask(p, 1, &attributes[i], &v))) return r;
    if (take(data[i], attributes[i], &v) && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      memcpy(data[i], &(int32_t){-2}, 4);
  }
  return CUDA_SUCCESS;
}
