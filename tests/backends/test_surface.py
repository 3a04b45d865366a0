"""Both backends are used alike, and refuse alike what a caller gets wrong."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both import BACKENDS, echo, opened

from graphc import api
from graphc.backends.binding import check_apart
from graphc.text.diagnostics import UsageError

X = np.random.default_rng(2).standard_normal((10, 8), dtype=np.float32)
# What one backend's method takes and the other's does not.
OWN_METHODS = {"interleave"}  # the reference's: on GPUs launches are side by side anyway
OWN_PARAMETERS = {"reference": {("launch", "seed")}}


@pytest.fixture(params=BACKENDS)
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with opened(request.param, echo(tmp_path)) as made:
        yield made


def surface(graph: Any) -> set[str]:
    dunders = {"__getitem__", "__enter__", "__exit__"}
    names = {each for each in dir(graph) if not each.startswith("_")}
    return names - OWN_METHODS | dunders & {*dir(graph)}


def parameters(graph: Any, backend: str) -> dict[str, list[tuple[str, object]]]:
    return {
        name: [
            (each.name, each.default)
            for each in inspect.signature(getattr(graph, name)).parameters.values()
            if (name, each.name) not in OWN_PARAMETERS.get(backend, ())
        ]
        for name in surface(graph)
        if callable(getattr(graph, name))
    }


def test_both_backends_have_one_surface(tmp_path: Path) -> None:
    plan = echo(tmp_path)
    cuda, reference = (opened(backend, plan) for backend in BACKENDS)
    assert surface(cuda) == surface(reference)
    assert {"bind", "launch", "close", "poison", "placed", "__exit__"} <= surface(cuda)
    assert parameters(cuda, "cuda") == parameters(reference, "reference")
    cuda.close()


def test_a_graph_is_used_alike(graph: Any) -> None:
    assert graph.placed == {"primary": 0, "peer": 1}
    assert graph.routes == {"over": "host_copy", "back": "host_copy"}
    assert not graph.is_closed
    y = np.zeros_like(X)
    graph.bind(x=X, y=y)
    graph.poison()
    graph.upload()
    graph.launch(count=np.int32(7))
    graph.synchronize()
    found = np.asarray(graph["y"])
    assert np.array_equal(found[:7], X[:7])
    assert not found[7:].any()


@pytest.mark.parametrize("count", [1.0, 1.5, "3", True, np.True_, [1], np.arange(2), -1, 11])
def test_a_count_is_a_whole_number_up_to_the_capacity(graph: Any, count: Any) -> None:
    for before in (1, 3):  # values that are equal to an earlier count are looked at, too
        graph.launch(count=before)
        with pytest.raises(UsageError, match="count"):
            graph.launch(count=count)


@pytest.mark.parametrize("stream", ["own", 1.5, True, -1, object()])
def test_what_is_no_stream_is_refused(graph: Any, stream: Any) -> None:
    with pytest.raises(UsageError, match="is no stream"):
        graph.launch(stream)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("launch", "given", "message"),
    [
        ("joined", {"streams": {}}, "streams is for plans of several units whose launch is free"),
        ("free", {"stream": 1}, "each unit has a stream of its own; pass streams={'primary': ..."),
        ("free", {"streams": 5}, "streams: expected the stream of each unit by name, found 5"),
        ("free", {"streams": {"primary": 0}}, "streams: no stream is given for unit 'peer'"),
        ("free", {"streams": {"pear": 0}}, "no unit is named 'pear': did you mean 'peer'"),
        ("free", {"streams": {"primary": 0, "peer": "own"}}, "a str is no stream"),
    ],
)
def test_units_that_are_launched_freely_take_a_stream_each(
    tmp_path: Path, backend: str, launch: str, given: Any, message: str
) -> None:
    with opened(backend, echo(tmp_path, units="device", launch=launch)) as graph:
        with pytest.raises(UsageError, match=re.escape(message)):
            graph.launch(**given)
        graph.launch(streams=None)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X.astype(np.float64)}, "expected dtype f32"),
        ({"x": X[:9]}, "expected shape"),
        ({"z": X}, "no buffer is named 'z'"),
        ({1: X}, "no buffer is named '1'"),
        ({"far": X}, "is scratch"),
        ([X], "found list"),
        ("x", "found str"),
    ],
)
def test_what_cannot_be_bound_is_refused_as_a_whole(graph: Any, arrays: Any, message: str) -> None:
    graph.bind(x=X)
    given = {"y": np.ones_like(X), **arrays} if isinstance(arrays, dict) else arrays
    before = np.array(np.asarray(graph["y"]))
    with pytest.raises(UsageError, match=message):
        graph.bind(given)
    assert np.array_equal(np.asarray(graph["y"]), before, equal_nan=True)


@pytest.mark.parametrize("name", ["why", 1, None, ["y"]])
def test_only_buffers_are_looked_up(graph: Any, name: Any) -> None:
    with pytest.raises(UsageError, match="no buffer is named"):
        graph[name]


@pytest.mark.parametrize("rounds", [0, -1, 1.5, True])
def test_measuring_takes_some_rounds(graph: Any, rounds: Any) -> None:
    for measure in (graph.time_ops, graph.time_replays):
        with pytest.raises(UsageError, match=r"rounds|runs on the host"):
            measure(rounds)


def test_a_closed_graph_says_so_whatever_is_asked(graph: Any) -> None:
    graph.launch(count=3)
    graph.close()
    graph.close()
    assert graph.is_closed
    for use in (
        graph.launch,
        lambda: graph.launch(count=3),
        graph.synchronize,
        graph.upload,
        graph.poison,
        graph.time_ops,
        graph.time_replays,
        graph.record,
        graph.read_back,
        lambda: graph["x"],
        lambda: graph.bind(x=X),
    ):
        with pytest.raises(UsageError, match="the graph of 'echo' is closed: instantiate"):
            use()


def test_with_closes(tmp_path: Path) -> None:
    for backend in BACKENDS:
        graph = opened(backend, echo(tmp_path))
        with graph as inner:
            assert inner is graph
        assert graph.is_closed


def test_a_read_only_array_may_be_read(graph: Any) -> None:
    x = X.copy()
    x.setflags(write=False)
    graph.bind(x=x)
    graph.launch()
    assert np.array_equal(np.asarray(graph["y"]), X)


def test_a_read_only_array_is_not_written(tmp_path: Path) -> None:
    y = np.zeros_like(X)
    y.setflags(write=False)
    graph = opened("reference", echo(tmp_path))
    with pytest.raises(UsageError, match="'y': the array is read-only, but the plan writes to it"):
        graph.bind(y=y)
    cuda = opened("cuda", echo(tmp_path))
    cuda.bind(y=y)  # copied: the array itself stays as it is
    cuda.close()


class ReadOnly:
    def __init__(self, pointer: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (10, 8), "typestr": "<f4", "data": (pointer, True), "version": 3,
        }  # fmt: skip


def test_a_read_only_array_on_the_device_is_not_written(tmp_path: Path) -> None:
    graph = opened("cuda", echo(tmp_path))
    driver = graph._driver
    pointer = driver.take(0, X.nbytes)
    graph.bind(x=ReadOnly(pointer))
    with pytest.raises(UsageError, match="'y': the array is read-only"):
        graph.bind(y=ReadOnly(pointer))
    graph.close()


class OnDevice:
    def __init__(self, pointer: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (10, 8), "typestr": "<f4", "data": (pointer, False), "version": 3,
        }  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_that_share_bytes_are_not_written(tmp_path: Path, backend: str) -> None:
    with opened(backend, echo(tmp_path)) as graph:
        both = np.zeros((20, 8), np.float32)
        first, middle, last = both[:10], both[5:15], both[10:]
        if backend == "cuda":
            base = graph._driver.take(0, both.nbytes)
            steps = (0, X.nbytes // 2, X.nbytes)
            first, middle, last = (OnDevice(base + step) for step in steps)
        for one, other in ((first, first), (first, middle), (middle, last)):
            with pytest.raises(UsageError, match="share memory, and the plan writes to 'y'"):
                graph.bind(x=one, y=other)
            with pytest.raises(UsageError, match="share memory, and the plan writes to 'y'"):
                graph.bind(x=other, y=one)
        graph.bind(x=first, y=last)
        with pytest.raises(UsageError, match="share memory"):
            graph.bind(x=middle)
        graph.bind(x=last, y=first)  # both at once, so neither is where it was
        graph.bind(x=last)
        graph.launch()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_output_is_no_input_of_the_same_graph(tmp_path: Path, backend: str) -> None:
    with opened(backend, echo(tmp_path)) as graph:
        with pytest.raises(UsageError, match="share memory"):
            graph.bind(x=graph["y"])
        graph.bind(x=X)
        graph.launch()
        assert np.array_equal(np.asarray(graph["y"]), X)


def test_arrays_that_share_bytes_may_be_read() -> None:
    check_apart({"a": (0, 64), "b": (0, 64), "c": (32, 64), "d": (96, 8)}, ["d"])
    check_apart({"a": (0, 64), "b": (16, 0)}, ["a", "b"])
    for written in ("a", "b", "c"):
        with pytest.raises(UsageError, match=f"writes to '{written}'"):
            check_apart({"a": (0, 64), "b": (0, 64), "c": (32, 64)}, [written])


def test_a_view_ends_with_its_graph(tmp_path: Path) -> None:
    graph = opened("cuda", echo(tmp_path))
    view = graph["x"]
    graph.close()
    for use in (
        view.numpy,
        view.__dlpack__,
        lambda: view.__cuda_array_interface__,
        lambda: np.asarray(view),
        lambda: view.write(X),
    ):
        with pytest.raises(UsageError, match="is closed"):
            use()


OVERLAID = """
graphc: 1
name: overlaid
devices: [gpu]
buffers:
  all: {device: gpu, dtype: f32, shape: [4, 8], role: output}
  head: {device: gpu, dtype: f32, shape: [2, 8], at: {buffer: all, offset: 0}}
ops:
  - {name: fill, fill: {target: all, value: 1}}
  - {name: lead, fill: {target: head, value: 2}}
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_lies_over_a_bound_array_goes_with_it(tmp_path: Path, backend: str) -> None:
    (tmp_path / "overlaid.yaml").write_text(OVERLAID)
    plan = api.compile(tmp_path / "overlaid.yaml", cubins=False, arch="sm_90a")
    with opened(backend, plan) as graph:
        graph.bind(all=np.zeros((4, 8), np.float32))
        graph.launch()
        assert np.asarray(graph["all"])[:, 0].tolist() == [2, 2, 1, 1]
        graph.poison()  # an overlay of what the caller reads is not scratch
        assert np.asarray(graph["all"])[:, 0].tolist() == [2, 2, 1, 1]
        with pytest.raises(UsageError, match="'head' is scratch"):
            graph.bind(head=np.zeros((2, 8), np.float32))


# Where and on what.


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"primary": 0, "pear": 1}, "no device is named 'pear': did you mean 'peer'"),
        ({"primary": 0}, "no GPU was given for device 'peer'"),
        ({"primary": 0, "peer": -1}, "device 'peer': expected the number of a GPU"),
        ({"primary": 0, "peer": "1"}, "device 'peer': expected the number of a GPU"),
        ([0, 1.0], "device 'peer': expected the number of a GPU"),
        ([0, True], "device 'peer': expected the number of a GPU"),
        ([0], "2 devices"),
        ("01", "devices: expected the GPU of each"),
        (0, "devices: expected the GPU of each"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_placements_are_refused(
    tmp_path: Path, backend: str, devices: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        opened(backend, echo(tmp_path), devices=devices)


@pytest.mark.parametrize("backend", BACKENDS)
def test_placements_are_kept(tmp_path: Path, backend: str) -> None:
    with opened(backend, echo(tmp_path), devices={"peer": np.int64(0), "primary": 1}) as graph:
        assert graph.placed == {"primary": 1, "peer": 0}


@pytest.mark.parametrize("backend", ["foo", "Cuda", "", None, 1])
def test_an_unknown_backend_is_refused(tmp_path: Path, backend: Any) -> None:
    with pytest.raises(UsageError, match="there is no backend"):
        echo(tmp_path).instantiate(backend)
    with pytest.raises(UsageError, match="did you mean 'reference'"):
        echo(tmp_path).instantiate("referense")


def test_the_reference_checks_devices_when_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no device is named 'gpu9'"):
        echo(tmp_path).instantiate("reference", devices={"gpu9": 0})
