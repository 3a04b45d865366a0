"""Launches that others may still be waiting for: rebinding, timing, default streams, failures."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver
from small_plan import KERNELS, expected, small_plan
from test_cuda_calls import OnDevice, X, fake, make

from graphc.gpu.probe import current
from graphc.ir import Emit
from graphc.text.diagnostics import CudaError

HOME, PEER = 1, 2  # contexts of the fake's GPUs


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    made = fake()
    yield made
    assert not made.leaks()


@pytest.mark.parametrize("emit", [Emit.CAPTURE, Emit.NODES])
def test_a_graph_updated_in_place_is_read_back_as_it_is_now(driver: Any, emit: Emit) -> None:
    with make(driver, small_plan(emit=emit)) as graph:
        graph.bind(x=X)
        graph.launch(count=4)
        for _ in range(2):
            pointer = driver.take(0, X.nbytes)
            graph.bind(x=OnDevice(pointer))
            graph.launch(count=4)
            assert graph.read_back().nodes == 15
            graph.bind(x=X)
            graph.launch(count=7)
            assert np.array_equal(graph["out"].numpy()[:7], expected(X)[:7])
            del driver.memory[pointer]
        assert driver.counts["instantiate"] == 1
        assert driver.counts["update_exec"] == 4
        assert len(driver.graphs) == 2  # the one instantiated, and that of the latest update


def test_a_rebuild_that_fails_is_tried_again() -> None:
    driver = fake(refuses_fill_width=True)
    with make(driver) as graph:
        graph.bind(x=X)
        graph.launch(count=10)
        driver.failing = {"begin_capture": driver.counts["begin_capture"] + 1}
        with pytest.raises(CudaError, match="begin_capture"):
            graph.launch(count=2)
        graph.launch(count=2)
        assert np.array_equal(graph["out"].numpy()[:2], expected(X)[:2])
    assert not driver.leaks()


def test_memory_that_cannot_be_had_leaves_the_binding_as_it_was(driver: Any) -> None:
    pointer = driver.take(0, X.nbytes)
    driver.write(pointer, X.ctypes.data, X.nbytes)
    with make(driver) as graph:
        graph.bind(x=OnDevice(pointer))
        graph.launch()
        driver.failing = {"allocate": driver.counts["allocate"] + 1}
        with pytest.raises(CudaError, match="allocate"):
            graph.bind(x=-X)
        assert graph["x"].pointer == pointer
        graph.launch()
        assert np.array_equal(graph["out"].numpy(), expected(X))
    del driver.memory[pointer]


@pytest.mark.parametrize("is_numpy", [False, True])
def test_an_array_is_held_until_no_launch_uses_it(is_numpy: bool) -> None:
    alive: list[bool] = []

    class Waiting(RecordingDriver):
        def synchronize(self, stream: int) -> None:
            super().synchronize(stream)
            alive.append(held() is not None)

    driver = Waiting(kernels=KERNELS)
    first, second = driver.take(0, X.nbytes), driver.take(0, X.nbytes)
    array = OnDevice(first)
    held = weakref.ref(array)
    with make(driver) as graph:
        graph.bind(x=array)
        del array
        graph.launch()
        alive.clear()
        graph.bind(x=X if is_numpy else OnDevice(second))
        assert alive[0]
        assert held() is None


@pytest.mark.parametrize("timing", ["time_ops", "time_replays"])
def test_timing_waits_for_launches_on_other_streams(driver: Any, timing: str) -> None:
    with current(driver, HOME):
        stream = driver.create_stream(0)
    with make(driver) as graph:
        graph.launch(stream, count=8)
        before = len(driver.calls)
        getattr(graph, timing)(1, count=4)
        names = [each[0] for each in driver.calls[before:]]
        assert names.index("synchronize_context") < names.index("fill")
    driver.destroy_stream(stream)


class Contexts(RecordingDriver):
    """Writes down in which context a default stream is meant."""

    def __init__(self) -> None:
        super().__init__(kernels=KERNELS)
        self.seen: list[tuple[str, int]] = []

    def launcher(self, executable: int, stream: int) -> Any:
        replay = super().launcher(executable, stream)

        def noted() -> None:
            self.seen.append(("launch", self.current_context()))
            replay()

        return noted

    def synchronize(self, stream: int) -> None:
        super().synchronize(stream)
        self.seen.append(("wait", self.current_context()))


def test_a_default_stream_is_that_of_the_context_of_its_launch() -> None:
    driver = Contexts()
    with make(driver) as graph:
        with current(driver, PEER):
            graph.launch(0)
            graph.launch(0)
        graph.synchronize()
        graph.launch(0)  # no context is current: the graph's own
        graph.launch(0)
        with current(driver, PEER):
            graph.launch(0)
            with current(driver, HOME):
                graph.launch(0)
        graph.synchronize()
        assert driver.seen == [
            ("launch", PEER), ("launch", PEER), ("wait", PEER),
            ("launch", HOME), ("launch", HOME), ("launch", PEER), ("launch", HOME), ("wait", HOME),
        ]  # fmt: skip
    assert not driver.leaks()
