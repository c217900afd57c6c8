"""What the files of cases share: the register of cases by suite, digests, and a torch that repeats itself."""

import hashlib
import os
import sys

CASES = {}  # name: function
SUITES = {}  # name: suite


class Absent(Exception):
    """Raised by a case whose library is not installed here in the form that the case needs."""


def suite(name):
    """Gives a decorator that registers a function as a case of the suite."""

    def case(function):
        assert function.__name__ not in CASES, function.__name__
        CASES[function.__name__] = function
        SUITES[function.__name__] = name
        return function

    return case


def digest(*things):
    """SHA-256 over tensors, arrays, bytes and strings."""
    h = hashlib.sha256()
    for thing in things:
        if hasattr(thing, "detach"):
            thing = thing.detach().cpu().contiguous().view(-1)
            if thing.numel():
                import torch

                thing = thing.view(torch.uint8)
            thing = thing.numpy().tobytes()
        elif hasattr(thing, "tobytes"):
            thing = thing.tobytes()
        elif isinstance(thing, str):
            thing = thing.encode()
        h.update(thing)
    return h.hexdigest()[:16]


def torch_for_repeating():
    """torch, set so that a run repeats itself bit for bit where that can be had."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch


def turns():
    """Says that it is ready, and iterates over the turns that nccl.py gives, until it closes our standard input."""
    print("turn over", flush=True)
    for _ in sys.stdin:
        yield
        print("turn over", flush=True)


def first_line(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
