/* Devices: everything about them arrived with the session's start and is answered from there. */
#include "calls/calls.h"

#include <stdio.h>
#include <stdlib.h>

int32_t scuda_hand_cuDeviceGetCount(int32_t *count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = scuda_gpu_count;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDeviceGet(int32_t *device, int32_t ordinal) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDeviceGetName(char *name, int32_t len, int32_t dev) {
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  char whole[64] = {0}; /* as much as an H200's driver writes, where there is room */
  const char *known = scuda_gpus[dev].d.name;
  for (size_t i = 0; i < sizeof whole - 1 && known[i]; i++) whole[i] = known[i];
  uint32_t room = (uint32_t)len < sizeof whole ? (uint32_t)len : sizeof whole;
  memcpy(name, whole, room);
  name[room - 1] = 0;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDeviceGetAttribute(int32_t *value, int32_t attribute, int32_t dev) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (attribute <= 0 || attribute >= 256) return CUDA_ERROR_INVALID_VALUE;
  const struct scuda_device *d = &scuda_gpus[dev].d;
  if (d->attribute_result[attribute]) return d->attribute_result[attribute];
  *value = d->attributes[attribute];
  return CUDA_SUCCESS;
}

static int32_t copy_uuid(void *to, const uint8_t *from) {
  memcpy(to, from, 16);
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDeviceGetUuid(void *uuid, int32_t dev) {
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  return scuda_device_ok(dev) ? copy_uuid(uuid, scuda_gpus[dev].d.uuid_v1) : CUDA_ERROR_INVALID_DEVICE;
}

int32_t scuda_hand_cuDeviceGetUuid_v2(void *uuid, int32_t dev) {
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  return scuda_device_ok(dev) ? copy_uuid(uuid, scuda_gpus[dev].d.uuid) : CUDA_ERROR_INVALID_DEVICE;
}

/* Natively a LUID exists on Windows only. */
int32_t scuda_hand_cuDeviceGetLuid(char *luid, uint32_t *mask, int32_t dev) {
  if (!luid || !mask) return CUDA_ERROR_INVALID_VALUE;
  return scuda_device_ok(dev) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_DEVICE;
}

int32_t scuda_hand_cuDeviceTotalMem(uint32_t *bytes, int32_t dev) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  uint64_t total = scuda_gpus[dev].d.total_mem;
  *bytes = total < UINT32_MAX ? (uint32_t)total : UINT32_MAX;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDeviceTotalMem_v2(uint64_t *bytes, int32_t dev) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = scuda_gpus[dev].d.total_mem;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDeviceGetPCIBusId(char *id, int32_t len, int32_t dev) {
  if (!id || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return snprintf(id, (size_t)len, "%s", scuda_gpus[dev].d.pci_bus_id) < len ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuDeviceGetByPCIBusId(int32_t *dev, const char *id) {
  if (!dev || !id) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus, slot, function = 0;
  if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    domain = 0;
    if (sscanf(id, "%x:%x.%x", &bus, &slot, &function) < 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int32_t i = 0; i < scuda_gpu_count; i++) {
    const int32_t *a = scuda_gpus[i].d.attributes;
    if ((unsigned)a[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] == domain &&
        (unsigned)a[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] == bus &&
        (unsigned)a[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] == slot && !function) {
      *dev = i;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

int32_t scuda_hand_cuDeviceComputeCapability(int32_t *major, int32_t *minor, int32_t dev) {
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *major = scuda_gpus[dev].d.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
  *minor = scuda_gpus[dev].d.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDeviceGetProperties(void *properties, int32_t dev) {
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  const int32_t *a = scuda_gpus[dev].d.attributes;
  const int32_t fields[] = { /* CUdevprop */
      a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK], a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X],
      a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y],
      a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z], a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X],
      a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y],
      a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z], a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK],
      a[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY],
      a[CU_DEVICE_ATTRIBUTE_WARP_SIZE], a[CU_DEVICE_ATTRIBUTE_MAX_PITCH],
      a[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK],
      a[CU_DEVICE_ATTRIBUTE_CLOCK_RATE], a[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT]};
  memcpy(properties, fields, sizeof fields);
  return CUDA_SUCCESS;
}

/* ---- peers: GPUs of two servers have no connection that a kernel could use ---- */

static int two_servers(int32_t dev, int32_t peer) {
  return SCUDA_UNLIKELY(scuda_several()) && scuda_device_ok(dev) && scuda_device_ok(peer) &&
         scuda_gpus[dev].server != scuda_gpus[peer].server;
}
int scuda_pre_cuDeviceCanAccessPeer(int32_t *can, int32_t dev, int32_t peer, int32_t *r) {
  if (!can || !two_servers(dev, peer)) return 0;
  *can = 0;
  *r = CUDA_SUCCESS;
  return 1;
}
int scuda_pre_cuDeviceGetP2PAttribute(int32_t *value, int32_t attribute, int32_t dev, int32_t peer, int32_t *r) {
  if (!value || attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
      attribute > CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED || !two_servers(dev, peer)) return 0;
  *value = 0;
  *r = CUDA_SUCCESS;
  return 1;
}

static int to_another_server(uint64_t peer, int32_t answer, int32_t *r) {
  const struct scuda_slot *s = scuda_slot_of(peer, KIND_CUcontext);
  if (!s || !two_servers(scuda_current_device(), s->device)) return 0;
  *r = scuda_header_context(scuda_thread()) ? answer : scuda_no_context();
  return 1;
}
int scuda_pre_cuCtxEnablePeerAccess(uint64_t peer, uint32_t flags, int32_t *r) {
  return !flags && to_another_server(peer, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, r);
}
int scuda_pre_cuCtxDisablePeerAccess(uint64_t peer, int32_t *r) {
  return to_another_server(peer, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, r);
}

/* ---- notifications: the driver only has one that comes on Windows, so none is ever due ---- */

struct notification { struct notification *next; int32_t device; };
static struct notification *notifications;
static scuda_lock_t notifications_lock;

int32_t scuda_hand_cuDeviceRegisterAsyncNotification(int32_t dev, void *callback, void *user, uint64_t *handle) {
  (void)user;
  if (!callback || !handle) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  struct notification *n = malloc(sizeof *n);
  if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
  scuda_lock(&notifications_lock);
  *n = (struct notification){notifications, dev};
  notifications = n;
  scuda_unlock(&notifications_lock);
  *handle = (uint64_t)(uintptr_t)n;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDeviceUnregisterAsyncNotification(int32_t dev, uint64_t handle) {
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  scuda_lock(&notifications_lock);
  struct notification **link = &notifications, *n;
  while ((n = *link) && ((uint64_t)(uintptr_t)n != handle || n->device != dev)) link = &n->next;
  if (n) *link = n->next;
  scuda_unlock(&notifications_lock);
  free(n);
  return n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
