"""A driver that has no GPU: it writes down its calls, keeps graphs as CUDA would, and can lie.

Memory is real memory of this process, so copies and fills really happen: at once, unless something
before them on their stream has to wait for what another stream does. Kernels are Python functions
by the names of their entries; one that raises ``Pending`` is tried again when something else has
happened, so that graphs can wait for each other. Waiting for a stream lets time pass (``now_ns``);
what waits for ever is a ``Hang``. Captures follow streams and events; what CUDA would refuse (an
unjoined stream, a node without bytes, a launch into a broken capture) is refused.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import numpy as np

from graphc.gpu.probe import PROBE_ENTRY
from graphc.gpu.protocol import (
    Call,
    CopyCall,
    DeviceFacts,
    FillCall,
    KernelCall,
    LaunchStep,
    MemoryOpsCall,
    NodeKind,
    PointerFacts,
    RecordStep,
    Step,
    WaitStep,
)
from graphc.kernels.signals import AWAIT, BEGIN, SIGNAL
from graphc.text.diagnostics import CudaError

KernelFunction = Callable[..., None]  # called with the values of the arguments
KINDS = {
    KernelCall: NodeKind.KERNEL, CopyCall: NodeKind.COPY, FillCall: NodeKind.FILL,
    MemoryOpsCall: NodeKind.MEMORY_OPS,
}  # fmt: skip
HOST_ORDINAL = -1
TICK_NS = 1_000_000_000  # that pass while the host waits in vain
MOST_TICKS = 100


class Pending(Exception):
    """What a kernel waits for has not come yet."""


class Hang(AssertionError):
    """The host waits for what can never end."""


@dataclass
class Item:
    """What a stream still has to do: a call, an event to record or to wait for, or a graph."""

    call: Call | None = None
    event: int = 0
    number: int = 0  # of the event's record
    is_record: bool = False
    replay: FakeReplay | None = None
    since_ns: int | None = None  # when it began to wait


@dataclass
class FakeReplay:
    """One launch of a graph: the nodes that are still to run, and what each does."""

    items: dict[int, Item]
    before: dict[int, tuple[int, ...]]
    after: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node, before in self.before.items():
            for each in dict.fromkeys(before):
                self.after.setdefault(each, []).append(node)

    def is_ready(self, node: int) -> bool:
        return not any(each in self.items for each in self.before[node])


@dataclass
class Node:
    kind: NodeKind
    call: Call | None
    context: int
    before: tuple[int, ...]


@dataclass
class FakeGraph:
    nodes: dict[int, Node] = field(default_factory=dict)
    is_broken: bool = False


@dataclass
class FakeExec:
    graph: int
    calls: dict[int, Call | None]
    order: tuple[int, ...]
    disabled: set[int] = field(default_factory=set)


class RecordingDriver:
    """A ``Driver`` over imaginary GPUs.

    ``peers``: "work", "refused" (the driver says no) or "lie" (it says yes, wrong bytes arrive).
    ``failing``: call name -> which one of them fails (1: the first).
    ``seed``: graphs run their nodes in some order that their edges allow, another one each time.
    ``kernels`` are found by the library's code, if it is one of their names, else by entry.
    """

    def __init__(
        self,
        gpus: int = 2,
        *,
        kernels: Mapping[str, KernelFunction] | None = None,
        peers: Literal["work", "refused", "lie"] = "work",
        capability: int = 90,
        sms: int = 132,
        nbytes: int = 1 << 30,
        failing: Mapping[str, int] | None = None,
        refuses_fill_width: bool = False,
        seed: int | None = None,
    ) -> None:
        self.gpu_count, self.peers, self.capability, self.sms = gpus, peers, capability, sms
        self.nbytes, self.failing = nbytes, dict(failing or {})
        self.refuses_fill_width = refuses_fill_width
        self.random = None if seed is None else random.Random(seed)
        self.kernels: dict[str, KernelFunction] = {PROBE_ENTRY: self.probe_copy, **(kernels or {})}
        self.calls: list[tuple[Any, ...]] = []
        self.counts: Counter[str] = Counter()
        self.handles = count(1000)
        self.contexts: list[int] = []
        self.retained: Counter[int] = Counter()
        self.memory: dict[int, tuple[np.ndarray[Any, Any], int, int]] = {}
        self.libraries: dict[int, str] = {}
        self.entries: dict[int, str] = {}  # kernel and function -> entry
        self.function_contexts: dict[int, int] = {}
        self.shared: dict[tuple[int, int], int] = {}
        self.streams: dict[int, int] = {}
        self.events: dict[int, tuple[int, tuple[int, ...]] | None] = {}
        self.captures: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.graphs: dict[int, FakeGraph] = {}
        self.execs: dict[int, FakeExec] = {}
        self.peer_contexts: set[tuple[int, int]] = set()
        self.queues: dict[int, deque[Item]] = {}
        self.records: Counter[int] = Counter()  # event -> how often it was recorded
        self.happened: dict[int, int] = {}  # event -> the latest of its records that took place
        self.now_ns = 0
        self.current: Item = Item()  # what is performed now
        self.skipped: set[int] = set()  # executables whose launches are lost
        self.kernels = {
            BEGIN: self.begin, SIGNAL: self.signal, AWAIT: self.await_signals, **self.kernels,
        }  # fmt: skip

    def note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        self.counts[name] += 1
        if self.failing.get(name) == self.counts[name]:
            raise self.break_captures(name, "CUDA_ERROR_UNKNOWN", "the fake was told to fail")

    def break_captures(self, call: str, name: str, why: str) -> CudaError:
        for graph, _ in self.captures.values():
            self.graphs[graph].is_broken = True
        return CudaError(call, name, why)

    def names(self) -> list[str]:
        return [each[0] for each in self.calls]

    def leaks(self) -> dict[str, object]:
        """What was not given back."""
        held = {
            "memory": sorted(self.memory), "streams": sorted(self.streams),
            "events": sorted(self.events), "graphs": sorted(self.graphs),
            "executables": sorted(self.execs), "libraries": sorted(self.libraries),
            "contexts": [each for each in self.retained if self.retained[each]],
            "current": self.contexts, "captures": sorted(self.captures),
        }  # fmt: skip
        return {name: what for name, what in held.items() if what}

    # The machine.

    def version(self) -> int:
        return 13000

    def device_count(self) -> int:
        return self.gpu_count

    def device(self, ordinal: int) -> DeviceFacts:
        return DeviceFacts(
            ordinal, "Fake GPU", self.capability, self.sms, 232_448, self.nbytes, f"ffff:{ordinal}"
        )

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        return self.peers != "refused"

    # Contexts.

    def retain_context(self, ordinal: int) -> int:
        self.retained[ordinal] += 1
        return ordinal + 1

    def release_context(self, ordinal: int) -> None:
        self.retained[ordinal] -= 1

    def current_context(self) -> int:
        return self.contexts[-1] if self.contexts else 0

    def push_context(self, context: int) -> None:
        self.contexts.append(context)

    def pop_context(self) -> None:
        self.contexts.pop()

    def enable_peer(self, peer_context: int) -> None:
        self.note("enable_peer", self.current_context(), peer_context)
        self.peer_contexts.add((self.current_context(), peer_context))

    def synchronize_context(self) -> None:
        self.note("synchronize_context")
        own = [each for each in self.queues if self.stream_context(each) == self.current_context()]
        self.wait_for(own)

    @property
    def here(self) -> int:
        """The GPU of the current context."""
        if not self.contexts:
            raise CudaError("fake", "CUDA_ERROR_INVALID_CONTEXT", "no context is current")
        return self.contexts[-1] - 1

    # Memory.

    def free_memory(self) -> tuple[int, int]:
        return self.nbytes - self.used(self.here), self.nbytes

    def used(self, ordinal: int) -> int:
        return sum(size for _, owner, size in self.memory.values() if owner == ordinal)

    def take(self, ordinal: int, nbytes: int) -> int:
        raw = np.full(nbytes + 512, 0xCD, np.uint8)
        address = raw.ctypes.data + (-raw.ctypes.data) % 256
        self.memory[address] = (raw, ordinal, nbytes)
        return address

    def allocate(self, nbytes: int) -> int:
        self.note("allocate", nbytes)
        if self.used(self.here) + nbytes > self.nbytes:
            raise CudaError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        return self.take(self.here, nbytes)

    def free(self, pointer: int) -> None:
        assert self.memory.pop(pointer)[1] == self.here

    def allocate_host(self, nbytes: int) -> int:
        self.note("allocate_host", nbytes)
        return self.take(HOST_ORDINAL, nbytes)

    def free_host(self, pointer: int) -> None:
        assert self.memory.pop(pointer)[1] == HOST_ORDINAL

    def pointer(self, address: int) -> PointerFacts | None:
        for start, (_, ordinal, size) in self.memory.items():
            if start <= address < start + max(1, size):
                return PointerFacts(ordinal == HOST_ORDINAL, max(0, ordinal), address)
        return None

    def check_range(self, address: int, nbytes: int) -> None:
        for start, (_, _, size) in self.memory.items():
            if start <= address and address + nbytes <= start + size:
                return
        raise CudaError("fake", "CUDA_ERROR_ILLEGAL_ADDRESS", f"{nbytes} bytes at {address:#x}")

    def read(self, host: int, pointer: int, nbytes: int) -> None:
        self.check_range(pointer, nbytes)
        ctypes.memmove(host, pointer, nbytes)

    def write(self, pointer: int, host: int, nbytes: int) -> None:
        self.check_range(pointer, nbytes)
        ctypes.memmove(pointer, host, nbytes)

    # Kernels.

    def load_library(self, code: bytes) -> int:
        self.note("load_library")
        library = next(self.handles)
        self.libraries[library] = code.decode(errors="replace")
        return library

    def unload_library(self, library: int) -> None:
        del self.libraries[library]

    def kernel(self, library: int, entry: str) -> int:
        kernel = next(self.handles)
        code = self.libraries[library]
        self.entries[kernel] = code if code in self.kernels else entry
        return kernel

    def allow_shared(self, kernel: int, ordinal: int, nbytes: int) -> None:
        self.note("allow_shared", ordinal, nbytes)

    def prefer_shared(self, kernel: int, ordinal: int) -> None:
        self.note("prefer_shared", ordinal)

    def function(self, kernel: int) -> int:
        function = next(self.handles)
        self.entries[function] = self.entries[kernel]
        self.function_contexts[function] = self.contexts[-1]
        return function

    def blocks_at_once(self, function: int, threads: int, shared: int) -> int:
        assert self.function_contexts[function] == self.contexts[-1]
        return 2048 // threads

    # Work on streams.

    def create_stream(self, priority: int) -> int:
        self.note("create_stream", priority)
        stream = next(self.handles)
        self.streams[stream] = self.contexts[-1]
        return stream

    def destroy_stream(self, stream: int) -> None:
        del self.streams[stream]

    def stream_context(self, stream: int) -> int:
        return self.streams.get(stream) or self.contexts[-1]

    def synchronize(self, stream: int) -> None:
        self.note("synchronize", stream)
        self.wait_for([stream])

    def is_idle(self, stream: int) -> bool:
        self.progress()
        return not self.queues.get(stream)

    def wait_for(self, streams: Sequence[int]) -> None:
        """Let everything run, and time pass, until the streams are empty."""
        for _ in range(MOST_TICKS):
            self.progress()
            if not any(self.queues.get(each) for each in streams):
                return
            self.now_ns += TICK_NS
        raise Hang(f"streams {streams} wait for ever")

    def progress(self) -> None:
        """Run whatever can run, on all streams, until nothing can."""
        has_moved = True
        while has_moved:
            has_moved = False
            for stream in self.in_some_order([each for each in self.queues if self.queues[each]]):
                queue = self.queues[stream]
                while queue and self.has_ended(queue[0]):
                    queue.popleft()
                    has_moved = True
                if queue and queue[0].replay is not None:
                    has_moved |= self.run_some(queue[0].replay)

    def in_some_order(self, values: list[int]) -> list[int]:
        return values if self.random is None else self.random.sample(values, len(values))

    def has_ended(self, item: Item) -> bool:
        if item.replay is not None:
            return not item.replay.items
        if item.is_record:
            self.happened[item.event] = item.number
            return True
        if item.event:
            return self.happened.get(item.event, 0) >= item.number
        return self.tried(item)

    def tried(self, item: Item) -> bool:
        """Whether the item's call could be performed."""
        if item.since_ns is None:
            item.since_ns = self.now_ns
        self.current = item
        try:
            if item.call is not None:
                self.perform(item.call)
        except Pending:
            return False
        return True

    def run_some(self, replay: FakeReplay) -> bool:
        """Run nodes whose predecessors have run, as they were made or in some order of the edges;
        whether any did."""
        before = len(replay.items)
        if self.random is None:
            for node in list(replay.items):
                if replay.is_ready(node) and self.tried(replay.items[node]):
                    del replay.items[node]
            return len(replay.items) < before
        ready = [node for node in replay.items if replay.is_ready(node)]
        while ready:
            node = ready.pop(self.random.randrange(len(ready)))
            if self.tried(replay.items[node]):
                del replay.items[node]
                ready += [each for each in replay.after.get(node, ()) if replay.is_ready(each)]
        return len(replay.items) < before

    def put(self, stream: int, item: Item) -> None:
        """Queue it, and run what can run now."""
        self.queues.setdefault(stream, deque()).append(item)
        self.progress()

    def launch(self, call: KernelCall, stream: int) -> None:
        self.note("launch", self.entries[call.function], stream)
        assert self.function_contexts[call.function] == self.stream_context(stream)
        self.enqueue(call, stream)

    def copy(self, call: CopyCall, stream: int) -> None:
        self.note("copy", call.nbytes, stream)
        self.enqueue(call, stream)

    def fill(self, call: FillCall, stream: int) -> None:
        self.note("fill", call.value, call.width, stream)
        self.enqueue(call, stream)

    def enqueue(self, call: Call, stream: int) -> None:
        if stream not in self.captures:
            self.put(stream, Item(call))
            return
        graph, before = self.captures[stream]
        if self.graphs[graph].is_broken:
            raise CudaError("enqueue", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "broken before")
        self.captures[stream] = (graph, (self.add(graph, before, KINDS[type(call)], call),))

    def memory_ops(self, call: MemoryOpsCall, stream: int) -> None:
        self.note("memory_ops", len(call.operations), stream)
        # One after the other: a batch that waits has done what stands before.
        if stream in self.captures:
            self.enqueue(call, stream)
            return
        for each in call.operations:
            self.put(stream, Item(MemoryOpsCall((each,))))

    def create_event(self, *, is_timed: bool = False) -> int:
        event = next(self.handles)
        self.events[event] = None
        return event

    def destroy_event(self, event: int) -> None:
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        self.note("record", event, stream)
        self.events[event] = self.captures.get(stream)
        if stream not in self.captures:
            self.records[event] += 1
            item = Item(event=event, number=self.records[event], is_record=True)
            self.put(stream, item)

    def record_in_graph(self, event: int, stream: int) -> None:
        """A capture gets a node that records the event at each launch."""
        self.note("record_in_graph", event, stream)
        graph, before = self.captures[stream]
        self.captures[stream] = (graph, (self.add(graph, before, NodeKind.OTHER, None),))

    def wait(self, stream: int, event: int) -> None:
        self.note("wait", stream, event)
        recorded = self.events[event]
        if recorded is None:
            if self.records[event]:
                self.put(stream, Item(event=event, number=self.records[event]))
            return
        _, own = self.captures.get(stream, (0, ()))
        self.captures[stream] = (recorded[0], tuple(dict.fromkeys((*own, *recorded[1]))))

    def elapsed_us(self, start: int, stop: int) -> float:
        return 1.0

    # What calls do.

    def perform(self, call: Call) -> None:
        match call:
            case KernelCall():
                values = [value for _, value in call.arguments]
                self.kernels[self.entries[call.function]](*values)
            case CopyCall():
                self.check_range(call.target, call.nbytes)
                self.check_range(call.source, call.nbytes)
                ctypes.memmove(call.target, call.source, call.nbytes)
                self.maybe_spoil(call.target, call.source)
            case FillCall():
                self.perform_fill(call)
            case MemoryOpsCall():
                self.perform_memory_ops(call)

    def perform_memory_ops(self, call: MemoryOpsCall) -> None:
        """All of them, once the first wait is over; in a graph the later ones wait alike."""
        waits = [each for each in call.operations if each.is_wait]
        for each in call.operations:
            self.check_range(each.address, 4)
        if any(self.word(each.address).value != each.value for each in waits):
            raise Pending
        for each in call.operations:
            if not each.is_wait:
                self.word(each.address).value = each.value

    def word(self, address: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_address(address)

    def counter(self, address: int) -> ctypes.c_uint64:
        self.check_range(address, 8)
        return ctypes.c_uint64.from_address(address)

    # What ``templates/shared/units.cuh.j2`` does.

    def begin(self, epoch: int) -> None:
        self.counter(epoch).value += 1

    def signal(self, words: tuple[int, ...], number: int, epoch: int, failed: int) -> None:
        if not self.word(failed).value:
            for each in words[:number]:
                self.counter(each).value = self.counter(epoch).value

    def await_signals(
        self,
        words: tuple[int, ...],
        epochs: tuple[int, ...],
        earlier: tuple[int, ...],
        number: int,
        who: int,
        failed: int,
        limit_ns: int,
        stopped: int,
        record: int,
    ) -> None:
        if self.word(failed).value:
            return
        wanted = [self.counter(epochs[at]).value - earlier[at] for at in range(number)]
        late = [at for at in range(number) if self.counter(words[at]).value < wanted[at]]
        if not late:
            return
        if self.word(stopped).value:
            self.word(failed).value = 1
            return
        assert self.current.since_ns is not None
        if self.now_ns - self.current.since_ns < self.counter(limit_ns).value:
            raise Pending
        self.word(failed).value = 1
        self.counter(record).value = who + late[0]
        self.word(stopped).value = 1

    def perform_fill(self, call: FillCall) -> None:
        pattern = call.value.to_bytes(call.element_nbytes, "little") * call.width
        for row in range(call.height):
            self.check_range(call.target + row * call.pitch, len(pattern))
            ctypes.memmove(call.target + row * call.pitch, pattern, len(pattern))

    def probe_copy(self, target: int, source: int, words: int) -> None:
        ctypes.memmove(target, source, 4 * words)
        self.maybe_spoil(target, source)

    def maybe_spoil(self, target: int, source: int) -> None:
        """A lying machine turns a byte of what travels between two GPUs."""
        ends = [self.pointer(target), self.pointer(source)]
        if self.peers == "lie" and all(end and not end.is_host for end in ends):
            first, second = ends
            assert first
            assert second
            if first.ordinal != second.ordinal:
                ctypes.c_uint8.from_address(target).value ^= 0xFF

    # Graphs.

    def begin_capture(self, stream: int) -> None:
        self.note("begin_capture", stream)
        graph = next(self.handles)
        self.graphs[graph] = FakeGraph()
        self.captures[stream] = (graph, ())

    def is_capturing(self, stream: int) -> bool:
        return stream in self.captures

    def capture_tail(self, stream: int) -> tuple[int, tuple[int, ...]] | None:
        return self.captures.get(stream)

    def end_capture(self, stream: int) -> int:
        self.note("end_capture", stream)
        graph, tail = self.captures[stream]
        branches = [each for each in self.captures.values() if each[0] == graph]
        self.captures = {s: each for s, each in self.captures.items() if each[0] != graph}
        reached = self.reached(graph, tail)
        if self.graphs[graph].is_broken:
            del self.graphs[graph]
            raise CudaError("end", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "it broke before")
        if any(not set(ends) <= reached for _, ends in branches):
            del self.graphs[graph]
            raise CudaError("end", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "a stream is not joined")
        return graph

    def reached(self, graph: int, tail: tuple[int, ...]) -> set[int]:
        found, waiting = set(), list(tail)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += self.graphs[graph].nodes[node].before
        return found

    def create_graph(self) -> int:
        graph = next(self.handles)
        self.graphs[graph] = FakeGraph()
        return graph

    def destroy_graph(self, graph: int) -> None:
        del self.graphs[graph]

    def add(self, graph: int, before: Sequence[int], kind: NodeKind, call: Call | None) -> int:
        if isinstance(call, CopyCall) and not call.nbytes:
            raise CudaError("add", "CUDA_ERROR_INVALID_VALUE", "no bytes")
        node = next(self.handles)
        self.graphs[graph].nodes[node] = Node(kind, call, self.current_context(), tuple(before))
        return node

    def add_kernel(self, graph: int, before: Sequence[int], call: KernelCall, context: int) -> int:
        self.note("add_kernel", self.entries[call.function])
        assert self.function_contexts[call.function] == context
        return self.add(graph, before, NodeKind.KERNEL, call)

    def add_copy(self, graph: int, before: Sequence[int], call: CopyCall, context: int) -> int:
        self.note("add_copy", call.nbytes)
        return self.add(graph, before, NodeKind.COPY, call)

    def add_fill(self, graph: int, before: Sequence[int], call: FillCall, context: int) -> int:
        self.note("add_fill", call.value)
        return self.add(graph, before, NodeKind.FILL, call)

    def add_memory_ops(
        self, graph: int, before: Sequence[int], call: MemoryOpsCall, context: int
    ) -> int:
        self.note("add_memory_ops", len(call.operations))
        return self.add(graph, before, NodeKind.MEMORY_OPS, call)

    def add_empty(self, graph: int, before: Sequence[int]) -> int:
        return self.add(graph, before, NodeKind.EMPTY, None)

    def add_child(self, graph: int, before: Sequence[int], child: int) -> int:
        return self.add(graph, before, NodeKind.CHILD, None)

    def nodes(self, graph: int) -> tuple[int, ...]:
        return tuple(self.graphs[graph].nodes)

    def edges(self, graph: int) -> tuple[tuple[int, int], ...]:
        nodes = self.graphs[graph].nodes
        return tuple((first, second) for second in nodes for first in nodes[second].before)

    def node(self, node: int) -> Node:
        return next(graph.nodes[node] for graph in self.graphs.values() if node in graph.nodes)

    def node_kind(self, node: int) -> NodeKind:
        return self.node(node).kind

    def kernel_node(self, node: int, codes: Sequence[str]) -> KernelCall:
        call = self.node(node).call
        assert isinstance(call, KernelCall)
        return replace(call, cluster=None, is_cooperative=False, priority=0)

    def copy_node(self, node: int) -> CopyCall:
        call = self.node(node).call
        assert isinstance(call, CopyCall)
        return call

    def fill_node(self, node: int) -> FillCall:
        call = self.node(node).call
        assert isinstance(call, FillCall)
        return call

    def memory_ops_node(self, node: int) -> MemoryOpsCall:
        call = self.node(node).call
        assert isinstance(call, MemoryOpsCall)
        return call

    def instantiate(self, graph: int, *, use_priorities: bool) -> int:
        self.note("instantiate", use_priorities)
        executable = next(self.handles)
        nodes = self.graphs[graph].nodes
        self.execs[executable] = FakeExec(
            graph, {node: each.call for node, each in nodes.items()}, tuple(nodes)
        )
        return executable

    def destroy_exec(self, executable: int) -> None:
        del self.execs[executable]

    def order(self, executable: FakeExec) -> Iterator[int]:
        """The nodes as one launch runs them: as they were made, or in some order of the edges."""
        if self.random is None:
            yield from executable.order
            return
        nodes = self.graphs[executable.graph].nodes
        replay = FakeReplay(
            {node: Item() for node in nodes}, {node: nodes[node].before for node in nodes}
        )
        ready = [node for node in nodes if replay.is_ready(node)]
        while ready:
            node = ready.pop(self.random.randrange(len(ready)))
            del replay.items[node]
            yield node
            ready += [each for each in replay.after.get(node, ()) if replay.is_ready(each)]

    def update_exec(self, executable: int, graph: int) -> str | None:
        self.note("update_exec")
        old = self.graphs[self.execs[executable].graph].nodes
        new = self.graphs[graph].nodes
        if [each.kind for each in old.values()] != [each.kind for each in new.values()]:
            return "CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED"
        calls = [each.call for each in new.values()]
        self.execs[executable].calls = dict(zip(old, calls, strict=True))
        return None

    def set_copy(self, executable: int, node: int, call: CopyCall, context: int) -> None:
        self.note("set_copy", call.nbytes)
        if not call.nbytes:
            raise CudaError("set_copy", "CUDA_ERROR_INVALID_VALUE", "no bytes")
        assert isinstance(self.execs[executable].calls[node], CopyCall)
        self.execs[executable].calls[node] = call

    def set_fill(self, executable: int, node: int, call: FillCall, context: int) -> None:
        self.note("set_fill", call.width)
        old = self.execs[executable].calls[node]
        assert isinstance(old, FillCall)
        if self.refuses_fill_width and call.width != old.width:
            raise CudaError("set_fill", "CUDA_ERROR_INVALID_VALUE", "another width")
        self.execs[executable].calls[node] = call

    def set_enabled(self, executable: int, node: int, is_enabled: bool) -> None:
        self.note("set_enabled", is_enabled)
        disabled = self.execs[executable].disabled
        (disabled.discard if is_enabled else disabled.add)(node)

    def upload(self, executable: int, stream: int) -> None:
        self.note("upload")

    def launcher(self, executable: int, stream: int) -> Callable[[], None]:
        return lambda: self.launch_graph(executable, stream)

    def sequence(self, steps: Sequence[Step]) -> Callable[[], None]:
        def replay() -> None:
            for step in steps:
                match step:
                    case LaunchStep(executable, stream):
                        self.launch_graph(executable, stream)
                    case RecordStep(event, stream):
                        self.record(event, stream)
                    case WaitStep(stream, event):
                        self.wait(stream, event)

        return replay

    def launch_graph(self, executable: int, stream: int) -> None:
        self.note("launch_graph", executable, stream)
        if executable in self.skipped:
            return
        found = self.execs[executable]
        nodes = self.graphs[found.graph].nodes
        calls = {
            node: None if node in found.disabled else found.calls[node] for node in found.order
        }
        self.put(
            stream,
            Item(
                replay=FakeReplay(
                    {node: Item(call) for node, call in calls.items()},
                    {node: nodes[node].before for node in nodes},
                )
            ),
        )
