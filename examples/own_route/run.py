"""A route of one's own: a YAML file in a folder, used by name, held to the bits of the others.

python examples/own_route/run.py
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

import graphc
from graphc.inputs import random_inputs

HERE = Path(__file__).parent
SPEC = HERE.parent / "offload.yaml"


def main() -> int:
    found = {route: result(route) for route in ("host", "host_push_copy")}
    is_same = len(set(found.values())) == 1
    print(f"{' and '.join(found)} left the same bits: {is_same}")
    return 0 if is_same else 1


def result(route: str) -> bytes:
    plan = graphc.compile(
        SPEC, routes=[HERE / "routes"], route=route, tokens=64, pieces=2, cubins=False
    )
    with closing(plan.instantiate()) as graph:
        graph.bind(random_inputs(plan))
        graph.launch()
        graph.synchronize()
        return np.asarray(graph["x"]).tobytes()


if __name__ == "__main__":
    raise SystemExit(main())
