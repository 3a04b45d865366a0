"""The main job, from end to end: compile the peer layer, prove it, run it, compare its schedules.

On two GPUs or one it runs CUDA graphs at a real size, else the reference at a small one. Every
schedule must leave the same bits; the picture of the last one is written to ``out/``.

    python examples/peer_layer.py
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import graphc
from graphc.api import has_gpu
from graphc.draw.swimlanes import swimlanes
from graphc.inputs import random_inputs
from graphc.resources import shipped

SPEC = shipped("specs") / "moe_peer.yaml"
SCHEDULES = {
    "one piece": {"pieces": 1},
    "transfers in 8 pieces": {"pieces": 8, "compute": 1},
    "compute in 4 pieces as well": {"pieces": 8, "compute": 4},
    "activations late": {"pieces": 8, "compute": 4, "early": False},
}


def main() -> int:
    backend = "cuda" if has_gpu() else "reference"
    preset = "full" if backend == "cuda" else "small"
    print(f"{SPEC.name}, preset {preset}, route host, on the {backend} backend\n")
    print(f"{'schedule':30}{'ops':>6}{'streams':>9}{'waits':>7}{'proof':>14}{'ms':>9}  bits")
    expected: np.ndarray | None = None
    for name, values in SCHEDULES.items():
        plan = graphc.compile(
            SPEC, preset=preset, route="host", cubins=backend == "cuda", **values
        )
        variant = plan.variants[0]
        inputs = random_inputs(plan, seed=1)
        with plan.instantiate(backend) as graph:
            graph.bind(inputs)
            start = time.perf_counter()
            graph.launch()
            graph.synchronize()
            found = np.asarray(graph["residual"]).copy()
            took_ms = graph.measure_ms() if backend == "cuda" else None
        took_ms = took_ms or (time.perf_counter() - start) * 1e3
        expected = found if expected is None else expected
        is_same = found.tobytes() == expected.tobytes()
        waits = sum(each.kind == "wait" for each in variant.schedule.instructions)
        print(
            f"{name:30}{variant.proof.ops:6}{len(variant.schedule.streams):9}{waits:7}"
            f"{variant.proof.pairs:8} pairs{took_ms:9.2f}  {'same' if is_same else 'DIFFERENT'}"
        )
        if not is_same:
            return 1
        picture = Path("out") / "peer_layer.svg"
        picture.parent.mkdir(exist_ok=True)
        picture.write_text(swimlanes(variant.schedule, title=f"moe_peer: {name}"))
    print(f"\nall schedules left the same bits; the last one is drawn in {picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
