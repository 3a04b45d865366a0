"""A kernel of one's own: a template with its contract, and a numpy function that says its meaning.

    python examples/own_kernel/run.py

or from the command line:

    graphc run examples/own_kernel/layer.yaml --kernels examples/own_kernel/kernels
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

import graphc
from graphc.inputs import random_inputs

HERE = Path(__file__).parent


def main() -> int:
    plan = graphc.compile(HERE / "layer.yaml", kernels=[HERE / "kernels"], cubins=False)
    inputs = random_inputs(plan)
    with closing(plan.instantiate()) as graph:
        graph.bind(inputs)
        graph.launch(count=40)
        graph.synchronize()
        found = np.asarray(graph["y"])[:40]
    is_right = np.array_equal(found, np.clip(inputs["x"][:40], -0.5, 0.25))
    print(f"{plan.variants[0].proof.ops} ops, right: {is_right}")
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
