"""Extern ops: what their functions are told, and how far a cut goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from both import BACKENDS, opened
from fakes import RecordingDriver

from graphc import api
from graphc.gpu.protocol import CopyCall
from graphc.text.diagnostics import SpecError

SPEC = """
graphc: 1
name: outside
params: {{rows: {{default: 12, {count}}}, pieces: {{default: 1}}}}
devices: [gpu]
buffers:
  x: {{device: gpu, dtype: f32, shape: [rows, 8], role: input}}
  y: {{device: gpu, dtype: f32, shape: [rows, 8], role: output}}
ops:
  - name: move
    device: gpu
    extern:
      function: {function}
      reference: {reference}
      axis: rows
      args:
        x: {{buffer: x, access: read, rows: split}}
        y: {{buffer: y, access: write, rows: split}}
      scalars: {{{scalars}}}
schedule: {{move: {{pieces: pieces}}}}
"""
X = np.arange(96, dtype=np.float32).reshape(12, 8)
CALLS: list[tuple[int, int, int | None]] = []
DRIVERS: list[RecordingDriver] = []


def enqueue(*, stream: int, x: Any, y: Any, lo: int, hi: int, count: int) -> None:
    row = x.nbytes // x.shape[0]
    CALLS.append((lo, hi, count))
    call = CopyCall(y.pointer + lo * row, x.pointer + lo * row, (hi - lo) * row)
    DRIVERS[0].copy(call, stream)


def meaning(*, x: Any, y: Any, lo: int, hi: int, count: int | None) -> None:
    CALLS.append((lo, hi, count))
    y[lo:hi] = x[lo:hi]


def enqueue_whole(*, stream: int, x: Any, y: Any) -> None:
    DRIVERS[0].copy(CopyCall(y.pointer, x.pointer, x.nbytes), stream)


def whole(*, x: Any, y: Any) -> None:
    y[...] = x


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    module = ModuleType("outside_library")
    for each in (enqueue, meaning, enqueue_whole, whole):
        setattr(module, each.__name__, each)
    module.number = 3  # type: ignore[attr-defined]
    sys.modules["outside_library"] = module
    CALLS.clear()
    yield
    del sys.modules["outside_library"]


def compiled(
    folder: Path,
    *,
    is_counted: bool = False,
    function: str = "enqueue",
    reference: str = "meaning",
    scalars: str = "",
    **values: Any,
) -> Any:
    text = SPEC.format(
        count=f"count: {str(is_counted).lower()}",
        function=f"outside_library:{function}",
        reference=f"outside_library:{reference}",
        scalars=scalars,
    )
    path = folder / "outside.yaml"
    path.write_text(text)
    return api.compile(path, cubins=False, arch="sm_90a", **values)


def run(backend: str, plan: Any, count: int | None = None) -> np.ndarray[Any, Any]:
    with opened(backend, plan) as graph:
        DRIVERS[:] = [graph._driver] if backend == "cuda" else []
        graph.bind(x=X, y=np.zeros_like(X))
        graph.launch(count=count)
        return np.array(np.asarray(graph["y"]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pieces", [1, 3])
def test_each_piece_does_its_own_rows_and_no_others(
    tmp_path: Path, backend: str, pieces: int
) -> None:
    assert np.array_equal(run(backend, compiled(tmp_path, pieces=pieces)), X)
    wanted = [(12 * at // pieces, 12 * (at + 1) // pieces) for at in range(pieces)]
    assert [(lo, hi) for lo, hi, _ in CALLS] == wanted


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_without_rows_is_not_cut(tmp_path: Path, backend: str) -> None:
    names = {"function": "enqueue_whole", "reference": "whole"}
    assert np.array_equal(run(backend, compiled(tmp_path, **names)), X)
    with pytest.raises(SpecError, match=r"cannot be cut into 3 pieces: '.*' has no parameters"):
        opened(backend, compiled(tmp_path, pieces=3, **names))


@pytest.mark.parametrize("backend", BACKENDS)
def test_counted_rows_are_worked_on_up_to_the_capacity(tmp_path: Path, backend: str) -> None:
    assert np.array_equal(run(backend, compiled(tmp_path, is_counted=True), count=5), X)
    ((lo, hi, count),) = CALLS
    assert (lo, hi) == (0, 12)
    assert count == 5 if backend == "reference" else count  # on a GPU: an address


@pytest.mark.parametrize("call", [api.compile, api.check])
def test_counted_rows_are_not_cut(tmp_path: Path, call: Any) -> None:
    compiled(tmp_path, is_counted=True)
    with pytest.raises(SpecError, match="'rows' governs its axis") as caught:
        call(tmp_path / "outside.yaml", pieces=3)
    assert [each.code for each in caught.value.diagnostics] == ["cannot-cut"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": "gone", "reference": "gone"}, "cannot load 'outside_library:gone'"),
        ({"function": "number", "reference": "number"}, "'outside_library:number' is no function"),
        ({"scalars": "eps: 0.5"}, "does not fit op 'move': got an unexpected .* 'eps'"),
    ],
)
def test_a_function_that_does_not_fit_is_told_before_any_launch(
    tmp_path: Path, backend: str, changes: Any, message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        opened(backend, compiled(tmp_path, **changes))
    (found,) = caught.value.diagnostics
    assert found.code == "unknown-extern"
    assert found.span.line > 1


def test_names_that_graphc_gives_are_no_arguments(tmp_path: Path) -> None:
    for name in ("lo", "hi", "count", "stream"):
        with pytest.raises(SpecError, match=f"'{name}' cannot be the name of an extern's"):
            compiled(tmp_path, scalars=f"{name}: 1")


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        (", rows: split", "", "none of its arguments has rows that are split", "write rows: split"),
        ("access: write, rows: split", "access: write", "would write all of 'y'", "rows: split"),
    ],
)
def test_what_an_extern_lacks_to_be_cut_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str, hint: str
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SPEC", SPEC.replace(old, new))
    with pytest.raises(SpecError) as caught:
        compiled(tmp_path, pieces=3)
    (found,) = caught.value.diagnostics
    assert found.code == "cannot-cut"
    assert message in found.message
    assert hint in (found.hint or "")


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_extern_that_raises_is_the_authors_fault(tmp_path: Path, backend: str) -> None:
    def broken(*, x: Any, y: Any, stream: int = 0) -> None:
        raise RuntimeError("not today")

    sys.modules["outside_library"].broken = broken  # type: ignore[attr-defined]
    plan = compiled(tmp_path, function="broken", reference="broken")
    with pytest.raises(SpecError, match="RuntimeError: not today") as caught:
        run(backend, plan)
    (found,) = caught.value.diagnostics
    assert found.code == "function-failed"
    assert "outside_library:broken' failed in op 'move'" in found.message
    assert [note.span.file for note in found.notes] == [__file__]
