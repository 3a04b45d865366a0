"""Program -> Program: give every transfer a concrete route.

``auto`` becomes the route of the variant at hand. A transfer of several small buffers takes the
route that its route file names as ``small``: on a copy engine a table of a few bytes would wait
behind megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graphc.ir import MAPPED, Op, Program, Transfer
from graphc.plan import Need, Requirement
from graphc.routes import RouteSpec
from graphc.text.diagnostics import error
from graphc.text.suggest import did_you_mean

AUTO = "auto"


def choose_routes(program: Program, routes: Mapping[str, RouteSpec], *, auto: str) -> Program:
    """Replace ``auto`` by the route named, and small transfers' routes by those for small ones."""
    return replace(program, ops=tuple(with_route(op, routes, auto) for op in program))


def with_route(op: Op, routes: Mapping[str, RouteSpec], auto: str) -> Op:
    if not isinstance(op.work, Transfer):
        return op
    name = auto if op.work.route == AUTO else op.work.route
    if name not in routes:
        raise error(
            "unknown-route",
            f"'{name}' is no route; there are {', '.join(sorted(routes))}",
            op.span,
            hint=did_you_mean(name, routes),
        )
    if op.work.is_small and routes[name].small is not None:
        name = routes[name].small or name
    return replace(op, work=replace(op.work, route=name))


def has_auto(program: Program) -> bool:
    return any(isinstance(op.work, Transfer) and op.work.route == AUTO for op in program)


def chosen_routes(program: Program) -> dict[str, str]:
    """Transfer -> route, of a program whose routes are chosen."""
    return {op.step: op.work.route for op in program if isinstance(op.work, Transfer)}


def requirements(program: Program, routes: Mapping[str, RouteSpec]) -> tuple[Requirement, ...]:
    """What the chosen routes, and kernels that touch other devices' memory, ask of the machine."""
    asked = {
        Requirement(need, source_device(op, program), target_device(op, program))
        for op in program
        if isinstance(op.work, Transfer)
        for need in routes[op.work.route].requires
    }
    reached = {
        (op.device, program.buffers[access.region.buffer].device, access.mode)
        for op in program
        if not isinstance(op.work, Transfer)
        for access in op.accesses
    }
    for device, other, mode in reached:
        if other in (device, MAPPED):
            continue
        if mode.is_read:
            asked.add(Requirement(Need.PEER_READ, other, device))
        if mode.is_write:
            asked.add(Requirement(Need.PEER_WRITE, device, other))
    return tuple(sorted(asked))


def source_device(op: Op, program: Program) -> str:
    return program.buffers[op["source.0"].region.buffer].device


def target_device(op: Op, program: Program) -> str:
    return program.buffers[op["target.0"].region.buffer].device
