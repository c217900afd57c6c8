#!/usr/bin/env python3
"""Programs whose connections break: ResNet-50 training and GPT-2 generation over an unbroken connection and through
`scuda chaos`, by turns. Compares parameters and tokens bit for bit, and prints times.

    chaos.py [--rounds N] [--tls] [CHAOS OPTION...]

CHAOS OPTIONs go to scuda chaos, whose default cuts everything once a second; the line that it prints at the end says
how often it did. --tls measures over servers that demand TLS.
"""

import argparse
import collections
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from suite import torch_for_repeating

STEPS, TOKENS = 100, 512


def measure():
    """For each line that it reads: training and generation, with their times, and digests of what they gave."""
    torch = torch_for_repeating()
    from workloads import gpt2_parts, resnet_parts

    _, model, step = resnet_parts(batch=32)
    _, gpt2, _ = gpt2_parts()
    gpt2.eval()
    prompt = torch.full((1, 32), 5, device="cuda")

    def train():
        for _ in range(STEPS):
            step()
        return [p.detach().double().sum().item() for p in model.parameters()]

    def generate():
        with torch.no_grad():
            return gpt2.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS,
                                 min_new_tokens=TOKENS, do_sample=False, pad_token_id=50256).tolist()

    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        row = {}
        for name, work in (("ResNet-50 training b32, 100 steps", train), ("GPT-2 generating 512 tokens", generate)):
            t = time.perf_counter()
            result = work()
            row[name] = time.perf_counter() - t, hashlib.sha256(repr(result).encode()).hexdigest()
        print(json.dumps(row), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--tls", action="store_true")
    a, options = ap.parse_known_args()
    from check import ROOT, RUN, start_server

    program = [RUN, "remote", sys.executable, __file__, "measure"]
    scuda = Path(os.environ.get("BUILD", ROOT / "build"), "scuda")
    with tempfile.TemporaryDirectory() as work:
        tls = {"SCUDA_TLS": "always", "SCUDA_STATE_DIR": f"{work}/state"} if a.tls else {}
        server, address = start_server(f"{work}/server", dict(os.environ, **tls))
        env = dict(os.environ, SCUDA_SERVER=address)
        if a.tls:
            said = Path(work, "server", "out").read_text()
            env["SCUDA_FINGERPRINT"] = re.search(r"^fingerprint (\S+)$", said, re.M)[1]
        sides = {side: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
                 for side, command in (("uncut", program), ("cut", [scuda, "chaos", *options, "--", *program]))}
        for p in sides.values():
            assert p.stdout.readline().strip() == "ready"
        times, results = (collections.defaultdict(lambda: collections.defaultdict(list)) for _ in range(2))
        for _ in range(a.rounds):
            for side, p in sides.items():
                p.stdin.write("\n")
                p.stdin.flush()
                for name, (seconds, result) in json.loads(p.stdout.readline()).items():
                    times[name][side].append(seconds)
                    results[name][side].append(result)
        for p in sides.values():
            p.stdin.close()
            p.wait(60)
        server.terminate()
        server.wait(10)
    failed = False
    for name, by_side in times.items():
        uncut, cut = median(by_side["uncut"]), median(by_side["cut"])
        equal = results[name]["uncut"] == results[name]["cut"]
        failed |= not equal
        print(f"{name:<36} {uncut:8.2f} s {cut:8.2f} s  ratio {cut / uncut:.3f}  {'equal' if equal else 'DIFFERS'}")
    return 1 if failed else 0


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else sys.exit(main())
