"""What a compile costs: programs of 1k, 4k and 16k ops, microseconds an op, pass by pass.

The program is a stack of peer layers cut into 8 pieces, shapes small, so that only the compiler
works. Ops are counted after splitting. Kernel images are rendered, not compiled.

    python benchmarks/compile_time.py [--json] [--rounds 3] [--out rows.jsonl]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import graphc
from graphc.ir import Program

SPEC = Path(__file__).parent.parent / "specs" / "moe_peer.yaml"
SIZES = (1_000, 4_000, 16_000)


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
    watch = Stopwatch()
    gc.collect()
    start = time.perf_counter()
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
    return {
        "layers": layers,
        "ops": watch.ops,
        "total_us": total,
        "total_us_per_op": total / watch.ops,
        "us_per_op": {name: us / watch.ops for name, us in watch.us.items()},
    }


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
    if options.out:
        facts = {"python": platform.python_version(), "machine": platform.machine()}
        with options.out.open("a") as file:
            for each in rounds:
                file.writelines(json.dumps({**row, **facts}) + "\n" for row in each)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    passes = list(rows[0]["us_per_op"])
    print(f"{'us an op':20}" + "".join(f"{row['ops']:>10,} ops" for row in rows))
    for name in passes:
        print(f"{name:20}" + "".join(f"{row['us_per_op'][name]:14.1f}" for row in rows))
    print(f"{'total':20}" + "".join(f"{row['total_us_per_op']:14.1f}" for row in rows))


if __name__ == "__main__":
    main()
