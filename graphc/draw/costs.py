"""How long kernels are drawn: by the costs in their contracts and the rates of ``timeline``.

A kernel takes as long as the slowest of its arithmetic, its memory and its link.
"""

from __future__ import annotations

from graphc.draw.timeline import NOMINAL, NOMINAL_GPU, OP_US, link_us
from graphc.ir import Schedule
from graphc.kernels.contract import Catalog
from graphc.kernels.costs import kernel_costs


def kernel_durations(schedule: Schedule, catalog: Catalog) -> dict[str, float]:
    """Op -> microseconds, of the kernels whose contracts are in the catalog."""
    places = {buffer.name: buffer.device for buffer in schedule.program.buffers.values()}
    found = {}
    for op, cost in kernel_costs(schedule.program, catalog, NOMINAL_GPU):
        times = cost.flops / NOMINAL.flops_per_us, cost.nbytes / NOMINAL.memory_bytes_per_us
        found[op.name] = OP_US + max(*times, link_us(op, places))
    return found
