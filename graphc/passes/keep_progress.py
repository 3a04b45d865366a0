"""Placed -> Placed: what a unit itself does for a signal comes before it awaits that signal.

    gpu0: a -> signal/a        await/c -> c          a -> b -> c, with b on gpu1 and nothing between
    gpu1: await/b -> b -> signal/b                   a and c: add signal/a -> await/c

While an await spins, nothing of its own unit may be left to do for what it waits for: it could be
stuck behind the await. So of the ops of its unit that are ordered before its signals, by edges,
signals and streams, those that are not yet before the await by edges and streams of the unit get an
edge to it. This adds no order that was not there by way of other units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphc.ir import Await, Graph, Placed
from graphc.passes.amend import AFTER, add_edges
from graphc.passes.closure import NOTHING, History, grown, issued_before, joined
from graphc.passes.find_units import unit_numbers


def keep_progress(placed: Placed, *, by_streams: bool) -> Placed:
    """The schedule with an edge to each await from all that its signals need of its own unit."""
    ops = {op.name: op for op in placed.graph.program.ops}
    numbers = unit_numbers(placed.units)
    units = [numbers[ops[name].device] for name in placed.order]
    awaits = [isinstance(ops[name].work, Await) for name in placed.order]
    missing = progress_edges(issued_before(placed, by_streams=by_streams), units, awaits)
    edges = placed.graph.edges.copy()
    add_edges(edges, ((placed.order[one], placed.order[two], AFTER) for one, two in missing))
    return replace(placed, graph=Graph(placed.graph.program, edges))


def progress_edges(
    before: Sequence[Sequence[int]], units: Sequence[int], awaits: Sequence[bool]
) -> list[tuple[int, int]]:
    """Which nodes have to be before which awaits, and are not within their unit."""
    others = foreign(units)
    overall: list[History] = []  # what is before a node, whatever the way
    within: list[History] = []  # by ways within its unit; nodes of other units count as known
    found = []
    for node, nodes in enumerate(before):
        unit = units[node]
        seen = known = NOTHING
        for other in nodes:
            seen = joined(seen, overall[other])
            if units[other] == unit:
                known = joined(known, within[other])
        known = with_all(known, others[unit], node)
        if awaits[node]:
            while (missing := latest_missing(seen, known)) is not None:
                found.append((missing, node))
                known = joined(known, within[missing])
        overall.append(grown(seen, node))
        within.append(grown(known, node))
    return found


def foreign(units: Sequence[int]) -> dict[int, int]:
    """For each unit the set of all nodes of other units."""
    own: dict[int, int] = {}
    for unit in set(units):
        bits = "".join("1" if each == unit else "0" for each in reversed(units))
        own[unit] = int(bits, 2)
    everything = (1 << len(units)) - 1
    return {unit: everything & ~bits for unit, bits in own.items()}


def with_all(history: History, nodes: int, stop: int) -> History:
    """The set with those of the nodes that are below ``stop``."""
    start, bits = history
    if start >= stop:
        return history
    return start, bits | (nodes >> start & (1 << (stop - start)) - 1)


def latest_missing(wanted: History, known: History) -> int | None:
    """The last of the nodes wanted that is not known."""
    start, bits = wanted
    base, have = known
    here = bits >> (base - start) if start <= base else (bits + 1 << (start - base)) - 1
    if start > base:
        here = bits << (start - base) | (1 << (start - base)) - 1
    left = here & ~have
    return base + left.bit_length() - 1 if left else None
