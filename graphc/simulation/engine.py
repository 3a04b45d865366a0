"""Ops run: a discrete-event simulation of engines, multiprocessors, memories and links.

An op starts when all that it waits for has ended, a latency later, and its engine has room:

- A copy engine does one copy after the other.
- A wide kernel takes the multiprocessors that nobody is on, up to what it wants, and the rest as
  they become free; what it placed at once ends at once. A narrow kernel runs on all that no wide
  kernel holds. Of kernels that wait the first of the highest priority comes first, and others do
  not pass it.

- A kernel that pushes over a link gives up its multiprocessors nearly at once, the last of them so
  late that the next push, which comes a step later, has them before a wide kernel has begun there
  (seen by the host and by peers: about four pieces of a transfer pass until a product has all).
- The end of a kernel, as other streams see it, waits for kernels that are on a link of its GPU then
  (seen with kernels that write host memory: what waits behind such a kernel's neighbour waits for
  the kernel, too).

- What awaits signals of other GPUs keeps what it has from its start until the last one has come.

What runs progresses at the rate of its slowest need: arithmetic by the multiprocessors that it has,
its share of the memory, its share of each link that it passes (all shares fair: nobody gets less
than an even part as long as they could use it). Rates change when anything starts or ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from graphc.profiles import OverheadSpec, ProfileSpec, at
from graphc.simulation.demands import Demand, Kind, Links

START, STOP, OPEN = 0, 1, 2
NEVER = float("inf")
LEAST_US = 1e-6
LATE = 0.3  # of the multiprocessors of a kernel that pushes: wide ones get them a step later


@dataclass(frozen=True, slots=True)
class Task:
    """One op as the engine sees it."""

    demand: Demand
    before: tuple[int, ...]
    stream: int
    place: int  # of its GPU, or -1: the host
    priority: int = 0
    issued_us: float = 0.0
    awaits: tuple[int, ...] = ()  # it ends when these have ended, too


@dataclass(slots=True)
class Ran:
    """When one op ran, and what held it up."""

    ready_us: float = 0.0  # all that it waits for has ended
    start_us: float = NEVER
    stop_us: float = NEVER
    cause: int = -1  # the op whose end let it start


@dataclass(slots=True)
class Activity:
    """A task at work, or the part of a wide kernel that was placed at once."""

    task: int
    demand: Demand
    share: float  # of the task's work
    sms: float
    compute_us: float = 0.0
    memory_us: list[float] = field(default_factory=list)
    flow_rates: list[float] = field(default_factory=list)  # at most, in bytes a microsecond
    flow_us: float = 0.0
    duration_us: float = 0.0
    remaining: float = 1.0
    since_us: float = 0.0
    version: int = 0


@dataclass(slots=True)
class Gpu:
    """What is on one GPU, and what waits for it."""

    sms: float
    wide: float = 0.0  # multiprocessors held
    kept: float = 0.0  # free, but not for wide kernels yet
    narrow: list[Activity] = field(default_factory=list)
    users: list[Activity] = field(default_factory=list)  # of its memory
    pending: list[tuple[int, int, int]] = field(default_factory=list)  # (priority, turn, task)
    unplaced: dict[int, float] = field(default_factory=dict)  # task -> multiprocessors
    queues: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    copying: dict[int, int] = field(default_factory=dict)  # copy engine -> task
    freed_by: int = -1  # the task that ended last
    held: list[tuple[int, set[int]]] = field(default_factory=list)  # tasks, and what holds them

    @property
    def narrow_sms(self) -> float:
        return min(sum(each.sms for each in self.narrow), self.sms - self.wide)


def run(tasks: Sequence[Task], profile: ProfileSpec, links: Links) -> list[Ran]:
    """Let the tasks run; they are given in the order of issue."""
    return Simulation(tasks, profile, links).run()


class Simulation:
    """The state between two events."""

    def __init__(self, tasks: Sequence[Task], profile: ProfileSpec, links: Links) -> None:
        self.tasks, self.links = tasks, links.rates
        self.overhead: OverheadSpec = profile.overhead
        self.bandwidth = profile.memory.gb_s * 1e3
        self.one_sm = profile.memory.one_sm_gb_s * 1e3
        self.copy_engines = profile.gpus.copy_engines
        self.gpus = [Gpu(float(profile.gpus.sms)) for _ in range(profile.gpus.count)]
        self.ran = [Ran() for _ in tasks]
        self.missing = [len(each.before) for each in tasks]
        self.after: list[list[int]] = [[] for _ in tasks]
        self.forks = [False] * len(tasks)  # another stream waits for it
        self.parts = [0] * len(tasks)  # activities that have not ended
        self.awaited = [len(each.awaits) for each in tasks]  # that have not ended
        self.wakes: list[list[int]] = [[] for _ in tasks]
        self.come_us = [0.0] * len(tasks)  # the latest signal
        self.spinning: dict[int, Activity] = {}
        self.flowing: list[Activity] = []
        self.events: list[tuple[float, int, int, int, Activity | None]] = []
        self.turn = 0
        self.dirty: set[int] = set()
        self.fair: dict[tuple[tuple[tuple[int, ...], float], ...], list[float]] = {}
        self.flows_changed = False

    def run(self) -> list[Ran]:
        for index, task in enumerate(self.tasks):
            for each in task.before:
                self.after[each].append(index)
                self.forks[each] |= self.tasks[each].stream != task.stream
            for each in task.awaits:
                self.wakes[each].append(index)
            if not task.before:
                self.push(task.issued_us, index)
        events, gpus = self.events, self.gpus
        while events:
            now = events[0][0]
            touched: list[int] = []
            while events and events[0][0] <= now:
                _, _, what, number, activity = heappop(events)
                if what == START:
                    self.start(number, now, touched)
                elif what == OPEN:
                    self.gpus[number].kept = 0.0
                    touched.append(number)
                elif activity is not None and activity.version == number:
                    self.stop(activity, now, touched)
            for gpu in dict.fromkeys(touched):
                if gpus[gpu].pending or gpus[gpu].narrow:
                    self.dispatch(gpu, now)
            if self.dirty or self.flows_changed:
                self.rates(now)
        return self.ran

    def push(self, when: float, task: int) -> None:
        self.turn += 1
        heappush(self.events, (when, self.turn, START, task, None))

    # --- starting and stopping ---------------------------------------------------------------

    def start(self, index: int, now: float, touched: list[int]) -> None:
        task, ran = self.tasks[index], self.ran[index]
        demand = task.demand
        ran.ready_us = now
        if demand.kind is Kind.NONE:
            ran.start_us = now
            if demand.fixed_us:
                self.add(Activity(index, demand, 1.0, 0.0), now)
            else:
                self.finish(index, now)
            return
        gpu = self.gpus[demand.gpu]
        self.turn += 1
        entry = (task.priority, self.turn, index)
        if demand.kind is Kind.COPY:
            engine = self.engine_of(demand.engine)
            heappush(gpu.queues.setdefault(engine, []), entry)
            self.next_copy(demand.gpu, engine, now)
            return
        heappush(gpu.pending, entry)
        gpu.unplaced[index] = demand.sms
        touched.append(demand.gpu)

    def engine_of(self, name: str) -> int:
        number = {"copy to host": 0, "copy from host": 1}.get(name, 2)
        return min(number, self.copy_engines - 1)

    def next_copy(self, number: int, engine: int, now: float, freed_by: int = -1) -> None:
        gpu = self.gpus[number]
        if engine in gpu.copying or not gpu.queues.get(engine):
            return
        _, _, index = heappop(gpu.queues[engine])
        gpu.copying[engine] = index
        ran = self.ran[index]
        ran.start_us = now
        if now > ran.ready_us and freed_by >= 0:
            ran.cause = freed_by
        self.add(Activity(index, self.tasks[index].demand, 1.0, 0.0), now)

    def add(self, activity: Activity, now: float) -> None:
        """An activity begins."""
        demand = activity.demand
        activity.since_us = now
        activity.compute_us = compute_us(activity)
        self.parts[activity.task] += 1
        for gpu, _ in demand.memory:
            self.gpus[gpu].users.append(activity)
            self.dirty.add(gpu)
        activity.memory_us = [0.0] * len(demand.memory)
        if demand.flows:
            self.flowing.append(activity)
            self.flows_changed = True
            self.limit_flows(activity)
        if not demand.memory:
            self.settle(activity, now)

    def limit_flows(self, activity: Activity) -> None:
        demand = activity.demand
        blocks = max(1.0, min(demand.blocks, activity.sms * demand.blocks_a_sm))
        activity.flow_rates = [1e3 * at(each.rate, blocks) for each in demand.flows]

    def stop(self, activity: Activity, now: float, touched: list[int]) -> None:
        """An activity ends, and with the last one its task."""
        demand, index = activity.demand, activity.task
        activity.version = -1
        for number, _ in demand.memory:
            self.gpus[number].users.remove(activity)
            self.dirty.add(number)
        if demand.flows:
            self.flowing.remove(activity)
            self.flows_changed = True
        self.parts[index] -= 1
        if demand.kind is not Kind.NONE:
            gpu = self.gpus[demand.gpu]
            gpu.freed_by = index
            if demand.kind is Kind.COPY:
                engine = self.engine_of(demand.engine)
                del gpu.copying[engine]
                self.next_copy(demand.gpu, engine, now, index)
            else:
                touched.append(demand.gpu)
                if demand.kind is Kind.WIDE:
                    gpu.wide -= activity.sms
                else:
                    gpu.narrow.remove(activity)
                    if demand.pushes and gpu.pending:
                        self.keep(demand.gpu, LATE * activity.sms, now)
        if not self.parts[index] and index not in self.gpus[demand.gpu].unplaced:
            self.end(index, now)

    def keep(self, number: int, sms: float, now: float) -> None:
        """Keep some multiprocessors from wide kernels until the next op of a stream has come."""
        self.gpus[number].kept = sms
        self.turn += 1
        when = now + 2 * self.overhead.same_stream_us
        heappush(self.events, (when, self.turn, OPEN, number, None))

    def end(self, index: int, now: float) -> None:
        """All of a task's work is done; others may have to wait a little longer."""
        demand = self.tasks[index].demand
        gpu = self.gpus[demand.gpu]
        if demand.kind is Kind.NARROW and demand.flows:
            self.release(gpu, index, now)
        elif demand.kind >= Kind.WIDE and self.forks[index]:
            links = {each.task for each in gpu.narrow if each.demand.flows}
            if links:
                gpu.held.append((index, links))
                return
        self.finish(index, now)

    def release(self, gpu: Gpu, index: int, now: float) -> None:
        """A kernel on a link has ended: so have those that only it held."""
        for _, links in gpu.held:
            links.discard(index)
        free = [task for task, links in gpu.held if not links]
        gpu.held = [each for each in gpu.held if each[1]]
        for task in free:
            self.finish(task, now)

    def finish(self, index: int, now: float) -> None:
        self.ran[index].stop_us = now
        task, ran, missing = self.tasks[index], self.ran, self.missing
        for number in self.wakes[index]:
            self.wake(number, index, now)
        over = self.overhead
        for number in self.after[index]:
            other, found = self.tasks[number], ran[number]
            if other.stream == task.stream:
                when = now + over.same_stream_us
            elif other.place == task.place:
                when = now + over.same_gpu_us
            else:
                when = now + over.across_gpus_us
            if when >= found.ready_us:
                found.ready_us = when
                found.cause = index
            missing[number] -= 1
            if not missing[number]:
                self.push(max(found.ready_us, other.issued_us), number)

    def wake(self, index: int, signal: int, now: float) -> None:
        """A signal comes for a task, which ends with the last one."""
        when = now + self.overhead.across_gpus_us
        self.come_us[index] = max(self.come_us[index], when)
        self.awaited[index] -= 1
        activity = self.spinning.pop(index, None) if not self.awaited[index] else None
        if activity is not None:
            self.ran[index].cause = signal
            self.settle(activity, now)

    # --- multiprocessors ---------------------------------------------------------------------

    def dispatch(self, number: int, now: float) -> None:
        """Give free multiprocessors to those that run on too few, then to those that wait."""
        gpu = self.gpus[number]
        for each in gpu.narrow:
            # Its blocks that had no room come before anything that started later.
            wanted = min(each.demand.sms, gpu.sms - gpu.wide)
            if wanted > each.sms and each.demand.blocks > each.sms * each.demand.blocks_a_sm:
                self.widen(each, wanted, number)
        while gpu.pending:
            index = gpu.pending[0][2]
            demand = self.tasks[index].demand
            if demand.kind is Kind.NARROW:
                free = gpu.sms - gpu.wide
                if free < 1.0:
                    return
                heappop(gpu.pending)
                del gpu.unplaced[index]
                activity = Activity(index, demand, 1.0, min(demand.sms, free))
                gpu.narrow.append(activity)
                self.begin(index, activity, gpu, now)
                continue
            free = gpu.sms - gpu.wide - max(gpu.narrow_sms, gpu.kept)
            taken = min(gpu.unplaced[index], free)
            if taken < min(1.0, gpu.unplaced[index]):
                return
            gpu.wide += taken
            gpu.unplaced[index] -= taken
            activity = Activity(index, demand, taken / demand.sms, taken)
            if gpu.unplaced[index] < 1e-9:
                heappop(gpu.pending)
                del gpu.unplaced[index]
            self.begin(index, activity, gpu, now)

    def begin(self, index: int, activity: Activity, gpu: Gpu, now: float) -> None:
        ran = self.ran[index]
        if ran.start_us == NEVER:
            ran.start_us = now
            if now > ran.ready_us:
                ran.cause = gpu.freed_by
        self.add(activity, now)

    def widen(self, activity: Activity, sms: float, number: int) -> None:
        activity.sms = sms
        activity.compute_us = compute_us(activity)
        self.dirty.add(number)
        if activity.demand.flows:
            self.limit_flows(activity)
            self.flows_changed = True

    # --- rates -------------------------------------------------------------------------------

    def rates(self, now: float) -> None:
        changed: list[Activity] = []
        if self.flows_changed:
            self.flows_changed = False
            changed = self.share_links()
            for each in changed:
                for gpu, _ in each.demand.memory:
                    self.dirty.add(gpu)
        if self.dirty:
            for number in sorted(self.dirty):
                self.share_memory(number)
                changed += self.gpus[number].users
            self.dirty.clear()
        for each in changed:
            self.settle(each, now)

    def settle(self, activity: Activity, now: float) -> None:
        """How long it takes from now on, and when it will end if nothing changes."""
        if self.awaited[activity.task]:
            self.spinning[activity.task] = activity
            return
        fluid = activity.compute_us
        if activity.flow_us > fluid:
            fluid = activity.flow_us
        for each in activity.memory_us:
            if each > fluid:
                fluid = each
        duration = activity.demand.fixed_us + fluid or LEAST_US
        if self.tasks[activity.task].awaits:
            left = self.come_us[activity.task] - now
            duration = max(left, duration - (now - activity.since_us), LEAST_US)
        if duration == activity.duration_us:
            return
        if activity.duration_us:
            activity.remaining -= (now - activity.since_us) / activity.duration_us
        activity.since_us, activity.duration_us = now, duration
        activity.version += 1
        self.turn += 1
        stop = now + max(0.0, activity.remaining) * duration
        heappush(self.events, (stop, self.turn, STOP, activity.version, activity))

    def share_memory(self, number: int) -> None:
        """The time of each activity's bytes in one GPU's memory."""
        users, bandwidth = self.gpus[number].users, self.bandwidth
        if len(users) == 1:
            activity = users[0]
            index, nbytes = bytes_in(activity, number)
            activity.memory_us[index] = nbytes / self.most_memory(activity)
            return
        wants = []
        total = 0.0
        for turn, each in enumerate(users):
            index, nbytes = bytes_in(each, number)
            most = self.most_memory(each)
            alone = max(each.compute_us, each.flow_us, nbytes / most)
            rate = nbytes / alone if alone else 0.0
            wants.append((rate, turn, nbytes, index))
            total += rate
        left, count = bandwidth, len(wants)
        if total > bandwidth:
            wants.sort()
        for rate, turn, nbytes, index in wants:
            given = rate if total <= bandwidth else min(rate, left / count)
            left -= given
            count -= 1
            users[turn].memory_us[index] = nbytes / given if given else 0.0

    def most_memory(self, activity: Activity) -> float:
        """What its multiprocessors can take of the memory."""
        if activity.demand.kind < Kind.WIDE:
            return self.bandwidth
        return min(self.bandwidth, activity.sms * self.one_sm)

    def share_links(self) -> list[Activity]:
        """Fair rates; the activities whose bytes now take another time."""
        key = tuple(
            (flow.links, most)
            for each in self.flowing
            for flow, most in zip(each.demand.flows, each.flow_rates, strict=True)
        )
        if key not in self.fair:
            self.fair[key] = fair_rates(key, self.links)
        rates = iter(self.fair[key])
        changed = []
        for each in self.flowing:
            us = 0.0
            for flow in each.demand.flows:
                us = max(us, each.share * flow.nbytes / next(rates))
            if us != each.flow_us:
                each.flow_us = us
                changed.append(each)
        return changed


def bytes_in(activity: Activity, number: int) -> tuple[int, float]:
    """Which of its memories is that of the GPU, and the bytes there."""
    for index, (gpu, nbytes) in enumerate(activity.demand.memory):
        if gpu == number:
            return index, activity.share * nbytes
    raise KeyError(number)


def fair_rates(flows: Sequence[tuple[Sequence[int], float]], rates: Sequence[float]) -> list[float]:
    """All grow alike, until a link is full or a flow has the most that it can use.

    >>> fair_rates([((0,), 9.0), ((0, 1), 9.0), ((1,), 1.0)], [10.0, 4.0])
    [7.0, 3.0, 1.0]
    """
    left = {link: rates[link] for links, _ in flows for link in links}
    users = dict.fromkeys(left, 0)
    for links, _ in flows:
        for link in links:
            users[link] += 1
    found = [0.0] * len(flows)
    growing = list(range(len(flows)))
    while growing:
        even = {link: left[link] / users[link] for link in left if users[link]}
        parts = {each: min(even[link] for link in flows[each][0]) for each in growing}
        # Those that can use less than an even part come first: they leave the rest more.
        done = [each for each in growing if flows[each][1] <= parts[each]]
        least = min(parts.values())
        done = done or [each for each in growing if parts[each] <= least * (1 + 1e-9)]
        for each in done:
            links, most = flows[each]
            found[each] = min(most, parts[each])
            for link in links:
                left[link] -= found[each]
                users[link] -= 1
        growing = [each for each in growing if each not in done]
    return found


def compute_us(activity: Activity) -> float:
    """Of its arithmetic, on the multiprocessors that it has."""
    demand = activity.demand
    if demand.kind is Kind.NARROW and activity.sms < demand.sms:
        return demand.compute_us * demand.sms / activity.sms
    return demand.compute_us  # a part of a wide kernel has its share of both
