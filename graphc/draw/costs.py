"""How long kernels would take, from the costs in their contracts and the rates of ``timeline``.

The costs are those at the capacity; sizes that only the device knows are what the contract's
``estimate`` says. A kernel takes as long as the slowest of its arithmetic, its memory and its link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphc.draw.timeline import ARCH, NOMINAL, OP_US, SHARED_OPTIN, SMS, link_us
from graphc.ir import Kernel, Op, Schedule
from graphc.kernels.contract import Catalog, Contract
from graphc.text.diagnostics import NOWHERE
from graphc.text.expr import Record, evaluate_number

DEVICE = Record({"sms": SMS, "shared_optin": SHARED_OPTIN})


def kernel_durations(schedule: Schedule, catalog: Catalog) -> dict[str, float]:
    """Op -> microseconds, of the kernels whose contracts are in the catalog."""
    places = {buffer.name: buffer.device for buffer in schedule.program.buffers.values()}
    found = {}
    for op, flops, nbytes in kernel_costs(schedule, catalog):
        times = flops / NOMINAL.flops_per_us, nbytes / NOMINAL.memory_bytes_per_us
        found[op.name] = OP_US + max(*times, link_us(op, places))
    return found


def kernel_costs(schedule: Schedule, catalog: Catalog) -> Iterator[tuple[Op, float, float]]:
    """Op, operations and bytes, of the kernels whose contracts are in the catalog."""
    program = schedule.program
    dtypes = {buffer.name: buffer.dtype for buffer in program.buffers.values()}
    contracts = contracts_of(schedule, catalog)
    for op in program:
        if isinstance(op.work, Kernel) and op.work.template in contracts:
            contract = contracts[op.work.template]
            yield op, *cost(op, op.work, contract, dtypes, program.capacity)


def contracts_of(schedule: Schedule, catalog: Catalog) -> dict[str, Contract]:
    """By template; not those that only share the name with the contract of a plan's kernel."""
    symbols = {
        op.work.template: {*op.work.symbols}
        for op in schedule.program
        if isinstance(op.work, Kernel)
    }
    known = catalog.names()
    found = {name: catalog.contract(name) for name in symbols if name in known}
    return {name: each for name, each in found.items() if {*each.symbols} == symbols[name]}


def cost(
    op: Op, kernel: Kernel, contract: Contract, dtypes: Mapping[str, str], capacity: int | None
) -> tuple[float, float]:
    """Operations and bytes of one launch at the capacity."""
    lo, hi = op.piece.bounds(op.axis, capacity)
    scope: dict[str, object] = {
        **{name: each.dtype[0] for name, each in contract.args.items()},
        **{each.argument: dtypes[each.region.buffer] for each in op.accesses},
        **{name: int(value) for name, value in kernel.symbols.items()},
        **kernel.options,
        "lo": lo,
        "hi": hi,
        "blocks": op.placement.blocks or 0,
        "arch": ARCH,
        "device": DEVICE,
    }
    site = contract.site["cost"] if contract.site else None
    for name, text in contract.cost.estimate.items():
        span = site["estimate"][name].span if site else NOWHERE
        scope[name] = evaluate_number(text, scope, span)
    flops, nbytes = (
        evaluate_number(text, scope, site[name].span if site else NOWHERE)
        for name, text in (("flops", contract.cost.flops), ("bytes", contract.cost.bytes))
    )
    return float(flops), float(nbytes)
