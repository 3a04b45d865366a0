"""A plan as a file: compiled and proven here, loaded and run by whoever launches it.

The file holds everything: schedules for every route that the machine might offer, kernels, memory
layout. Loading it needs neither the spec nor a compiler.

    python examples/plan_file.py
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

import graphc
from graphc.inputs import random_inputs

SPEC = Path(__file__).parent / "offload.yaml"
PLAN = Path("out") / "offload.graphc"


def main() -> int:
    PLAN.parent.mkdir(exist_ok=True)
    compiled = graphc.compile(SPEC, tokens=64, cubins=False)
    compiled.save(PLAN)

    plan = graphc.load(PLAN)
    for variant in plan.variants:
        needs = ", ".join(sorted({each.need for each in variant.requires})) or "nothing"
        print(f"{variant.routes['over']:10} needs {needs}; {variant.proof.ops} ops proven")
    found = [result(each) for each in (compiled, plan)]
    print(f"{PLAN}: {PLAN.stat().st_size:,} bytes; the same bits: {found[0] == found[1]}")
    return 0 if found[0] == found[1] else 1


def result(plan: graphc.Plan) -> bytes:
    with closing(plan.instantiate()) as graph:
        graph.bind(random_inputs(plan))
        graph.launch()
        graph.synchronize()
        return np.asarray(graph["x"]).tobytes()


if __name__ == "__main__":
    raise SystemExit(main())
