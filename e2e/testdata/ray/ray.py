"""Stands for Ray where that cannot be had: what docs/ray.md uses of it, done as Ray's source says.

A task has a process of its own on a node, which has the node's environment and not the driver's, and then the variables
of its runtime_env, as `RuntimeEnvContext.exec_worker` sets them. A task that asks for no GPU of Ray's finds
CUDA_VISIBLE_DEVICES empty, unless it is told otherwise (`NvidiaGPUAcceleratorManager`).
"""

import os
import pickle
import runpy
import subprocess
import sys
import tempfile

_KNOWN = {"resources", "runtime_env", "max_retries"}


def init(address=None):
    if address not in (None, "auto"):
        raise ValueError(address)


class _Task:
    def __init__(self, function, terms):
        if not set(terms) <= _KNOWN:
            raise ValueError(f"what stands for Ray knows {_KNOWN}, not all of {set(terms)}")
        self.function, self.terms = function, terms

    def options(self, **more):
        return _Task(self.function, {**self.terms, **more})

    def remote(self, *args):
        variables = self.terms.get("runtime_env", {}).get("env_vars", {})
        if not all(isinstance(v, str) for v in variables.values()):
            raise TypeError("env_vars are strings")
        node = {k: v for k, v in os.environ.items() if not k.startswith(("SCUDA_", "LD_", "XDG_", "CUDA_"))}
        home = tempfile.TemporaryDirectory()
        process = subprocess.Popen(["bash", "-c", f"exec {sys.executable} {__file__}"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, env={**node, "HOME": home.name, **variables})
        process.home = home
        process.stdin.write(pickle.dumps((os.path.abspath(sys.argv[0]), self.function.__name__, args)))
        process.stdin.close()
        return process


def remote(**terms):
    return lambda function: _Task(function, terms)


def get(process):
    with process:
        result = process.stdout.read()
    process.home.cleanup()
    if process.returncode:
        raise RuntimeError(f"a task failed ({process.returncode})")
    return pickle.loads(result)


def _work():
    script, name, args = pickle.loads(sys.stdin.buffer.read())
    sys.path.insert(0, os.path.dirname(__file__))
    task = runpy.run_path(script, run_name="worker")[name]
    if not os.environ.get("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.stdout.buffer.write(pickle.dumps(task.function(*args)))


if __name__ == "__main__":
    _work()
