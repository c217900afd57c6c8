"""tinygrad on the GPU: what it computes is compared with Python's or numpy's results; a network trains."""

import numpy as np
from tinygrad import Device, Tensor, TinyJit, nn
from tinygrad.helpers import Context

random = np.random.default_rng(1)
a, b = random.standard_normal((48, 64), np.float32), random.standard_normal((64, 32), np.float32)


def close(tensor, want, tolerance=1e-4):
    assert np.allclose(tensor.numpy(), want, rtol=tolerance, atol=tolerance), "wrong"


close(Tensor(a) * 2 + 1, a * 2 + 1)
close(Tensor(a) @ Tensor(b), a @ b)
close(Tensor(a).sum(axis=1), a.sum(axis=1), 1e-3)
close(Tensor(a).max(), a.max())
close(Tensor(a).argmax(axis=1), a.argmax(axis=1))
e = np.exp(a - a.max(axis=1, keepdims=True))
close(Tensor(a).softmax(), e / e.sum(axis=1, keepdims=True))
close(Tensor(a).half().float(), a, 2e-3)
close(Tensor.ones(1, 2, 8, 8).conv2d(Tensor.ones(3, 2, 3, 3)), np.full((1, 3, 6, 6), 18.0))
close(Tensor(a[0]).sort()[0], np.sort(a[0]))
Tensor.manual_seed(1)
assert abs(Tensor.rand(2000).mean().item() - 0.5) < 0.03, "random numbers"

Tensor.manual_seed(2)
x = Tensor(random.random((32, 8), np.float32))
y = Tensor(x.numpy().sum(axis=1, keepdims=True) / 2)
layers = [nn.Linear(8, 16), Tensor.relu, nn.Linear(16, 1)]
optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.02)


@TinyJit
def step():
    optimizer.zero_grad()
    loss = ((x.sequential(layers) - y) ** 2).mean()
    loss.backward()
    return loss.realize(*optimizer.schedule_step())


with Context(TRAINING=1):
    losses = [step().item() for _ in range(12)]
assert losses[-1] < losses[0] / 2, f"the loss does not fall: {losses}"
print("tinygrad on", Device.DEFAULT, "right: a loss of", f"{losses[0]:.3f} fell to {losses[-1]:.3f}")
