#!/usr/bin/env python3
# A program of the driver API: it takes a context and memory on the first GPU, says what it sees, and goes on for as
# long as a file is there, if one is named.
import ctypes
import os
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")


def ask(name, *args):
    rc = getattr(cuda, name)(*args)
    if rc:
        raise SystemExit(f"{name}: error {rc}")


ask("cuInit", 0)
count, device, context, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
uuid = (ctypes.c_ubyte * 16)()
ask("cuDeviceGetCount", ctypes.byref(count))
ask("cuDeviceGet", ctypes.byref(device), 0)
ask("cuDeviceGetUuid", uuid, device)
ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
ask("cuCtxSetCurrent", context)
ask("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
print(f"gpus={count.value} first={bytes(uuid).hex()} server={os.environ['SCUDA_SERVER']}", flush=True)
while len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
    time.sleep(0.1)
    ask("cuCtxSynchronize")
print("done", flush=True)
