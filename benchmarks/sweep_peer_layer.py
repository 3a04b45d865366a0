"""The peer layer swept on two GPUs: route x pieces of activations, compute and sums x early.

    python benchmarks/sweep_peer_layer.py --out FOLDER [--few] [--seconds 300]
    python benchmarks/sweep_peer_layer.py --page sweep.html --rows results.jsonl

16,384 tokens, half of the experts on the peer. Every candidate is proven, leaves the bits of the
baseline (one piece over NVLink, the best choice by hand), and is timed in turns with it. Rows are
written as they are measured; ``--seconds`` ends a sweep that would last longer, and started
again with the same folder it goes on. The routes are the last axis, so that a part of a sweep has
all of them. FOLDER/results.jsonl are the rows with what the machine is. A page shows rows with what
the profile of such a machine predicts for each.
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
from graphc.gpu.probe import doctor_facts
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


def machine(preset: str) -> dict[str, Any]:
    found = doctor_facts(with_rates=False)
    gpu = found.gpus[0].name if found.gpus else "none"
    return {
        "what": "sweep",
        "gpu": gpu,
        "gpus": len(found.gpus),
        "driver": found.driver,
        "nvrtc": found.nvrtc,
        "preset": preset,
    }


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


def write_page(path: Path, rows: list[dict[str, Any]]) -> None:
    """The curves of a sweep, measured and predicted; it needs no GPU."""
    from graphc.draw.look import sweep_page

    for row in rows:
        found = graphc.simulate(SPEC, machine="h200x2", preset=row["preset"], **row["values"])
        row["predicted_us"] = found.total_us
    best = ranked(map(row_of, rows))[0]
    page = sweep_page(
        rows,
        name="moe_peer",
        axes=list(rows[0]["values"]),
        winner=best.candidate.index,
        basis="measured",
        baseline_us=best.outcome.facts["baseline_us"],
    )
    path.write_text(page, encoding="utf-8")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--page", type=Path, help="write a page of --rows, measure nothing")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--few", action="store_true", help="20 candidates, to see whether it works")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--preset", default="full")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    if options.page is not None:
        write_page(options.page, rows_of(options.rows))
        return 0
    try:
        graphc.sweep(
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
    rows = rows_of(options.out / "rows.jsonl")
    tell([*map(row_of, rows)])
    with (options.out / "results.jsonl").open("w") as file:
        facts = machine(options.preset)
        file.writelines(json.dumps({**facts, **row}) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
