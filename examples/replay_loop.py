"""One graph, many launches: the rows in use change from launch to launch, the graph does not.

A plan is compiled for a capacity. ``count`` says how many rows a launch uses; the rows behind it
are left as they are.

    python examples/replay_loop.py
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

import graphc
from graphc.inputs import random_inputs

SPEC = Path(__file__).parent / "offload.yaml"
CAPACITY = 64


def main() -> int:
    plan = graphc.compile(SPEC, tokens=CAPACITY, pieces=3, cubins=False)
    inputs = random_inputs(plan, seed=7)
    x = inputs["x"]
    weight = inputs["w"].astype(np.float32)
    with closing(plan.instantiate()) as graph:
        graph.bind(w=inputs["w"])
        for count in (64, 5, 1, 0, 41, 64):
            graph.bind(x=x.copy())
            graph.launch(count=count)
            graph.synchronize()
            found = np.array(graph["x"])
            expected = x[:count] + x[:count].astype(np.float16).astype(np.float32) @ weight.T
            error = float(np.abs(found[:count] - expected).max(initial=0.0))
            is_kept = found[count:].tobytes() == x[count:].tobytes()
            print(
                f"{count:3} rows in use: off by {error:.0e} at most, the other rows kept: {is_kept}"
            )
            if error > 1e-2 or not is_kept:
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
