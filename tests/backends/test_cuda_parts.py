"""Parts of the CUDA backend alone: fills, scalars, launch shapes, NUMA, probes, placement."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver
from hypothesis import given
from hypothesis import strategies as some
from small_plan import IMAGES, small_plan

from graphc.backends.cuda import memory
from graphc.backends.cuda.arrays import look_at
from graphc.backends.cuda.kernels import as_argument, kernel_call, most_rows
from graphc.backends.cuda.memory import Gpu, prefer_node
from graphc.backends.cuda.work import fill_calls
from graphc.gpu import probe
from graphc.ir import Axis, Join, Op, Piece, Placement
from graphc.machine import Machine, place_devices
from graphc.text.diagnostics import UsageError


@given(
    capacity=some.integers(1, 40),
    bounds=some.lists(some.fractions(0, 1), min_size=2, max_size=2, unique=True),
    per_count=some.integers(1, 3),
)
def test_a_launch_is_large_enough_for_every_count(
    capacity: int, bounds: list[Fraction], per_count: int
) -> None:
    start, stop = sorted(bounds)
    piece = Piece(0, 2, start, stop)
    op = Op("a", "a", "g", Join(), (), Axis(per_count * capacity, per_count), piece)
    lo, hi = most_rows(op, capacity)
    assert 0 <= lo <= hi <= per_count * capacity
    for count in range(capacity + 1):
        first, last = piece.bounds(op.axis, count)
        assert last - first <= hi - lo


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.float64])
@pytest.mark.parametrize("value", [0, 1, 7])
def test_fills_write_every_element(dtype: Any, value: int) -> None:
    driver = RecordingDriver()
    target = np.zeros(9, dtype)
    driver.memory[target.ctypes.data] = (target, 0, target.nbytes)
    for call in fill_calls(target.ctypes.data, np.array(value, dtype).tobytes(), 9):
        driver.perform(call)
    assert (target == value).all()


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [(1.5, "f32", 1.5), (3, "i64", 3), (1.0, "bf16", 0x3F80), (1.0, "f16", 0x3C00)],
)
def test_scalars_travel_as_the_kernel_reads_them(value: float, kind: str, expected: float) -> None:
    assert as_argument(value, kind) == expected


@pytest.mark.parametrize(("sms", "grid"), [(132, 5), (2, 2)])
def test_the_grid_follows_the_gpu_and_is_never_empty(sms: int, grid: int) -> None:
    driver = RecordingDriver(sms=sms)
    op = small_plan(tokens=40, pieces=1).variants[0].schedule.program.ops[1]
    gpu = Gpu(driver.device(0), 1, count_word=64)

    def shape(op: Op) -> tuple[int, int, int]:
        call = kernel_call(
            op,
            IMAGES["affine-0"],
            gpu,
            function=1,
            pointers=[("Q", 0)] * 2,
            capacity=40,
            priority=0,
        )
        assert [value for _, value in call.arguments] == [0, 0, 1.0, 64, 1, 0, 1, 1, 0]
        return call.grid

    assert shape(op) == (grid, 1, 1)
    assert shape(replace(op, placement=Placement(blocks=3))) == (grid, 1, 1)


def test_mapped_memory_lies_next_to_its_first_user(monkeypatch: Any) -> None:
    monkeypatch.setattr(memory, "numa_node", lambda pci: int(pci[-1]))
    driver = RecordingDriver()
    gpus = {"a": Gpu(driver.device(0), 1), "b": Gpu(driver.device(1), 2)}
    schedule = small_plan().variants[0].schedule
    made = memory.DeviceMemory(driver, (schedule,), gpus)
    allocation = next(each for each in schedule.memory.allocations if each.name == "down")
    assert made.nearest_node(allocation, [gpus["b"], gpus["a"]]) == 1
    assert made.notes == [
        "mapped memory 'down' is on NUMA node 1, next to the first device that uses it "
        "(GPU 1 on node 1, GPU 0 on node 0)"
    ]
    assert made.nearest_node(allocation, [gpus["a"]]) == 0
    assert len(made.notes) == 1


def test_the_memory_policy_of_the_thread_comes_back() -> None:
    for node in (0, None):
        with prefer_node(node):
            assert np.ones(1 << 20).all()


def test_doctor_on_an_imaginary_machine(monkeypatch: Any) -> None:
    monkeypatch.setattr(probe, "RATE_NBYTES", 1 << 12)
    driver = RecordingDriver(peers="lie", nbytes=1 << 40)
    monkeypatch.setattr(probe, "open_driver", lambda: driver)
    facts = probe.doctor_facts()
    assert [gpu.ordinal for gpu in facts.gpus] == [0, 1]
    assert all(peer.says and not peer.copies for peer in facts.peers)
    assert facts.peers[0].why == "wrong bytes arrived by copies, reads, writes"
    assert [rate.link for rate in facts.rates][-1] == "all GPUs -> host at once"
    assert not driver.leaks()


def test_doctor_without_a_driver_says_what_is_missing() -> None:
    if probe.gpu_count():
        pytest.skip("there is a GPU")
    facts = probe.doctor_facts()
    assert facts.gpus == ()
    assert any("driver" in each for each in facts.missing)


def test_needs_hold_by_themselves_on_one_gpu() -> None:
    driver = RecordingDriver(peers="refused")
    machine = Machine((driver.device(0),), lambda a, b: probe.peer_facts(driver, a, b))
    assert machine.why_not("peer_copy", 0, 0) is None
    assert machine.why_not("same_gpu", 0, 0) is None
    assert "not one" in str(machine.why_not("same_gpu", 0, 1))
    assert "offers no peer access" in str(machine.why_not("peer_read", 0, 1))


def test_devices_without_enough_gpus_share_the_first() -> None:
    assert place_devices(["a", "b", "c"], 2) == {"a": 0, "b": 0, "c": 0}
    assert place_devices(["a", "b"], 2) == {"a": 0, "b": 1}


class Refusing:
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **_: Any) -> None:
        raise BufferError("it needs a gradient")


def test_an_array_that_refuses_is_quoted() -> None:
    with pytest.raises(UsageError, match="'x': its __dlpack__ refuses: it needs a gradient"):
        look_at("x", Refusing())
