"""Before a plan runs on the host: does it fit, and is it worth waiting for?

The bytes are those of the plan's memory and of the inputs beside it.
The multiply-adds are half of the operations in the contracts' costs, at the capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphc.backends.hostmemory import check_host_memory
from graphc.cli.output import bytes_text, note
from graphc.cli.request import Request, is_plan

if TYPE_CHECKING:
    from graphc.ir import Schedule
    from graphc.plan import Plan

# Above one of them a run takes minutes, or a good part of a machine, and a note says so.
MOST_MULTIPLY_ADDS = 10**11
MOST_BYTES = 4 * 10**9


def weigh(wanted: Request, plan: Plan) -> None:
    """Refuse what does not fit into the host's memory; say of what takes long that it does."""
    schedule, hint = plan.variants[0].schedule, advice(wanted)
    nbytes, multiply_adds = bytes_of(schedule), multiply_adds_of(wanted, schedule)
    check_host_memory(nbytes, "these are the plan's buffers and the inputs", hint)
    if nbytes > MOST_BYTES or multiply_adds > MOST_MULTIPLY_ADDS:
        note(
            f"note: on the reference backend this takes about {bytes_text(nbytes)} of memory and "
            f"{multiply_adds:.1e} multiply-adds, which may last{': ' if hint else ''}{hint or ''}"
        )


def advice(wanted: Request) -> str | None:
    """What runs sooner, where the spec says so."""
    from graphc.spec.model import load_spec

    presets = [] if is_plan(wanted.path) else list(load_spec(wanted.path).presets)
    if not presets or wanted.preset == "small":
        return None
    if "small" in presets:
        return "--preset small is soon done"
    return f"the spec has the presets {', '.join(presets)}"


def bytes_of(schedule: Schedule) -> int:
    from graphc.inputs import filled_buffers

    held = sum(each.nbytes for each in schedule.memory.allocations)
    return held + sum(each.nbytes for each in filled_buffers(schedule.program))


def multiply_adds_of(wanted: Request, schedule: Schedule) -> float:
    from graphc.draw.timeline import NOMINAL_GPU
    from graphc.kernels.contract import Catalog
    from graphc.kernels.costs import kernel_costs
    from graphc.resources import kernel_folders

    catalog = Catalog(kernel_folders(wanted.kernels))
    costs = kernel_costs(schedule.program, catalog, NOMINAL_GPU)
    return sum(cost.flops for _, cost in costs) / 2
