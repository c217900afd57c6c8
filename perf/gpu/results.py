#!/usr/bin/env python3
"""Puts what check.py and samples.py wrote into one dated result file; docs/compatibility.md is made from the newest
one (go run ./api/gen).

    results.py OUTPUT --date DATE --machine TEXT --scuda COMMIT [--from RESULTS.json] FILE.jsonl...

A case that is in several files has the result of the last; with --from it has what that file says unless a newer one
says something. OUTPUT is api/facts/seen/DATE-MACHINE.json: for every case or program what it is part of, the verdict,
both sides' seconds, and the commit that it was seen at.
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def suites():
    """The suite of each case of check.py, by name."""
    sys.path.insert(0, str(HERE))
    import cases  # noqa: F401  registers the cases
    from suite import SUITES

    return SUITES


def suite_of(name, known):
    kind = name.split(":")[0] if ":" in name else ""
    return {"c": "driver API", "cu": "CUDA C++", "cuda": "CUDA C++", "smi": "NVML", "go": "NVML",
            "written": "bytes written"}.get(kind) or {
        "pr1": "common programs", "frameworks": "PyTorch", "libraries": "CuPy, JAX and others",
        "nvml": "NVML", "profiles": "profilers"}[known[name]]


def read(path, known, commit):
    """The rows of one file."""
    for line in Path(path).read_text().splitlines():
        r = json.loads(line)
        if r["verdict"] == "no time":
            continue
        if "program" in r:
            row = {"suite": "cuda-samples", "case": " ".join([r["program"], *r["args"]])}
        else:
            row = {"suite": suite_of(r["case"], known), "case": r["case"]}
        row["verdict"] = r["verdict"].lower()
        if row["verdict"] == "absent":
            row["why"] = (r["notes"] or [""])[0]
        elif row["verdict"] == "failed":  # a side with its exit status; the rest of the text is the machine's
            row["why"] = "; ".join(":".join(n.splitlines()[0].split(":")[:2]) for n in r["notes"])
        elif row["verdict"] == "differs":
            row["why"] = r["notes"][0].splitlines()[0][:160]
        for side in ("native", "remote"):
            if r[side]:
                row[side] = round(r[side]["seconds"], 1)
        yield {**row, "scuda": commit}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("output", type=Path)
    ap.add_argument("files", nargs="+")
    for name in ("date", "machine", "scuda"):
        ap.add_argument(f"--{name}", required=True)
    ap.add_argument("--from", dest="base", type=Path)
    a = ap.parse_args()
    rows = {(r["suite"], r["case"]): r for r in json.loads(a.base.read_text())["cases"]} if a.base else {}
    known = suites()
    for path in a.files:
        rows.update({(r["suite"], r["case"]): r for r in read(path, known, a.scuda)})
    head = {"date": a.date, "machine": a.machine}
    lines = ",\n".join("  " + json.dumps(rows[k]) for k in sorted(rows))
    a.output.write_text(json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n' + lines + "\n ]\n}\n")


if __name__ == "__main__":
    main()
