"""Reachability by bit sets: Python ints with one bit for each op.

A union of two sets of 16,000 ops takes a tenth of a microsecond, so that asking for everything
before an op stays cheap where library calls for transitive reductions take seconds.

Of a long program nearly all that came some layers earlier is before an op. A ``History`` is a set
that takes these together, so that its size, and the time for it, does not grow with the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from graphc.ir import Graph, Placed

History: TypeAlias = tuple[int, int]  # start, bits: all nodes below start, and start + each bit
NOTHING: History = (0, 0)


def predecessors(graph: Graph) -> list[list[int]]:
    """For each op, by its place in the program, the places of its direct predecessors."""
    place = {op.name: index for index, op in enumerate(graph.program.ops)}
    before = graph.edges.pred
    return [[place[name] for name in before[op.name]] for op in graph.program.ops]


def ancestors(before: Sequence[Iterable[int]]) -> list[int]:
    """For each node the set of all nodes before it; predecessors stand in front of their users.

    >>> [bin(each) for each in ancestors([[], [0], [1], []])]
    ['0b0', '0b1', '0b11', '0b0']
    """
    closure: list[int] = []
    for nodes in before:
        known = 0
        for node in nodes:
            known |= closure[node] | 1 << node
        closure.append(known)
    return closure


def histories(before: Sequence[Iterable[int]]) -> list[History]:
    """For each node the set of itself and of all nodes before it.

    >>> histories([[], [0], [1], [2, 0], []])
    [(1, 0), (2, 0), (3, 0), (4, 0), (0, 16)]
    """
    found: list[History] = []
    for node, nodes in enumerate(before):
        known = NOTHING
        for other in nodes:
            known = joined(known, found[other])
        found.append(grown(known, node))
    return found


def knows(history: History, node: int) -> bool:
    start, bits = history
    return node < start or bool(bits >> (node - start) & 1)


def joined(one: History, two: History) -> History:
    """The union of two sets."""
    if one[0] < two[0]:
        one, two = two, one
    return one[0], one[1] | two[1] >> (one[0] - two[0])


def grown(history: History, node: int) -> History:
    """The set with one node more, all up to the first gap taken together."""
    start, bits = history
    if node >= start:
        bits |= 1 << (node - start)
    whole = (~bits & (bits + 1)).bit_length() - 1
    return start + whole, bits >> whole


def shared(sets: Iterable[History]) -> History:
    """What is in all of the sets.

    >>> shared([(1, 0b10), (2, 0b1)])
    (1, 2)
    """
    found = list(sets)
    start = min(each[0] for each in found)
    bits = -1
    for each, more in found:
        bits &= more << (each - start) | (1 << (each - start)) - 1
    return start, bits


def as_set(nodes: Sequence[int]) -> int:
    """Nodes in ascending order as one bit set.

    >>> bin(as_set([1, 3]))
    '0b1010'
    """
    bits = 0
    for node in nodes:
        bits |= 1 << (node - nodes[0])
    return bits << nodes[0] if nodes else 0


def members(nodes: int) -> list[int]:
    """The nodes of a bit set, the last one first.

    >>> members(0b1011)
    [3, 1, 0]
    """
    result = []
    while nodes:
        node = nodes.bit_length() - 1
        result.append(node)
        nodes ^= 1 << node
    return result


def issued_before(placed: Placed, *, by_streams: bool) -> list[list[int]]:
    """For each op, in order of issue, what is right before it: by edges, if asked by streams."""
    place = {name: index for index, name in enumerate(placed.order)}
    edges = placed.graph.edges.pred
    tails: dict[str, int] = {}
    before = []
    for index, name in enumerate(placed.order):
        nodes = [place[other] for other in edges[name]]
        if by_streams:
            stream = placed.stream_of[name]
            if stream in tails:
                nodes.append(tails[stream])
            tails[stream] = index
        before.append(nodes)
    return before
