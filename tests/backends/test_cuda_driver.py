"""The real driver's door: what is said without bindings, without a driver, with an old one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from graphc.gpu import open_driver
from graphc.text.diagnostics import CudaError

pytest.importorskip("cuda.bindings")
from cuda.bindings import driver as cu

from graphc.gpu import driver as real
from graphc.gpu.probe import gpu_count
from graphc.gpu.protocol import MemoryOp, MemoryOpsCall

OK = cu.CUresult.CUDA_SUCCESS


def pretend(monkeypatch: Any, **calls: Any) -> None:
    """Only these calls answer; the enums stay."""
    answers = {name: lambda *_, result=result: result for name, result in calls.items()}
    known = {"CUresult": cu.CUresult, "cuGetErrorString": lambda code: (OK, b"as they say\0")}
    monkeypatch.setattr(real, "cu", SimpleNamespace(**known, **answers))


def test_an_old_driver_is_told_what_is_needed(monkeypatch: Any) -> None:
    pretend(monkeypatch, cuInit=(OK,), cuDriverGetVersion=(OK, 12020))
    with pytest.raises(CudaError, match=r"supports CUDA 12\.2; graphc needs 12\.4 or later"):
        real.CudaDriver()


def test_a_driver_that_finds_no_device_is_quoted(monkeypatch: Any) -> None:
    pretend(monkeypatch, cuInit=(cu.CUresult.CUDA_ERROR_NO_DEVICE,))
    with pytest.raises(CudaError, match="cuInit: CUDA_ERROR_NO_DEVICE: as they say") as caught:
        real.CudaDriver()
    assert (caught.value.call, caught.value.exit_code) == ("cuInit", 3)
    assert "use the reference backend" in str(caught.value.hint)


def test_no_driver_library_is_no_traceback(monkeypatch: Any) -> None:
    def missing(_: int) -> None:
        raise RuntimeError("libcuda is not there.")

    pretend(monkeypatch)
    monkeypatch.setattr(real.cu, "cuInit", missing, raising=False)
    with pytest.raises(CudaError, match=r"NO_DRIVER: libcuda is not there\. .*reference backend"):
        real.CudaDriver()


def test_missing_bindings_say_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "graphc.gpu.driver", None)
    open_driver.cache_clear()
    try:
        with pytest.raises(CudaError, match=r"NOT_INSTALLED: .*pip install 'graphc\[cuda13\]'"):
            open_driver()
    finally:
        open_driver.cache_clear()


def test_arguments_survive_packing() -> None:
    arguments = (("Q", 2**63 + 1), ("i", -5), ("f", 1.5), ("H", 0x3F80))
    packed = real.Packed(arguments)
    assert real.unpack(packed.address, [code for code, _ in arguments]) == arguments


def test_a_copy_is_described_in_one_dimension() -> None:
    params = real.copy_params(real.CopyCall(4096, 8192, 100))
    assert (int(params.dstDevice), int(params.srcDevice)) == (4096, 8192)
    assert (params.WidthInBytes, params.Height, params.Depth) == (100, 1, 1)


def test_launch_attributes_are_those_asked_for() -> None:
    call = real.KernelCall(1, (2, 1, 1), (32, 1, 1), 0, (), (2, 1, 1), True, -3)
    ids = [each.id.name for each in real.launch_attributes(call)]
    assert [name.rsplit("ATTRIBUTE_", 1)[1] for name in ids] == [
        "CLUSTER_DIMENSION",
        "COOPERATIVE",
        "PRIORITY",
    ]


def test_nodes_take_attributes_in_the_record_of_their_own_type() -> None:
    call = real.KernelCall(1, (2, 1, 1), (32, 1, 1), 0, (), (2, 1, 1), True, -3)
    values = real.attribute_values(call, cu.CUkernelNodeAttrValue)
    assert [values[0][1].clusterDim.x, values[1][1].cooperative, values[2][1].priority] == [
        2,
        1,
        -3,
    ]
    if gpu_count():
        return
    for name, value in values:
        # Without a driver the call fails, but not for the types of its arguments.
        with pytest.raises(RuntimeError):
            cu.cuGraphKernelNodeSetAttribute(0, name, value)


def test_memory_ops_are_read_as_they_were_written() -> None:
    call = MemoryOpsCall((MemoryOp(True, 4096, 1), MemoryOp(False, 8192, 7)))
    records = real.memory_operations(call)
    found = (real.MemoryOpRecord.from_address(each.getPtr()) for each in records)
    assert tuple(map(real.memory_operation, found)) == call.operations


def test_tables_of_pointers_are_packed_by_value() -> None:
    arguments = (("3Q", (1, 2, 3)), ("i", -4), ("1Q", (5,)), ("2I", (6, 7)))
    packed = real.Packed(arguments)
    assert real.unpack(packed.address, [code for code, _ in arguments]) == arguments
