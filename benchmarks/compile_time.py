"""What a compile costs: programs of 1k, 4k and 16k ops, microseconds an op, pass by pass.

The program is a stack of peer layers cut into 8 pieces, shapes small, so that only the compiler
works. Ops are counted after splitting. Kernel images are rendered, not compiled.

Then what a user waits for: the peer layer by one route with its cubins, compiled again in the same
process, and for the first time in a new process whose caches on disk are warm (medians of 5). Rows
carry these figures as ``start``.

    python benchmarks/compile_time.py [--json] [--rounds 3] [--out rows.jsonl]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import graphc
from graphc.ir import Program

SPEC = Path(__file__).parent.parent / "specs" / "moe_peer.yaml"
SIZES = (1_000, 4_000, 16_000)
PRESETS = ("small", "full")
STARTS = 5  # new processes, whose median counts

# What a new process does: prints seconds for imports, first and second compile, and NVRTC's calls.
START = """
import sys, time
times = [time.perf_counter()]
import graphc.api
times.append(time.perf_counter())
from graphc.gpu.nvrtc import counter
calls = []
for _ in range(2):
    start, before = time.perf_counter(), counter.compiles
    graphc.api.compile(sys.argv[1], preset=sys.argv[2], route="host")
    times.append(time.perf_counter() - start)
    calls.append(counter.compiles - before)
print(times[1] - times[0], *times[2:], *calls)
"""
FIGURES = ("import_s", "first_s", "second_s", "first_nvrtc_calls", "second_nvrtc_calls")


class Stopwatch:
    """An observer that charges the time since the last stage to the pass that made this one."""

    def __init__(self) -> None:
        self.us: dict[str, float] = {}
        self.ops = 0
        self.last = time.perf_counter()

    def __call__(self, name: str, stage: object) -> None:
        now = time.perf_counter()
        # The first stage seen closes what comes before the passes: reading and building.
        self.us["build" if not self.us else name] = (now - self.last) * 1e6
        if name == "split_pieces" and isinstance(stage, Program):
            self.ops = len(stage.ops)
        self.last = time.perf_counter()


def measure(layers: int) -> dict[str, Any]:
    gc.collect()
    watch = Stopwatch()
    start, started = time.perf_counter(), time.process_time()
    graphc.compile(
        SPEC,
        preset="small",
        layers=layers,
        route="host",
        pieces=8,
        cubins=False,
        observe=watch,
    )
    total = (time.perf_counter() - start) * 1e6
    cpu = (time.process_time() - started) * 1e6
    return {
        "layers": layers,
        "ops": watch.ops,
        "total_us": total,
        "total_us_per_op": total / watch.ops,
        "cpu_us_per_op": cpu / watch.ops,  # what a busy machine does not change as much
        "us_per_op": {name: us / watch.ops for name, us in watch.us.items()},
    }


def starts(preset: str) -> dict[str, float]:
    """The medians of new processes; the one before them fills the caches on disk."""
    command = [sys.executable, "-c", START, str(SPEC), preset]
    rounds = []
    for _ in range(STARTS + 1):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rounds.append([float(each) for each in done.stdout.split()])
    columns = zip(*rounds[1:], strict=True)
    return {name: statistics.median(each) for name, each in zip(FIGURES, columns, strict=True)}


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def middle(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The round whose total is the median."""
    median = statistics.median_low(row["total_us_per_op"] for row in rows)
    return next(row for row in rows if row["total_us_per_op"] == median)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append every round's row to this file")
    options = parser.parse_args()

    per_layer = measure(4)["ops"] / 4  # also warms up
    layers = [max(1, round(size / per_layer)) for size in SIZES]
    rounds = [[measure(each) for each in layers] for _ in range(options.rounds)]
    rows = [middle([each[index] for each in rounds]) for index in range(len(SIZES))]
    start = {preset: starts(preset) for preset in PRESETS}
    facts = {
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],  # processes that wanted to run: above the cores, times are long
        "start": start,
    }
    if options.out:
        with options.out.open("a") as file:
            for each in rounds:
                file.writelines(json.dumps({**row, **facts}) + "\n" for row in each)
    if options.json:
        print(json.dumps([{**row, **facts} for row in rows], indent=1))
        return
    passes = list(rows[0]["us_per_op"])
    print(f"{'us an op':20}" + "".join(f"{row['ops']:>10,} ops" for row in rows))
    for name in passes:
        print(f"{name:20}" + "".join(f"{row['us_per_op'][name]:14.1f}" for row in rows))
    print(f"{'total':20}" + "".join(f"{row['total_us_per_op']:14.1f}" for row in rows))
    print(f"{'of it on the CPU':20}" + "".join(f"{row['cpu_us_per_op']:14.1f}" for row in rows))
    for preset, each in start.items():
        print(
            f"\npreset {preset}, one route: in a new process, imports {each['import_s']:.2f} s, "
            f"first compile {each['first_s']:.3f} s with {each['first_nvrtc_calls']:.0f} calls of "
            f"NVRTC;\nsecond compile {each['second_s']:.3f} s with "
            f"{each['second_nvrtc_calls']:.0f} calls"
        )


if __name__ == "__main__":
    main()
