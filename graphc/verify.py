"""Schedule -> Proof: no two conflicting accesses are unordered; or a report of the race.

This shares no code with the passes and trusts none of their results. Its input is what is issued:
the instructions, the regions of the ops and the physical addresses.

1. *What happens before what.* Every op that runs is an action with direct predecessors: the action
   before it on its stream, what the events it waited for had seen at their latest record, and what
   the host had waited for when it issued the op. Host ops run on the issuing thread. The caller is
   an actor, too: it writes what the layer reads before each replay and reads what the layer leaves
   after it, on its own stream, which is the origin. A launch begins at the origin's start and ends
   at its end. Vector clocks over chains (the streams; in ``order="edges"``, paths chosen greedily)
   answer whether one action is before another.
2. *Replays.* If every action is after the beginning and before the end of its launch, all of one
   replay is before all of the next, and one replay proves all. Else two are unrolled, on the same
   streams and events, and both are swept.
3. *What must be ordered.* Two accesses conflict if they share bytes and one of them writes; only
   ``scatter`` by one argument within one step and replay, and ``accumulate`` on one buffer of an
   exact type by one argument of the same kernel with the same options and scalars, are exempt.
   Conflicting accesses must be ordered as the program has them (a hand-written schedule: as they
   are issued). A sweep of each buffer in that order checks every access against the accesses that
   are nearest below it, so that the rest follows.
4. *Memory.* Buffers that share physical bytes conflict by their exact bytes if both are fixed, as
   wholes if the count governs either. Where all accesses of one are before all of the other
   nothing more is to be shown; else all pairs of accesses are compared. Order alone would not keep
   bytes from being overwritten before they are read: so buffers over one memory are in use one
   after the other, and what a buffer with a role keeps is nobody else's. Overlays are exempt.

Regions are first worked out again: from an access's rows, the op's piece and axis, and the buffer.
Only an op that declares what it touches and runs nothing (``Opaque``) is taken at its word.

A wait (or host sync) of a hand-written schedule is redundant if no race appears when all instances
of that line are dropped and all else stays. Two lines may each be redundant because of the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import attrgetter
from typing import Literal, TypeAlias

from graphc.dtypes import dtype
from graphc.ir import (
    HOST,
    SPLIT,
    Access,
    Buffer,
    Copy,
    Extern,
    Fill,
    Hazard,
    Instruction,
    Join,
    Kernel,
    Mode,
    Op,
    Opaque,
    Piece,
    Program,
    Record,
    Role,
    Rows,
    RowsKind,
    Run,
    Schedule,
    Sync,
    Wait,
)
from graphc.plan import Proof
from graphc.regions import Region
from graphc.text.diagnostics import NOWHERE, CompilerBug, Diagnostic, Note, Span, SpecError, render

Order: TypeAlias = Literal["streams", "edges"]
MAX_RACES = 10
WHOLE = (RowsKind.ALL, RowsKind.GATHER)  # what every piece touches from end to end
WRITTEN_BY_CALLER = (Role.INPUT, Role.INOUT, Role.WEIGHT, Role.STATE)
READ_BY_CALLER = (Role.OUTPUT, Role.INOUT, Role.STATE, Role.STATUS)


def verify(schedule: Schedule, *, order: Order = "streams") -> Proof:
    """Prove that no two conflicting accesses are unordered, or raise with the races by name.

    A race is a ``SpecError`` in a hand-written schedule and a ``CompilerBug`` in one of ours.
    """
    faults = [*memory_faults(schedule), *sharing_faults(schedule), *instruction_faults(schedule)]
    faults += region_faults(schedule.program)
    if order == "edges":
        faults += edge_faults(schedule)
    if faults:
        refuse(schedule, faults)
    sweep = examine(schedule, order)
    if sweep.races:
        refuse(schedule, [explain(race, schedule, order) for race in sweep.races.values()])
    if sweep.lost:
        refuse(schedule, list(sweep.lost.values()))
    redundant = redundant_waits(schedule) if schedule.is_handwritten and order == "streams" else ()
    return Proof(len(schedule.program.ops), sweep.pairs, sweep.nbytes, redundant)


def refuse(schedule: Schedule, faults: Sequence[Diagnostic]) -> None:
    if schedule.is_handwritten:
        raise SpecError(faults[:MAX_RACES])
    raise CompilerBug("verify", "\n\n".join(render(each) for each in faults[:MAX_RACES]))


def redundant_waits(schedule: Schedule) -> tuple[Span, ...]:
    """The lines with a wait or sync that alone can go without a race."""
    by_line: dict[tuple[Span, int], list[int]] = {}
    for index, each in enumerate(schedule.instructions):
        if isinstance(each, Wait | Sync):
            key = (each.span, -1 if each.span != NOWHERE else index)
            by_line.setdefault(key, []).append(index)
    return tuple(
        span
        for (span, _), indices in by_line.items()
        if not examine(schedule, "streams", frozenset(indices)).races
    )


# What happens before what


@dataclass(slots=True)
class Action:
    """One op in one replay, or the caller's work before (BEGIN) or after (END) it."""

    op: Op | None
    replay: int
    rank: tuple[int, int]  # its place in the order that defines the right result
    before: Iterable[int]
    chain: int
    position: int  # in its chain
    stream: str
    issued: int  # the index of its instruction
    span: Span
    clock: dict[int, int]  # chain -> the latest position known

    @property
    def name(self) -> str:
        if self.op is not None:
            return self.op.name
        return "the caller, before the launch" if self.rank[1] < 0 else "the caller, afterwards"


class Trace:
    """Actions with their clocks."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.chain_of: dict[str, int] = {}  # stream -> chain
        self.tails: list[int] = []  # chain -> its last action

    def add(
        self,
        op: Op | None,
        *,
        replay: int,
        place: int,
        before: Iterable[int],
        stream: str | None,
        issued: int = -1,
        span: Span = NOWHERE,
    ) -> int:
        """Append an action; in the chain of its stream, or (no stream) where it continues one."""
        clock: dict[int, int] = {}
        for other in before:
            self.learn(clock, self.actions[other])
        number = len(self.actions)
        chain = self.chain_of_stream(stream) if stream else self.chain_behind(before, clock)
        position = self.actions[self.tails[chain]].position + 1 if self.tails[chain] >= 0 else 0
        clock[chain] = position
        self.actions.append(
            Action(
                op,
                replay,
                (replay, place),
                before,
                chain,
                position,
                stream or "",
                issued,
                span,
                clock,
            )
        )
        self.tails[chain] = number
        return number

    def learn(self, clock: dict[int, int], other: Action) -> None:
        if clock.get(other.chain, -1) >= other.position:
            return  # whoever knows an action knows all that it knew
        if not clock:
            clock.update(other.clock)
            return
        for chain, position in other.clock.items():
            if clock.get(chain, -1) < position:
                clock[chain] = position

    def chain_of_stream(self, stream: str) -> int:
        chain = self.chain_of.setdefault(stream, len(self.tails))
        if chain == len(self.tails):
            self.tails.append(-1)
        return chain

    def chain_behind(self, before: Iterable[int], clock: Mapping[int, int]) -> int:
        """A chain whose last action is known, a direct predecessor's if possible; or a new one."""
        for other in before:
            chain = self.actions[other].chain
            if self.tails[chain] == other:
                return chain
        for chain, position in clock.items():
            if self.actions[self.tails[chain]].position == position:
                return chain
        self.tails.append(-1)
        return len(self.tails) - 1

    def is_before(self, one: int, two: int) -> bool:
        before, after = self.actions[one], self.actions[two]
        return after.clock.get(before.chain, -1) >= before.position

    def is_host(self, number: int) -> bool:
        """Whether the issuing thread runs it: that is in the caller's hands, not on a stream."""
        op = self.actions[number].op
        return op is not None and op.device == HOST

    def loose_ends(self) -> Iterator[tuple[int, int]]:
        """Actions of the first replay that its beginning or its end does not order."""
        begin = 0
        end = next(n for n, each in enumerate(self.actions) if n and each.op is None)
        last: dict[int, int] = {}
        for number in range(1, len(self.actions)):
            action = self.actions[number]
            if action.op is None or action.replay:
                continue
            if action.chain not in last and not self.is_before(begin, number):
                yield begin, number
            last[action.chain] = number
        for number in last.values():
            if not self.is_before(number, end):
                yield number, end


def trace_streams(schedule: Schedule, replays: int, dropped: frozenset[int]) -> Trace:
    """The actions of the instructions as issued, ``replays`` times, without those dropped."""
    trace = Trace()
    ops = {op.name: op for op in schedule.program.ops}
    places = {op.name: place for place, op in enumerate(schedule.program.ops)}
    seen: dict[str, dict[int, None]] = {stream.name: {} for stream in schedule.streams}
    host_streams = {each.name for each in schedule.streams if each.device == HOST}
    events: dict[str, dict[int, None]] = {}
    host: dict[int, None] = {}  # what the issuing thread has waited for, and run
    origin = schedule.origin

    def caller(replay: int, place: int) -> None:
        before = {**seen[origin], **host}
        number = trace.add(None, replay=replay, place=place, before=before, stream=origin)
        seen[origin] = {number: None}

    for replay in range(replays):
        caller(replay, -1)
        for index, each in enumerate(schedule.instructions):
            if index in dropped:
                continue
            known = host if each.stream in host_streams else seen[each.stream]
            match each:
                case Run(stream, name, span):
                    number = trace.add(
                        ops[name],
                        replay=replay,
                        place=index if schedule.is_handwritten else places[name],
                        before={**known, **host} if host else known,
                        stream=stream,
                        issued=index,
                        span=span if span.line else ops[name].span,
                    )
                    seen[stream] = {number: None}
                    if stream in host_streams:
                        host = {number: None}
                case Record(_, event):
                    events[event] = known
                case Wait(stream, event):
                    if stream in host_streams:
                        host = {**host, **events[event]}
                    else:
                        seen[stream] = {**known, **events[event]}
                case Sync():
                    host = {**host, **known}
        caller(replay, len(schedule.instructions) + len(places))
    return trace


def trace_edges(schedule: Schedule) -> Trace:
    """The actions of a graph of nodes: only the edges, between the launch's beginning and end."""
    trace = Trace()
    before: dict[str, list[str]] = {op.name: [] for op in schedule.program.ops}
    is_leaf = dict.fromkeys(before, True)
    for one, two in schedule.edges:
        before[two].append(one)
        is_leaf[one] = False
    begin = trace.add(None, replay=0, place=-1, before=(), stream=None)
    numbers: dict[str, int] = {}
    for place, op in enumerate(schedule.program.ops):
        nodes = tuple(numbers[name] for name in before[op.name]) or (begin,)
        numbers[op.name] = trace.add(
            op, replay=0, place=place, before=nodes, stream=None, span=op.span
        )
    leaves = tuple(numbers[name] for name, leaf in is_leaf.items() if leaf) or (begin,)
    trace.add(None, replay=0, place=len(numbers), before=leaves, stream=None)
    return trace


# The sweep


@dataclass(frozen=True, slots=True)
class Race:
    one: Action
    two: Action
    one_access: Access | None  # None: the beginning or end of the launch itself
    two_access: Access | None
    touched: str  # the bytes


@dataclass(slots=True, eq=False)
class Touch:
    """An access of an action, and the key under which it commutes (None: with nothing)."""

    action: int
    access: Access
    key: object


@dataclass(slots=True)
class Sweep:
    """What was compared, the races found, one for each pair of steps, and buffers overwritten."""

    trace: Trace
    races: dict[tuple[str, str], Race] = field(default_factory=dict)
    lost: dict[tuple[str, str], Diagnostic] = field(default_factory=dict)
    pairs: int = 0
    nbytes: int = 0

    def require(self, one: Touch, two: Touch, start: int, stop: int) -> None:
        """The first access must be before the second; they share these bytes of the second."""
        self.pairs += 1
        if self.trace.is_before(one.action, two.action):
            return
        touched = str(Region(two.access.region.buffer, start, stop))
        self.report(one.action, two.action, one.access, two.access, touched)

    def report(
        self, one: int, two: int, access: Access | None, other: Access | None, touched: str
    ) -> None:
        before, after = self.trace.actions[one], self.trace.actions[two]
        steps = (
            before.op.step if before.op else before.name,
            after.op.step if after.op else after.name,
        )
        self.races.setdefault(steps, Race(before, after, access, other, touched))


def examine(schedule: Schedule, order: Order, dropped: frozenset[int] = frozenset()) -> Sweep:
    """Sweep all accesses of one replay, or of two if one does not contain the other."""
    trace = trace_edges(schedule) if order == "edges" else trace_streams(schedule, 1, dropped)
    loose = list(trace.loose_ends())
    if loose:
        trace = trace_streams(schedule, 2, dropped)
    sweep = Sweep(trace)
    touches = touches_by_buffer(schedule, trace, with_caller=bool(loose))
    for name, each in touches.items():
        sweep_buffer(sweep, each, name)
    sweep_memory(sweep, schedule, touches)
    # Accesses first: they say more than that a stream is not joined.
    for one, two in trace.loose_ends() if loose else ():
        if not trace.is_host(one) and not trace.is_host(two):
            sweep.report(one, two, None, None, "")
    return sweep


def touches_by_buffer(
    schedule: Schedule, trace: Trace, *, with_caller: bool
) -> dict[str, list[Touch]]:
    """All accesses of each buffer, in the order that defines the right result."""
    buffers = schedule.program.buffers
    exact = {name for name, each in buffers.items() if not dtype(each.dtype).is_float}
    result: dict[str, list[Touch]] = {}
    numbers = sorted(range(len(trace.actions)), key=lambda n: trace.actions[n].rank)
    for number in numbers:
        action = trace.actions[number]
        if action.op is not None:
            accesses: Iterable[Access] = action.op.accesses
        else:
            accesses = caller_accesses(schedule, action.rank[1] < 0) if with_caller else ()
        for access in accesses:
            if access.region.start < access.region.stop:
                key = commuting(action, access, access.region.buffer in exact)
                result.setdefault(access.region.buffer, []).append(Touch(number, access, key))
    return result


def caller_accesses(schedule: Schedule, is_begin: bool) -> Iterator[Access]:
    roles, mode = (WRITTEN_BY_CALLER, Mode.WRITE) if is_begin else (READ_BY_CALLER, Mode.READ)
    for name, buffer in schedule.program.buffers.items():
        if buffer.role in roles:
            stop = buffer.nominal_rows(schedule.program.nominal) * buffer.row_nbytes
            yield Access("caller", Region(name, 0, stop), mode)


def commuting(action: Action, access: Access, is_exact: bool) -> object:
    if access.mode is Mode.READ:
        return "read"
    if action.op is None:
        return None
    if access.mode is Mode.SCATTER:
        return action.op.step, access.argument, action.replay
    if access.mode is Mode.ACCUMULATE and is_exact:
        return "accumulate", access.argument, *operation(action.op)
    return None


def operation(op: Op) -> tuple[object, ...]:
    """What decides how an op combines values: two kernels may do it in two ways."""
    work = op.work
    if isinstance(work, Kernel):
        return work.template, frozenset(work.options.items()), frozenset(work.scalars.items())
    if isinstance(work, Extern):
        return work.function, work.reference, frozenset(work.scalars.items())
    return (op.step,)


@dataclass(slots=True)
class Front:
    """Bytes touched alike: the latest accesses, which commute, and those that they came after."""

    start: int
    stop: int
    latest: list[Touch]
    earlier: list[Touch]


def sweep_buffer(sweep: Sweep, touches: Sequence[Touch], name: str) -> None:
    """Check each access of one buffer against the nearest conflicting ones below it."""
    fronts: list[Front] = []  # disjoint, ascending
    for touch in touches:
        start, stop = touch.access.region.start, touch.access.region.stop
        first = bisect_left(fronts, start + 1, key=attrgetter("stop"))
        if first < len(fronts) and (fronts[first].start, fronts[first].stop) == (start, stop):
            front = meet(sweep, fronts[first], touch, start, stop)  # by far the most frequent
            fronts[first] = whole(touch) if touch.key is None else front
            continue
        last = first
        fresh: list[Front] = []
        reached = start
        while last < len(fronts) and fronts[last].start < stop:
            front = fronts[last]
            if front.start < start:
                fresh.append(Front(front.start, start, list(front.latest), front.earlier))
            if reached < front.start:
                fresh.append(Front(reached, front.start, [touch], []))
            if stop < front.stop:
                fresh.append(Front(stop, front.stop, list(front.latest), front.earlier))
            low, high = max(front.start, start), min(front.stop, stop)
            fresh.append(meet(sweep, front, touch, low, high))
            reached = high
            last += 1
        if reached < stop:
            fresh.append(Front(reached, stop, [touch], []))
        if touch.key is None:
            fresh = [*(each for each in fresh if not covers(touch, each)), whole(touch)]
        fronts[first:last] = sorted(fresh, key=attrgetter("start"))
    sweep.nbytes += sum(front.stop - front.start for front in fronts)


def meet(sweep: Sweep, front: Front, touch: Touch, start: int, stop: int) -> Front:
    """The front of these bytes after the access, which is checked against those it must follow."""
    if touch.key is not None and front.latest[0].key == touch.key:
        front.latest.append(touch)
        below, latest, earlier = front.earlier, front.latest, front.earlier
    else:
        below, latest, earlier = front.latest, [touch], front.latest
    for other in below:
        if other.action != touch.action:
            sweep.require(other, touch, start, stop)
    return Front(start, stop, latest, earlier)


def covers(touch: Touch, front: Front) -> bool:
    return touch.access.region.start <= front.start and front.stop <= touch.access.region.stop


def whole(touch: Touch) -> Front:
    """One front for all bytes that a write covers: nothing joins it, so all it hides can go."""
    return Front(touch.access.region.start, touch.access.region.stop, [touch], [])


# Physical memory


@dataclass(slots=True, eq=False)
class Occupant:
    """A buffer on its bytes: all accesses, and the latest of them on each chain."""

    name: str
    base: str  # over which it lies in the end, or itself
    start: int
    stop: int
    is_counted: bool
    touches: list[Touch]
    actions: tuple[int, ...]
    tails: dict[int, int]
    behind: list[Occupant] = field(default_factory=list)  # those wholly before it


def sweep_memory(sweep: Sweep, schedule: Schedule, touches: Mapping[str, list[Touch]]) -> None:
    """Check the accesses of different buffers over the same physical bytes."""
    for group in overlapping(schedule, touches):
        occupants = [occupant(sweep.trace, schedule, name, touches[name]) for name in group]
        occupants.sort(key=lambda each: sweep.trace.actions[each.actions[0]].rank)
        held: list[tuple[int, int, tuple[Occupant, ...]]] = []
        for new in occupants:
            held = settle(sweep, held, new)


def overlapping(schedule: Schedule, touches: Mapping[str, object]) -> Iterator[list[str]]:
    """Groups of touched buffers that hang together by shared physical bytes."""
    slots, buffers = schedule.memory.slots, schedule.program.buffers
    placed = sorted(
        (slots[name].allocation, slots[name].offset, name)
        for name in touches
        if buffers[name].nbytes
    )
    group: list[str] = []
    allocation, reached = "", 0
    for where, offset, name in placed:
        if where != allocation or offset >= reached:
            if len(group) > 1:
                yield group
            group, allocation, reached = [], where, offset
        group.append(name)
        reached = max(reached, offset + buffers[name].nbytes)
    if len(group) > 1:
        yield group


def occupant(trace: Trace, schedule: Schedule, name: str, touches: list[Touch]) -> Occupant:
    buffer, slot = schedule.program.buffers[name], schedule.memory.slots[name]
    actions = tuple(dict.fromkeys(each.action for each in touches))
    tails: dict[int, int] = {}
    for number in actions:
        action = trace.actions[number]
        tails[action.chain] = max(tails.get(action.chain, -1), action.position)
    stop = slot.offset + buffer.nbytes
    base = base_of(schedule, name)
    return Occupant(name, base, slot.offset, stop, bool(buffer.per_count), touches, actions, tails)


Held: TypeAlias = list[tuple[int, int, tuple[Occupant, ...]]]


def settle(sweep: Sweep, held: Held, new: Occupant) -> Held:
    """Put a buffer on its bytes, after checking it against all those that it may meet there."""
    result: Held = []
    checked: set[str] = set()
    free = new.start
    for start, stop, owners in held:
        low, high = max(start, new.start), min(stop, new.stop)
        if low >= high:
            result.append((start, stop, owners))
            continue
        stay = tuple(each for each in owners if not clear(sweep, each, new, checked))
        pieces = (start, low, owners), (low, high, (*stay, new)), (high, stop, owners)
        result += (piece for piece in pieces if piece[0] < piece[1])
        if free < low:
            result.append((free, low, (new,)))
        free = high
    if free < new.stop:
        result.append((free, new.stop, (new,)))
    return sorted(result, key=lambda each: each[0])


def clear(sweep: Sweep, old: Occupant, new: Occupant, checked: set[str]) -> bool:
    """Whether all accesses of the old buffer are before all of the new; if not, compare them."""
    if is_wholly_before(sweep.trace, old, new):
        if old not in new.behind:
            new.behind.append(old)
        return True
    if old.name not in checked:
        checked.add(old.name)
        compare(sweep, old, new)
        # What gave way to the old buffer may still meet this one.
        for each in old.behind:
            if each.start < new.stop and new.start < each.stop:
                clear(sweep, each, new, checked)
    return False


def is_done_before(trace: Trace, old: Occupant, new: Occupant) -> bool:
    """Whether the program, in its order, is done with the old buffer before it uses the new."""
    last = max(trace.actions[number].rank for number in old.actions)
    return last < trace.actions[new.actions[0]].rank


def is_wholly_before(trace: Trace, old: Occupant, new: Occupant) -> bool:
    if not is_done_before(trace, old, new):
        return False
    tails = old.tails.items()
    return all(
        trace.actions[number].clock.get(chain, -1) >= position
        for number in new.actions
        for chain, position in tails
    )


def compare(sweep: Sweep, old: Occupant, new: Occupant) -> None:
    """All pairs of conflicting accesses of two buffers must be ordered as the program has them."""
    if old.base != new.base and not is_done_before(sweep.trace, old, new):
        text = f"buffers '{old.name}' and '{new.name}' share memory, and both are in use at once"
        span = sweep.trace.actions[new.touches[0].action].span
        sweep.lost[old.name, new.name] = Diagnostic("bad-schedule", text, span)
    for one in old.touches:
        for two in new.touches:
            if one.action == two.action or not (
                one.access.mode.is_write or two.access.mode.is_write
            ):
                continue
            low, high = shared_bytes(old, one, new, two)
            if low >= high:
                continue
            ranks = sweep.trace.actions
            if ranks[one.action].rank < ranks[two.action].rank:
                sweep.require(one, two, low - new.start, high - new.start)
            else:
                sweep.require(two, one, low - old.start, high - old.start)


def shared_bytes(old: Occupant, one: Touch, new: Occupant, two: Touch) -> tuple[int, int]:
    """The physical bytes that two accesses share: all of the buffers' if the count moves them."""
    if old.is_counted or new.is_counted:
        return max(old.start, new.start), min(old.stop, new.stop)
    ours, theirs = one.access.region, two.access.region
    return (
        max(old.start + ours.start, new.start + theirs.start),
        min(old.start + ours.stop, new.start + theirs.stop),
    )


# The verdict


def explain(race: Race, schedule: Schedule, order: Order) -> Diagnostic:
    """The race in words: both ops, the bytes, the missing order and what would mend it."""
    one, two = race.one, race.two
    if race.one_access is None or race.two_access is None:
        return explain_loose_end(race)
    hazard = hazard_between(race.one_access.mode, race.two_access.mode)
    across = " of the replay before" if one.replay != two.replay else ""
    return Diagnostic(
        "race",
        f"race: '{label(two)}' and '{label(one)}'{across} touch {race.touched} ({hazard}), "
        f"and nothing orders '{one.name}' before '{two.name}'",
        two.span,
        notes=(
            Note(describe(one, race.one_access), one.span),
            Note(describe(two, race.two_access), two.span),
            Note(f"the missing order: '{one.name}' before '{two.name}'"),
        ),
        hint=mend(race, schedule, order),
    )


def explain_loose_end(race: Race) -> Diagnostic:
    """A stream that is not forked from the origin, or does not join it."""
    is_fork = race.one.op is None
    own, verb = (race.two, "begin") if is_fork else (race.one, "still run")
    moment = "before the launch begins" if is_fork else "after the launch has ended"
    fix = (
        f"on '{own.stream}', wait for an event recorded where the origin begins"
        if is_fork
        else f"at the end, let the origin wait for an event recorded after '{own.name}'"
    )
    return Diagnostic(
        "race",
        f"race: '{label(own)}' on stream '{own.stream}' may {verb} {moment}, "
        "so that it races with the caller and with the next replay",
        own.span,
        hint=fix,
    )


def label(action: Action) -> str:
    if action.op is None or action.op.piece.of == 1:
        return action.name
    return f"{action.name} (piece {action.op.piece.index} of {action.op.piece.of})"


def describe(action: Action, access: Access) -> str:
    where = f" on stream '{action.stream}'" if action.stream else ""
    return f"'{action.name}' touches {access.region} ({access.mode}){where}"


def hazard_between(one: Mode, two: Mode) -> Hazard:
    if one.is_write:
        return Hazard.RAW if two.is_read else Hazard.WAW
    return Hazard.WAR


def mend(race: Race, schedule: Schedule, order: Order) -> str:
    """The least that orders the two: an edge, a wait for a record at hand, or both."""
    one, two = race.one, race.two
    if order == "edges":
        return f"add the edge '{one.name}' -> '{two.name}'"
    if two.op is None:
        return f"at the end, let '{schedule.origin}' wait for an event recorded after '{one.name}'"
    if one.op is None:
        return f"on '{two.stream}', before '{two.name}', wait for an event of '{schedule.origin}'"
    if one.replay == two.replay and one.issued > two.issued:
        return f"issue '{one.name}' before '{two.name}'"
    if one.stream == two.stream:
        return f"run '{one.name}' before '{two.name}'"
    event = record_at_hand(schedule.instructions, one, two)
    if event is not None:
        return f"on '{two.stream}', before '{two.name}', wait for event '{event}'"
    return (
        f"record an event on '{one.stream}' after '{one.name}' "
        f"and wait for it on '{two.stream}' before '{two.name}'"
    )


def record_at_hand(instructions: Sequence[Instruction], one: Action, two: Action) -> str | None:
    """The first event recorded after the first op that still stands when the second is issued."""
    stop = two.issued if one.replay == two.replay else len(instructions)
    window = instructions[one.issued + 1 : stop]
    for index, each in enumerate(window):
        if isinstance(each, Record) and each.stream == one.stream:
            again = (other for other in window[index + 1 :] if isinstance(other, Record))
            if all(other.event != each.event for other in again):
                return each.event
    return None


# Faults that leave nothing to prove


def instruction_faults(schedule: Schedule) -> Iterator[Diagnostic]:
    """Instructions that name what is not there, run an op twice or elsewhere, or wait too early."""
    ops = {op.name: op for op in schedule.program.ops}
    devices = {stream.name: stream.device for stream in schedule.streams}
    recorded: set[str] = set()
    ran: set[str] = set()
    if schedule.origin not in devices:
        yield Diagnostic("bad-schedule", f"the origin '{schedule.origin}' is no stream")
        return
    for each in schedule.instructions:
        if each.stream not in devices:
            yield Diagnostic("bad-schedule", f"there is no stream '{each.stream}'", each.span)
            continue
        match each:
            case Run(stream, name, span):
                if name not in ops:
                    yield Diagnostic("bad-schedule", f"there is no op '{name}'", span)
                    continue
                if name in ran:
                    yield Diagnostic("bad-schedule", f"'{name}' runs twice", span)
                ran.add(name)
                if ops[name].device != devices[stream]:
                    yield Diagnostic(
                        "bad-schedule",
                        f"'{name}' runs on '{ops[name].device}', "
                        f"but stream '{stream}' belongs to '{devices[stream]}'",
                        span,
                    )
            case Record(_, event):
                recorded.add(event)
            case Wait(stream, event, span):
                if event not in recorded:
                    yield Diagnostic(
                        "bad-schedule",
                        f"'{stream}' waits for event '{event}' before it is ever recorded",
                        span,
                    )
    for name, op in ops.items():
        if name not in ran:
            yield Diagnostic("bad-schedule", f"'{name}' never runs", op.span)


def edge_faults(schedule: Schedule) -> Iterator[Diagnostic]:
    places = {op.name: place for place, op in enumerate(schedule.program.ops)}
    for one, two in schedule.edges:
        if one not in places or two not in places:
            yield Diagnostic("bad-schedule", f"edge '{one}' -> '{two}' names no op")
        elif places[one] >= places[two]:
            yield Diagnostic("bad-schedule", f"edge '{one}' -> '{two}' goes back")


def base_of(schedule: Schedule, name: str) -> str:
    """The buffer whose bytes these are in the end."""
    buffers = schedule.program.buffers
    seen = {name}
    while (overlay := buffers[name].overlay) is not None and overlay[0] in buffers:
        name = overlay[0]
        if name in seen:
            break
        seen.add(name)
    return name


def sharing_faults(schedule: Schedule) -> Iterator[Diagnostic]:
    """Buffers in the memory of one with a role: it keeps its bytes, and the caller may bind it."""
    buffers = schedule.program.buffers
    bases: dict[str, dict[str, None]] = {}  # allocation -> the buffers in it
    for name, slot in schedule.memory.slots.items():
        if name in buffers:
            bases.setdefault(slot.allocation, {})[base_of(schedule, name)] = None
    for allocation, names in bases.items():
        owner = next((name for name in names if buffers[name].role is not Role.SCRATCH), None)
        for name in names if owner is not None else ():
            if name != owner:
                text = f"buffer '{name}' lies in '{allocation}', which is for '{owner}' alone"
                yield Diagnostic("bad-schedule", text, buffers[name].span)


def memory_faults(schedule: Schedule) -> Iterator[Diagnostic]:
    """Regions outside their buffer, buffers outside their allocation, overlays elsewhere."""
    program, slots = schedule.program, schedule.memory.slots
    allocations = {each.name: each for each in schedule.memory.allocations}
    reach: dict[str, int] = {}
    for op in program.ops:
        for access in op.accesses:
            name = access.region.buffer
            if name not in program.buffers:
                yield Diagnostic("bad-schedule", f"there is no buffer '{name}'", access.span)
            elif reach.get(name, -1) < access.region.stop:
                reach[name] = access.region.stop
    for name, stop in reach.items():
        buffer = program.buffers[name]
        if stop > buffer.nominal_rows(program.nominal) * buffer.row_nbytes:
            yield Diagnostic(
                "bad-schedule", f"byte {stop} lies outside of buffer '{name}'", buffer.span
            )
        slot = slots.get(name)
        home = allocations.get(slot.allocation) if slot else None
        if slot is None or home is None:
            yield Diagnostic("bad-schedule", f"buffer '{name}' has no memory", buffer.span)
        elif slot.offset < 0 or slot.offset + buffer.nbytes > home.nbytes:
            yield Diagnostic(
                "bad-schedule", f"buffer '{name}' lies outside of '{home.name}'", buffer.span
            )
        elif home.device != buffer.device:
            yield Diagnostic(
                "bad-schedule",
                f"buffer '{name}' of '{buffer.device}' lies in memory of '{home.device}'",
                buffer.span,
            )
        elif buffer.overlay is not None:
            base = slots.get(buffer.overlay[0])
            if base is None or (base.allocation, base.offset + buffer.overlay[1]) != (
                slot.allocation,
                slot.offset,
            ):
                yield Diagnostic(
                    "bad-schedule",
                    f"buffer '{name}' does not lie on '{buffer.overlay[0]}'",
                    buffer.span,
                )


# Regions, worked out again


def region_faults(program: Program) -> Iterator[Diagnostic]:
    """Regions that are not what their ops will touch."""
    reach = Reach(program)
    for op in program.ops:
        if isinstance(op.work, Opaque | Join):
            continue  # what it declares is all that it is
        for access in op.accesses:
            if access.region.buffer not in program.buffers or reach.is_right(op, access):
                continue
            name, found = access.region.buffer, reach.bytes(op, access)
            text = (
                f"'{op.name}' touches {name}[{found[0]}:{found[1]}] by argument "
                f"'{access.argument}', but {access.region} is declared"
                if found
                else f"'{op.name}' cannot touch the rows '{access.rows.kind}' of '{name}': "
                "they do not fit its piece"
            )
            yield Diagnostic("bad-schedule", text, op.span)


class Reach:
    """The rows, at the nominal extent, that accesses must name; what ops share is found once."""

    def __init__(self, program: Program) -> None:
        self.capacity, self.nominal = program.capacity, program.nominal
        self.buffers = program.buffers
        self.sizes: dict[str, tuple[int, int]] = {}  # bytes of a row, and of all at the nominal
        # By the ids of objects, which the program keeps alive: fractions are slow to hash.
        self.shares: dict[tuple[int, int, int], tuple[int, int] | None] = {}
        self.blocks: dict[tuple[int, int], tuple[Fraction, Fraction] | None] = {}

    def is_right(self, op: Op, access: Access) -> bool:
        region = access.region
        if access.rows.kind in WHOLE and type(op.work) is Kernel:  # by far the most frequent
            return region.start == 0 and region.stop == self.size(region.buffer)[1]
        return self.bytes(op, access) == (region.start, region.stop)

    def bytes(self, op: Op, access: Access) -> tuple[int, int] | None:
        name = access.region.buffer
        rows, nbytes = self.rows(op, access, self.buffers[name]), self.size(name)[0]
        return rows and (rows[0] * nbytes, rows[1] * nbytes)

    def size(self, name: str) -> tuple[int, int]:
        size = self.sizes.get(name)
        if size is None:
            buffer = self.buffers[name]
            nbytes = buffer.row_nbytes
            size = self.sizes[name] = nbytes, buffer.nominal_rows(self.nominal) * nbytes
        return size

    def rows(self, op: Op, access: Access, buffer: Buffer) -> tuple[int, int] | None:
        """Rows ``[first, stop)``, as far as the count can move them; None if they make no sense."""
        rows = access.rows
        if isinstance(op.work, Copy | Fill) and rows.kind is not RowsKind.RING:
            rows = SPLIT  # a copy goes by the piece's rows, whatever is said of them
        match rows.kind:
            case RowsKind.SPLIT:
                return self.split(op, rows.factor, buffer)
            case RowsKind.ALL | RowsKind.GATHER:
                return 0, buffer.nominal_rows(self.nominal)
            case RowsKind.BLOCKS:
                return self.whole_blocks(op.piece, rows, buffer)
            case RowsKind.RING:
                return self.slot(op, rows.factor, buffer)
            case RowsKind.PIECE:
                if buffer.per_count:
                    return 0, buffer.nominal_rows(self.nominal)
                return op.piece.index, op.piece.index + 1

    def split(self, op: Op, factor: int, buffer: Buffer) -> tuple[int, int] | None:
        """What a launch computes: ``factor`` rows for each row of the axis in the piece."""
        axis = op.axis
        if buffer.rows != factor * axis.extent or buffer.per_count != factor * axis.per_count:
            return None
        share = self.share(op)
        return share and (factor * share[0], factor * share[1])

    def share(self, op: Op) -> tuple[int, int] | None:
        """The piece's rows of the axis."""
        piece, axis = op.piece, op.axis
        key = id(piece), axis.extent, axis.per_count
        if key not in self.shares:
            is_right = 0 <= piece.start <= piece.stop <= 1
            if axis.per_count:
                is_right &= self.is_whole(piece.start) and self.is_whole(piece.stop)
            count = self.nominal if axis.per_count else None
            self.shares[key] = piece.bounds(axis, count) if is_right else None
        return self.shares[key]

    def is_whole(self, bound: Fraction) -> bool:
        """Whether the bound is a row at the nominal extent: else regions meet not as rows do."""
        return self.nominal % bound.denominator == 0

    def whole_blocks(self, piece: Piece, rows: Rows, buffer: Buffer) -> tuple[int, int] | None:
        key = id(rows), id(piece)
        if key not in self.blocks:
            low = [each for each in rows.blocks if each <= piece.start]
            high = [each for each in rows.blocks if each >= piece.stop]
            self.blocks[key] = (max(low), min(high)) if low and high else None
        met, unit = self.blocks[key], buffer.per_count or rows.factor
        if met is None or unit < 1:
            return None
        if buffer.per_count and not (self.is_whole(met[0]) and self.is_whole(met[1])):
            return None
        units = self.nominal if buffer.per_count else buffer.rows // unit
        first, stop = (each.numerator * units // each.denominator for each in met)
        return unit * first, unit * stop

    def slot(self, op: Op, slots: int, buffer: Buffer) -> tuple[int, int] | None:
        """The piece's slot, which has room for its rows at every count."""
        if slots < 1 or buffer.per_count or self.share(op) is None:
            return None
        axis, piece, room = op.axis, op.piece, buffer.rows // slots
        unit = axis.per_count or 1
        units = (self.capacity or 0) if axis.per_count else axis.extent
        share = (piece.stop - piece.start) * units
        if unit * -(-share.numerator // share.denominator) > room:
            return None
        first = piece.index % slots * room
        return first, first + room
