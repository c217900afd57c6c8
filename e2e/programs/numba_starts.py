"""Starts numba, and uses what needs no compiler: copies, events, a stream, the context's memory."""

import numba
import numpy
from numba import cuda

print("numba", numba.__version__)
sent = numpy.arange(1000, dtype=numpy.float32)
there = cuda.to_device(sent)
start, end = cuda.event(), cuda.event()
start.record()
stream = cuda.stream()
back = there.copy_to_host(stream=stream)
stream.synchronize()
end.record()
end.synchronize()
cuda.synchronize()
print("the array came back:", bool((back == sent).all()) and cuda.current_context().get_memory_info().free > 0)
print("times:", start.elapsed_time(end) >= 0)
cuda.close()
