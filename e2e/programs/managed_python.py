# Unified memory in a Python process whose faulthandler has taken SIGSEGV, before the first allocation and again after
# it: faults of managed memory are served, and the program's own are reported as without scuda. Ends by a SIGSEGV of its
# own.
import ctypes
import faulthandler
import sys

faulthandler.enable()
cuda = ctypes.CDLL("libcuda.so.1")
N = 4 << 20


def check(result):
    if result:
        sys.exit(f"CUresult {result}")


def managed(value):
    p = ctypes.c_uint64()
    check(cuda.cuMemAllocManaged(ctypes.byref(p), ctypes.c_size_t(N), 1))
    check(cuda.cuMemsetD8_v2(p, ctypes.c_ubyte(value), ctypes.c_size_t(N)))
    check(cuda.cuCtxSynchronize())
    return p.value


def right(p, value):
    data = ctypes.string_at(p, N)
    return data == bytes([value]) * N


device, context = ctypes.c_int(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
first = managed(3)
print("first", right(first, 3))
faulthandler.disable()
faulthandler.enable()
second = managed(5)
check(cuda.cuMemsetD8_v2(ctypes.c_uint64(first), ctypes.c_ubyte(7), ctypes.c_size_t(N)))
check(cuda.cuCtxSynchronize())
print("second", right(second, 5), right(first, 7), flush=True)
ctypes.string_at(0)
