"""Plans of several graphs on two GPUs: bits, peers that are late or never come, resets, replays."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_bits import LAUNCHES, ROUTES, TOKENS, UNEQUAL, peer_layer
from test_peer_layer import baseline, inputs, outputs

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.backends.reference import ReferenceGraph
from graphc.gpu.probe import arch_name, current, gpu_count
from graphc.gpu.protocol import Driver, KernelCall, LaunchStep, Step
from graphc.kernels.compile import compile_image
from graphc.plan import KernelImage, Launch, Plan
from graphc.text.diagnostics import CudaError

FOLDER = Path(__file__).parent.parent / "units"
PAIRS = [each for each in ROUTES if each != "local"]
PIECES = (1, 3, 8, 8, 16, 64, UNEQUAL)
# How units signal and are launched, and how their graphs are made.
WAYS = (
    {},
    {"emit": "nodes"},
    {"sync": "memops"},
    {"launch": "free"},
    {"launch": "free", "emit": "nodes"},
    {"sync": "memops", "emit": "nodes"},
    {"emit": "streams"},
)

pytestmark = pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")


def divided(route: str, pieces: Any, **values: Any) -> Plan:
    return peer_layer(route, pieces, units="device", **values)


def opened(plan: Plan, **options: Any) -> CudaGraph:
    return CudaGraph(plan, devices=[0, 1], **options)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("route", PAIRS)
def test_no_division_changes_a_bit(route: str, early: bool) -> None:
    ways = itertools.cycle(WAYS)
    for _ in range(2 * PAIRS.index(route) + early):  # so that each meets each number of pieces
        next(ways)
    for pieces, way in zip(PIECES, ways, strict=False):
        with opened(divided(route, pieces, early=early, **way)) as graph:
            if way.get("emit") != "streams":
                graph.read_back()
            for launch in range(len(LAUNCHES)):
                assert outputs(graph, launch) == baseline(launch), (pieces, way, launch)


@pytest.mark.parametrize("route", ["host", "host_copy", "host_push"])
def test_without_peer_access_signals_go_by_way_of_the_host(route: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRAPHC_NO_P2P", "1")
    for pieces in (1, 8):
        with opened(divided(route, pieces)) as graph:
            assert "signals go by way of mapped memory" in graph.notes[0]
            for launch in range(len(LAUNCHES)):
                assert outputs(graph, launch) == baseline(launch), (pieces, launch)


# Many ranks.


def rounds(**values: Any) -> Plan:
    return graphc.compile(FOLDER / "rounds.yaml", kernels=FOLDER, cubins=False, **values)


def values_of(graph: Any, seed: int) -> dict[str, list[Any]]:
    random, ranks = np.random.default_rng(seed), graph.plan.params["ranks"]
    width = graph.plan.params["width"]
    return {
        "x": [random.standard_normal(width).astype(np.float32) for _ in range(ranks)],
        "key": [np.full(1, seed, np.uint32) for _ in range(ranks)],
    }


def results(graph: Any) -> list[Any]:
    ranks = graph.plan.params["ranks"]
    return [np.array(np.asarray(graph[f"rank.{rank}/y"])) for rank in range(ranks)]


@pytest.mark.parametrize("mode", ["automatic", "explicit"])
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_ranks_mean_what_the_reference_does(ranks: int, mode: str) -> None:
    shape = {"ranks": ranks, "width": 1000, "mode": mode}
    divisions: list[dict[str, Any]] = [{"gpus": 1}, {"gpus": 2}]
    ways = WAYS if ranks < 64 else WAYS[2:4]
    divisions += [{"gpus": 2, "units": "device", **way} for way in ways]
    if ranks == 2:
        divisions.append({"gpus": 2, "units": "rank"})
    reference = ReferenceGraph(rounds(**shape))
    wanted = []
    for seed in range(5):
        replay(reference, seed)
        wanted.append(results(reference))
    for division in divisions:
        with CudaGraph(rounds(**shape, **division)) as graph:
            for seed in range(5):
                replay(graph, seed)
                for ours, right in zip(results(graph), wanted[seed], strict=True):
                    assert np.array_equal(ours, right), (division, seed)


def replay(graph: Any, seed: int) -> None:
    graph.bind(values_of(graph, seed))
    for entry in reversed(graph.entries):
        graph.launch(entry=entry)
    graph.synchronize()


def test_a_unit_may_run_ahead() -> None:
    """Launches follow each other without a host in between: handshakes hold the fast one back."""
    shape = {"ranks": 4, "width": 1000, "mode": "explicit"}
    reference = ReferenceGraph(rounds(**shape))
    replay(reference, 7)
    with CudaGraph(rounds(**shape, gpus=2, units="device", launch="free")) as graph:
        graph.bind(values_of(graph, 7))
        for _ in range(2000):
            graph.launch(entry="prepare")
            graph.launch()
        graph.synchronize()
        for ours, right in zip(results(graph), results(reference), strict=True):
            assert np.array_equal(ours, right)


# Peers that are late, and peers that never come.

SPIN = """extern "C" __global__ void spin(unsigned long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < ns);
}"""


def spin_function(driver: Driver, context: int, ordinal: int) -> int:
    image = KernelImage("spin", "spin", "spin", SPIN, (), (), Launch(("1",), ("1",)))
    code = compile_image(image, arch_name(driver.device(ordinal).capability))
    with current(driver, context):
        return driver.function(driver.kernel(driver.load_library(code), "spin"))


def hold_up(graph: CudaGraph, seconds: float) -> None:
    """Keep the stream of the peer's unit busy."""
    session = graph._session
    assert session is not None
    gpu = session.gpus["peer"]
    function = spin_function(graph._driver, gpu.context, gpu.ordinal)
    call = KernelCall(function, (1, 1, 1), (1, 1, 1), 0, (("Q", round(1e9 * seconds)),))
    with current(graph._driver, gpu.context):
        graph._driver.launch(call, session.unit_streams["peer"])


@pytest.mark.parametrize("way", [{}, {"sync": "memops"}, {"launch": "free"}], ids=str)
@pytest.mark.parametrize("route", ["host_copy", "p2p_write"])
def test_a_peer_held_up_for_a_second_is_waited_for(route: str, way: Any) -> None:
    with opened(divided(route, 8, **way)) as graph:
        assert outputs(graph, 0) == baseline(0)
        hold_up(graph, 1.0)
        assert outputs(graph, 1) == baseline(1)
        assert outputs(graph, 0) == baseline(0)


@pytest.mark.parametrize("way", [{}, {"launch": "free"}], ids=str)
def test_a_peer_held_up_for_too_long_is_named(way: Any) -> None:
    with opened(divided("host_push", 8, **way), wait_limit_s=0.2) as graph:
        assert outputs(graph, 0) == baseline(0)
        hold_up(graph, 1.0)
        graph.launch()
        with pytest.raises(CudaError, match=r"unit 'primary' waited 0\.2 s .* of unit 'peer'"):
            graph.synchronize()
        graph.reset()
        assert outputs(graph, 1) == baseline(1)


class Skipping:
    """The real driver, which loses launches of some executables."""

    def __init__(self) -> None:
        from graphc.gpu.driver import CudaDriver

        self.own, self.skipped = CudaDriver(), set[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def sequence(self, steps: Sequence[Step]) -> Any:
        whole = self.own.sequence(steps)
        parts = [
            (step.executable if isinstance(step, LaunchStep) else 0, self.own.sequence([step]))
            for step in steps
        ]

        def replay() -> None:
            if not self.skipped:
                whole()
                return
            for executable, part in parts:
                if executable not in self.skipped:
                    part()

        return replay


def executable_of(graph: CudaGraph, unit: str) -> int:
    return next(each.handle for each in graph._executable.graphs if each.unit.name == unit)


@pytest.mark.parametrize("way", [{}, {"launch": "free"}, {"sync": "memops"}], ids=str)
@pytest.mark.parametrize("unit", ["primary", "peer"])
def test_a_launch_that_was_lost_is_named_and_resumed_after_a_reset(unit: str, way: Any) -> None:
    driver: Any = Skipping()
    with opened(divided("host_copy", 8, **way), driver=driver, wait_limit_s=0.2) as graph:
        assert outputs(graph, 0) == baseline(0)
        for _ in range(3):
            driver.skipped = {executable_of(graph, unit)}
            graph.launch()
            if "sync" not in way:
                with pytest.raises(CudaError, match=f"of unit '{unit}', which did not come"):
                    graph.synchronize()
                with pytest.raises(CudaError, match="WAIT_TIMEOUT"):
                    graph.launch()
            driver.skipped = set()
            graph.reset()
            for launch in (1, 0):
                assert outputs(graph, launch) == baseline(launch)


def test_a_graph_whose_unit_never_came_can_be_closed() -> None:
    for way in ({}, {"sync": "memops"}):
        driver: Any = Skipping()
        with opened(divided("host", 3, **way), driver=driver, wait_limit_s=0.2) as graph:
            graph.upload()
            driver.skipped = {executable_of(graph, "peer")}
            graph.launch()
    with opened(divided("host", 3)) as graph:
        assert outputs(graph, 0) == baseline(0)


# Many replays.


def counts(seed: int) -> Iterator[int]:
    random = np.random.default_rng(seed)
    while True:
        yield int(random.choice([TOKENS, TOKENS, TOKENS, 23, 1, 0, 36]))


@pytest.mark.parametrize("way", [{}, {"launch": "free"}, {"sync": "memops"}], ids=str)
@pytest.mark.parametrize("route", ["host_copy", "p2p_read", "p2p_write"])
def test_replays_that_feed_each_other_keep_their_bits(route: str, way: Any) -> None:
    """What a replay leaves is what the next one reads: one wrong bit stays."""
    with opened(divided(route, 8, **way)) as ours, opened(peer_layer(route, 1)) as one:
        for each in (ours, one):
            each.bind(inputs(1, False))
            each["residual"].write(inputs(1, False)["residual"])
        for number, count in zip(range(400), counts(1), strict=False):
            for each in (ours, one):
                each.launch(count=count)
            if number % 20 == 19:
                found, wanted = (each["residual"].numpy() for each in (ours, one))
                assert found.tobytes() == wanted.tobytes(), number
                for each in (ours, one):
                    each["residual"].write(inputs(number, False)["residual"])


# Ways to run that make launches wait.


@pytest.mark.parametrize("units", ["one", "device"])
def test_blocking_launches_are_refused_where_units_would_wait(units: str) -> None:
    code = (
        "import graphc\n"
        "plan = graphc.compile('moe_peer', preset='small', route='host_copy', "
        f"units='{units}')\n"
        "with plan.instantiate('cuda', devices=[0, 1]) as graph:\n"
        "    graph.launch()\n"
        "    graph.synchronize()\n"
        "print('done')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if units == "one":
        assert found.stdout == "done\n", found.stderr
    else:
        assert "LAUNCH_BLOCKING" in found.stderr
        assert "units: one" in found.stderr
