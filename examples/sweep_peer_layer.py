"""Find a schedule for a machine that is not at hand: the peer layer swept on two H200, predicted.

The winner is written as a schedule file, and compiled from it as production would.

    python examples/sweep_peer_layer.py
"""

from __future__ import annotations

from pathlib import Path

import graphc

OUT = Path("out") / "sweep"


def main() -> int:
    found = graphc.sweep(
        "moe_peer",
        {"route": ["host", "host_copy", "p2p"], "pieces": "1:16:x4", "compute": [1, 2]},
        where="pieces >= compute",
        preset="full",
        baseline={"route": "host", "pieces": 1, "compute": 1},
        machine="h200x2",
        out=OUT,
    )
    print("route      pieces  compute  predicted ms  times as fast as one piece by the host")
    for row in found.rows:
        route, pieces, compute = row.candidate.values.values()
        ms, times = row.outcome.us / 1e3, 1 / row.outcome.relative
        print(f"{route:10}{pieces:7}{compute:9}{ms:14.2f}{times:9.2f}")

    plan = graphc.compile("moe_peer", preset="full", schedule=OUT / "best.yaml", cubins=False)
    taken = {name: plan.params[name] for name in found.best.candidate.values}
    print(f"\nthe winner, compiled from {OUT / 'best.yaml'}: {taken}")
    return 0 if taken == dict(found.best.candidate.values) else 1


if __name__ == "__main__":
    raise SystemExit(main())
