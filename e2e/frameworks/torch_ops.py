"""PyTorch on the GPU: what it computes is compared with what the same lines give on the CPU.

torch_ops.py [NAME…]: all, or these."""

import sys
import time
import warnings

import torch
import torch.nn.functional as F

warnings.filterwarnings("ignore", message="(?s).*is not compatible with the current PyTorch")
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
torch.backends.cudnn.enabled = False  # it is in no package of Debian's

g = torch.Generator().manual_seed(1)


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=g).to(dtype)


def whole(*shape):
    return torch.randint(-1000, 1000, shape, generator=g)


x, y, v = random(48, 64), random(64, 32), random(64)
picture, filters = random(2, 3, 16, 16), random(4, 3, 3, 3)
tokens = torch.tensor([1, 5, 9, 5])
sparse = torch.eye(64).to_sparse_csr()
square = random(24, 24)
positive = square @ square.T + 24 * torch.eye(24)

# What is computed, with what. Left out is what PyTorch compiles at run time (lgamma, bessel_j0, gcd, the absolute value
# of complex numbers …), since NVRTC 12.4 does not know a GPU of 12.0, and cuFFT, which carries no PTX.
CASES = {
    "elementwise": (lambda a: torch.exp(-a.abs()) * torch.sin(a) + a.sqrt().nan_to_num(), x),
    "broadcast": (lambda a, b: a * b + 1, x, v),
    "int64": (lambda a: a * a % 17 + (a << 3), whole(100)),
    "where": (lambda a: torch.where(a > 0, a, a * 0.1), x),
    "sum": (lambda a: a.sum(), x),
    "sum over rows": (lambda a: a.sum(1), x),
    "mean and variance": (lambda a: torch.stack([a.mean(0), a.var(0)]), x),
    "max with places": (lambda a: a.max(1), x),
    "argmax": (lambda a: a.argmax(1), x),
    "cumsum": (lambda a: a.cumsum(1), x),
    "cumprod": (lambda a: (a.abs() + 0.5).cumprod(1), random(4, 8)),
    "cat and permute": (lambda a: torch.cat([a, a.flip(0)]).permute(1, 0).contiguous(), x),
    "index": (lambda a, i: a[i], x, tokens),
    "index_add": (lambda a, i: torch.zeros_like(a[:10]).index_add_(0, i, a[:4]), x, tokens),
    "scatter": (lambda a: torch.zeros(48, 64, device=a.device).scatter_(1, a.argsort(1), a), x),
    "embedding": (lambda w, i: F.embedding(i, w), x, tokens),
    "masked_select": (lambda a: a[a > 0.5], x),
    "nonzero": (lambda a: (a > 1).nonzero(), x),
    "sort": (lambda a: a.sort(1), x),
    "sort, long": (lambda a: a.sort(stable=True), random(20000)),
    "sort int64": (lambda a: a.sort(stable=True), whole(5000)),
    "topk": (lambda a: a.topk(5, 1), x),
    "kthvalue": (lambda a: a.kthvalue(7, 1), x),
    "median": (lambda a: a.median(), x),
    "unique": (lambda a: a.unique(return_counts=True), whole(500) % 10),
    "bincount": (lambda a: torch.bincount(a), whole(500).abs() % 20),
    "histc": (lambda a: torch.histc(a, 16, -3, 3), x),
    "softmax": (lambda a: a.softmax(1), x),
    "log_softmax": (lambda a: a.log_softmax(0), x),
    "layer_norm": (lambda a: F.layer_norm(a, (64,)), x),
    "group_norm": (lambda a: F.group_norm(a, 1), picture),
    "batch_norm": (lambda a: F.batch_norm(a, None, None, training=True), picture),
    "gelu": (lambda a: F.gelu(a), x),
    "dropout of nothing": (lambda a: F.dropout(a, 0.5, training=False), x),
    "cross_entropy": (lambda a: F.cross_entropy(a, torch.arange(48, device=a.device)), x),
    "matmul": (lambda a, b: a @ b, x, y),
    "matmul f64": (lambda a, b: a @ b, x.double(), y.double()),
    "matmul bf16": (lambda a, b: a @ b, x.bfloat16(), y.bfloat16()),
    "matmul f16": (lambda a, b: a @ b, x.half(), y.half()),
    "matmul, larger": (lambda a, b: a @ b, random(160, 200), random(200, 130)),
    "matrix by vector": (lambda a, b: a @ b, x, v),
    "dot": (lambda a: a @ a, v),
    "bmm": (lambda a: torch.bmm(a, a.transpose(1, 2)), random(3, 20, 30)),
    "linear": (lambda a, w: F.linear(a, w, torch.ones(48, device=a.device)), x, random(48, 64)),
    "addmm": (lambda a, b: torch.addmm(torch.ones(32, device=a.device), a, b), x, y),
    "einsum": (lambda a: torch.einsum("bij,bkj->bik", a, a), random(2, 8, 8)),
    "conv2d": (lambda a, w: F.conv2d(a, w, padding=1), picture, filters),
    "conv2d, strides": (lambda a, w: F.conv2d(a, w, stride=2, dilation=2), picture, filters),
    "conv1d": (lambda a, w: F.conv1d(a, w), random(2, 3, 20), random(4, 3, 5)),
    "conv_transpose2d": (lambda a, w: F.conv_transpose2d(a, w), random(2, 4, 8, 8), filters),
    "conv2d, by depth": (lambda a, w: F.conv2d(a, w, groups=3), picture, random(3, 1, 3, 3)),
    "max_pool2d": (lambda a: F.max_pool2d(a, 2), picture),
    "avg_pool2d": (lambda a: F.avg_pool2d(a, 2), picture),
    "interpolate": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), picture),
    "grid_sample": (lambda a: F.grid_sample(a, torch.linspace(-1, 1, 64, device=a.device).reshape(2, 4, 4, 2),
                                            align_corners=False), picture),
    "attention": (lambda a: F.scaled_dot_product_attention(a, a, a, is_causal=True), random(1, 2, 16, 8)),
    "attention f16": (lambda a: F.scaled_dot_product_attention(a, a, a, is_causal=True),
                      random(1, 2, 16, 16, dtype=torch.float16)),
    "sparse by dense": (lambda s, b: s @ b, sparse, y),
    "cholesky": (lambda a: torch.linalg.cholesky(a), positive),
    "solve": (lambda a: torch.linalg.solve(a, torch.ones(24, 1, device=a.device)), positive),
    "inverse": (lambda a: torch.linalg.inv(a), positive),
    "qr": (lambda a: torch.linalg.qr(a)[1].abs(), square),
    "svd": (lambda a: torch.linalg.svdvals(a), square),
    "eigh": (lambda a: torch.linalg.eigvalsh(a), positive),
    "complex": (lambda a: (torch.complex(a, a) * 1j).real, x),
    "tril, triu": (lambda a: a.tril() - a.triu(), x),
    "roll": (lambda a: a.roll(3, 1), x),
    "pad": (lambda a: F.pad(a, (1, 2, 3, 4), mode="reflect"), picture),
    "cdist": (lambda a: torch.cdist(a, a + 1), random(20, 8)),
    "bucketize": (lambda a: torch.bucketize(a, torch.linspace(-2, 2, 9, device=a.device)), x),
    "repeat_interleave": (lambda a: a.repeat_interleave(2, 0), x),
    "gradient": (lambda a: torch.autograd.functional.jacobian(lambda z: (z.sin() ** 2).sum(), a), v),
    "gru": (lambda a, w: torch.gru_cell(a, a, w, w), random(4, 16), random(48, 16)),
}

# What the CPU does otherwise is looked at by itself.
def randn(device):
    a = torch.randn(20000, device=device)
    return abs(a.mean().item()) < 0.03 and abs(a.std().item() - 1) < 0.03


def multinomial(device):
    drawn = torch.multinomial(torch.tensor([0.0, 1.0, 3.0], device=device), 4000, replacement=True)
    return (drawn != 0).all().item() and abs((drawn == 2).float().mean().item() - 0.75) < 0.05


def randperm(device):
    return torch.equal(torch.randperm(5000, device=device).cpu().sort().values, torch.arange(5000))


def dropout(device):
    return abs(F.dropout(torch.ones(20000, device=device), 0.25).mean().item() - 1) < 0.03


def graph(device):
    a = torch.zeros(100, device=device)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        a += 1
    for _ in range(3):
        captured.replay()
    return a.sum().item() == 300


def pinned(device):
    a = torch.arange(1000.0).pin_memory()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        b = a.to(device, non_blocking=True) * 2
    stream.synchronize()
    return torch.equal(b.cpu(), a * 2)


def assertion(device):  # the last one: nothing works behind it
    try:
        torch.zeros(3, device=device)[torch.tensor([7], device=device)].cpu()
    except RuntimeError as e:
        return "device-side assert" in str(e)
    return False


LOOKS = {f.__name__: f for f in (randn, multinomial, randperm, dropout, graph, pinned, assertion)}


def tolerance(dtype):
    return {torch.float64: 1e-9, torch.bfloat16: 3e-2, torch.float16: 5e-3}.get(dtype, 2e-4)


def compare(there, here):
    if isinstance(here, tuple):
        return all(compare(a, b) for a, b in zip(there, here, strict=True))
    there = there.cpu()
    if not here.is_floating_point():
        return torch.equal(there, here)
    t = tolerance(here.dtype)
    return torch.allclose(there, here, rtol=t, atol=t, equal_nan=True)


wrong = []
names = sys.argv[1:] or [*CASES, *LOOKS]
for name in names:
    began, said = time.monotonic(), "right"
    try:
        if name in LOOKS:
            right = LOOKS[name]("cuda")
        else:
            function, *given = CASES[name]
            right = compare(function(*(a.cuda() for a in given)), function(*given))
        if not right:
            said = "WRONG"
    except Exception as e:  # noqa: BLE001
        said = "FAILED: " + str(e).strip().splitlines()[0][:150]
    if said != "right":
        wrong.append(name)
    print(f"{name:30} {said} ({time.monotonic() - began:.1f} s)", flush=True)
print(f"PyTorch {torch.__version__}: {len(names) - len(wrong)} of {len(names)} right", flush=True)
sys.exit(bool(wrong))
