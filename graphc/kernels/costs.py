"""What a launch of a kernel costs, by its contract: operations, bytes, and its shape on a GPU.

Expressions see the call's scalars, and the rows of the piece as ``hi - lo``, counted from 0. Sizes
that only the device knows are what the op says that they are in all (its share of that), or the
contract's ``estimate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from graphc.ir import Kernel, Op, Program
from graphc.kernels.contract import Catalog, Contract
from graphc.text.diagnostics import NOWHERE, Span
from graphc.text.explain import Number
from graphc.text.expr import Record, evaluate_number


@dataclass(frozen=True, slots=True)
class GpuShape:
    """What expressions of costs and launches may ask of a GPU."""

    arch: int  # 90
    sms: int
    shared_optin: int  # bytes of shared memory that one block may have


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one launch."""

    flops: float
    nbytes: float
    blocks: int
    threads: int  # of a block
    shared: int  # bytes of a block
    dtype: str  # of its first argument: what the operations are done in
    measure: float = 0.0  # what its curve in a machine's profile is drawn over
    peers_nbytes: float = 0.0  # of all bytes: those in arguments over all ranks, at most


@dataclass(slots=True)
class Costs:
    """The costs of kernels on one kind of GPU; the same call with the same rows is asked once."""

    gpu: GpuShape
    measures: Mapping[str, tuple[Number, Span]] = field(default_factory=dict)  # by template
    known: dict[tuple[object, ...], Cost] = field(default_factory=dict)

    def of(
        self, op: Op, kernel: Kernel, contract: Contract, dtypes: Mapping[str, str], rows: int
    ) -> Cost:
        """The cost of one launch over some rows of the op's axis; dtypes are those of buffers."""
        given = tuple((each.argument, dtypes[each.region.buffer]) for each in op.accesses)
        share = rows / op.axis.extent if kernel.estimate and op.axis.extent else 1.0
        estimate = tuple((name, value * share) for name, value in kernel.estimate.items())
        key = (
            contract.path, given, *kernel.symbols.items(), *kernel.options.items(),
            *kernel.scalars.items(), estimate, rows, op.placement.blocks,
        )  # fmt: skip
        if key not in self.known:
            scope = self.scope(kernel, contract, dict(given), rows, op.placement.blocks or 0)
            self.known[key] = self.evaluated(contract, {**scope, **dict(estimate)})
        return self.known[key]

    def scope(
        self, kernel: Kernel, contract: Contract, given: dict[str, str], rows: int, blocks: int
    ) -> dict[str, object]:
        return {
            **{name: each.dtype[0] for name, each in contract.args.items()},
            **given,
            **kernel.scalars,
            **{name: int(value) for name, value in kernel.symbols.items()},
            **kernel.options,
            "lo": 0,
            "hi": rows,
            "blocks": blocks,
            "arch": self.gpu.arch,
            "device": Record({"sms": self.gpu.sms, "shared_optin": self.gpu.shared_optin}),
        }

    def measured(
        self, template: str, scope: dict[str, object]
    ) -> tuple[Number, dict[str, object], Span]:
        """What the kernel's curve is drawn over, and where that is written."""
        over, span = self.measures.get(template, (0.0, NOWHERE))
        return over, scope, span

    def evaluated(self, contract: Contract, scope: dict[str, object]) -> Cost:
        cost, launch = contract.cost, contract.launch
        for name, text in cost.estimate.items():
            if name not in scope:
                scope[name] = evaluate_number(text, scope, place(contract, "estimate", name))
        flops = evaluate_number(cost.flops, scope, place(contract, "flops"))
        nbytes = evaluate_number(cost.bytes, scope, place(contract, "bytes"))
        at_peers = nbytes if cost.peers is None else cost.peers
        peers_nbytes = evaluate_number(at_peers, scope, place(contract, "peers"))
        grid, block = (
            prod(max(1, int(evaluate_number(each, scope))) for each in extents)
            for extents in (launch.grid, launch.block)
        )
        shared = int(evaluate_number(launch.shared, scope))
        measure = evaluate_number(*self.measured(contract.name, scope))
        first = str(scope[next(iter(contract.args))]) if contract.args else "f32"
        return Cost(
            float(flops),
            float(nbytes),
            grid,
            block,
            shared,
            first,
            float(measure),
            min(float(peers_nbytes), float(nbytes)),
        )


def contracts_of(program: Program, catalog: Catalog) -> dict[str, Contract]:
    """By template; not those that only share the name with the contract of a plan's kernel."""
    symbols = {
        op.work.template: {*op.work.symbols} for op in program if isinstance(op.work, Kernel)
    }
    known = catalog.names() if symbols else ()
    found = {name: catalog.contract(name) for name in symbols if name in known}
    return {name: each for name, each in found.items() if {*each.symbols} == symbols[name]}


def kernel_costs(
    program: Program, catalog: Catalog, gpu: GpuShape, *, count: int | None = None
) -> Iterator[tuple[Op, Cost]]:
    """The kernels whose contracts are in the catalog, at a count or else at the capacity."""
    dtypes = {buffer.name: buffer.dtype for buffer in program.buffers.values()}
    contracts, costs = contracts_of(program, catalog), Costs(gpu)
    for op in program:
        if isinstance(op.work, Kernel) and op.work.template in contracts:
            lo, hi = op.piece.bounds(op.axis, program.capacity if count is None else count)
            yield op, costs.of(op, op.work, contracts[op.work.template], dtypes, hi - lo)


def place(contract: Contract, *path: str) -> Span:
    """Where a part of the cost stands."""
    site = contract.site
    if site is None:
        return NOWHERE
    for part in ("cost", *path):
        site = site[part]
    return site.span
