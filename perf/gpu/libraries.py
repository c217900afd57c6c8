"""Correctness cases of the other libraries above the driver: CuPy, JAX, Numba, ONNX Runtime."""

import os
import struct

from suite import Absent, digest, suite

case = suite("libraries")


def module(name):
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise Absent(str(e)) from e


def host_random(seed=0):
    import numpy

    return numpy.random.default_rng(seed)


@case
def cupy_elementwise():
    cupy, r = module("cupy"), host_random(1)
    a, b = (cupy.asarray(r.standard_normal(50_021, dtype="f4")) for _ in range(2))
    squared = cupy.ElementwiseKernel("float32 x, float32 y, raw float32 t",
                                     "float32 z", "z = (x - y) * (x - y) + t[i % 7]", "squared")
    norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm2")

    @cupy.fuse()
    def fused(x, y):
        return cupy.sin(x) * y + cupy.maximum(x, y)

    return {"kernel": digest(squared(a, b, cupy.arange(7, dtype="f4")).get()),
            "reduction": digest(norm(a.astype("f8")).get()), "fused": digest(fused(a, b).get()),
            "functions": digest((cupy.tanh(a) + cupy.log1p(cupy.abs(b))).get(),
                                cupy.where(a > b, a, b).get(), cupy.cumsum(a).get(), cupy.sort(a).get()),
            "integers": digest(cupy.bincount(cupy.asarray(r.integers(0, 99, 10_000))).get(),
                               cupy.unique(cupy.asarray(r.integers(0, 99, 1000))).get())}


@case
def cupy_managed():
    """A pool over unified memory; the CPU reads and writes arrays in place between kernels."""
    import ctypes

    import numpy

    cupy, r = module("cupy"), host_random(8)
    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    a, b = (cupy.asarray(r.standard_normal((600, 700), dtype="f4")) for _ in range(2))
    there = numpy.ctypeslib.as_array((ctypes.c_float * a.size).from_address(a.data.ptr)).reshape(a.shape)
    seen = []
    for k in range(10):
        a *= 2
        a += cupy.sin(b)
        cupy.cuda.Device().synchronize()
        seen.append(there[k].copy())
        there[k] = k  # by the CPU, in place
    return {"rows": digest(*seen), "array": digest(a.get()), "sum": digest(cupy.cumsum((a * 64).astype("i8")).get()),
            "sort": digest(cupy.sort(a, axis=None).get())}


@case
def cupy_modules():
    cupy, r = module("cupy"), host_random(2)
    code = r"""
    __constant__ float weights[8];
    __device__ int counter;
    template <typename T> __global__ void scaled(const T *x, T *y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) { y[i] = x[i] * (T)weights[i % 8]; atomicAdd(&counter, 1); }
    }
    extern "C" __global__ void shared_sum(const float *x, float *y) {
      extern __shared__ float s[];
      s[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
      __syncthreads();
      for (int k = blockDim.x / 2; k > 0; k /= 2) {
        if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
        __syncthreads();
      }
      if (threadIdx.x == 0) y[blockIdx.x] = s[0];
    }"""
    out = {}
    for backend in ("nvrtc", "nvcc"):
        try:
            m = cupy.RawModule(code=code, backend=backend, options=("-std=c++14",),
                               name_expressions=("scaled<float>", "scaled<double>"))
            m.compile()
        except Exception as e:  # no nvcc, for example: the same on both sides
            out[backend] = type(e).__name__
            continue
        weights = cupy.ndarray((8,), "f4", m.get_global("weights"))
        weights[...] = cupy.arange(8, dtype="f4") / 3
        counter = cupy.ndarray((1,), "i4", m.get_global("counter"))
        counter[...] = 0
        for t in ("float", "double"):
            x = cupy.asarray(r.standard_normal(10_001)).astype(t)
            y = cupy.zeros_like(x)
            m.get_function(f"scaled<{t}>")((40,), (256,), (x, y, cupy.int32(10_001)))
            out[f"{backend} {t}"] = digest(y.get())
        x, y = cupy.asarray(r.standard_normal(64 * 512, dtype="f4")), cupy.zeros(64, "f4")
        f = m.get_function("shared_sum")
        f.max_dynamic_shared_size_bytes = 64 << 10
        f((64,), (512,), (x, y), shared_mem=512 * 4)
        out[f"{backend} shared"] = digest(y.get())
        out[f"{backend} counter"] = repr(int(counter[0]))
        out[f"{backend} attributes"] = repr(
            (f.num_regs > 0, f.max_threads_per_block, f.shared_size_bytes, f.binary_version))
    return out


@case
def cupy_fft():
    cupy, r = module("cupy"), host_random(3)
    out = {}
    for shape in ((1000,), (32, 512), (17, 30, 31)):
        x = cupy.asarray(r.standard_normal(shape, dtype="f4"))
        f = cupy.fft.fftn(x)
        out[str(shape)] = digest(f.get(), cupy.fft.ifftn(f).get(),
                                 cupy.fft.rfft(x).get(), cupy.fft.irfft(cupy.fft.rfft(x)).get())
    plan = cupy.fft.config.get_plan_cache()
    out["plans"] = repr(plan.get_curr_size() > 0)
    x = cupy.asarray(r.standard_normal((64, 64)) + 1j * r.standard_normal((64, 64)))
    out["double"] = digest(cupy.fft.fft2(x).get(), cupy.fft.fftshift(x).get())
    return out


@case
def cupy_linalg():
    cupy, r = module("cupy"), host_random(4)
    out = {}
    for dtype in ("f4", "f8"):
        a = cupy.asarray(r.standard_normal((120, 120)).astype(dtype))
        spd = a @ a.T + 120 * cupy.eye(120, dtype=dtype)
        out[f"solve {dtype}"] = digest(cupy.linalg.solve(spd, a).get())
        out[f"cholesky {dtype}"] = digest(cupy.linalg.cholesky(spd).get())
        out[f"inv {dtype}"] = digest(cupy.linalg.inv(spd).get())
        out[f"qr {dtype}"] = digest(cupy.linalg.qr(a)[1].get())
        out[f"svd {dtype}"] = digest(cupy.linalg.svd(a, compute_uv=False).get())
        out[f"eigh {dtype}"] = digest(cupy.linalg.eigvalsh(spd).get())
        out[f"products {dtype}"] = digest(
            cupy.einsum("ij,kj->ik", a, a).get(), cupy.tensordot(a, a, 1).get(), cupy.dot(a, a[0]).get())
    return out


@case
def cupy_random():
    cupy = module("cupy")
    out = {}
    cupy.random.seed(5)
    out["legacy"] = digest(cupy.random.rand(1000).get(), cupy.random.standard_normal((10, 99), dtype="f4").get(),
                           cupy.random.randint(0, 1000, 500).get())
    for kind in ("XORWOW", "MRG32k3a", "Philox4x3210"):
        g = cupy.random.Generator(getattr(cupy.random, kind)(5))
        out[kind] = digest(g.random(1000).get(), g.integers(0, 1 << 20, 500).get(),
                           g.standard_normal(77).get(), g.exponential(size=10).get())
    return out


@case
def cupy_sparse():
    cupy = module("cupy")
    module("scipy")
    sparse, r = module("cupyx.scipy.sparse"), host_random(6)
    import numpy

    dense = r.standard_normal((200, 150)) * (r.random((200, 150)) < 0.05)
    a = sparse.csr_matrix(cupy.asarray(dense))
    b = cupy.asarray(r.standard_normal((150, 20)))
    out = {"rows": digest(a.indptr.get(), a.indices.get(), a.data.get()),
           "mm": digest((a @ b).get()), "product": digest((a @ a.T).toarray().get())}
    assert numpy.allclose((a @ b).get(), dense @ b.get())
    c = a.tocoo().tocsc()
    out["csc"] = digest(c.indptr.get(), c.data.get(), (c + c).toarray().get())
    from cupyx.scipy.sparse.linalg import spsolve

    square = sparse.csr_matrix(cupy.asarray(dense[:150] + 10 * numpy.eye(150)))
    x = spsolve(square, cupy.ones(150))
    assert numpy.allclose((square @ x).get(), 1)
    out["solved"] = "yes"
    return out


@case
def cupy_pools():
    cupy = module("cupy")
    out = {}

    def work():
        kept = [cupy.full(((k * 7919) % 300_000 + 1,), k, dtype="i4") for k in range(40)]
        return digest(*(x.get() for x in kept))

    for name, pool in (("pool", cupy.cuda.MemoryPool()),
                       ("async", cupy.cuda.MemoryAsyncPool() if hasattr(cupy.cuda, "MemoryAsyncPool") else None)):
        if pool is None:
            continue
        with cupy.cuda.using_allocator(pool.malloc):
            out[name] = work()
        if name == "pool":
            out["pool bytes"] = repr((pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()))
        pool.free_all_blocks()
        if name == "pool":
            out["pool emptied"] = repr(pool.total_bytes())
    with cupy.cuda.using_allocator(None):
        out["plain"] = work()
    pinned = cupy.cuda.PinnedMemoryPool()
    block = pinned.malloc(1 << 16)
    import numpy

    host = numpy.frombuffer(block, "f4", 1 << 14)
    host[...] = numpy.arange(1 << 14)
    device = cupy.empty(1 << 14, "f4")
    device.set(host)
    out["pinned"] = digest(device.get())
    free, total = cupy.cuda.runtime.memGetInfo()
    out["total"] = repr((total, 0 < free < total))
    return out


@case
def cupy_streams():
    cupy, r = module("cupy"), host_random(7)
    x = cupy.asarray(r.standard_normal((300, 300), dtype="f4"))
    cupy.cuda.Device().synchronize()
    results, streams = [], [cupy.cuda.Stream(non_blocking=True) for _ in range(4)] + [cupy.cuda.Stream.ptds]
    for i, s in enumerate(streams):
        with s:
            v = x
            for _ in range(5):
                v = cupy.tanh(v @ x / 16 + i)
            results.append(v)
    for s in streams:
        s.synchronize()
    out = {"streams": digest(*(v.get() for v in results))}
    begin, end, called = cupy.cuda.Event(), cupy.cuda.Event(), []
    s = streams[0]
    begin.record(s)
    with s:
        y = x @ x
    s.launch_host_func(lambda _: called.append("host"), None)
    end.record(s)
    end.synchronize()
    s.synchronize()
    out["host function"] = repr(called)
    out["time"] = repr(0 < cupy.cuda.get_elapsed_time(begin, end) < 10_000)
    streams[1].wait_event(end)
    with streams[1]:
        z = y + 1
    streams[1].synchronize()
    out["waited"] = digest(z.get())
    return out


@case
def cupy_graphs():
    cupy = module("cupy")
    s = cupy.cuda.Stream(non_blocking=True)
    with s:
        x = cupy.zeros(1000, "f4")
        y = cupy.arange(1000, dtype="f4")
        cupy.multiply(y, 2, out=x)  # compiled before the capture
        cupy.add(x, y, out=x)
        s.synchronize()
        s.begin_capture()
        cupy.multiply(y, 2, out=x)
        cupy.add(x, y, out=y)
        graph = s.end_capture()
        for _ in range(10):
            graph.launch(s)
        s.synchronize()
        return {"x": digest(x.get()), "y": digest(y.get())}


def jax_module(x64=False):
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["XLA_FLAGS"] = os.environ.get(
        "XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    jax = module("jax")
    if x64:
        jax.config.update("jax_enable_x64", True)
    if jax.devices()[0].platform != "gpu":
        raise RuntimeError(f"JAX uses {jax.devices()}")
    return jax


@case
def jax_transforms():
    jax = jax_module()
    import jax.numpy as jnp
    import numpy

    r = host_random(8)
    w, x = (jnp.asarray(r.standard_normal(s, dtype="f4")) for s in ((32, 32), (64, 32)))

    def step(h, v):
        h = jnp.tanh(h @ w + v)
        return h, h.sum()

    scan = jax.jit(lambda h, xs: jax.lax.scan(step, h, xs))
    h, sums = scan(jnp.zeros(32), x)
    grad = jax.jit(jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)))(w, x)
    each = jax.jit(jax.vmap(lambda v: jnp.fft.rfft(v).real.sum() + jnp.sort(v)[3]))(x)
    rows = jax.jit(jax.vmap(jax.grad(lambda v: jnp.sum(v ** 3 @ w))))(x)
    loop = jax.jit(
        lambda v: jax.lax.while_loop(lambda c: c[0] < 20, lambda c: (c[0] + 1, jnp.sin(c[1]) + 1), (0, v))[1])(x)
    key = jax.random.key(3)
    return {"scan": digest(numpy.asarray(h), numpy.asarray(sums)),
            "grad": digest(numpy.asarray(grad)), "vmap": digest(numpy.asarray(each)),
            "both": digest(numpy.asarray(rows)), "loop": digest(numpy.asarray(loop)),
            "random": digest(numpy.asarray(jax.random.normal(key, (1000,)))),
            "conv": digest(numpy.asarray(jnp.convolve(x[0], x[1])))}


@case
def jax_float64():
    jax = jax_module(x64=True)
    import jax.numpy as jnp
    import numpy

    a = jnp.asarray(host_random(9).standard_normal((80, 80)))
    spd = a @ a.T + 80 * jnp.eye(80)
    out = {"type": str(spd.dtype), "solve": digest(numpy.asarray(jax.jit(jnp.linalg.solve)(spd, a))),
           "cholesky": digest(numpy.asarray(jnp.linalg.cholesky(spd))),
           "eigh": digest(numpy.asarray(jnp.linalg.eigvalsh(spd))),
           "svd": digest(numpy.asarray(jnp.linalg.svd(a, compute_uv=False)))}
    out["qr"] = digest(numpy.asarray(jnp.linalg.qr(a)[1]))
    return out


@case
def jax_bf16():
    jax = jax_module()
    import jax.numpy as jnp
    import numpy

    r = host_random(10)
    a, b = (jnp.asarray(r.standard_normal(s, dtype="f4")).astype(jnp.bfloat16) for s in ((128, 256), (256, 64)))
    f = jax.jit(lambda a, b: jax.nn.gelu(a @ b) + jax.nn.softmax(a[:, :64]))
    y = f(a, b)
    return {"type": str(y.dtype), "values": digest(numpy.asarray(y.astype(jnp.float32))),
            "sum": digest(numpy.asarray(y.sum().astype(jnp.float32)))}


@case
def numba_kernels():
    module("numba")
    from numba import cuda
    import numpy

    try:  # some of its releases do not load beside the newest numpy
        cuda.jit(lambda: None)[1, 1]()
    except AttributeError as e:
        raise Absent(f"numba does not work here: {e}") from e

    @cuda.jit
    def scale(x, y, k):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] * k + i % 5

    @cuda.jit
    def block_sums(x, y):
        shared = cuda.shared.array(256, dtype=numpy.float32)
        i = cuda.grid(1)
        shared[cuda.threadIdx.x] = x[i] if i < x.size else 0
        cuda.syncthreads()
        k = cuda.blockDim.x // 2
        while k > 0:
            if cuda.threadIdx.x < k:
                shared[cuda.threadIdx.x] += shared[cuda.threadIdx.x + k]
            cuda.syncthreads()
            k //= 2
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(y, 0, shared[0])

    x = host_random(11).integers(0, 100, 10_000).astype("f4")
    d, y, total = cuda.to_device(x), cuda.device_array_like(x), cuda.to_device(numpy.zeros(1, "f4"))
    scale[40, 256](d, y, numpy.float32(1.5))
    block_sums[40, 256](d, total)
    s = cuda.stream()
    z = cuda.device_array_like(x, stream=s)
    scale[40, 256, s](d, z, numpy.float32(3))
    s.synchronize()
    return {"scale": digest(y.copy_to_host()), "sum": digest(total.copy_to_host()),
            "on a stream": digest(z.copy_to_host())}


def field(number, value):
    """A protobuf field: an integer, or bytes with their length."""

    def varint(v):
        out = bytearray()
        while v > 127:
            out.append(v & 127 | 128)
            v >>= 7
        return bytes(out) + bytes([v])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def onnx_model(weights):
    """y = relu(x · w) as an ONNX file (opset 13)."""

    def value(name, *shape):
        dims = b"".join(field(1, field(1, d)) for d in shape)
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))

    def node(kind, ins, to):
        return field(1, b"".join(field(1, i) for i in ins) + field(2, to) + field(4, kind))

    rows, columns = weights.shape
    tensor = field(1, rows) + field(1, columns) + field(2, 1) + field(
        8, "w") + field(9, weights.astype("<f4").tobytes())
    graph = node("MatMul", ("x", "w"), "m") + node("Relu", ("m",), "y") + field(2, "g") + field(5, tensor)
    graph += field(11, value("x", 16, rows)) + field(12, value("y", 16, columns))
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))


@case
def onnx_runtime():
    ort = module("onnxruntime")
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise Absent("onnxruntime without its CUDA provider")
    r = host_random(12)
    w, x = r.standard_normal((64, 32)).astype("f4"), r.standard_normal((16, 64)).astype("f4")
    session = ort.InferenceSession(onnx_model(w), providers=["CUDAExecutionProvider"])
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise Absent("onnxruntime does not load its CUDA provider here")
    y = session.run(None, {"x": x})[0]
    assert abs(y - (x @ w).clip(0)).max() < 1e-2
    return {"y": digest(y), "form": struct.pack("<2i", *y.shape).hex()}
