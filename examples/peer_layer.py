"""The main job, from end to end: compile the peer layer, prove it, run it, compare its schedules.

On two GPUs or one it runs CUDA graphs at a real size, else the reference at a small one. Every
schedule must leave the same bits; the picture of the last one is written to ``out/``.

    python examples/peer_layer.py
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import graphc
from graphc.api import has_gpu
from graphc.draw.swimlanes import swimlanes
from graphc.inputs import random_inputs
from graphc.plan import Backend, Plan, Variant

SCHEDULES: dict[str, dict[str, Any]] = {
    "one piece": {"pieces": 1},
    "transfers in 8 pieces": {"pieces": 8, "compute": 1},
    "compute in 4 pieces as well": {"pieces": 8, "compute": 4},
    "activations late": {"pieces": 8, "compute": 4, "early": False},
    "the best route here": {"pieces": 8, "compute": 4, "route": "auto"},
}
# A quarter of the experts of the real layer, so that weights are made in seconds.
ON_GPUS: dict[str, Any] = {"preset": "full", "experts": 128, "peer_experts": 64, "tokens": 8192}
ON_HOST: dict[str, Any] = {"preset": "small"}
PICTURE = Path("out") / "peer_layer.svg"


def main() -> int:
    backend: Backend = "cuda" if has_gpu() else "reference"
    size = ON_GPUS if backend == "cuda" else ON_HOST
    inputs: dict[str, np.ndarray] = {}
    expected: bytes | None = None
    print("schedule                     route    ops  streams  waits  proven pairs       ms  bits")
    for name, values in SCHEDULES.items():
        plan = graphc.compile("moe_peer", cubins=False, **{"route": "host", **size, **values})
        inputs = inputs or random_inputs(plan, seed=1)  # the same for all: they follow the names
        found, took_ms, variant = run(plan, backend, inputs)
        is_same = expected in (None, found)
        expected = expected or found
        waits = sum(each.kind == "wait" for each in variant.schedule.instructions)
        print(
            f"{name:28} {variant.routes['layer.0/activations']:6}{variant.proof.ops:6}"
            f"{len(variant.schedule.streams):9}{waits:7}{variant.proof.pairs:14,}{took_ms:9.2f}"
            f"  {'same' if is_same else 'DIFFERENT'}"
        )
        if not is_same:
            return 1
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(swimlanes(variant.schedule, title=f"{plan.name}: {name}"))
    params = ", ".join(f"{key} {plan.params[key]}" for key in ("tokens", "hidden", "experts"))
    print(f"\n{params}, on the {backend} backend: all schedules left the same bits.")
    print(f"The last one is drawn in {PICTURE}")
    return 0


def run(
    plan: Plan, backend: Backend, inputs: dict[str, np.ndarray]
) -> tuple[bytes, float, Variant]:
    """The bytes that one replay leaves, how long a replay takes, and the variant that ran."""
    with closing(plan.instantiate(backend)) as graph:
        # Bound arrays are used where they are, so what the layer overwrites is copied.
        graph.bind({**inputs, "residual": inputs["residual"].copy()})
        start = time.perf_counter()
        graph.launch()
        graph.synchronize()
        took_ms = (time.perf_counter() - start) * 1e3
        found = np.asarray(graph["residual"]).tobytes()
        if backend == "cuda":
            took_ms = min(graph.time_replays()) / 1e3
        return found, took_ms, graph.variant


if __name__ == "__main__":
    raise SystemExit(main())
