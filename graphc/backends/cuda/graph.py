"""A plan ready to replay on GPUs: bind, launch, views, close.

Loading, allocation of scratch and the data tests of the machine happen when it is made; memory of
buffers with a role and the graph itself come with the first ``upload`` or ``launch``, so that
arrays bound before cost nothing. A new binding captures again and updates the executable graph in
place where the driver can, else replaces it.

A plan of several units is one graph for each of them, launched together: on the caller's stream,
which goes on when all have ended (``joined``), or each on a stream of its own (``free``). A unit
that waits in vain gives up after a while; then launches are refused until ``reset``.

Launches of one graph are ordered by their streams, as any work: a caller who changes the stream
orders the two. The count travels on the stream, too: it is a word on each GPU, set before the
replay that uses it; nodes of copies and fills change for future launches only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphc.backends.binding import (
    OneOfAKind,
    OpTime,
    bindable,
    buffer_named,
    check_apart,
    check_count,
    check_entry,
    check_rounds,
    checked_limit,
    given_arrays,
    is_closed_error,
    is_poisoned,
    read_only,
    stream_handle,
    streams_of_units,
    written_buffers,
)
from graphc.backends.cuda.activities import record_by_cupti
from graphc.backends.cuda.arrays import as_host_array, check_foreign, look_at
from graphc.backends.cuda.choose import choose_variant
from graphc.backends.cuda.executable import Executable
from graphc.backends.cuda.faults import explained
from graphc.backends.cuda.readback import ReadBack
from graphc.backends.cuda.session import Session
from graphc.backends.cuda.timing import record_ops, time_ops, time_replays
from graphc.backends.cuda.views import View
from graphc.backends.recording import Recording, Way
from graphc.backends.status import Status, raise_all, statuses
from graphc.gpu import open_driver
from graphc.gpu.cupti import Cupti, Recorder, has_cupti
from graphc.gpu.probe import current, peer_facts
from graphc.gpu.protocol import Driver
from graphc.ir import MAPPED, POISON, Buffer, Program, Role, Schedule
from graphc.machine import Machine, place_devices
from graphc.plan import WAIT_LIMIT_S, Plan, Variant
from graphc.text.diagnostics import CudaError, UsageError

NO_CONTEXT = -1  # which is never current
LARGEST_DEFAULT_STREAM = 2  # handles 0, 1, 2 are the default streams of the current context
LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch that needs no second look, and what it was asked with."""

    replay: Callable[[], None]
    stream: object
    streams: Mapping[str, object] | None
    count: object
    kind: type  # of the count: True and 1.0 are equal to 1
    context: int | None  # of the caller, where it tells default streams apart


class CudaGraph(OneOfAKind):
    """A plan on the GPUs of this process; the same surface as the reference backend."""

    _session: Session | None = None

    def __init__(
        self,
        plan: Plan,
        *,
        devices: Mapping[str, int] | Sequence[int] | None = None,
        driver: Driver | None = None,
        variant: Variant | None = None,
        wait_limit_s: float = WAIT_LIMIT_S,
    ) -> None:
        self.plan = plan
        self._driver = driver or open_driver()
        machine = machine_of(self._driver)
        names = plan.variants[0].schedule.program.devices
        self.placed = place_devices(names, len(machine.gpus), devices)
        self.variant = variant or choose_variant(plan, machine, self.placed)
        self.program = self.variant.schedule.program
        refuse_blocking_launches(self.variant.schedule)
        self._surface = merged(self.variant.schedules.values())
        self._written = written_buffers(self._surface)
        self._bound: dict[str, Any] = {}  # buffer -> the caller's array, kept while it is used
        self._entry: object = None  # that of the latest launch, as it was asked for
        self._last: Prepared | None = None  # the latest launch
        self._prepared: dict[str | None, Prepared] = {}  # by entry as it was asked for
        session = Session(
            self._driver,
            plan,
            self.variant,
            machine,
            self.placed,
            self._argument,
            wait_limit_s=checked_limit(wait_limit_s),
        )
        self._session, self._memory = session, session.memory
        self._home = session.home
        # Streams with launches, and the contexts in which their handles mean them.
        self._used: list[tuple[int, int]] = [(session.own_stream, session.home.context)]
        self._executables = {entry: Executable(session, entry) for entry in session.schedules}
        self._executable = self._executables[self.variant.schedule.entry]
        self._statuses: dict[str, tuple[Status, ...]] = {}  # of entries that were launched

    @property
    def routes(self) -> Mapping[str, str]:
        """Transfer -> the route that was taken."""
        return self.variant.routes

    @property
    def entries(self) -> tuple[str, ...]:
        """What can be launched; the first is what is launched where none is named."""
        return tuple(self.variant.schedules)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided about this machine that a user may want to know."""
        return tuple(self._memory.notes)

    def bind(self, arrays: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Use the caller's arrays in place of the plan's own memory.

        Arrays on a device (and page-locked ones for mapped buffers) are used where they are;
        numpy arrays are copied into the graph's own memory, once, now. A list stands for the
        buffers of all iterations of that name. Nothing is bound if one of them does not fit.
        An array that gives way is let go of only after the launches so far.
        """
        self._open_session()
        pairs = given_arrays(self._surface, arrays, named)
        with self._at_home():
            pointers = [self._checked(buffer, value) for buffer, value in pairs]
            names = (buffer.name for buffer, _ in pairs)
            self._check_apart(dict(zip(names, pointers, strict=True)))
            for (buffer, value), pointer in zip(pairs, pointers, strict=True):
                self._bind_one(buffer, value, pointer)

    def _checked(self, buffer: Buffer, value: Any) -> int | None:
        """The address of the caller's array; None if it is to be copied in."""
        is_mapped, is_written = buffer.device == MAPPED, buffer.name in self._written
        if not isinstance(value, np.ndarray):
            ordinal = None if is_mapped else self.placed[buffer.device]
            found = look_at(buffer.name, value)
            if is_written and found.is_read_only:
                raise read_only(buffer.name)
            return check_foreign(buffer, found, ordinal, self._driver)
        array = as_host_array(buffer, value)
        facts = self._driver.pointer(array.ctypes.data) if is_mapped and array is value else None
        if facts is None or not facts.is_host:
            return None
        if is_written and not array.flags.writeable:
            raise read_only(buffer.name)
        return facts.device_pointer

    def _check_apart(self, pointers: Mapping[str, int | None]) -> None:
        """Look at the arrays as they will be bound, and at the graph's own between them."""
        now = {buffer.name: self._memory.address(buffer) for buffer in bindable(self._surface)}
        places = {
            name: (address, self._surface.buffers[name].nbytes)
            for name, address in {**now, **pointers}.items()
            if address
        }
        check_apart(places, self._written)

    def _bind_one(self, buffer: Buffer, value: Any, pointer: int | None) -> None:
        before = self._memory.address(buffer)
        if buffer.name in self._bound and pointer != before:
            self._wait()  # launches may still use the array, and nobody else may hold it
        if pointer is None:
            self._memory.own(buffer)
            self._bound.pop(buffer.name, None)
            self._view(buffer).write(value)
        else:
            self._memory.bind(buffer, pointer)
            self._bound[buffer.name] = value
        if self._memory.address(buffer) != before:
            self._forget_launch()
            for each in self._executables.values():
                each.is_stale = True

    def upload(self) -> None:
        """Build all graphs and bring them to the devices: first launches then cost no more."""
        self._open_session()
        with self._at_home():
            for each in self._executables.values():
                each.ensure_built(check_count(each.schedule.program, None))
                each.upload()

    def launch(
        self,
        stream: object = None,
        count: int | None = None,
        entry: str | None = None,
        *,
        streams: Mapping[str, object] | None = None,
    ) -> None:
        """Replay an entry (None: the first) on a stream (None: the graph's own) with ``count`` rows
        in use (None: all).

        The stream is anything with ``__cuda_stream__``, or a handle; not one that is being
        captured, which is looked at when the stream or the count is another than before. A plan of
        several units whose launch is free takes ``streams``, one for each unit, or uses its own.
        The call only enqueues.
        """
        try:
            last = self._last if entry is self._entry else self._recall(entry)
            if (
                last is not None
                and stream is last.stream
                and type(count) is last.kind
                and count == last.count
                and streams == last.streams
                and (last.context is None or last.context == self._driver.current_context())
            ):
                last.replay()
            elif streams is None and not self._executable_of(entry).is_free:
                self._launch_anew(stream, count, entry)
            else:
                self._launch_free(stream, count, entry, streams)
        except CudaError as problem:
            raise explained(problem, self.plan) from None

    def _recall(self, entry: str | None) -> Prepared | None:
        """The latest launch of an entry, if it is still good."""
        if entry is not None:
            check_entry(entry, self._executables)
        self._entry, self._last = entry, self._prepared.get(entry)
        return self._last

    def _executable_of(self, entry: str | None) -> Executable:
        self._open_session()
        return self._executables[check_entry(entry, self._executables)]

    def _launch_anew(self, stream: object, count: int | None, entry: str | None) -> None:
        session, executable = self._open_session(), self._executable_of(entry)
        rows = check_count(executable.schedule.program, count)
        handle = session.own_stream if stream is None else stream_handle(stream)
        self._forget_launch(entry)
        # A default stream is that of the caller's current context, if there is one.
        is_default = handle <= LARGEST_DEFAULT_STREAM
        callers = self._driver.current_context() if is_default else 0
        place = callers or self._home.context
        with current(self._driver, place):
            if stream is not None:
                self._refuse_capture(handle)
            context = self._driver.stream_context(handle)
            self._make_ready(executable, rows)
            executable.set_rows(rows, handle, context)
            replay = executable.launcher(rows, handle, context)
            self._used = [(handle, place)]
            replay()
        asked = (callers or NO_CONTEXT) if is_default else None
        self._remember(entry, Prepared(replay, stream, None, count, type(count), asked))

    def _launch_free(
        self,
        stream: object,
        count: int | None,
        entry: str | None,
        streams: Mapping[str, object] | None,
    ) -> None:
        """Launch every unit on a stream of its own."""
        session, executable = self._open_session(), self._executable_of(entry)
        rows = check_count(executable.schedule.program, count)
        names = [each.unit.name for each in executable.graphs]
        given = streams_of_units(executable.schedule, stream, streams) or dict.fromkeys(names)
        handles = {
            name: session.unit_streams[name] if each is None else stream_handle(each)
            for name, each in given.items()
        }
        self._forget_launch(entry)
        contexts = {each.unit.name: executable.context_of(each.unit) for each in executable.graphs}
        for name, handle in handles.items():
            with current(self._driver, contexts[name]):
                check_unit_stream(self._driver, name, handle, contexts[name])
                self._refuse_capture(handle)
        with self._at_home():
            self._make_ready(executable, rows)
            executable.set_rows(rows, session.own_stream, self._home.context, handles)
            replay = executable.free_launcher(rows, handles)
            self._used = [(handle, contexts[name]) for name, handle in handles.items()]
            replay()
        copied = None if streams is None else dict(streams)
        self._remember(entry, Prepared(replay, stream, copied, count, type(count), None))

    def _make_ready(self, executable: Executable, rows: int | None) -> None:
        executable.ensure_built(rows)
        schedule = executable.schedule
        if schedule.entry not in self._statuses:
            self._statuses[schedule.entry] = statuses(self.plan, self.variant, schedule)
        if rows is not None and rows != self._open_session().rows:
            self._prepared.clear()  # other entries were prepared for another count

    def _remember(self, entry: str | None, prepared: Prepared) -> None:
        self._entry, self._last = entry, prepared
        self._prepared[entry] = prepared

    def _refuse_capture(self, handle: int) -> None:
        """A recorded launch would set no count when it is called, and this one might build."""
        if self._driver.is_capturing(handle):
            raise UsageError(
                "the stream is being captured: launch the graph beside the one that is captured, "
                "not into it"
            )

    def _forget_launch(self, entry: str | None = None) -> None:
        """The next launch looks at everything again: of one entry, or (None) of any."""
        self._last = None
        if entry is None:
            self._prepared.clear()
        else:
            self._prepared.pop(entry, None)

    def synchronize(self) -> None:
        """Wait for the launches so far; what failed on the GPU meanwhile is raised here.

        So is what a kernel has written into a status buffer, if its contract says what it means.
        """
        self._wait()
        found = []
        for each in (each for of_entry in self._statuses.values() for each in of_entry):
            view = self._view(each.buffer, self._wait)
            code, *more = view.numpy().reshape(-1).tolist()
            if code:
                view.write_bytes(np.zeros(view.nbytes, np.uint8))
                found.append(each.fault(code, *more))
        raise_all(found)

    def _wait(self) -> None:
        """Wait for the launches so far; a unit that has given up is told."""
        session = self._open_session()
        for handle, place in self._used:
            with self._within(place):
                self._driver.synchronize(handle)
        if session.words is not None and (problem := session.words.fault()) is not None:
            raise problem

    def reset(self) -> None:
        """Begin anew after a unit gave up, or was not launched: nobody waits any longer, all become
        idle, and no signal has been given. What the launches so far left is not to be used."""
        session = self._open_session()
        self._forget_launch()
        session.end_waits(dict.fromkeys([*(handle for handle, _ in self._used), *session.streams]))
        with self._at_home():
            session.wait_for_all()
        if session.words is not None:
            session.words.clear()

    def read_back(self) -> ReadBack:
        """Compare the graph at hand with the plan, as is done whenever it is built."""
        self._open_session()
        with self._at_home():
            parts = []
            for each in self._executables.values():
                each.ensure_built(check_count(each.schedule.program, None))
                parts.append(each.read_back())
        found = [each for each in parts if each is not None]
        if not found:
            raise UsageError("emit: streams builds no graph, so there is nothing to read back")
        return sum(found[1:], found[0])

    def __getitem__(self, name: str) -> View:
        """A view of a buffer as it lies now: DLPack, the CUDA array interface, numpy."""
        self._open_session()
        buffer = buffer_named(self._surface, name)
        if not self._memory.address(buffer) and not buffer.is_optional:
            self._memory.allocate_rest()
        if not self._memory.address(buffer):
            raise UsageError(f"'{name}' is optional and nothing is bound to it")
        # A status can be read where ``synchronize`` would raise what it says.
        return self._view(buffer, self._wait if buffer.role is Role.STATUS else None)

    def _view(
        self,
        buffer: Buffer,
        wait: Callable[[], None] | None = None,
        schedule: Schedule | None = None,
    ) -> View:
        is_mapped = buffer.device == MAPPED
        ordinal = None if is_mapped else self.placed[buffer.device]
        session = self._open_session()
        context = self._home.context if is_mapped else session.gpus[buffer.device].context
        pointer = self._memory.address(buffer, schedule)
        waits = wait or self.synchronize
        return View(buffer, pointer, ordinal, context, self._driver, waits, self._open_session)

    def _argument(self, schedule: Schedule, name: str) -> View | None:
        """What an extern op is given for a buffer; None if it is optional and unbound."""
        buffer = schedule.program.buffers[name]
        if not self._memory.address(buffer, schedule):
            return None
        return self._view(buffer, schedule=schedule)

    def poison(self) -> None:
        """Overwrite all scratch, so that a read of stale bytes shows."""
        self._open_session()
        for schedule in self.variant.schedules.values():
            for buffer in schedule.program.buffers.values():
                if buffer.nbytes and is_poisoned(schedule.program, buffer):
                    self._view(buffer, self._wait, schedule).fill_bytes(POISON)

    def time_ops(self, rounds: int = 20, count: int | None = None) -> list[OpTime]:
        """How long every op takes on its stream, and how long the stream waited before it."""
        session = self._undivided_session("time_ops times")
        self._forget_launch()
        rows, rounds = check_count(self.program, count), check_rounds(rounds)
        with self._at_home():
            self._executable.ensure_built(rows)
            session.wait_for_all()  # launches on other streams still read their count
            self._executable.set_rows(rows, session.own_stream, self._home.context)
            session.wait_for_all()
            return time_ops(session.emitter, rows, rounds)

    def record(
        self,
        rounds: int = 20,
        count: int | None = None,
        *,
        way: Way | None = None,
        recorder: Recorder | None = None,
    ) -> Recording:
        """When every op ran in each of some replays: by CUPTI if it is installed, else by events.

        The graph is built anew for this, and the one at hand is left as it is.
        """
        session = self._open_session()
        rows, rounds = check_count(self.program, count), check_rounds(rounds)
        chosen = way or self._way_at_hand()
        if chosen is Way.WALL:
            raise UsageError("on GPUs ops are traced by cupti or by events, not by wall time")
        if chosen is Way.CUPTI and self._executable.is_eager:
            raise UsageError("emit: streams makes no graph, whose nodes CUPTI names: use events")
        if chosen is Way.EVENTS:
            self._undivided_session("events are recorded around")
        if self._executable.is_free:
            raise UsageError(
                "a trace needs one stream on which a replay begins and ends: compile the plan "
                "with 'launch: joined'"
            )
        self._forget_launch()
        with self._at_home():
            self._executable.ensure_built(rows)
            session.wait_for_all()  # launches on other streams still read their count
            self._executable.set_rows(rows, session.own_stream, self._home.context)
            session.wait_for_all()
            if chosen is Way.EVENTS:
                found = record_ops(session.emitter, rows, rounds)
            else:
                found = record_by_cupti(session, recorder or Cupti(), rows, rounds)
        names = {device: gpu.facts.name for device, gpu in session.gpus.items()}
        return replace(found, names=names)

    def _way_at_hand(self) -> Way:
        return Way.CUPTI if has_cupti() and not self._executable.is_eager else Way.EVENTS

    def time_replays(self, rounds: int = 20, count: int | None = None) -> list[float]:
        """Microseconds of each of some replays, by events around it on the graph's own stream."""
        session, rounds = self._open_session(), check_rounds(rounds)
        if self._executable.is_free:
            raise UsageError(
                "time_replays needs one stream on which a replay begins and ends: compile the plan "
                "with 'launch: joined'"
            )
        with self._at_home():
            session.wait_for_all()  # launches on other streams are not ordered with our own
        self.launch(None, count)
        assert self._last is not None
        with self._at_home():
            return time_replays(self._driver, session.own_stream, self._last.replay, rounds)

    def _undivided_session(self, what: str) -> Session:
        session = self._open_session()
        if self.variant.schedule.units:
            raise UsageError(
                f"{what} the ops of one graph, and this plan has {len(self._executable.graphs)}: "
                "compile it with 'units: one'"
            )
        return session

    @property
    def is_closed(self) -> bool:
        return self._session is None

    def _open_session(self) -> Session:
        if self._session is None:
            raise is_closed_error(self.plan.name)
        return self._session

    def _at_home(self) -> AbstractContextManager[None]:
        """Work in the origin's context."""
        return self._within(self._home.context)

    @contextmanager
    def _within(self, context: int) -> Iterator[None]:
        """Work in a context; a fault that shows there is explained."""
        try:
            with current(self._driver, context):
                yield
        except CudaError as problem:
            raise explained(problem, self.plan) from None

    def close(self) -> None:
        """Wait for the launches, then give everything back; views end here, too."""
        session, self._session = self._session, None
        if session is None:
            return
        self._forget_launch()
        with suppress(CudaError), current(self._driver, self._home.context):
            session.end_memory_waits([handle for handle, _ in self._used])
            for each in self._executables.values():
                each.drop()
        session.close()
        self._bound.clear()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def refuse_blocking_launches(schedule: Schedule) -> None:
    """A launch that returns when it has ended never returns, if it waits for the next one."""
    if schedule.units and os.environ.get(LAUNCH_BLOCKING, "0") not in ("", "0"):
        raise CudaError(
            "launch",
            "LAUNCH_BLOCKING",
            f"{LAUNCH_BLOCKING} is set, so that the launch of a unit returns only when it has "
            "ended; but units wait for each other, so none of them would",
            hint=f"unset {LAUNCH_BLOCKING}, or compile the plan with 'units: one'",
        )


def merged(schedules: Iterable[Schedule]) -> Program:
    """The default entry's program with the buffers and ops of all entries: what callers bind to."""
    programs = [each.program for each in schedules]
    if len(programs) == 1:
        return programs[0]
    buffers = {name: each for own in reversed(programs) for name, each in own.buffers.items()}
    return replace(programs[0], buffers=buffers, ops=tuple(op for own in programs for op in own))


def check_unit_stream(driver: Driver, unit: str, handle: int, context: int) -> None:
    if handle > LARGEST_DEFAULT_STREAM and driver.stream_context(handle) != context:
        raise UsageError(f"streams: that of unit '{unit}' is not a stream of the unit's GPU")


def machine_of(driver: Driver) -> Machine:
    """The machine behind a driver; a ``CudaError`` if it has no GPU."""
    count = driver.device_count()
    if not count:
        raise CudaError(
            "cuDeviceGetCount", "NO_GPU", "the driver finds no GPU: use the reference backend"
        )
    facts = tuple(driver.device(ordinal) for ordinal in range(count))
    return Machine(facts, lambda source, target: peer_facts(driver, source, target))
