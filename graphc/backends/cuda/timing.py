"""Times by events: whole replays, and every op on its stream with the wait in front of it.

Ops are timed inside a graph of their own, captured with a node that records an event before and
after each of them: issued one by one they would mostly show how long the host takes. The nodes
themselves take their share: about 5 us in each op's time (on an H200), which an empty op shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from graphc.backends.binding import OpTime as OpTime
from graphc.backends.cuda.emit import Emitter
from graphc.gpu.protocol import Driver
from graphc.ir import Op


@dataclass(slots=True)
class Stopwatch:
    """An event before and one after every op of a round."""

    driver: Driver
    emitter: Emitter
    begin: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)  # op -> stream, in issue order
    previous: dict[str, str] = field(default_factory=dict)  # op -> the op before on its stream
    last: dict[str, str] = field(default_factory=dict)  # stream -> its latest op

    def around(self, op: Op, stream: str, is_after: bool) -> None:
        handle = self.emitter.queues.streams[stream]
        event = self.event(self.stops if is_after else self.starts, op.name)
        self.driver.record_in_graph(event, handle)
        if not is_after:
            self.streams[op.name] = stream
            if stream in self.last:
                self.previous[op.name] = self.last[stream]
            self.last[stream] = op.name

    def event(self, events: dict[str, int], name: str) -> int:
        if name not in events:
            events[name] = self.driver.create_event(is_timed=True)
        return events[name]

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

    def close(self) -> None:
        for event in (self.begin, *self.starts.values(), *self.stops.values()):
            if event:
                self.driver.destroy_event(event)


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
