"""Plans of several graphs, without a GPU: signals, launches, failures, reset, leaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import Hang, RecordingDriver
from test_cuda_plans import ROUTES, References, check_against_reference, compiled, outputs

from graphc.backends.cuda import CudaGraph
from graphc.backends.cuda.readback import read_back
from graphc.backends.reference import ReferenceGraph
from graphc.bits import output_buffers
from graphc.gpu.probe import current
from graphc.gpu.protocol import KernelCall, MemoryOpsCall
from graphc.inputs import random_inputs
from graphc.ir import Await, Emit, Signal
from graphc.kernels.signals import AWAIT, BEGIN, SIGNAL
from graphc.plan import Plan
from graphc.text.diagnostics import CompilerBug, CudaError, SpecError, UsageError

COUNTS = (37, 5, 0, 20)
SYNCS = ("flags", "memops")


def divided(**values: Any) -> Plan:
    return compiled(**{"route": "host", "pieces": 3, "units": "device", **values})


def opened(plan: Plan, driver: Any = RecordingDriver, **options: Any) -> CudaGraph:
    meanings = References(plan)
    made = driver(kernels=meanings.kernels(), **options.pop("fake", {}))
    graph = CudaGraph(plan, driver=made, **options)
    meanings.graph = graph
    graph.bind(random_inputs(plan))
    return graph


@pytest.fixture
def graph() -> Iterator[CudaGraph]:
    with opened(divided(), wait_limit_s=3) as made:
        driver: Any = made._driver
        yield made
    assert not driver.leaks()


def driver_of(graph: CudaGraph) -> RecordingDriver:
    found = graph._driver
    assert isinstance(found, RecordingDriver)
    return found


def last(graph: CudaGraph, name: str = "peer") -> int:
    """The executable graph of a unit."""
    return next(each.handle for each in graph._executable.graphs if each.unit.name == name)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("route", ROUTES)
def test_units_leave_the_bits_of_the_reference(route: str, emit: Emit, sync: str) -> None:
    check_against_reference(divided(emit=emit, route=route, sync=sync), seed=ROUTES.index(route))


@pytest.mark.parametrize("pieces", [1, 8, 64])
def test_units_of_any_number_of_pieces_do(pieces: int) -> None:
    check_against_reference(divided(pieces=pieces), seed=pieces)


@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("route", ["host", "p2p_write"])
def test_units_that_run_ahead_of_each_other_do(route: str, emit: Emit) -> None:
    check_against_reference(divided(emit=emit, route=route, launch="free"), seed=3)


@pytest.mark.parametrize("sync", SYNCS)
def test_without_peer_access_signals_go_by_way_of_the_host(sync: str) -> None:
    plan = divided(sync=sync)
    with opened(plan, fake={"peers": "refused", "seed": 2}) as graph:
        assert [each for each in graph.notes if "signals go by way of mapped memory" in each] == (
            list(graph.notes) if sync == "flags" else []
        )
        assert driver_of(graph).peer_contexts == set()
        wanted = outputs(ReferenceGraph(plan), plan, COUNTS)
        for ours, right in zip(outputs(graph, plan, COUNTS), wanted, strict=True):
            assert np.array_equal(ours, right)


def test_peers_that_lie_are_given_no_words_to_write() -> None:
    with opened(divided(), fake={"peers": "lie"}) as graph:
        assert graph.notes
        graph.launch()
        graph.synchronize()


# How launches look.


def test_a_joined_launch_is_a_fork_and_a_join(graph: CudaGraph) -> None:
    driver = driver_of(graph)
    graph.launch()
    before = len(driver.calls)
    graph.launch()
    session = graph._session
    assert session is not None
    own, side = session.own_stream, session.unit_streams["peer"]
    began, ended = (session.joint(gpu.context) for gpu in session.used.values())
    assert driver.calls[before:] == [
        ("record", began, own),
        ("wait", side, began),
        ("launch_graph", last(graph), side),
        ("launch_graph", last(graph, "primary"), own),
        ("record", ended, side),
        ("wait", own, ended),
    ]


def test_the_unit_of_the_callers_gpu_runs_on_the_callers_stream(graph: CudaGraph) -> None:
    driver = driver_of(graph)
    with current(driver, 2):
        stream = driver.create_stream(0)
    graph.launch(stream)
    launches = [each for each in driver.calls if each[0] == "launch_graph"][-2:]
    assert launches[1] == ("launch_graph", last(graph), stream)
    graph.synchronize()
    driver.destroy_stream(stream)


def test_a_free_launch_is_one_call_a_unit() -> None:
    with opened(divided(launch="free")) as graph:
        driver = driver_of(graph)
        graph.launch(count=20)
        before = len(driver.calls)
        graph.launch(count=20)
        assert [each[0] for each in driver.calls[before:]] == ["launch_graph"] * 2
        assert len({each[2] for each in driver.calls[before:]}) == 2
        graph.synchronize()


def test_streams_of_units_are_the_callers() -> None:
    with opened(divided(launch="free")) as graph:
        driver = driver_of(graph)
        streams = {}
        for name, context in (("primary", 1), ("peer", 2)):
            with current(driver, context):
                streams[name] = driver.create_stream(0)
        graph.launch(streams=streams, count=7)
        used = {each[2] for each in driver.calls if each[0] == "launch_graph"}
        assert used == set(streams.values())
        fills = [each[-1] for each in driver.calls if each[0] == "fill" and each[1] == 7]
        assert fills == list(streams.values())
        graph.synchronize()
        wrong = [
            ({"primary": 1}, "no stream is given for unit 'peer'"),
            ({**streams, "pear": 1}, "no unit is named 'pear': did you mean 'peer'"),
            ({"primary": streams["peer"], "peer": streams["primary"]}, "not a stream of the unit"),
            (5, "expected the stream of each unit"),
        ]
        for given, message in wrong:
            with pytest.raises(UsageError, match=message):
                graph.launch(streams=given)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"the launch of this plan is free"):
            graph.launch(streams["primary"])
        with pytest.raises(UsageError, match="time_replays needs one stream"):
            graph.time_replays()
        for stream in streams.values():
            driver.destroy_stream(stream)


def test_a_joined_launch_takes_one_stream(graph: CudaGraph) -> None:
    with pytest.raises(UsageError, match="streams is for plans of several units whose launch"):
        graph.launch(streams={})


@pytest.mark.parametrize("ask", ["time_ops", "record"])
def test_ops_are_timed_in_one_graph(graph: CudaGraph, ask: str) -> None:
    with pytest.raises(UsageError, match=r"this plan has 2: compile it with 'units: one'"):
        getattr(graph, ask)()


# What is built.


def test_signals_are_read_back_with_their_words(graph: CudaGraph) -> None:
    driver, executable = driver_of(graph), graph._executable
    graph.upload()
    kinds = {Signal: SIGNAL, Await: AWAIT}
    for part in executable.graphs:
        built = part.built
        assert built is not None
        for op in executable.emitter.ops_of(part.unit):
            for node, call in zip(built.nodes[op.name], built.calls[op.name], strict=True):
                if type(op.work) in kinds:
                    assert isinstance(call, KernelCall)
                    assert driver.entries[call.function] == kinds[type(op.work)]
                    assert driver.node(node).call == call
        first = next(iter(executable.emitter.ops_of(part.unit)))
        (begin,) = built.calls[first.name]
        assert isinstance(begin, KernelCall)
        assert driver.entries[begin.function] == BEGIN


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", [Signal, Await])
def test_a_signal_to_another_word_is_told_apart(kind: type, sync: str) -> None:
    with opened(divided(sync=sync)) as graph:
        driver, executable = driver_of(graph), graph._executable
        graph.upload()
        part = executable.graphs[0]
        op = next(each for each in executable.emitter.ops_of(part.unit) if type(each.work) is kind)
        assert part.built is not None
        node = driver.node(part.built.nodes[op.name][0])
        before = node.call
        if isinstance(before, KernelCall):
            code, words = before.arguments[0]
            assert isinstance(words, tuple)
            wrong = (code, (words[0] + 8, *words[1:]))
            node.call = replace(before, arguments=(wrong, *before.arguments[1:]))
        if isinstance(before, MemoryOpsCall):
            first = before.operations[0]
            wrong_op = replace(first, address=first.address + 8)
            node.call = replace(before, operations=(wrong_op, *before.operations[1:]))
        with pytest.raises(CompilerBug, match=f"op '{op.name}' was planned as"):
            graph.read_back()
        node.call = before


def test_a_unit_without_one_of_its_signals_is_told_apart(graph: CudaGraph) -> None:
    graph.upload()
    part = graph._executable.graphs[0]
    assert part.built is not None
    name = next(op.name for op in graph.program if isinstance(op.work, Signal))
    nodes = {**part.built.nodes, name: ()}
    with pytest.raises(CompilerBug, match="1 nodes belong to no op"):
        read_back(graph._driver, graph._executable.schedule, replace(part.built, nodes=nodes))


def test_bindings_update_every_unit_in_place(graph: CudaGraph) -> None:
    driver = driver_of(graph)
    graph.launch()
    graph.synchronize()
    pointer = driver.take(0, graph["residual"].nbytes)

    here = graph["residual"].__cuda_array_interface__
    elsewhere = SimpleNamespace(__cuda_array_interface__={**here, "data": (pointer, False)})
    graph.bind(residual=elsewhere)
    graph.launch()
    graph.synchronize()
    assert driver.counts["instantiate"] == 2
    assert driver.counts["update_exec"] == 2
    del driver.memory[pointer]


# What goes wrong.


def test_a_unit_that_never_comes_is_named_and_ends_all_launches(graph: CudaGraph) -> None:
    driver = driver_of(graph)
    graph.launch()
    graph.synchronize()
    driver.skipped = {last(graph)}
    graph.launch()
    graph.launch()  # nobody has given up yet: launches are only enqueued
    with pytest.raises(CudaError, match="WAIT_TIMEOUT") as caught:
        graph.synchronize()
    told = str(caught.value)
    assert "unit 'primary' waited 3 s at 'await/" in told
    assert "of unit 'peer', which did not come" in told
    assert "graph.reset()" in told
    assert caught.value.op is not None
    assert caught.value.exit_code == 3
    driver.skipped = set()
    for use in (graph.launch, graph.synchronize, lambda: graph["residual"].numpy()):
        with pytest.raises(CudaError, match="WAIT_TIMEOUT"):
            use()
    before = len(driver.calls)
    with pytest.raises(CudaError, match="WAIT_TIMEOUT"):
        graph.launch()
    assert len(driver.calls) == before


def test_after_a_reset_all_is_as_before(graph: CudaGraph) -> None:
    driver, plan = driver_of(graph), graph.plan
    graph.upload()
    for skipped in ("peer", "primary"):
        driver.skipped = {last(graph, skipped)}
        graph.launch()
        with pytest.raises(CudaError, match=f"of unit '{skipped}', which did not come"):
            graph.synchronize()
        driver.skipped = set()
        graph.reset()
        wanted = outputs(ReferenceGraph(plan), plan, COUNTS)
        for ours, right in zip(outputs(graph, plan, COUNTS), wanted, strict=True):
            assert np.array_equal(ours, right)


def test_a_reset_ends_waits_at_once(graph: CudaGraph) -> None:
    driver = driver_of(graph)
    graph.upload()
    driver.skipped = {last(graph)}
    graph.launch()
    driver.skipped = set()
    before_ns = driver.now_ns
    graph.reset()
    assert driver.now_ns == before_ns  # no limit ran out
    graph.launch()
    graph.synchronize()


def test_a_unit_that_has_failed_signals_nothing_and_guards_its_kernels(graph: CudaGraph) -> None:
    driver = driver_of(graph)
    graph.upload()
    driver.skipped = {last(graph, "primary")}
    graph.launch()
    with pytest.raises(CudaError, match="unit 'peer' waited"):
        graph.synchronize()
    session = graph._session
    assert session is not None
    words = session.words
    assert words is not None
    assert driver.word(words.failed("peer")).value == 1
    assert driver.word(words.failed("primary")).value == 0
    sent = {
        (unit, op.work.signal)
        for op in graph.program
        if isinstance(op.work, Signal) and words.unit_of(graph.variant.schedule, op) == "peer"
        for unit in op.work.to
    }
    assert sent
    assert not any(driver.counter(words.word(*each)).value for each in sent)


def test_a_launch_that_fails_half_way_stops_the_others() -> None:
    class Failing(RecordingDriver):
        refused = 0

        def launch_graph(self, executable: int, stream: int) -> None:
            if executable == self.refused:
                raise CudaError("cuGraphLaunch", "CUDA_ERROR_UNKNOWN", "told to fail")
            super().launch_graph(executable, stream)

    with opened(divided(), Failing) as graph:
        driver: Any = graph._driver
        graph.launch()
        graph.synchronize()
        before_ns, driver.refused = driver.now_ns, last(graph, "primary")
        with pytest.raises(CudaError, match="told to fail"):
            graph.launch()
        driver.refused = 0
        with pytest.raises(CudaError, match="UNITS_STOPPED"):
            graph.launch()
        with pytest.raises(CudaError, match="UNITS_STOPPED"):
            graph.synchronize()
        assert driver.now_ns == before_ns
        graph.reset()
        graph.launch()
        graph.synchronize()
    assert not driver.leaks()


def test_memory_nodes_wait_until_a_reset_lifts_them() -> None:
    with opened(divided(sync="memops"), wait_limit_s=0.05) as graph:
        driver = driver_of(graph)
        graph.upload()
        for skipped in ("peer", "primary"):
            driver.skipped = {last(graph, skipped)}
            graph.launch()
            graph.launch()
            with pytest.raises(Hang):
                graph.synchronize()
            driver.skipped = set()
            graph.reset()
            plan = graph.plan
            wanted = outputs(ReferenceGraph(plan), plan, COUNTS)
            for ours, right in zip(outputs(graph, plan, COUNTS), wanted, strict=True):
                assert np.array_equal(ours, right)
        driver.skipped = {last(graph)}
        graph.launch()  # and so does the end
    assert not driver.leaks()


def test_memory_nodes_know_no_free_launch() -> None:
    with pytest.raises(SpecError, match="memops"):
        divided(sync="memops", launch="free")


def test_a_closed_graph_is_not_reset(graph: CudaGraph) -> None:
    graph.close()
    with pytest.raises(UsageError, match="closed"):
        graph.reset()


def test_an_undivided_graph_has_nothing_to_reset() -> None:
    with opened(compiled(route="host", pieces=3)) as graph:
        graph.launch()
        graph.synchronize()
        names = [each.name for each in output_buffers(graph.program)]
        before = [graph[name].numpy().tobytes() for name in names]
        graph.reset()
        assert [graph[name].numpy().tobytes() for name in names] == before
        graph.launch()
        graph.synchronize()


# Where units may run.


@pytest.mark.parametrize("options", [{"devices": [1, 1]}, {"fake": {"gpus": 1}}])
def test_units_that_would_share_a_gpu_are_refused(options: Any) -> None:
    with pytest.raises(UsageError, match=r"units 'primary' and 'peer' are both placed on GPU"):
        opened(divided(), **options)


def test_blocking_launches_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(CudaError, match="LAUNCH_BLOCKING") as caught:
        opened(divided())
    assert "units: one" in str(caught.value)
    opened(compiled(route="host", pieces=3)).close()


@pytest.mark.parametrize("limit", [0, -1, float("inf"), float("nan"), "10", True])
def test_a_limit_is_some_seconds(limit: Any) -> None:
    with pytest.raises(UsageError, match="wait_limit_s: expected seconds"):
        opened(divided(), wait_limit_s=limit)
    with pytest.raises(UsageError, match="wait_limit_s: expected seconds"):
        divided().instantiate("reference", wait_limit_s=limit)


@pytest.mark.parametrize("nth", range(1, 12))
@pytest.mark.parametrize("call", ["allocate", "allocate_host", "create_stream", "load_library"])
@pytest.mark.parametrize("sync", SYNCS)
def test_a_failure_while_opening_gives_everything_back(call: str, nth: int, sync: str) -> None:
    plan = divided(sync=sync)
    driver = RecordingDriver(kernels=References(plan).kernels(), failing={call: nth})
    with suppress(CudaError):
        CudaGraph(plan, driver=driver).close()
    assert not driver.leaks()
