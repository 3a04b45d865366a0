"""Graph -> Placed: choose the order of issue, and a stream for every op.

Order of issue: among the ops that are ready, first those of the earliest iteration, then those of
the earliest piece, then program order. So pieces go depth first: what the first piece of a
transfer feeds is issued before the second piece.

Streams: by name where the schedule names them. Else every step of a transfer has a lane of its
own, so that bulk copies hold nothing up. Compute goes by steps, all pieces of a step on one
stream: behind a predecessor if the stream's latest step comes before this one anyway; else on any
stream for which that holds; else on a new stream while ``max_streams`` allows; else where it adds
the fewest false orders. A lane whose ops are ordered with all compute of their device needs no
stream of its own and is laid like compute: what is not asked for is not created.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

from graphc.ir import Graph, Join, Op, Placed, Stream
from graphc.passes.closure import ancestors, predecessors
from graphc.text.diagnostics import Note, Span, error

ITERATION = re.compile(r"(?:[^/]+\.\d+/)*")  # "layer.0/" of "layer.0/mix"
Lane = tuple[str, str]  # a device and the name of a lane


def assign_streams(graph: Graph, max_streams: int) -> Placed:
    """Lay each op on a stream of its device; the order of issue agrees with all edges."""
    before = predecessors(graph)
    order = issue_order(graph, before)
    steps = group_steps(graph, before)
    laid_like_compute = lanes_without_overlap(graph, before, steps)
    streams = Streams(graph.program.devices, max(max_streams, 1), author_streams(graph))
    for index in order:
        step = steps.of[index]
        if steps.stream[step] is None:
            steps.stream[step] = choose(graph.program.ops, step, steps, streams, laid_like_compute)
    ops = graph.program.ops
    return Placed(
        graph,
        streams.all(),
        streams.origin(),
        tuple(ops[index].name for index in order),
        {op.name: steps.stream[steps.of[index]] or "" for index, op in enumerate(ops)},
    )


# Order of issue


def issue_order(graph: Graph, before: list[list[int]]) -> list[int]:
    """A topological order: earliest iteration, then earliest piece, then program order."""
    after = followers(before)
    keys = issue_keys(graph, after)
    missing = [len(each) for each in before]
    ready = [(keys[index], index) for index, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        _, index = heappop(ready)
        order.append(index)
        for follower in after[index]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, (keys[follower], follower))
    return order


def followers(before: list[list[int]]) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in before]
    for index, nodes in enumerate(before):
        for node in nodes:
            after[node].append(index)
    return after


def issue_keys(graph: Graph, after: list[list[int]]) -> list[tuple[int, float]]:
    """(which iteration, where the piece ends), or that of the most urgent op that waits for it.

    So what is not cut, and every join, is due when the first piece behind it is.
    """
    blocks: dict[str, int] = {}
    keys = []
    for op in graph.program.ops:
        match = ITERATION.match(op.kin.removeprefix("join/") if is_join(op) else op.kin)
        block = blocks.setdefault(match.group() if match else "", len(blocks))
        keys.append((block, op.piece.stop.numerator / op.piece.stop.denominator))
    for index in reversed(range(len(keys))):
        keys[index] = min([keys[index], *(keys[user] for user in after[index])])
    return keys


def is_join(op: Op) -> bool:
    return isinstance(op.work, Join)


# Steps


@dataclass(slots=True)
class Steps:
    """Ops by step, as numbers in program order; a join belongs to the step of its first user."""

    of: list[int]  # op -> step
    first: list[int] = field(default_factory=list)  # step -> its first op that is no join
    ops: list[list[int]] = field(default_factory=list)
    before: list[set[int]] = field(default_factory=list)
    ancestors: list[int] = field(default_factory=list)
    stream: list[str | None] = field(default_factory=list)


def group_steps(graph: Graph, before: list[list[int]]) -> Steps:
    ops = graph.program.ops
    after = followers(before)
    numbers: dict[tuple[str, str], int] = {}
    steps = Steps([0] * len(ops))
    for index in range(len(ops)):
        user = index
        while is_join(ops[user]) and after[user]:
            user = after[user][0]
        number = numbers.setdefault((ops[user].step, ops[user].device), len(numbers))
        if number == len(steps.first):
            steps.first.append(user)
            steps.ops.append([])
            steps.before.append(set())
        steps.of[index] = number
        steps.ops[number].append(index)
        # An order back to an earlier step (rings of slots) says nothing about the steps as wholes.
        steps.before[number].update(
            steps.of[node] for node in before[index] if steps.of[node] < number
        )
    steps.ancestors = ancestors(steps.before)
    steps.stream = [None] * len(steps.first)
    return steps


# Lanes


def lane_of(op: Op) -> Lane | None:
    lane = op.placement.lane
    return None if lane is None or op.placement.stream is not None else (op.device, lane)


def lanes_without_overlap(graph: Graph, before: list[list[int]], steps: Steps) -> set[Lane]:
    """The lanes whose ops are ordered, each as one piece, with all that is laid like compute."""
    ops = graph.program.ops
    candidates: dict[Lane, list[int]] = {}
    compute: dict[str, set[int]] = {}  # device -> its ops that are laid like compute
    for first, group in zip(steps.first, steps.ops, strict=True):
        lane = lane_of(ops[first])
        if lane is not None:
            candidates.setdefault(lane, []).extend(group)
        elif ops[first].placement.stream is None:
            device = ops[first].device
            compute.setdefault(device, set()).update(group)
    single = {
        lane: group
        for lane, group in candidates.items()
        if all(ops[index].piece.of == 1 for index in group)
    }
    if not single:
        return set()
    after = followers(before)
    chosen = set()
    for lane, group in single.items():
        together = compute.setdefault(lane[0], set())
        if are_ordered(sorted(group), together, before, after):
            together.update(group)
            chosen.add(lane)
    return chosen


def are_ordered(
    group: list[int], others: set[int], before: list[list[int]], after: list[list[int]]
) -> bool:
    """Whether each op of the group is ordered with all others, and with the rest of the group.

    It is if, of any two of the group that follow each other in program order, the first is before
    the second, before all others between them, and these before the second: what is farther away
    follows. Paths between two ops run between them, for the program is in the order of the edges.
    """
    wanted = others | set(group)
    for low, high in pairwise((-1, *group, len(before))):
        if low >= 0 and not all_reached(
            low, range(low + 1, min(high + 1, len(before))), before, wanted
        ):
            return False
        if high < len(before) and not all_reached(high, range(high - 1, low, -1), after, wanted):
            return False
    return True


def all_reached(start: int, nodes: range, edges: list[list[int]], wanted: set[int]) -> bool:
    """Whether there is a path from the start to each of the nodes that is wanted."""
    reached = {start}
    for node in nodes:
        if not reached.isdisjoint(edges[node]):
            reached.add(node)
        elif node in wanted:
            return False
    return True


# Streams


@dataclass(slots=True)
class Queue:
    """A compute stream being filled: its latest step, and all of its steps as a set."""

    stream: Stream
    tail: int
    steps: int


@dataclass(slots=True)
class Streams:
    """The streams made so far."""

    devices: tuple[str, ...]
    max_streams: int
    reserved: frozenset[str]  # names that the author gave
    made: dict[str, Stream] = field(default_factory=dict)
    queues: dict[str, list[Queue]] = field(default_factory=dict)  # device -> compute streams
    spans: dict[str, Span] = field(default_factory=dict)

    def named(self, name: str, op: Op, priority: int) -> str:
        stream = self.made.setdefault(name, Stream(name, op.device, priority))
        first = self.spans.setdefault(name, op.span)
        if stream.device != op.device:
            raise error(
                "stream-device",
                f"stream '{name}' belongs to '{stream.device}', "
                f"but '{op.step}' runs on '{op.device}'",
                op.span,
                notes=(Note("first used here", first),),
                hint="give the steps of each device streams of their own",
            )
        return name

    def new(self, device: str, priority: int, step: int) -> str:
        queues = self.queues.setdefault(device, [])
        number = len(queues)
        while f"{device}.{number}" in self.reserved:
            number += 1
        stream = Stream(f"{device}.{number}", device, priority)
        self.made[stream.name] = stream
        queues.append(Queue(stream, step, 1 << step))
        return stream.name

    def all(self) -> tuple[Stream, ...]:
        """By device, compute streams first; the origin exists even where nothing runs."""
        self.made.setdefault(self.origin(), Stream(self.origin(), self.devices[0]))
        compute = {each.stream.name for queues in self.queues.values() for each in queues}
        devices = {device: place for place, device in enumerate(self.devices)}
        return tuple(
            sorted(
                self.made.values(),
                key=lambda each: (
                    devices.get(each.device, len(devices)),
                    each.name not in compute,
                ),
            )
        )

    def origin(self) -> str:
        """The first device's first compute stream, or whatever stream it has."""
        device = self.devices[0]
        if self.queues.get(device):
            return self.queues[device][0].stream.name
        return next(
            (name for name, each in self.made.items() if each.device == device), f"{device}.0"
        )


def author_streams(graph: Graph) -> frozenset[str]:
    return frozenset(op.placement.stream for op in graph.program.ops if op.placement.stream)


def choose(
    ops: tuple[Op, ...], step: int, steps: Steps, streams: Streams, laid_like_compute: set[Lane]
) -> str:
    """The stream of a step."""
    op = ops[steps.first[step]]
    if op.placement.stream is not None:
        return streams.named(op.placement.stream, op, op.placement.priority)
    lane = lane_of(op)
    if lane is not None and lane not in laid_like_compute:
        return streams.named(f"{op.device}.{lane[1]}", op, op.placement.priority)
    queue = best_queue(op, step, steps, streams)
    if queue is None:
        return streams.new(op.device, op.placement.priority, step)
    queue.tail = step
    queue.steps |= 1 << step
    return queue.stream.name


def best_queue(op: Op, step: int, steps: Steps, streams: Streams) -> Queue | None:
    """The compute stream on which a step adds no order, or the fewest; None: it gets a new one."""
    on_device = streams.queues.get(op.device, [])
    queues = [each for each in on_device if each.stream.priority == op.placement.priority]
    before = steps.ancestors[step]
    free = [each for each in queues if before >> each.tail & 1]
    if free:
        # The first of them: what ends on the origin need not be joined to it.
        return next((each for each in free if each.tail in steps.before[step]), free[0])
    if len(on_device) < streams.max_streams:
        return None
    return min(queues or on_device, key=lambda each: (each.steps & ~before).bit_count())
