"""Candidates that run: bits first, faults told, over the fake driver and on the reference."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver
from sweep_cases import extern_spec

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.inputs import random_inputs
from graphc.sweeps import measured as measuring
from graphc.sweeps.job import Job
from graphc.sweeps.measured import Measured
from graphc.sweeps.rows import Basis, Status
from graphc.sweeps.worker import judged
from graphc.text.diagnostics import CudaError, UsageError

HERE = Path(__file__).parent
ECHO = """
graphc: 1
name: echo
params:
  tokens: {default: 24, min: 0, count: true}
  pieces: {default: 1, min: 1}
  wire: {default: f32}
  emit_as: {default: capture}
devices: [primary, peer]
buffers:
  x: {device: primary, dtype: f32, shape: [tokens, 8], role: input}
  w: {device: peer, dtype: f32, shape: [tokens, 8], role: weight}
  y: {device: primary, dtype: f32, shape: [tokens, 8], role: inout}
  far: {device: peer, dtype: f32, shape: [tokens, 8]}
  z: {device: primary, dtype: f32, shape: [tokens, 8], role: output}
ops:
  - {name: over, transfer: {source: x, target: far, wire: f32}}
  - {name: back, transfer: {source: far, target: z, wire: f32}}
  - {name: weights, transfer: {source: w, target: y, wire: f32}}
schedule:
  emit: =emit_as
  over: {route: host_copy, pieces: pieces}
  back: {route: host_copy, pieces: pieces}
  weights: {route: host_copy, pieces: pieces}
"""


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    path = tmp_path / "echo.yaml"
    path.write_text(ECHO)
    return path


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> RecordingDriver:
    """Graphs are built over the fake, and a GPU is at hand."""
    made = RecordingDriver()

    def instantiate(plan: Any, backend: str, *, devices: Any = None) -> CudaGraph:
        return CudaGraph(plan, driver=made, devices=devices)

    monkeypatch.setattr(measuring, "instantiate", instantiate)
    monkeypatch.setattr("graphc.api.has_gpu", lambda: True)
    return made


def evaluator(path: Path, backend: str = "cuda", **settings: Any) -> Measured:
    settings = {"backend": backend, "rounds": 3, "replays": 2, "seed": 0, **settings}
    return Measured(Job(str(path), measuring.EVALUATOR, settings=settings))


@pytest.mark.parametrize("emit", ["capture", "nodes", "streams"])
def test_a_candidate_on_a_gpu_is_timed_by_its_events(
    echo: Path, driver: RecordingDriver, emit: str
) -> None:
    found = evaluator(echo)
    row = found.evaluate({"pieces": 4, "emit_as": emit})
    assert (row.status, row.basis) == (Status.OK, Basis.MEASURED)
    assert row.facts["rounds"] == len(row.facts["rounds_us"]) == 3
    assert row.facts["launch_us"] > 0
    assert row.facts["routes"] == ["host_copy"]
    assert row.params["pieces"] == 4
    found.close()
    assert driver.leaks() == {}


def test_weights_are_loaded_once_and_candidates_give_all_back(
    echo: Path, driver: RecordingDriver
) -> None:
    found = evaluator(echo)
    held = len(driver.memory)
    for pieces in (2, 3, 5):
        assert found.evaluate({"pieces": pieces}).status is Status.OK
        assert len(driver.memory) == held
    inputs = {found.graph.program.buffers[name].nbytes for name in found.filled}
    found.close()
    assert inputs == {24 * 8 * 4}
    assert driver.leaks() == {}


def test_replays_alternate_who_is_first(
    echo: Path, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = evaluator(echo)
    order: list[str] = []
    real = CudaGraph.time_replays

    def noted(self: CudaGraph, rounds: int = 20, count: int | None = None) -> list[float]:
        order.append("base" if self is found.graph else "own")
        return real(self, rounds, count)

    monkeypatch.setattr(CudaGraph, "time_replays", noted)
    found.evaluate({"pieces": 2})
    assert order == ["base", "own", "own", "base", "base", "own"]


def test_times_are_medians_and_wins_are_counted_by_round(
    echo: Path, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"base": [10.0, 12.0, 11.0], "own": [9.0, 6.0, 22.0]}
    found = evaluator(echo)
    monkeypatch.setattr(
        found,
        "took_us",
        lambda graph: times["base" if graph is found.graph else "own"].pop(0),
    )
    row = found.evaluate({"pieces": 2})
    assert (row.us, row.facts["baseline_us"], row.facts["wins"]) == (9.0, 11.0, 2)
    assert row.relative == 0.9  # of 0.9, 0.5 and 2.0, each within its round
    assert row.facts["spread"] == pytest.approx(16 / 9)


def test_steps_are_timed_where_that_is_asked(echo: Path, driver: RecordingDriver) -> None:
    row = evaluator(echo, steps=2).evaluate({"pieces": 3})
    assert set(row.facts["step_us"]) == set(row.facts["waited_us"])
    assert len(row.facts["step_us"]) == 6
    assert "step_us" not in evaluator(echo).evaluate({"pieces": 3}).facts


def test_other_bits_are_never_timed(
    echo: Path, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = evaluator(echo)
    perform = driver.perform

    def wrong(call: Any) -> None:
        perform(call)
        if type(call).__name__ == "CopyCall" and call.nbytes == 96:
            ctypes.c_uint8.from_address(call.target).value = 7

    monkeypatch.setattr(driver, "perform", wrong)
    monkeypatch.setattr(found, "timed", lambda graph: pytest.fail("it was timed"))
    row = found.evaluate({"pieces": 8})
    assert row.status is Status.DIFFERENT
    assert "differs in" in str(row.reason)


def test_a_fault_of_the_driver_fails_one_candidate_and_tells_whether_to_go_on(
    echo: Path, driver: RecordingDriver
) -> None:
    found = evaluator(echo)
    driver.failing["instantiate"] = driver.counts["instantiate"] + 1
    row = judged(found, {"pieces": 2})
    assert row.status is Status.FAILED
    assert "the fake was told to fail" in str(row.reason)
    assert found.is_sound()
    assert judged(found, {"pieces": 2}).status is Status.OK
    found.close()
    assert driver.leaks() == {}


def test_a_gpu_that_the_baseline_no_longer_runs_on_is_told(
    echo: Path, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = evaluator(echo)

    def fault(self: CudaGraph) -> None:
        raise CudaError("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "told so")

    monkeypatch.setattr(CudaGraph, "synchronize", fault)
    row = judged(found, {"pieces": 2})
    assert row.status is Status.FAILED
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(row.reason)
    assert not found.is_sound()


def test_other_shapes_than_the_baselines_are_refused(echo: Path, driver: RecordingDriver) -> None:
    row = evaluator(echo).evaluate({"tokens": 16})
    assert row.status is Status.REFUSED
    assert "'x' is f32[16, 8] on 'primary' here and f32[24, 8] on 'primary'" in str(row.reason)


def test_inputs_may_come_from_a_function(echo: Path, driver: RecordingDriver) -> None:
    found = evaluator(echo, inputs="test_sweep_measured:ones")
    assert (found.expected["z"] == 1).all()
    assert (found.expected["y"] == 2).all()
    with pytest.raises(UsageError, match="function of the inputs 'test_sweep_measured:twos'"):
        evaluator(echo, inputs="test_sweep_measured:twos")


@pytest.mark.parametrize(
    ("function", "message"),
    [("raises", "failed: KeyError: 'x of another spec'"), ("nothing", "by buffer, not NoneType")],
)
def test_a_function_of_inputs_that_is_at_fault_is_named(
    echo: Path, driver: RecordingDriver, function: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        evaluator(echo, inputs=f"test_sweep_measured:{function}")
    assert f"'test_sweep_measured:{function}'" in str(caught.value)


@pytest.mark.parametrize(("function", "is_bound"), [(None, True), ("all_but_weights", False)])
def test_an_optional_input_is_bound_to_candidates_if_it_is_to_the_baseline(
    function: str | None, is_bound: bool
) -> None:
    inputs = {"inputs": f"test_sweep_measured:{function}"} if function else {}
    settings = {"backend": "reference", "rounds": 1, "replays": 1, "seed": 0, **inputs}
    fixed = {"hidden": 8, "experts": 4, "top_k": 2, "capacity": 4, "active": 4}
    job = Job("ep_throughput", measuring.EVALUATOR, fixed, settings=settings)
    found = Measured(job)
    assert ("rank.0/topk_w" in found.filled) == is_bound
    row = found.evaluate({"schedule.dispatch.pieces": 2})
    assert row.status is Status.OK, row.reason
    found.close()


def all_but_weights(graph: Any) -> dict[str, Any]:
    return random_inputs(graph.program, null=["topk_w"])


def raises(graph: Any) -> Any:
    raise KeyError("x of another spec")


def nothing(graph: Any) -> None:
    """No return was written."""


def ones(graph: Any) -> dict[str, Any]:
    shape = graph.program.buffers["x"].shape
    made = np.ones(shape, np.float32)
    return {"x": made, "w": made * 2, "y": made * 0}


def test_what_replays_write_is_put_back_before_bits_are_compared(tmp_path: Path) -> None:
    """x is updated in place by every replay."""
    found = evaluator(extern_spec(tmp_path), "reference")
    rows = [found.evaluate({"pieces": pieces}) for pieces in (1, 2, 4)]
    assert [each.status for each in rows] == [Status.OK] * 3
    assert rows[0].basis is Basis.WALL
    assert rows[0].facts["launch_us"] is None
    assert found.evaluate({"bits": 1.5}).status is Status.DIFFERENT


def test_a_sweep_on_the_reference_says_that_its_time_is_the_hosts(tmp_path: Path) -> None:
    found = graphc.sweep(
        "moe_peer", {"route": ["host", "p2p"], "wire": ["f16", "f32"]}, preset="small",
        backend="reference", rounds=2, replays=1, workers=0, out=tmp_path,
    )  # fmt: skip
    status = [each.outcome.status.value for each in found.rows]
    assert status == ["ok", "different", "ok", "different"]
    assert found.best is not None
    assert found.best.outcome.basis is Basis.WALL
    assert found.baseline.facts["rounds_us"]


def test_without_a_gpu_a_sweep_says_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphc.api.has_gpu", lambda: False)
    with pytest.raises(CudaError, match="there is no GPU here") as caught:
        graphc.sweep("moe_peer", {"pieces": "1:4"})
    assert "--simulate" in str(caught.value.hint)
