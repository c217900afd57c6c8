"""PyCUDA with kernels as PTX: launches, streams, events, global variables.

pycuda_ptx.py kernels.ptx"""

import sys

import numpy as np
import pycuda
import pycuda.driver as cuda

cuda.init()
context = cuda.Device(0).make_context()
try:
    with open(sys.argv[1], "rb") as f:
        module = cuda.module_from_buffer(f.read())
    n = np.int32(1000)
    x, y = np.arange(n, dtype=np.float32), np.ones(n, dtype=np.float32)
    there = cuda.to_device(y)
    module.get_function("saxpy")(np.float32(2), cuda.In(x), there, n, grid=(4, 1), block=(256, 1, 1))
    assert (cuda.from_device(there, n, np.float32) == 2 * x + 1).all(), "saxpy"

    total = np.zeros(1, np.float32)
    module.get_function("reduce_sum")(cuda.In(x), cuda.InOut(total), n, grid=(2, 1), block=(128, 1, 1), shared=512)
    assert total[0] == x.sum(), "reduce_sum"

    a = np.random.default_rng(1).random((40, 40), dtype=np.float32)
    product, stream = np.empty_like(a), cuda.Stream()
    begin, end = cuda.Event(), cuda.Event()
    begin.record(stream)
    module.get_function("matmul_tiled")(cuda.In(a), cuda.In(a), cuda.Out(product), np.int32(40), grid=(3, 3),
                                        block=(16, 16, 1), stream=stream)
    end.record(stream)
    end.synchronize()
    assert np.allclose(product, a @ a, rtol=1e-5) and end.time_since(begin) >= 0, "matmul_tiled"

    address, size = module.get_global("coeff")
    assert (cuda.from_device(address, size // 4, np.float32) == np.arange(1, 9)).all(), "coeff"
finally:
    context.pop()
print("PyCUDA", pycuda.VERSION_TEXT, "right: saxpy, reduce_sum, matmul_tiled, a constant variable")
