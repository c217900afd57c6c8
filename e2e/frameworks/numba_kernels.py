"""Kernels that numba compiles with NVVM: what the GPU computes is compared with what numpy computes."""

import math

import numba
import numpy as np
from numba import cuda, float32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

random = np.random.default_rng(1)


@cuda.jit
def saxpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]


@cuda.jit
def product(a, b, c):  # by tiles in shared memory
    left = cuda.shared.array((8, 8), float32)
    right = cuda.shared.array((8, 8), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(a.shape[1] // 8):
        left[tx, ty] = a[x, ty + k * 8]
        right[tx, ty] = b[tx + k * 8, y]
        cuda.syncthreads()
        for j in range(8):
            total += left[tx, j] * right[j, ty]
        cuda.syncthreads()
    c[x, y] = total


@cuda.reduce
def add(a, b):
    return a + b


@cuda.jit
def histogram(values, bins):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i], 1)


@cuda.jit
def mandelbrot(picture):
    x, y = cuda.grid(2)
    if x < picture.shape[0] and y < picture.shape[1]:
        c = complex(x / picture.shape[0] * 3 - 2, y / picture.shape[1] * 2 - 1)
        z = 0j
        for i in range(40):
            z = z * z + c
            if z.real * z.real + z.imag * z.imag > 4:
                break
        picture[x, y] = i


@numba.vectorize(["float32(float32, float32)"], target="cuda")
def length(x, y):
    return math.sqrt(x * x + y * y)


@cuda.jit
def inside(states, counts):
    i = cuda.grid(1)
    n = 0
    for _ in range(64):
        x = xoroshiro128p_uniform_float32(states, i)
        y = xoroshiro128p_uniform_float32(states, i)
        if x * x + y * y <= 1:
            n += 1
    counts[i] = n


x, y = random.random(10000, np.float32), random.random(10000, np.float32)
there = cuda.to_device(y)
saxpy[40, 256](np.float32(2), x, there)
assert np.allclose(there.copy_to_host(), 2 * x + y), "saxpy"

a, b = random.random((32, 64), np.float32), random.random((64, 32), np.float32)
c = cuda.device_array((32, 32), np.float32)
product[(4, 4), (8, 8)](a, b, c)
assert np.allclose(c.copy_to_host(), a @ b, rtol=1e-5), "product"

numbers = np.arange(5000, dtype=np.int64)
assert add(numbers) == numbers.sum(), "reduce"

values = random.integers(0, 16, 10000)
bins = cuda.to_device(np.zeros(16, np.int32))
histogram[40, 256](values, bins)
assert (bins.copy_to_host() == np.bincount(values, minlength=16)).all(), "atomics"

picture = cuda.device_array((48, 32), np.int32)
mandelbrot[(6, 4), (8, 8)](picture)
want = np.zeros((48, 32), np.int32)
for i in range(48):
    for j in range(32):
        point, z = complex(i / 48 * 3 - 2, j / 32 * 2 - 1), 0j
        for n in range(40):
            z = z * z + point
            if z.real * z.real + z.imag * z.imag > 4:
                break
        want[i, j] = n
differ = int((picture.copy_to_host() != want).sum())
assert differ <= 4, f"mandelbrot: {differ} points differ"  # products and sums may be fused there

assert np.allclose(length(x, y), np.hypot(x, y)), "vectorize"

states = create_xoroshiro128p_states(1024, seed=1)
counts = cuda.device_array(1024, np.int32)
inside[8, 128](states, counts)
pi = 4 * counts.copy_to_host().sum() / (1024 * 64)
assert abs(pi - math.pi) < 0.02, f"random numbers: pi is {pi}"

print("numba", numba.__version__, "right: saxpy, product, reduce, atomics, mandelbrot, vectorize, random numbers")
