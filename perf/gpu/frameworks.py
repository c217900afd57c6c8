"""Correctness cases of PyTorch beyond the common path: layers, solvers, sparse tensors, compiled and captured code."""

from suite import digest, first_line, suite, torch_for_repeating

case = suite("frameworks")


def generator(torch, seed=1):
    return torch.Generator().manual_seed(seed)


@case
def torch_decompositions():
    torch = torch_for_repeating()
    g, out = generator(torch), {}
    for dtype in (torch.float32, torch.float64, torch.complex64):
        for shape in ((64, 64), (3, 40, 24), (200, 120)):
            a = torch.randn(shape, generator=g, dtype=dtype).cuda()
            key = f"{dtype} {shape}".replace("torch.", "")
            q, r = torch.linalg.qr(a)
            assert (q @ r - a).abs().max() < 1e-3, key
            out[f"qr {key}"] = digest(torch.view_as_real(r) if r.is_complex() else r)
            u, s, v = torch.linalg.svd(a, full_matrices=False)
            assert ((u * s.unsqueeze(-2)) @ v - a).abs().max() < 1e-2, key
            out[f"svd {key}"] = digest(s)
            h = a.mH @ a
            w, x = torch.linalg.eigh(h)
            assert (h @ x - x * w.unsqueeze(-2)).abs().max() < 0.05, key
            out[f"eigh {key}"] = digest(w)
    return out


@case
def torch_solvers():
    torch = torch_for_repeating()
    g, out = generator(torch, 2), {}
    for dtype in (torch.float32, torch.float64):
        for shape in ((100, 100), (16, 20, 20), (700, 700)):
            key = f"{dtype} {shape}".replace("torch.", "")
            a = torch.randn(shape, generator=g, dtype=dtype).cuda()
            b = torch.randn(*shape[:-1], 7, generator=g, dtype=dtype).cuda()
            spd = a @ a.mT + shape[-1] * torch.eye(shape[-1], dtype=dtype, device="cuda")
            out[f"solve {key}"] = digest(torch.linalg.solve(spd, b))
            l = torch.linalg.cholesky(spd)
            out[f"cholesky {key}"] = digest(l, torch.cholesky_solve(b, l), torch.cholesky_inverse(l))
            out[f"inv {key}"] = digest(torch.linalg.inv(spd))
            out[f"lu {key}"] = digest(*torch.linalg.lu_factor(a), torch.linalg.slogdet(a)[1])
            out[f"triangular {key}"] = digest(torch.linalg.solve_triangular(l, b, upper=False))
    a = torch.randn(90, 30, generator=g).cuda()
    out["lstsq"] = digest(torch.linalg.lstsq(a, torch.randn(90, 4, generator=g).cuda()).solution)
    out["pinv"] = digest(torch.linalg.pinv(a))
    try:
        torch.linalg.cholesky(-torch.eye(5, device="cuda"))
        out["not positive"] = "no error"
    except RuntimeError as e:
        out["not positive"] = first_line(e)
    return out


def sparse_matrix(torch, g, rows, columns, n):
    i = torch.stack([torch.randint(0, rows, (n,), generator=g), torch.randint(0, columns, (n,), generator=g)])
    return torch.sparse_coo_tensor(i, torch.randn(n, generator=g), (rows, columns)).coalesce().cuda()


@case
def torch_sparse_coo():
    torch = torch_for_repeating()
    g = generator(torch, 3)
    a, b = sparse_matrix(torch, g, 300, 200, 2000).coalesce(), torch.randn(200, 50, generator=g).cuda()
    s = torch.sparse.sum(a, 0).to_dense()
    return {"mm": digest(torch.sparse.mm(a, b)), "dense": digest(a.to_dense()),
            "transposed": digest(a.t().coalesce().values()), "sum": digest(s),
            "added": digest((a + a * 2).coalesce().values()), "product": digest((a @ a.t()).to_dense()),
            "softmax": digest(torch.sparse.softmax(a, 1).to_dense()), "indices": digest(a.indices())}


@case
def torch_sparse_csr():
    torch = torch_for_repeating()
    g = generator(torch, 4)
    c = sparse_matrix(torch, g, 300, 200, 2000).coalesce().to_sparse_csr()
    b, v = torch.randn(200, 64, generator=g).cuda(), torch.randn(200, generator=g).cuda()
    out = {"mm": digest(c @ b), "mv": digest(c @ v),
           "rows": digest(c.crow_indices(), c.col_indices(), c.values()), "dense": digest(c.to_dense())}
    out["double"] = digest(c.to(torch.float64) @ b.double())
    x, y = torch.randn(300, 32, generator=g).cuda(), torch.randn(32, 200, generator=g).cuda()
    out["sampled"] = digest(torch.sparse.sampled_addmm(c, x, y).values())
    out["product"] = digest((c @ c.to_sparse_coo().t().to_sparse_csr()).to_dense())
    return out


@case
def torch_cslt_fp8():
    torch = torch_for_repeating()
    generated = generator(torch, 23)
    pairs = torch.tensor([0, 0, 1, 1], dtype=torch.float32).tile(256, 32)
    sparse = torch.randint(1, 4, (256, 128), generator=generated).float() * pairs
    dense = torch.randint(1, 4, (256, 128), generator=generated).float()
    out = {"version": repr(torch.backends.cusparselt.version())}
    for kind in (torch.float8_e4m3fn, torch.float16, torch.int8):
        compressed, b = torch._cslt_compress(sparse.cuda().to(kind)), dense.cuda().to(kind).t()
        out[str(kind)] = digest(torch._cslt_sparse_mm(compressed, b).float())
        for to in (torch.bfloat16, torch.float16, torch.float32) if kind is torch.float8_e4m3fn else ():
            half = torch.tensor([0.5], device="cuda")
            out[f"{kind} to {to}"] = digest(torch._cslt_sparse_mm(compressed, b, out_dtype=to).float())
            out[f"{kind} scaled to {to}"] = digest(
                torch._cslt_sparse_mm(compressed, b, alpha=half, out_dtype=to).float())
    return out


@case
def torch_sorting():
    torch = torch_for_repeating()
    g, out = generator(torch, 5), {}
    for n in (10, 1000, 70_001, 1 << 20):
        x = torch.randn(n, generator=g).cuda()
        i = torch.randint(0, 500, (n,), generator=g).cuda()
        out[f"sort {n}"] = digest(*torch.sort(x), *torch.sort(i, stable=True), torch.argsort(x, descending=True))
        out[f"topk {n}"] = digest(torch.topk(x, 7)[0], torch.kthvalue(x, 5)[0], x.median())
        out[f"unique {n}"] = digest(
            *torch.unique(i, return_inverse=True, return_counts=True), *torch.unique_consecutive(i, return_counts=True))
        out[f"cumulated {n}"] = digest(torch.cumsum(i, 0), torch.cummax(x, 0)[1])
        if n < 1 << 20:  # the order of long sums of floats is the GPU's choice
            out[f"cumulated floats {n}"] = digest(torch.cumsum(x, 0), torch.logcumsumexp(x, 0))
        out[f"nonzero {n}"] = digest(torch.nonzero(x > 0.5), x[x > 0.25], torch.masked_select(i, i % 3 == 0))
        y = torch.zeros(500, device="cuda")
        y.index_put_((i,), x, accumulate=True)
        out[f"index_put {n}"] = digest(
            y, torch.zeros(500, device="cuda").index_put((i % 10,), torch.ones((), device="cuda")))
        out[f"scatter {n}"] = digest(torch.zeros(500, dtype=torch.int64, device="cuda").scatter_add(0, i, i),
                                     torch.bincount(i, minlength=500), x[i % n])
    rows = torch.randn(64, 3000, generator=g).cuda()
    out["rows"] = digest(*torch.sort(rows, 1), *torch.topk(rows, 50, 1),
                         torch.searchsorted(torch.sort(rows, 1)[0], rows), torch.histc(rows, 40, -2, 2))
    return out


@case
def torch_convolutions():
    torch = torch_for_repeating()
    torch.backends.cudnn.allow_tf32 = True
    out = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name, shape in (("Conv1d", (4, 8, 200)), ("Conv2d", (4, 8, 40, 44)), ("Conv3d", (2, 8, 12, 14, 16)),
                            ("ConvTranspose1d", (4, 8, 200)),
                            ("ConvTranspose2d", (4, 8, 20, 22)), ("ConvTranspose3d", (2, 8, 8, 8, 8))):
            torch.manual_seed(7)
            layer = getattr(torch.nn, name)(8, 16, 3, stride=2, padding=1).to("cuda", dtype)
            x = torch.randn(shape, generator=generator(torch, 6)).to("cuda", dtype).requires_grad_()
            y = layer(x)
            y.float().square().mean().backward()
            out[f"{name} {dtype}"] = digest(y, x.grad, layer.weight.grad, layer.bias.grad)
    depthwise = torch.nn.Conv2d(16, 16, 5, padding=2, groups=16, dilation=1).cuda()
    x = torch.randn(2, 16, 33, 35, generator=generator(torch, 8)).cuda()
    out["depthwise"] = digest(depthwise(x), depthwise(x.contiguous(memory_format=torch.channels_last)))
    return out


@case
def torch_recurrent():
    torch = torch_for_repeating()
    out = {}
    for name in ("LSTM", "GRU", "RNN"):
        for dtype in (torch.float32, torch.float16):
            torch.manual_seed(9)
            net = getattr(torch.nn, name)(24, 48, num_layers=2, bidirectional=True, batch_first=True).to("cuda", dtype)
            x = torch.randn(6, 30, 24, generator=generator(torch, 9)).to("cuda", dtype).requires_grad_()
            y, _ = net(x)
            y.float().square().mean().backward()
            out[f"{name} {dtype}"] = digest(y, x.grad, *[p.grad for p in net.parameters()])
            packed = torch.nn.utils.rnn.pack_padded_sequence(x.detach(), [30, 25, 25, 10, 3, 1], batch_first=True)
            out[f"{name} packed {dtype}"] = digest(net(packed)[0].data)
    return out


@case
def torch_norms():
    torch = torch_for_repeating()
    out = {}
    x = torch.randn(8, 12, 20, 22, generator=generator(torch, 10)).cuda()
    for name, layer in (("batch", torch.nn.BatchNorm2d(12)),
                        ("group", torch.nn.GroupNorm(3, 12)), ("instance", torch.nn.InstanceNorm2d(12)),
                        ("layer", torch.nn.LayerNorm((20, 22))), ("rms", torch.nn.RMSNorm(22))):
        for memory in (torch.contiguous_format, torch.channels_last):
            layer = layer.cuda().train()
            v = x.contiguous(memory_format=memory).clone().requires_grad_()
            y = layer(v)
            y.square().mean().backward()
            state = [b.float() for b in layer.buffers()]
            out[f"{name} {memory}"] = digest(y, v.grad, *state, layer.eval()(x.detach()))
    return out


@case
def torch_attention():
    torch = torch_for_repeating()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    out = {}
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION,
                    SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for causal in (False, True):
                g = generator(torch, 11)
                q, k, v = (torch.randn(2, 4, 192, 64, generator=g).to("cuda", dtype).requires_grad_() for _ in range(3))
                key = f"{backend.name} {dtype} {'causal' if causal else 'full'}"
                try:
                    with sdpa_kernel([backend]):
                        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
                        y.float().sum().backward()
                    out[key] = digest(y, v.grad)
                except RuntimeError as e:  # a back end that does not do this type says so
                    out[key] = first_line(e)
    return out


@case
def torch_matmul_types():
    torch = torch_for_repeating()
    g, out = generator(torch, 12), {}
    a, b = torch.randn(256, 512, generator=g), torch.randn(512, 128, generator=g)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128):
        x, y = a.to("cuda", dtype), b.to("cuda", dtype)
        z = torch.baddbmm(torch.ones(3, 256, 128, dtype=dtype, device="cuda"),
                          x.expand(3, -1, -1), y.expand(3, -1, -1), beta=0.5)
        out[str(dtype)] = digest(
            *(torch.view_as_real(v) if v.is_complex() else v
              for v in (x @ y, z, torch.nn.functional.linear(x, y.t().contiguous()))))
    torch.backends.cuda.matmul.allow_tf32 = True
    out["tf32"] = digest(a.cuda() @ b.cuda())
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    out["half, whole sums"] = digest(a.cuda().half() @ b.cuda().half())
    i, j = (torch.randint(-100, 100, s, generator=g, dtype=torch.int8).cuda() for s in ((256, 512), (512, 128)))
    product = torch._int_mm(i, j)
    assert torch.equal(product.cpu(), i.cpu().int() @ j.cpu().int())
    out["int8"] = digest(product)
    one = torch.ones((), device="cuda")
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        x, y = a.cuda().to(torch.float8_e4m3fn), b.cuda().t().contiguous().to(kind).t()
        for to in (torch.bfloat16, torch.float32):
            z = torch._scaled_mm(x, y, scale_a=one, scale_b=one * 0.5, out_dtype=to)
            out[f"{kind} to {to}"] = digest(z)
    return out


@case
def torch_complex():
    torch = torch_for_repeating()
    g, out = generator(torch, 13), {}
    for dtype in (torch.complex64, torch.complex128):
        x, y = (torch.randn(500, 300, generator=g, dtype=dtype).cuda() for _ in range(2))
        values = (x * y, x / y, torch.exp(x * 0.1), torch.sqrt(x), x.conj() + y,
                  x.mH @ y, torch.polar(x.abs(), y.angle()), torch.fft.fft2(x))
        out[str(dtype)] = digest(*(torch.view_as_real(v.resolve_conj()) for v in values))
        out[f"real {dtype}"] = digest(x.abs(), x.angle(), x.real, x.imag.contiguous())
    return out


@case
def torch_double():
    torch = torch_for_repeating()
    x = torch.randn(1000, 257, generator=generator(torch, 14), dtype=torch.float64).cuda().requires_grad_()
    y = torch.special.erfinv(torch.tanh(x) * 0.9) + torch.lgamma(
        x.abs() + 1) + torch.special.bessel_j0(x) + torch.softmax(x, 1)
    y.sum(1).square().mean().backward()
    return {"forward": digest(y), "backward": digest(x.grad),
            "sums": digest(y.sum(), y.mean(0), y.var(1), y.prod(1), y.norm())}


@case
def torch_jit():
    torch = torch_for_repeating()

    @torch.jit.script
    def fused(x, y, n: int):
        for _ in range(n):
            x = torch.tanh(x * y + 0.5) - torch.sigmoid(y)
        return x

    g = generator(torch, 15)
    x, y = torch.randn(1000, 100, generator=g).cuda(), torch.randn(1000, 100, generator=g).cuda()
    for _ in range(4):  # the profiling executor specialises in the first runs
        z = fused(x, y, 3)
    net = torch.nn.Sequential(torch.nn.Linear(100, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)).cuda().eval()
    traced = torch.jit.freeze(torch.jit.trace(net, x))
    with torch.no_grad():
        for _ in range(3):
            w = traced(x)
    assert (w - net(x)).abs().max() < 1e-4
    eager = x
    for _ in range(3):
        eager = torch.tanh(eager * y + 0.5) - torch.sigmoid(y)
    assert (z - eager).abs().max() < 1e-4
    return {"script": digest(z), "trace": digest(w)}


@case
def torch_profiler():
    """The CPU side; what the GPU's own tracing gives is not asked here."""
    torch = torch_for_repeating()
    from torch.profiler import ProfilerActivity, profile, record_function

    x = torch.randn(64, 64, generator=generator(torch, 16)).cuda()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
        with record_function("ours"):
            for _ in range(5):
                x = torch.relu(x @ x) / 64
            s = x.sum().item()
    rows = {e.key: e.count for e in p.key_averages() if e.key.startswith("aten::") or e.key == "ours"}
    assert rows["aten::mm"] == 5 and rows["ours"] == 1, rows
    return {"operators": repr(sorted(rows.items())), "sum": repr(s)}


@case
def torch_data_parallel():
    """One process uses all GPUs."""
    torch = torch_for_repeating()
    torch.manual_seed(46)
    net = torch.nn.DataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8)).cuda())
    g, values = generator(torch, 46), []
    for _ in range(5):
        loss = net(torch.randn(128, 64, generator=g).cuda()).square().mean()
        loss.backward()
        values.append(repr(float(loss)))
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    x = torch.arange(1 << 20, dtype=torch.float32, device="cuda").to(last) * 2
    return {"losses": repr(values), "gradients": digest(*(p.grad for p in net.parameters())),
            "moved": digest(x, x.to("cuda:0"))}


@case
def torch_graphed_callables():
    torch = torch_for_repeating()
    torch.manual_seed(19)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(),
                              torch.nn.Linear(128, 64), torch.nn.LayerNorm(64)).cuda()
    head = torch.nn.Linear(64, 8).cuda()
    sample = torch.randn(32, 64, device="cuda", requires_grad=True)
    net = torch.cuda.make_graphed_callables(net, (sample,))
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.05)
    losses, g = [], generator(torch, 19)
    for _ in range(20):
        x, y = torch.randn(32, 64, generator=g).cuda().requires_grad_(), torch.randint(0, 8, (32,), generator=g).cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(head(net(x)), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": digest(repr(losses)), "weights": digest(*net.parameters(), *head.parameters())}


def compiled(mode):
    torch = torch_for_repeating()
    if mode == "max-autotune":
        import torch._inductor.config as config

        config.max_autotune_gemm_backends = "ATEN,TRITON"

    def f(x, w, v):
        return torch.softmax(torch.nn.functional.gelu(x @ w), -1).sum(0) * v + x.mean()

    g = generator(torch, 20)
    x, w, v = torch.randn(128, 256, generator=g).cuda(), torch.randn(256, 192, generator=g).cuda(
        ).requires_grad_(), torch.randn(192, generator=g).cuda()
    fast = torch.compile(f, mode=mode)
    for _ in range(4):
        w.grad = None
        y = fast(x, w, v)
        y.square().sum().backward()
    y, grad = y.detach().clone(), w.grad.clone()
    w.grad = None
    z = f(x, w, v)
    z.square().sum().backward()
    errors = [(y - z).abs().max().item(), (grad - w.grad).abs().max().item()]
    assert max(errors) < 1e-3, errors
    if mode == "max-autotune":  # which kernels win is a matter of timing
        return {"right": "yes"}, {"errors": errors}
    return {"forward": digest(y), "backward": digest(grad)}


@case
def torch_compile_default():
    return compiled("default")


@case
def torch_compile_reduce_overhead():
    return compiled("reduce-overhead")


@case
def torch_compile_max_autotune():
    return compiled("max-autotune")


@case
def torch_random():
    torch = torch_for_repeating()
    torch.cuda.manual_seed(21)
    out = {"normal": digest(torch.randn(1000, 1001, device="cuda")),
           "uniform": digest(torch.rand(77, device="cuda", dtype=torch.float64)),
           "integers": digest(torch.randint(0, 1 << 40, (1000,), device="cuda")),
           "permutation": digest(torch.randperm(100_000, device="cuda")),
           "bernoulli": digest(torch.bernoulli(torch.full((999,), 0.3, device="cuda")))}
    out["dropout"] = digest(torch.nn.functional.dropout(torch.ones(10_000, device="cuda"), 0.4))
    out["multinomial"] = digest(torch.multinomial(torch.ones(50, 100, device="cuda"), 20))
    out["exponential"] = digest(
        torch.empty(1000, device="cuda").exponential_(), torch.empty(1000, device="cuda").cauchy_())
    state = torch.cuda.get_rng_state()
    a = torch.randn(10, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(a, torch.randn(10, device="cuda"))
    out["state"] = digest(state)
    return out


@case
def torch_mixed_training():
    torch = torch_for_repeating()
    torch.manual_seed(22)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16),
                              torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 900, 10)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    scaler, g, losses = torch.amp.GradScaler("cuda"), generator(torch, 22), []
    for _ in range(8):
        x, y = torch.randn(16, 3, 32, 32, generator=g).cuda(), torch.randint(0, 10, (16,), generator=g).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return {"losses": digest(repr(losses)), "weights": digest(*net.state_dict().values()),
            "scale": repr(scaler.get_scale())}
