/* Arrays: their extent is kept, so that copies which fit need no answer. */
#include "calls/calls.h"

/* What copies of compressed formats count in are blocks of 4×4 elements. */
static uint32_t block_edge(int32_t format) {
  return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB ? 4 : 1;
}

static uint32_t element_bytes(int32_t format, uint32_t channels) {
  switch (format) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return channels;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 2 * channels;
  case CU_AD_FORMAT_UNSIGNED_INT32:
  case CU_AD_FORMAT_SIGNED_INT32:
  case CU_AD_FORMAT_FLOAT:
    return 4 * channels;
  case CU_AD_FORMAT_UNORM_INT8X1:
  case CU_AD_FORMAT_SNORM_INT8X1:
    return 1;
  case CU_AD_FORMAT_UNORM_INT8X2:
  case CU_AD_FORMAT_SNORM_INT8X2:
  case CU_AD_FORMAT_UNORM_INT16X1:
  case CU_AD_FORMAT_SNORM_INT16X1:
    return 2;
  case CU_AD_FORMAT_UNORM_INT8X4:
  case CU_AD_FORMAT_SNORM_INT8X4:
  case CU_AD_FORMAT_UNORM_INT16X2:
  case CU_AD_FORMAT_SNORM_INT16X2:
  case CU_AD_FORMAT_UNORM_INT_101010_2:
  case CU_AD_FORMAT_YUY2:
  case CU_AD_FORMAT_Y210:
  case CU_AD_FORMAT_Y216:
  case CU_AD_FORMAT_AYUV:
  case CU_AD_FORMAT_Y410:
    return 4;
  case CU_AD_FORMAT_UNORM_INT16X4:
  case CU_AD_FORMAT_SNORM_INT16X4:
  case CU_AD_FORMAT_Y416:
    return 8;
  }
  if (block_edge(format) > 1)
    return format <= CU_AD_FORMAT_BC1_UNORM_SRGB || format == CU_AD_FORMAT_BC4_UNORM ||
           format == CU_AD_FORMAT_BC4_SNORM ? 8 : 16;
  return 0;
}

struct array_2d { uint64_t width, height; int32_t format; uint32_t channels; };
struct array_3d { uint64_t width, height, depth; int32_t format; uint32_t channels, flags; };

/* Of an array's slot: word[0] its width in elements or blocks, word[1] height and depth, flags the bytes of an element;
 * 0 where not known. */
static void keep_extent(uint64_t array, const struct array_3d *d) {
  struct scuda_slot *s = scuda_slot_of(array, KIND_CUarray);
  uint64_t height = d->height ? d->height : 1, depth = d->depth ? d->depth : 1;
  if (!s || height >> 32 || depth >> 32) return;
  uint32_t edge = block_edge(d->format);
  s->flags = element_bytes(d->format, d->channels);
  s->word[0] = (d->width + edge - 1) / edge;
  height = (height + edge - 1) / edge;
  s->word[1] = height << 32 | depth;
}

void scuda_post_cuArrayCreate_v2(uint64_t *array, const void *desc) {
  const struct array_2d *d = desc;
  keep_extent(*array,
              &(struct array_3d){.width = d->width, .height = d->height, .format = d->format, .channels = d->channels});
}
void scuda_post_cuArray3DCreate_v2(uint64_t *array, const void *desc) { keep_extent(*array, desc); }

/* A level or plane ends with what it is a part of, and its handle may be that of another one later. */
static void forget_extent(uint64_t array, uint64_t whole) {
  struct scuda_slot *s = scuda_slot_of(array, KIND_CUarray);
  const struct scuda_slot *of = scuda_slot(whole);
  if (!s) return;
  s->flags = 0;
  s->word[0] = s->word[1] = 0;
  if (of) s->context = of->context;
}

void scuda_post_cuMipmappedArrayGetLevel(uint64_t *array, uint64_t mipmap, uint32_t level) {
  (void)level;
  forget_extent(*array, mipmap);
}
void scuda_post_cuArrayGetPlane(uint64_t *plane, uint64_t array, uint32_t index) {
  (void)index;
  forget_extent(*plane, array);
}

int32_t scuda_array_extent(uint64_t array, struct scuda_array *extent, uint32_t *element) {
  struct scuda_slot *s = scuda_slot_of(array, KIND_CUarray);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!s->word[0]) {
    struct array_3d d = {0};
    int32_t r = scuda_wire_cuArray3DGetDescriptor_v2(&d, array, 0);
    if (r) return r;
    keep_extent(array, &d);
  }
  *element = s->flags;
  *extent = (struct scuda_array){s->word[0] * s->flags, s->word[1] >> 32, s->word[1] & UINT32_MAX};
  return CUDA_SUCCESS;
}
