"""Faults of the author's functions and of the machine's memory: whose they are, and where."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both import BACKENDS, echo, opened

import graphc
from graphc.backends import hostmemory, reference
from graphc.gpu.probe import current
from graphc.inputs import random_inputs
from graphc.text.diagnostics import CudaError, SpecError, UsageError

TEMPLATE = """{#
graphc_kernel: 1
name: clip
doc: d.
axis: n
symbols: [n]
args:
  x: {dtype: f32, shape: [n], access: read, rows: split}
  y: {dtype: f32, shape: [n], access: write, rows: split}
launch: {grid: [1], block: [32]}
exact: true
reference: clip:clip
#}
extern "C" __global__ void {{ entry }}({{ params }}) { {{ bounds }} }
"""
SPEC = """graphc: 1
name: small
devices: [one]
buffers:
  x: {device: one, dtype: f32, shape: [8], role: input}
  y: {device: one, dtype: f32, shape: [8], role: output}
ops:
  - {name: cut, kernel: clip, device: one, args: {x: x, y: y}}
"""


def launch(folder: Path, text: str) -> None:
    (folder / "clip.py").write_text(text)
    (folder / "clip.cu.j2").write_text(TEMPLATE)
    (folder / "small.yaml").write_text(SPEC)
    plan = graphc.compile(folder / "small.yaml", kernels=folder, cubins=False, arch="sm_90a")
    plan.instantiate("reference").launch()


@pytest.mark.parametrize(
    ("text", "code", "message", "line"),
    [
        ("def clip(*, x):\n  y = 1\n  raise KeyError('k')", "function-failed", "KeyError: 'k'", 3),
        ("def clip(*, x):\n  f()\ndef f():\n  1 / 0", "function-failed", "division by zero", 4),
        ("import json\ndef clip(*, x):\n  json.loads('')", "function-failed", "JSONDecode", 3),
        ("\ndef clip(*, x) x", "no-reference", "SyntaxError: expected ':'", 2),
        ("\n\nraise RuntimeError('no')", "no-reference", "RuntimeError: no", 3),
        ("1 / 0", "no-reference", "ZeroDivisionError", 1),
        ("import nowhere_to_be_found", "no-reference", "No module named", None),
        ("clip = 5", "no-reference", "is no function", None),
        ("clap = 5", "no-reference", "no attribute 'clip'", None),
    ],
)
def test_a_fault_of_a_reference_names_kernel_op_and_line(
    tmp_path: Path, text: str, code: str, message: str, line: int | None
) -> None:
    with pytest.raises(SpecError) as caught:
        launch(tmp_path, text)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert message in found.message
    assert "kernel 'clip'" in found.message
    assert "op 'cut'" in found.message
    lines = [note.span.line for note in found.notes]
    assert lines == ([line] if line else [])
    assert all(note.span.file == str(tmp_path / "clip.py") for note in found.notes)


def test_a_reference_that_lacks_memory_is_no_fault_of_the_spec(tmp_path: Path) -> None:
    with pytest.raises(
        CudaError, match=r"(?s)OUT_OF_MEMORY: .*kernel 'clip'.*hint: smaller"
    ) as caught:
        launch(tmp_path, "def clip(*, x):\n  raise MemoryError")
    assert caught.value.exit_code == 3
    assert caught.value.op == "cut"


def test_what_does_not_fit_is_refused_before_it_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = echo(tmp_path)
    monkeypatch.setattr(hostmemory, "available_memory", lambda: 100)
    with pytest.raises(
        CudaError, match=r"bytes of host memory, and 100 are available; its largest"
    ):
        plan.instantiate("reference")
    monkeypatch.setattr(hostmemory, "available_memory", lambda: None)
    plan.instantiate("reference").close()


def test_an_allocation_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise MemoryError

    plan = echo(tmp_path)
    monkeypatch.setattr(reference.np, "full", full)
    with pytest.raises(CudaError, match=r"(?s)cannot allocate the \d+ bytes of '\w+.*hint"):
        plan.instantiate("reference")
    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(CudaError, match=r"cannot allocate the 320 bytes of an input for 'x'"):
        random_inputs(plan)


def test_the_memory_that_is_left_is_the_least_that_the_system_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:     8 kB\n")
    group = tmp_path, "max", "now"
    monkeypatch.setattr(hostmemory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(hostmemory, "GROUPS", (group,))
    assert hostmemory.available_memory() == 8192
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "now").write_text("5000\n")
    assert hostmemory.available_memory() == 8192
    (tmp_path / "max").write_text("6000\n")
    assert hostmemory.available_memory() == 1000
    (tmp_path / "memory.stat").write_text("anon 9\ninactive_file 300\nactive_file 40\n")
    assert hostmemory.available_memory() == 1340
    monkeypatch.setattr(hostmemory, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(hostmemory, "GROUPS", ())
    assert hostmemory.available_memory() is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_is_one_of_a_kind(backend: str, tmp_path: Path) -> None:
    with opened(backend, echo(tmp_path)) as graph:
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(UsageError, match="cannot be copied or pickled"):
                make(graph)


@pytest.mark.parametrize("count", [None, 3])
def test_a_launch_into_a_capture_is_refused(tmp_path: Path, count: int | None) -> None:
    with opened("cuda", echo(tmp_path)) as graph:
        driver = graph._driver
        with current(driver, graph._home.context):
            stream = driver.create_stream(0)
        x = np.arange(80, dtype=np.float32).reshape(10, 8)
        graph.bind(x=x, y=np.zeros_like(x))
        for before in (False, True):  # the first launch, and one of another count than before
            if before:
                graph.launch(stream, count=1)
            driver.begin_capture(stream)
            with pytest.raises(UsageError, match="is being captured"):
                graph.launch(stream, count=count)
            driver.destroy_graph(driver.end_capture(stream))
        graph.launch(stream, count=count)
        rows = 10 if count is None else count
        assert np.array_equal(np.asarray(graph["y"])[:rows], x[:rows])
        driver.destroy_stream(stream)


NUMBER = """graphc: 1
name: number
devices: [one, two]
buffers:
  x: {device: one, dtype: f32, shape: [], role: output}
  y: {device: two, dtype: f32, shape: [], role: output}
ops:
  - {name: fill, fill: {target: x, value: 3.5}}
  - {name: over, transfer: {source: x, target: y, wire: f32}}
schedule:
  over: {route: host_copy}
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_without_dimensions_has_one_row(backend: str, tmp_path: Path) -> None:
    (tmp_path / "number.yaml").write_text(NUMBER)
    plan = graphc.compile(tmp_path / "number.yaml", cubins=False, arch="sm_90a")
    with opened(backend, plan) as graph:
        graph.launch()
        assert np.asarray(graph["x"]) == np.asarray(graph["y"]) == np.float32(3.5)


@pytest.mark.parametrize(
    ("dtype", "value", "is_right"),
    [
        ("u8", "255", True), ("u8", "256", False), ("u8", "-1", False), ("i8", "-128", True),
        ("i8", "128", False), ("u64", str(2**64 - 1), True), ("i64", str(2**63), False),
        ("f16", "65504.0", True), ("f16", "-70000.0", False), ("bf16", "1.0e+39", False),
        ("f32", "3.5e+38", False), ("fp8_e4m3", "448", True), ("fp8_e4m3", "500", False),
    ],
)  # fmt: skip
def test_a_fill_is_within_its_dtype(tmp_path: Path, dtype: str, value: str, is_right: bool) -> None:
    path = tmp_path / "fill.yaml"
    path.write_text(
        "graphc: 1\nname: fill\ndevices: [g]\nbuffers:\n"
        f"  x: {{device: g, dtype: {dtype}, shape: [4], role: output}}\n"
        f"ops:\n  - {{name: f, fill: {{target: x, value: {value}}}}}\n"
    )
    if is_right:
        graphc.check(path)
        return
    with pytest.raises(SpecError, match="cannot be filled with") as caught:
        graphc.check(path)
    (found,) = caught.value.diagnostics
    assert (found.code, found.span.line) == ("bad-value", 7)
