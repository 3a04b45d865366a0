"""Times by events: whole replays, and every op on its stream with the wait in front of it.

Ops are timed inside a graph of their own, captured with a node that records an event before and
after each of them: issued one by one they would mostly show how long the host takes. The nodes
themselves take their share: about 5 us in each op's time (on an H200), which an empty op shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import inf
from statistics import median

from graphc.backends.binding import OpTime as OpTime
from graphc.backends.cuda.emit import Emitter
from graphc.backends.recording import Recording, Replay, Span, Way
from graphc.gpu.probe import current
from graphc.gpu.protocol import Driver
from graphc.ir import Op
from graphc.simulation.orders import needed_ops


@dataclass(slots=True)
class Stopwatch:
    """An event before and one after every op of a round."""

    driver: Driver
    emitter: Emitter
    begin: int = 0
    end: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)  # op -> stream, in issue order
    previous: dict[str, str] = field(default_factory=dict)  # op -> the op before on its stream
    last: dict[str, str] = field(default_factory=dict)  # stream -> its latest op

    def around(self, op: Op, stream: str, is_after: bool) -> None:
        handle = self.emitter.queues.streams[stream]
        event = self.event(self.stops if is_after else self.starts, op.name, stream)
        self.driver.record_in_graph(event, handle)
        if not is_after:
            self.streams[op.name] = stream
            if stream in self.last:
                self.previous[op.name] = self.last[stream]
            self.last[stream] = op.name

    def event(self, events: dict[str, int], name: str, stream: str) -> int:
        if name not in events:
            with current(self.driver, self.context(stream)):
                events[name] = self.driver.create_event(is_timed=True)
        return events[name]

    def context(self, stream: str) -> int:
        return self.emitter.gpus[self.emitter.device_of(stream)].context

    def read(self) -> dict[str, tuple[float, float | None]]:
        return {
            name: (self.driver.elapsed_us(start, self.stops[name]), self.waited_us(name))
            for name, start in self.starts.items()
        }

    def waited_us(self, name: str) -> float | None:
        if name in self.previous:
            before = self.stops[self.previous[name]]
        elif self.is_on_origin_gpu(name):
            before = self.begin
        else:
            return None
        return self.driver.elapsed_us(before, self.starts[name])

    def is_on_origin_gpu(self, name: str) -> bool:
        gpus, emitter = self.emitter.gpus, self.emitter
        own = gpus[emitter.device_of(self.streams[name])]
        return own is gpus[emitter.device_of(emitter.schedule.origin)]

    def spans_by_clock(self) -> dict[int, dict[str, Span]]:
        """By context, when its ops ran, since the replay began or since its first op started."""
        home = self.context(self.emitter.schedule.origin)
        bases = {home: self.begin}
        found: dict[int, dict[str, Span]] = {home: {}}
        for name, start in self.starts.items():
            context = self.context(self.streams[name])
            base = bases.setdefault(context, start)
            elapsed = self.driver.elapsed_us
            started = 0.0 if start == base else elapsed(base, start)
            span = Span(started, started + elapsed(start, self.stops[name]))
            found.setdefault(context, {})[name] = span
        return found

    def close(self) -> None:
        for event in (self.begin, self.end, *self.starts.values(), *self.stops.values()):
            if event:
                self.driver.destroy_event(event)


def record_ops(emitter: Emitter, count: int | None, rounds: int) -> Recording:
    """Replay some times, after one that warms up, and tell when every op ran."""
    driver = emitter.driver
    watch = Stopwatch(driver, emitter)
    origin = emitter.queues.streams[emitter.schedule.origin]
    home = watch.context(emitter.schedule.origin)
    needed = needed_ops(emitter.schedule)
    replays, offsets = [], []
    try:
        watch.begin, watch.end = (driver.create_event(is_timed=True) for _ in range(2))
        with timed_graph(watch, count) as replay:
            for at in range(rounds + 1):
                driver.record(watch.begin, origin)
                replay()
                driver.record(watch.end, origin)
                driver.synchronize(origin)
                if at:
                    clocks, end_us = (
                        watch.spans_by_clock(),
                        driver.elapsed_us(watch.begin, watch.end),
                    )
                    offsets.append(offsets_of(clocks, needed, home, end_us))
                    replays.append(Replay(on_one_clock(clocks, offsets[-1]), stop_us=end_us))
    finally:
        watch.close()
    told = {device: clock_text(gpu.context, home, offsets) for device, gpu in emitter.gpus.items()}
    return Recording(Way.EVENTS, tuple(replays), told)


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a clock's zero lies on that of the origin: somewhere between."""

    least_us: float
    most_us: float

    @property
    def us(self) -> float:
        return (self.least_us + self.most_us) / 2


def offsets_of(
    clocks: Mapping[int, Mapping[str, Span]],
    needed: Mapping[str, Sequence[str]],
    home: int,
    end_us: float,
) -> dict[int, Offset]:
    """By context, what the order of ops on different clocks says of the clocks.

    ``bounds[a, b]`` is the most by which the zero of b can lie behind that of a.
    """
    clock_of = {op: clock for clock, spans in clocks.items() for op in spans}
    bounds = dict.fromkeys(product(clocks, repeat=2), inf)
    for clock in clocks:
        bounds[clock, clock] = 0.0
    for clock, spans in clocks.items():
        for span in spans.values() if clock != home else ():
            bounds[home, clock] = min(bounds[home, clock], end_us - span.stop_us)
            bounds[clock, home] = min(bounds[clock, home], span.start_us)
    for op, before in needed.items():
        for each in before:
            if op in clock_of and each in clock_of and clock_of[op] != clock_of[each]:
                pair = clock_of[op], clock_of[each]
                slack = clocks[pair[0]][op].start_us - clocks[pair[1]][each].stop_us
                bounds[pair] = min(bounds[pair], slack)
    for middle, first, last in product(clocks, repeat=3):
        way = bounds[first, middle] + bounds[middle, last]
        bounds[first, last] = min(bounds[first, last], way)
    return {clock: Offset(-bounds[clock, home], bounds[home, clock]) for clock in clocks}


def on_one_clock(
    clocks: Mapping[int, Mapping[str, Span]], offsets: Mapping[int, Offset]
) -> dict[str, Span]:
    return {
        op: Span(span.start_us + offsets[clock].us, span.stop_us + offsets[clock].us)
        for clock, spans in clocks.items()
        for op, span in spans.items()
    }


def clock_text(context: int, home: int, offsets: Sequence[Mapping[int, Offset]]) -> str:
    if context == home:
        return "the clock of the replay"
    own = [each[context] for each in offsets if context in each]
    if not own:
        return "nothing ran on it"
    doubt = median(each.most_us - each.least_us for each in own) / 2
    if doubt < 0:
        return f"its own clock, whose ops contradict what waits for what by {-doubt:.1f} us"
    return f"its own clock, placed by what waits for what: {doubt:.1f} us either way"


def time_ops(emitter: Emitter, count: int | None, rounds: int) -> list[OpTime]:
    """Replay the schedule some times, after one that warms up, with every op timed."""
    driver = emitter.driver
    watch = Stopwatch(driver, emitter)
    origin = emitter.queues.streams[emitter.schedule.origin]
    taken: dict[str, list[tuple[float, float | None]]] = {}
    try:
        watch.begin = driver.create_event(is_timed=True)
        with timed_graph(watch, count) as replay:
            for at in range(rounds + 1):
                driver.record(watch.begin, origin)
                replay()
                driver.synchronize(origin)
                for name, times in watch.read().items() if at else ():
                    taken.setdefault(name, []).append(times)
        return [op_time(name, watch.streams[name], times) for name, times in taken.items()]
    finally:
        watch.close()


@contextmanager
def timed_graph(watch: Stopwatch, count: int | None) -> Iterator[Callable[[], None]]:
    driver, schedule = watch.driver, watch.emitter.schedule
    graph = watch.emitter.capture(count, watch.around).graph
    try:
        has_priorities = any(stream.priority for stream in schedule.streams)
        executable = driver.instantiate(graph, use_priorities=has_priorities)
        try:
            yield driver.launcher(executable, watch.emitter.queues.streams[schedule.origin])
        finally:
            driver.destroy_exec(executable)
    finally:
        driver.destroy_graph(graph)


def op_time(name: str, stream: str, times: list[tuple[float, float | None]]) -> OpTime:
    waits = [waited for _, waited in times if waited is not None]
    return OpTime(name, stream, median(us for us, _ in times), median(waits) if waits else None)


def time_replays(
    driver: Driver, stream: int, replay: Callable[[], None], rounds: int
) -> list[float]:
    """Microseconds of each replay; the stream is empty before each of them."""
    start, stop = (driver.create_event(is_timed=True) for _ in range(2))
    times = []
    try:
        for _ in range(rounds):
            driver.synchronize(stream)
            driver.record(start, stream)
            replay()
            driver.record(stop, stream)
            driver.synchronize(stream)
            times.append(driver.elapsed_us(start, stop))
    finally:
        driver.destroy_event(start)
        driver.destroy_event(stop)
    return times
