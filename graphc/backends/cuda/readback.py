"""Law 6: what was really built, read back from the driver, is what the plan says.

Of every node: the kernel's function (which belongs to one context), its grid and every pointer and
number of its arguments, tables of pointers and the words of signals among them; the addresses and
lengths of copies and fills; the words and values of memory nodes. Of the whole: op comes
before op in the graph exactly if it does in the plan, by streams and waits for a capture, by edges
for explicit nodes. Read back after every build; it costs a few microseconds a node.

What cannot be read back here: bytes that kernels touch (contracts and their tests), contexts of
copy and fill nodes (fixed by their addresses), and order between launches (the caller's streams).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphc.backends.cuda.emit import Built
from graphc.gpu.protocol import (
    Call,
    CopyCall,
    Driver,
    FillCall,
    KernelCall,
    MemoryOpsCall,
    NodeKind,
)
from graphc.ir import Emit, Extern, Join, Schedule, Unit
from graphc.text.diagnostics import CompilerBug


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What was found in a graph that equals its plan."""

    nodes: int
    edges: int
    orders: int  # ordered pairs of ops

    def __add__(self, other: ReadBack) -> ReadBack:
        return ReadBack(
            self.nodes + other.nodes, self.edges + other.edges, self.orders + other.orders
        )


def read_back(driver: Driver, schedule: Schedule, built: Built) -> ReadBack:
    """Compare a unit's graph with the plan; a ``CompilerBug`` names the first difference."""
    nodes, edges = driver.nodes(built.graph), driver.edges(built.graph)
    schedule = part_of(schedule, built.unit)
    check_nodes(driver, schedule, built, nodes)
    bits = {op.name: 1 << at for at, op in enumerate(schedule.program.ops)}
    planned, found = planned_order(schedule, bits), built_order(built, nodes, edges, bits)
    present = sum(bit for name, bit in bits.items() if built.nodes.get(name))
    orders = 0
    for op in schedule.program.ops:
        if op.name not in found:
            continue
        wanted = planned[op.name] & present
        check_order(op.name, wanted, found[op.name], bits)
        orders += wanted.bit_count()
    return ReadBack(len(nodes), len(edges), orders)


def part_of(schedule: Schedule, unit: Unit) -> Schedule:
    """What a schedule says of one of its units."""
    if not schedule.units:
        return schedule
    program = schedule.program
    ops = tuple(op for op in program if op.device in unit.devices)
    names = {op.name for op in ops}
    streams = tuple(each for each in schedule.streams if each.device in unit.devices)
    own = {each.name for each in streams}
    return replace(
        schedule,
        program=replace(program, ops=ops),
        streams=streams,
        origin=unit.origin,
        instructions=tuple(each for each in schedule.instructions if each.stream in own),
        edges=tuple(each for each in schedule.edges if names.issuperset(each)),
        units=(unit,),
    )


def check_nodes(driver: Driver, schedule: Schedule, built: Built, nodes: tuple[int, ...]) -> None:
    of_ops = {node for each in built.nodes.values() for node in each}
    if strangers := [node for node in nodes if node not in of_ops]:
        raise difference(f"{len(strangers)} nodes belong to no op")
    if lost := of_ops.difference(nodes):
        raise difference(f"{len(lost)} nodes of ops are not in the graph")
    works = {op.name: op.work for op in schedule.program.ops}
    for name, calls in built.calls.items():
        own = built.nodes[name]
        match works[name]:
            case Extern():  # as many as its function enqueues
                continue
            case Join():  # one where nodes are explicit, none in a capture
                is_right = len(own) <= 1
            case _:
                is_right = len(own) == len(calls)
        if not is_right:
            raise difference(f"op '{name}' was planned as {len(calls)} nodes and has {len(own)}")
        for node, call in zip(own, calls, strict=False):
            check_call(driver, name, node, call)


def check_call(driver: Driver, name: str, node: int, call: Call) -> None:
    kind = driver.node_kind(node)
    found: Call
    wanted = call
    match call:
        case KernelCall():
            expect_kind(name, kind, NodeKind.KERNEL)
            found = driver.kernel_node(node, [code for code, _ in call.arguments])
            wanted = replace(call, cluster=None, is_cooperative=False, priority=0)
        case CopyCall():
            expect_kind(name, kind, NodeKind.COPY)
            found = driver.copy_node(node)
        case FillCall():
            expect_kind(name, kind, NodeKind.FILL)
            found, wanted = widened(driver.fill_node(node)), widened(call)
        case MemoryOpsCall():
            expect_kind(name, kind, NodeKind.MEMORY_OPS)
            found = driver.memory_ops_node(node)
    if found != wanted:
        raise difference(f"op '{name}' was planned as {wanted}, but its node is {found}")


def widened(call: FillCall) -> FillCall:
    """The same bytes in a form that compares: without the pitch that a single row does not use."""
    return call if call.height > 1 else replace(call, pitch=0)


def expect_kind(name: str, found: NodeKind, wanted: NodeKind) -> None:
    if found is not wanted:
        raise difference(f"op '{name}' should be a {wanted} node and is a {found} node")


def check_order(name: str, wanted: int, found: int, bits: Mapping[str, int]) -> None:
    if wanted == found:
        return
    missing = [each for each, bit in bits.items() if bit & wanted & ~found]
    extra = [each for each, bit in bits.items() if bit & found & ~wanted]
    if missing:
        raise difference(f"'{missing[0]}' comes before '{name}' in the plan, but not in the graph")
    raise difference(f"'{extra[0]}' comes before '{name}' in the graph, but not in the plan")


def difference(message: str) -> CompilerBug:
    return CompilerBug("read_back", message)


def planned_order(schedule: Schedule, bits: Mapping[str, int]) -> dict[str, int]:
    """Op -> bit set of the ops before it, by what the schedule says."""
    if schedule.emit is Emit.NODES:
        return order_by_edges(schedule, bits)
    before: dict[str, int] = {}
    reached: dict[str, int] = {}
    events: dict[str, int] = {}
    for each in schedule.instructions:
        match each.kind:
            case "run":
                before[each.op] = reached.get(each.stream, 0)
                reached[each.stream] = before[each.op] | bits[each.op]
            case "record":
                events[each.event] = reached.get(each.stream, 0)
            case "wait":
                reached[each.stream] = reached.get(each.stream, 0) | events.get(each.event, 0)
            case "sync":
                pass
    return before


def order_by_edges(schedule: Schedule, bits: Mapping[str, int]) -> dict[str, int]:
    direct: dict[str, list[str]] = {name: [] for name in bits}
    for first, second in schedule.edges:
        direct[second].append(first)
    before: dict[str, int] = {}
    for name in bits:  # program order is a topological order
        before[name] = 0
        for each in direct[name]:
            before[name] |= before[each] | bits[each]
    return before


def built_order(
    built: Built,
    nodes: tuple[int, ...],
    edges: tuple[tuple[int, int], ...],
    bits: Mapping[str, int],
) -> dict[str, int]:
    """Op -> bit set of the ops all of whose nodes come before all of its nodes.

    The node of an op with a single one has the op's own bit; the others lie above all ops.
    """
    node_bits = {own[0]: bits[name] for name, own in built.nodes.items() if len(own) == 1}
    others = (node for node in nodes if node not in node_bits)
    node_bits |= {node: 1 << (len(bits) + at) for at, node in enumerate(others)}
    reached = ancestors(node_bits, edges)
    several = {
        name: sum(node_bits[node] for node in own)
        for name, own in built.nodes.items()
        if len(own) > 1
    }
    singles = (1 << len(bits)) - 1
    order = {}
    for name, own in built.nodes.items():
        if not own:
            continue
        shared = reached[own[0]]
        for node in own[1:]:
            shared = (shared | node_bits[own[0]]) & (reached[node] | several[name])
        order[name] = shared & singles
        for each, mask in several.items():
            if each != name and mask & shared == mask:
                order[name] |= bits[each]
    return order


def ancestors(bits: Mapping[int, int], edges: tuple[tuple[int, int], ...]) -> dict[int, int]:
    """Node -> bit set of the nodes before it."""
    after: dict[int, list[int]] = {node: [] for node in bits}
    missing = dict.fromkeys(bits, 0)
    for first, second in edges:
        after[first].append(second)
        missing[second] += 1
    reached = dict.fromkeys(bits, 0)
    ready = [node for node in bits if not missing[node]]
    while ready:
        node = ready.pop()
        for each in after[node]:
            reached[each] |= reached[node] | bits[node]
            missing[each] -= 1
            if not missing[each]:
                ready.append(each)
    return reached
