"""When ops ran: records of CUPTI by their nodes, events by clocks that the order of ops ties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from both import echo
from fake_cupti import NODE_US, FakeCupti, TracedDriver
from fakes import RecordingDriver
from small_plan import KERNELS, small_plan
from test_cuda_plans import References, compiled

from graphc.backends.cuda import CudaGraph
from graphc.backends.cuda.timing import Offset, clock_text, offsets_of, on_one_clock
from graphc.backends.recording import Span, Way
from graphc.backends.reference import ReferenceGraph
from graphc.gpu.cupti import Cupti
from graphc.inputs import random_inputs
from graphc.ir import Await, Begin, Emit, Join, Signal
from graphc.text.diagnostics import CudaError, UsageError

X = np.arange(80, dtype=np.float32).reshape(10, 8)


def traced(spoil: Any = lambda record: None, **values: Any) -> tuple[CudaGraph, Cupti, FakeCupti]:
    api = FakeCupti()
    graph = CudaGraph(small_plan(**values), driver=TracedDriver(api, spoil))
    return graph, Cupti(api), api


@pytest.mark.parametrize("emit", [Emit.CAPTURE, Emit.NODES])
def test_every_op_has_the_times_of_its_own_node(emit: Emit) -> None:
    graph, recorder, api = traced(emit=emit)
    with graph:
        graph.launch()
        found = graph.record(3, way=Way.CUPTI, recorder=recorder)
        ops = [op.name for op in graph.program]
        assert len(found.replays) == 3
        for each in found.replays:
            assert {*each.spans} == {*ops}
            assert not each.strays
            assert {round(span.us, 6) for span in each.spans.values()} == {NODE_US}
            starts = sorted(round(span.start_us, 6) for span in each.spans.values())
            assert starts == [11.0 * at for at in range(15)]
        assert found.missing == ()
        assert found.notes == ()
        assert "all GPUs onto the host's clock" in found.clocks["peer"]
        graph.launch()  # the graph at hand is as it was
        assert api.hear is None
        assert not api.enabled
    assert not graph._driver.leaks()


def test_records_are_told_apart_by_nodes_and_not_by_order() -> None:
    """The three pieces of a copy are alike but for their nodes: two of them change places."""
    swapped: dict[int, int] = {}

    def swap(record: Any) -> None:
        record.graph_node_id = swapped.get(record.graph_node_id, record.graph_node_id)

    graph, recorder, api = traced(swap, tokens=9)
    with graph:
        graph.upload()
        plain = graph.record(1, way=Way.CUPTI, recorder=recorder).replays[0].spans
        driver: Any = graph._driver
        instantiate = driver.instantiate

        def swapping(built: int, *, use_priorities: bool) -> int:
            executable = instantiate(built, use_priorities=use_priorities)
            clones = driver.clones[executable]
            copies = [api.get_graph_node_id(clones[node]) for node, each in
                      driver.graphs[built].nodes.items() if each.kind == "copy"]  # fmt: skip
            swapped.update({copies[0]: copies[1], copies[1]: copies[0]})
            return int(executable)

        driver.instantiate = swapping
        other = graph.record(1, way=Way.CUPTI, recorder=recorder).replays[0].spans
        moved = {op for op in plain if plain[op] != other[op]}
        assert len(moved) == 2


def test_with_fewer_rows_only_what_has_rows_is_expected() -> None:
    graph, recorder, _ = traced()
    with graph:
        found = graph.record(1, count=1, way=Way.CUPTI, recorder=recorder)
        assert found.missing == ()
        spans = found.replays[0].spans
        assert "send/piece.2" in spans
        assert "send/piece.0" not in spans


def spoiled(**changes: Any) -> Any:
    """Of every launch the first kernel of the entry is told otherwise."""
    launches: set[int] = set()

    def spoil(record: Any) -> None:
        if record.name == "affine" and record.correlation_id not in launches:
            launches.add(record.correlation_id)
            vars(record).update(changes)

    return spoil


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"graph_node_id": 7}, "its node belongs to no op"),
        ({"graph_node_id": 0}, "it names no node"),
        (
            {"grid_x": 7},
            "its node is 'affine/piece.0', a kernel of 1x1x1 blocks of 64x1x1 threads, "
            "and this one has 7x1x1 blocks of 64x1x1 threads",
        ),
        ({"kind": 1, "bytes": 4}, "its node is the kernel of 'affine/piece.0'"),
        ({"start": 6_000_000, "end": 0}, "it has no times"),
    ],
)
def test_what_cannot_be_matched_is_told_and_not_guessed(changes: Any, why: str) -> None:
    graph, recorder, _ = traced(spoiled(**changes))
    with graph:
        found = graph.record(2, way=Way.CUPTI, recorder=recorder)
    for each in found.replays:
        (stray,) = each.strays
        assert stray.why == why
        assert "affine/piece.0" not in each.spans
    assert found.missing == ("affine/piece.0",)


def test_a_kernel_of_another_name_counts_by_node_and_shape_and_is_noted() -> None:
    """CUPTI keeps the names of functions that were unloaded, for those that come to their place."""
    graph, recorder, _ = traced(spoiled(name="an_old_one"))
    with graph:
        found = graph.record(2, way=Way.CUPTI, recorder=recorder)
    assert found.missing == ()
    assert not any(each.strays for each in found.replays)
    (note,) = found.notes
    assert "the kernels of 1 ops otherwise than the plan" in note
    assert "affine of 'affine/piece.0', which it calls an_old_one" in note


def test_a_copy_of_other_bytes_is_a_stray() -> None:
    def spoil(record: Any) -> None:
        record.bytes += 1

    graph, recorder, _ = traced(spoil)
    with graph:
        found = graph.record(1, way=Way.CUPTI, recorder=recorder)
    stray = found.replays[0].strays[0]
    assert stray.what == "copy of 97 bytes"
    assert stray.why == "its node is 'send/piece.0', of 96 bytes"


def of_units(**values: Any) -> tuple[CudaGraph, Cupti]:
    plan = compiled(route="host", pieces=3, units="device", **values)
    meanings, api = References(plan), FakeCupti()
    graph = CudaGraph(plan, driver=TracedDriver(api, kernels=meanings.kernels()))
    meanings.graph = graph
    graph.bind(random_inputs(plan))
    return graph, Cupti(api)


@pytest.mark.parametrize("sync", ["flags", "memops"])
def test_a_replay_of_several_units_is_one(sync: str) -> None:
    graph, recorder = of_units(sync=sync)
    with graph:
        found = graph.record(2, way=Way.CUPTI, recorder=recorder)
        assert found.missing == ()
        assert len(found.replays) == 2
        own = {op.name for op in graph.program if not isinstance(op.work, Join)}
        if sync == "memops":  # memory nodes run on no engine and leave no record
            signalling = (Begin, Signal, Await)
            own -= {op.name for op in graph.program if isinstance(op.work, signalling)}
        for each in found.replays:
            assert not each.strays
            assert own <= {*each.spans}
            assert min(span.start_us for span in each.spans.values()) == 0


def test_what_units_do_not_allow_is_refused() -> None:
    graph, recorder = of_units()
    with graph, pytest.raises(UsageError, match="compile it with 'units: one'"):
        graph.record(1, way=Way.EVENTS)
    graph, recorder = of_units(launch="free")
    with graph, pytest.raises(UsageError, match="compile the plan with 'launch: joined'"):
        graph.record(1, way=Way.CUPTI, recorder=recorder)


def test_dropped_records_are_told() -> None:
    graph, recorder, api = traced()
    api.lost = 12
    with graph:
        found = graph.record(1, way=Way.CUPTI, recorder=recorder)
    assert found.notes == ("CUPTI dropped 12 records for want of space",)


def test_without_any_match_it_is_an_error_that_says_what_to_do() -> None:
    def spoil(record: Any) -> None:
        record.graph_node_id = 0

    graph, recorder, api = traced(spoil)
    with graph, pytest.raises(CudaError, match=r"none that names a node of the graph.*\n.*events"):
        graph.record(1, way=Way.CUPTI, recorder=recorder)
    assert not api.enabled
    assert not graph._driver.leaks()


def test_a_driver_that_lets_nobody_trace_is_told() -> None:
    graph, recorder, api = traced()

    def refuse(kind: int) -> None:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    api.activity_enable = refuse  # type: ignore[method-assign]
    with graph, pytest.raises(CudaError, match="INSUFFICIENT_PRIVILEGES; another profiler may"):
        graph.record(1, way=Way.CUPTI, recorder=recorder)
    assert api.hear is None


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupti", None)
    with pytest.raises(UsageError, match=r"CUPTI is not installed .*graphc\[trace\]"):
        Cupti()


def test_ways_that_do_not_fit_are_refused(tmp_path: Any) -> None:
    with CudaGraph(echo(tmp_path), driver=RecordingDriver()) as graph:
        with pytest.raises(UsageError, match="not by wall time"):
            graph.record(1, way=Way.WALL)
        with pytest.raises(UsageError, match="rounds"):
            graph.record(0)
    eager = small_plan(emit=Emit.STREAMS)
    with CudaGraph(eager, driver=RecordingDriver(kernels=KERNELS)) as graph:
        with pytest.raises(UsageError, match="emit: streams makes no graph"):
            graph.record(1, way=Way.CUPTI)
        assert graph.record(1).way is Way.EVENTS
    with ReferenceGraph(echo(tmp_path)) as graph:
        with pytest.raises(UsageError, match="to trace by events needs GPUs"):
            graph.record(1, way=Way.EVENTS)
        found = graph.record(2)
        assert found.way is Way.WALL
        assert [len(each.spans) for each in found.replays] == [4 * 3, 4 * 3]


class Clocks(RecordingDriver):
    """Events have times: each GPU's clock starts elsewhere, and events of two are not compared."""

    def __init__(self) -> None:
        super().__init__(kernels=KERNELS)
        self.context_of: dict[int, int] = {}
        self.times: dict[int, float] = {}
        self.graph_events: dict[int, tuple[int, int]] = {}  # node -> event, context
        self.now = 0.0

    def create_event(self, *, is_timed: bool = False) -> int:
        event = super().create_event(is_timed=is_timed)
        self.context_of[event] = self.contexts[-1]
        return event

    def record(self, event: int, stream: int) -> None:
        super().record(event, stream)
        self.stamp(event, self.streams[stream])

    def record_in_graph(self, event: int, stream: int) -> None:
        super().record_in_graph(event, stream)
        assert self.context_of[event] == self.streams[stream]
        self.graph_events[self.captures[stream][1][0]] = (event, self.streams[stream])

    def stamp(self, event: int, context: int) -> None:
        self.now += 1.0
        self.times[event] = self.now + 1e6 * context

    def launcher(self, executable: int, stream: int) -> Any:
        def replay() -> None:
            found = self.execs[executable]
            for node in self.order(found):
                if node in self.graph_events:
                    self.stamp(*self.graph_events[node])

        return replay

    def elapsed_us(self, start: int, stop: int) -> float:
        assert self.context_of[start] == self.context_of[stop], "events of two GPUs"
        return self.times[stop] - self.times[start]


def test_events_give_starts_on_one_clock_within_the_doubt_that_is_told() -> None:
    with CudaGraph(small_plan(), driver=Clocks()) as graph:
        found = graph.record(2, way=Way.EVENTS)
    assert found.way is Way.EVENTS
    assert found.clocks["primary"] == "the clock of the replay"
    assert found.clocks["peer"].startswith("its own clock, placed by what waits for what: ")
    doubt = float(found.clocks["peer"].partition(": ")[2].split()[0])
    for each in found.replays:
        # The fake runs one node after the other: an op from its first stamp on takes 1 us.
        spans = list(each.spans.items())
        assert {round(span.us, 6) for _, span in spans} == {1.0}
        true = {name: 1.0 + 2 * at for at, name in enumerate(op.name for op in graph.program)}
        for name, span in spans:
            assert abs(span.start_us - true[name]) <= doubt + 1e-6, name
        assert each.spans["send/piece.0"].stop_us <= each.spans["affine/piece.0"].start_us
        assert each.spans["back/piece.2"].stop_us <= each.spans["add/piece.2"].start_us


def test_the_offset_of_a_clock_lies_between_what_waits_on_either_side() -> None:
    """By hand: b needs a, and d needs c; the other clock's zero is at its op b."""
    home = {"a": Span(10.0, 20.0), "d": Span(50.0, 60.0)}
    other = {"b": Span(0.0, 5.0), "c": Span(5.0, 12.0)}
    needed = {"b": ("a",), "d": ("c",)}
    found = offsets_of({1: home, 2: other}, needed, 1, 70.0)
    assert found[1] == Offset(0.0, 0.0)
    assert found[2] == Offset(20.0, 38.0)  # b not before 20; c ends at 12 and not after 50
    spans = on_one_clock({1: home, 2: other}, found)
    assert spans["b"] == Span(29.0, 34.0)
    assert spans["a"] == Span(10.0, 20.0)
    assert clock_text(2, 1, [found]).endswith("9.0 us either way")
    assert clock_text(3, 1, [found]) == "nothing ran on it"
    torn = {2: Offset(4.0, 1.0)}  # events of two GPUs that cannot both be right
    assert "contradict what waits for what by 1.5 us" in clock_text(2, 1, [torn])


def test_clocks_are_bound_by_way_of_others() -> None:
    """The third never meets the first: begin and end of the replay, and the second, bound it."""
    clocks = {1: {"a": Span(0.0, 20.0)}, 2: {"b": Span(0.0, 5.0)}, 3: {"c": Span(0.0, 5.0)}}
    needed = {"b": ("a",), "c": ("b",)}
    found = offsets_of(clocks, needed, 1, 40.0)
    assert found[2] == Offset(20.0, 30.0)  # c follows it for 5 us before the end
    assert found[3] == Offset(25.0, 35.0)


def test_a_replay_without_waits_lies_between_begin_and_end() -> None:
    clocks = {1: {"a": Span(0.0, 20.0)}, 2: {"b": Span(0.0, 5.0)}}
    assert offsets_of(clocks, {}, 1, 40.0)[2] == Offset(0.0, 35.0)


def test_names_of_gpus_come_along() -> None:
    with CudaGraph(small_plan(), driver=RecordingDriver(kernels=KERNELS)) as graph:
        found = graph.record(1, way=Way.EVENTS)
        assert found.names == {"primary": "Fake GPU", "peer": "Fake GPU"}
        assert replace(found, names={}).names == {}
