"""A plan ready to replay on GPUs: bind, launch, views, close.

Loading, allocation of scratch and the data tests of the machine happen when it is made; memory of
buffers with a role and the graph itself come with the first ``upload`` or ``launch``, so that
arrays bound before cost nothing. A new binding captures again and updates the executable graph in
place where the driver can, else replaces it.

Launches of one graph are ordered by their streams, as any work: a caller who changes the stream
orders the two. The count travels on the stream, too: it is a word on each GPU, set before the
replay that uses it; nodes of copies and fills change for future launches only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from graphc.backends.binding import (
    OneOfAKind,
    OpTime,
    bindable,
    buffer_named,
    check_apart,
    check_count,
    check_rounds,
    given_arrays,
    is_closed_error,
    is_poisoned,
    read_only,
    stream_handle,
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
from graphc.gpu import open_driver
from graphc.gpu.cupti import Cupti, Recorder, has_cupti
from graphc.gpu.probe import current, peer_facts
from graphc.gpu.protocol import Driver
from graphc.ir import MAPPED, Buffer
from graphc.machine import Machine, place_devices
from graphc.plan import Plan, Variant
from graphc.text.diagnostics import CudaError, UsageError

NEVER = object()  # neither a stream nor a count: the fast path of ``launch`` does not apply
NO_CONTEXT = -1  # which is never current
LARGEST_DEFAULT_STREAM = 2  # handles 0, 1, 2 are the default streams of the current context
POISON = 0xFF


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
    ) -> None:
        self.plan = plan
        self._driver = driver or open_driver()
        machine = machine_of(self._driver)
        names = plan.variants[0].schedule.program.devices
        self.placed = place_devices(names, len(machine.gpus), devices)
        self.variant = variant or choose_variant(plan, machine, self.placed)
        self.program = self.variant.schedule.program
        self._written = written_buffers(self.program)
        self._bound: dict[str, Any] = {}  # buffer -> the caller's array, kept while it is used
        self._last_stream: object = NEVER
        self._last_count: object = NEVER
        self._last_kind: type = type(NEVER)  # of the count: True and 1.0 are equal to 1
        self._last_context: int | None = None  # of the caller, where it tells default streams apart
        self._replay: Callable[[], None] = self.synchronize
        session = Session(self._driver, plan, self.variant, machine, self.placed, self._argument)
        self._session, self._memory = session, session.memory
        self._home, self._handle = session.home, session.own_stream
        self._place = session.home.context  # in which the handle means the stream of the launches
        self._executable = Executable(session)

    @property
    def routes(self) -> Mapping[str, str]:
        """Transfer -> the route that was taken."""
        return self.variant.routes

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
        pairs = given_arrays(self.program, arrays, named)
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
        now = {buffer.name: self._memory.address(buffer) for buffer in bindable(self.program)}
        places = {
            name: (address, self.program.buffers[name].nbytes)
            for name, address in {**now, **pointers}.items()
            if address
        }
        check_apart(places, self._written)

    def _bind_one(self, buffer: Buffer, value: Any, pointer: int | None) -> None:
        before = self._memory.address(buffer)
        if buffer.name in self._bound and pointer != before:
            self.synchronize()  # launches may still use the array, and nobody else may hold it
        if pointer is None:
            self._memory.own(buffer)
            self._bound.pop(buffer.name, None)
            self._view(buffer).write(value)
        else:
            self._memory.bind(buffer, pointer)
            self._bound[buffer.name] = value
        if self._memory.address(buffer) != before:
            self._forget_launch()
            self._executable.is_stale = True

    def upload(self) -> None:
        """Build the graph and bring it to the devices, so that the first launch costs no more."""
        session = self._open_session()
        with self._at_home():
            self._executable.ensure_built(check_count(self.program, None))
            if self._executable.handle:
                self._driver.upload(self._executable.handle, session.own_stream)
                self._driver.synchronize(session.own_stream)

    def launch(self, stream: object = None, count: int | None = None) -> None:
        """Replay on a stream (None: the graph's own) with ``count`` rows in use (None: all).

        The stream is anything with ``__cuda_stream__``, or a handle; not one that is being
        captured, which is looked at when the stream or the count is another than before. The call
        only enqueues.
        """
        try:
            if (
                stream is self._last_stream
                and type(count) is self._last_kind
                and count == self._last_count
                and (
                    self._last_context is None
                    or self._last_context == self._driver.current_context()
                )
            ):
                self._replay()
            else:
                self._launch_anew(stream, count)
        except CudaError as problem:
            raise explained(problem, self.plan) from None

    def _launch_anew(self, stream: object, count: int | None) -> None:
        session = self._open_session()
        rows = check_count(self.program, count)
        handle = session.own_stream if stream is None else stream_handle(stream)
        self._forget_launch()
        # A default stream is that of the caller's current context, if there is one.
        is_default = handle <= LARGEST_DEFAULT_STREAM
        callers = self._driver.current_context() if is_default else 0
        place = callers or self._home.context
        with current(self._driver, place):
            if stream is not None:
                self._refuse_capture(handle)
            context = self._driver.stream_context(handle)
            self._executable.ensure_built(rows)
            self._executable.set_rows(rows, handle, context)
            replay = self._executable.launcher(rows, handle, context)
            self._handle, self._place = handle, place
            replay()
        self._replay, self._last_stream = replay, stream
        self._last_count, self._last_kind = count, type(count)
        self._last_context = (callers or NO_CONTEXT) if is_default else None

    def _refuse_capture(self, handle: int) -> None:
        """A recorded launch would set no count when it is called, and this one might build."""
        if self._driver.is_capturing(handle):
            raise UsageError(
                "the stream is being captured: launch the graph beside the one that is captured, "
                "not into it"
            )

    def _forget_launch(self) -> None:
        """The next launch looks at everything again."""
        self._last_stream, self._last_count, self._replay = NEVER, NEVER, self.synchronize
        self._last_kind = type(NEVER)

    def synchronize(self) -> None:
        """Wait for the launches so far; what failed on the GPU meanwhile is raised here."""
        self._open_session()
        with self._within(self._place):
            self._driver.synchronize(self._handle)

    def read_back(self) -> ReadBack:
        """Compare the graph at hand with the plan, as is done whenever it is built."""
        self._open_session()
        with self._at_home():
            self._executable.ensure_built(check_count(self.program, None))
            found = self._executable.read_back()
        if found is None:
            raise UsageError("emit: streams builds no graph, so there is nothing to read back")
        return found

    def __getitem__(self, name: str) -> View:
        """A view of a buffer as it lies now: DLPack, the CUDA array interface, numpy."""
        self._open_session()
        buffer = buffer_named(self.program, name)
        if not self._memory.address(buffer) and not buffer.is_optional:
            self._memory.allocate_rest()
        if not self._memory.address(buffer):
            raise UsageError(f"'{name}' is optional and nothing is bound to it")
        return self._view(buffer)

    def _view(self, buffer: Buffer) -> View:
        is_mapped = buffer.device == MAPPED
        ordinal = None if is_mapped else self.placed[buffer.device]
        session = self._open_session()
        context = self._home.context if is_mapped else session.gpus[buffer.device].context
        pointer = self._memory.address(buffer)
        return View(
            buffer, pointer, ordinal, context, self._driver, self.synchronize, self._open_session
        )

    def _argument(self, name: str) -> View | None:
        """What an extern op is given for a buffer; None if it is optional and unbound."""
        buffer = self.program.buffers[name]
        return self._view(buffer) if self._memory.address(buffer) else None

    def poison(self) -> None:
        """Overwrite all scratch, so that a read of stale bytes shows."""
        self._open_session()
        for buffer in self.program.buffers.values():
            if buffer.nbytes and is_poisoned(self.program, buffer):
                self._view(buffer).fill_bytes(POISON)

    def time_ops(self, rounds: int = 20, count: int | None = None) -> list[OpTime]:
        """How long every op takes on its stream, and how long the stream waited before it."""
        session = self._open_session()
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
        with self._at_home():
            session.wait_for_all()  # launches on other streams are not ordered with our own
        self.launch(None, count)
        with self._at_home():
            return time_replays(self._driver, session.own_stream, self._replay, rounds)

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
            self._executable.drop()
        session.close()
        self._bound.clear()

    def __enter__(self) -> CudaGraph:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def machine_of(driver: Driver) -> Machine:
    """The machine behind a driver; a ``CudaError`` if it has no GPU."""
    count = driver.device_count()
    if not count:
        raise CudaError(
            "cuDeviceGetCount", "NO_GPU", "the driver finds no GPU: use the reference backend"
        )
    facts = tuple(driver.device(ordinal) for ordinal in range(count))
    return Machine(facts, lambda source, target: peer_facts(driver, source, target))
