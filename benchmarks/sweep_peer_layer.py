"""The peer layer swept on two GPUs: route x pieces of activations, compute and sums x early.

    python benchmarks/sweep_peer_layer.py --out FOLDER [--few] [--seconds 300]

16,384 tokens, half of the experts on the peer. Every candidate is proven, leaves the bits of the
baseline (one piece over NVLink, the best choice by hand), and is timed in turns with it. Rows are
written as they are measured; ``--seconds`` ends a sweep that would last longer, and started
again with the same folder it goes on. The routes are the last axis, so that a part of a sweep has
all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import graphc
from graphc.sweeps.rows import Row, ranked, row_of
from graphc.sweeps.sweep import Standing

HERE = Path(__file__).parent
SPEC = HERE.parent / "specs" / "moe_peer.yaml"
ROUTES = ["host", "host_copy", "host_push", "p2p"]
UNEVEN = ["3/8", "3/8", "1/4"]
AXES: dict[str, list[Any]] = {
    "sums": [16, 1, 8],
    "pieces": [16, 1, 8, 32],
    "schedule.cuts.compute": [1, 2, UNEVEN],
    "early": [True, False],
    "route": ROUTES,
}
FEW: dict[str, list[Any]] = {"pieces": [1, 8, 16, 32, 64], "route": ROUTES}
BASELINE = {"route": "p2p", "pieces": 1, "compute": 1}


def inputs(graph: Any) -> dict[str, Any]:
    """Seeded arrays on the GPUs: gigabytes of weights that never were on the host."""
    sys.path.insert(0, str(HERE))
    from peer_layer import Inputs

    made = Inputs(skew=0.0)
    names = [each.name for each in graph.program.buffers.values() if each.role.value == "weight"]
    return {name: made.array(graph, name) for name in [*names, "residual"]}


class Clock:
    """Says how it goes, and ends a sweep that lasts too long."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds, self.said = time.monotonic(), seconds, 0.0

    def __call__(self, standing: Standing) -> None:
        spent = time.monotonic() - self.start
        if spent - self.said > 10 or standing.done == standing.total:
            self.said = spent
            best = standing.best
            found = f"{best.outcome.us:.0f} us {best.candidate.label}" if best else "none"
            done = f"{standing.done}/{standing.total}, {standing.not_ok} not ok"
            print(f"{spent:5.0f} s: {done}, best {found}", flush=True)
        if spent > self.seconds:
            raise KeyboardInterrupt


def tell(rows: Sequence[Row]) -> None:
    failed = [each for each in rows if not each.is_ok]
    print(f"{len(rows)} candidates, {len(failed)} not ok")
    for route in ROUTES:
        of_route = [each for each in rows if each.candidate.values["route"] == route]
        for row in ranked(of_route)[:3]:
            outcome, facts = row.outcome, row.outcome.facts
            print(
                f"{outcome.us / 1e3:7.3f} ms  {outcome.relative:6.3f} of the baseline, wins "
                f"{facts['wins']}/{facts['rounds']}, launch {facts['launch_us'] or 0:5.1f} us  "
                f"{row.candidate.label}"
            )
    for row in failed[:3]:
        reason = (row.outcome.reason or "")[:300]
        print(f"{row.outcome.status.value}: {row.candidate.label}: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--few", action="store_true", help="20 candidates, to see whether it works")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--preset", default="full")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    try:
        found = graphc.sweep(
            SPEC,
            FEW if options.few else AXES,
            preset=options.preset,
            baseline=BASELINE,
            backend=options.backend,
            inputs="sweep_peer_layer:inputs" if options.backend == "cuda" else None,
            out=options.out,
            rounds=options.rounds,
            steps=3 if options.few else 0,
            workers=options.workers,
            limit_s=60,
            progress=Clock(options.seconds),
        )
    except KeyboardInterrupt:
        print("stopped: the same command goes on")
        lines = (options.out / "rows.jsonl").read_text().splitlines()
        tell([row_of(json.loads(line)) for line in lines])
        return 0
    tell(found.rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
