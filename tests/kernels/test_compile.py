"""Compiling: caches that never fail a compile, and errors that quote the template."""

from __future__ import annotations

import sys
from base64 import b64encode
from pathlib import Path

import pytest

from graphc.gpu import nvrtc
from graphc.ir import Kernel
from graphc.kernels import compile as compiling
from graphc.kernels.compile import READY, compile_image
from graphc.kernels.contract import load_contract
from graphc.kernels.render import image
from graphc.plan import KernelImage, Launch
from graphc.text.diagnostics import CudaError, SpecError

ARCH = "sm_90a"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path / "cache"))
    compiling.compiled.clear()
    return tmp_path / "cache"


def small(body: str = "") -> KernelImage:
    source = '#line 3 "small.cu.j2"\nextern "C" __global__ void small(int* x) { *x = 1; }\n' + body
    launch = Launch(("1",), ("1",))
    return KernelImage("small-1", "small", "small", source, ("x",), (), launch)


def calls() -> int:
    return nvrtc.counter.compiles


def test_a_second_compile_in_the_process_calls_nothing() -> None:
    before = calls()
    first = compile_image(small(), ARCH)
    assert first.startswith(b"\x7fELF")
    assert calls() == before + 1
    assert compile_image(small(), ARCH) == first
    assert calls() == before + 1


def test_another_process_finds_the_cubin_on_disk(folder: Path) -> None:
    first = compile_image(small(), ARCH)
    compiling.compiled.clear()
    before = calls()
    assert compile_image(small(), ARCH) == first
    assert calls() == before
    assert [each.suffix for each in folder.iterdir()] == [".cubin"]


def test_source_and_architecture_have_entries_of_their_own(folder: Path) -> None:
    compile_image(small(), ARCH)
    compile_image(small(), "sm_80")
    compile_image(small("__device__ int more;"), ARCH)
    assert len(list(folder.iterdir())) == 3


def test_where_a_template_lies_does_not_matter(folder: Path) -> None:
    compile_image(small(), ARCH)
    moved = small().source.replace("small.cu.j2", "elsewhere/small.cu.j2")
    launch = Launch(("1",), ("1",))
    compile_image(KernelImage("a", "small", "small", moved, ("x",), (), launch), ARCH)
    assert len(list(folder.iterdir())) == 1


def damages(entry: Path) -> list[bytes]:
    whole = entry.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    return [b"", whole[:10], whole[:-1], bytes(flipped), b"x" * len(whole)]


def test_a_corrupted_entry_is_made_again(folder: Path) -> None:
    first = compile_image(small(), ARCH)
    (entry,) = folder.iterdir()
    for damage in damages(entry):
        entry.write_bytes(damage)
        compiling.compiled.clear()
        before = calls()
        assert compile_image(small(), ARCH) == first
        assert calls() == before + 1
    compiling.compiled.clear()
    before = calls()
    assert compile_image(small(), ARCH) == first
    assert calls() == before


def test_a_cache_that_cannot_be_used_costs_a_compilation_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(blocked))
    assert compile_image(small(), ARCH)
    assert blocked.read_text() == "no folder"


def test_an_entry_that_is_a_folder_is_left_alone(folder: Path) -> None:
    compile_image(small(), ARCH)
    (entry,) = folder.iterdir()
    entry.unlink()
    (entry / "inside").mkdir(parents=True)
    compiling.compiled.clear()
    assert compile_image(small(), ARCH)
    assert [each.name for each in folder.iterdir()] == [entry.name]


def test_no_home_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPHC_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert compile_image(small(), ARCH)


def test_the_users_cache_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPHC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compile_image(small(), ARCH)
    assert len(list((tmp_path / "graphc").iterdir())) == 1


CONTRACT = """{#
graphc_kernel: 1
name: wrong
doc: does not compile.
symbols: [n]
args: {x: {dtype: f32, shape: [n], access: update}}
launch: {grid: [1], block: [32]}
exact: true
#}
"""


def test_a_mistake_quotes_the_rendered_line_and_the_template(tmp_path: Path) -> None:
    (tmp_path / "part.cuh.j2").write_text(
        "// a part\n\n__device__ float half(float x) { return y; }\n"
    )
    path = tmp_path / "wrong.cu.j2"
    body = (
        '{% include "part.cuh.j2" %}\n'
        'extern "C" __global__ void {{ entry }}({{ params }}) {\n  x[0] = {{ n }} + ;\n}\n'
    )
    path.write_text(CONTRACT + body)
    made = image(load_contract(path), Kernel("wrong", {"n": 7}), {"x": "f32"}, 90)
    with pytest.raises(SpecError) as caught:
        compile_image(made, ARCH)
    part, own = caught.value.diagnostics
    assert {part.code, own.code} == {"bad-kernel"}
    assert (Path(part.span.file), part.span.line) == (tmp_path / "part.cuh.j2", 3)
    assert 'identifier "y" is undefined' in part.message
    assert (Path(own.span.file), own.span.line) == (path, CONTRACT.count("\n") + 3)
    assert "expected an expression" in own.message
    text = str(caught.value)
    assert "x[0] = 7 + ;" in text
    assert "x[0] = {{ n }} + ;" in text
    number = made.source.split("\n").index("  x[0] = 7 + ;") + 1
    assert f"rendered line {number} is" in text


def test_a_gpu_too_old_for_a_kernel_is_refused_by_name() -> None:
    contract_image = KernelImage(
        "k", "new", "new", "", (), (), Launch(("1",), ("1",)), min_capability=90
    )
    with pytest.raises(CudaError, match=r"'new' needs compute capability 9\.0, sm_80 has 8\.0"):
        compile_image(contract_image, "sm_80")


def test_an_architecture_that_nvrtc_does_not_know_is_named() -> None:
    with pytest.raises(CudaError, match="does not compile for sm_999; it knows sm_"):
        compile_image(small(), "sm_999")


def test_a_ready_cubin_is_taken_as_it_is() -> None:
    ready = KernelImage(
        "k", "k", "k", "", (), (), Launch(("1",), ("1",)),
        cubins={READY: b64encode(b"cubin").decode()},
    )  # fmt: skip
    before = calls()
    assert compile_image(ready, ARCH) == b"cubin"
    assert calls() == before


def test_missing_bindings_are_a_cuda_error_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvrtc.bindings.cache_clear()
    nvrtc.version.cache_clear()
    nvrtc.architectures.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CudaError, match=r"pip install graphc\[cuda13\]"):
        compile_image(small(), ARCH)
    assert CudaError.exit_code == 3


def test_a_missing_library_is_a_cuda_error_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cuda.bindings import nvrtc as real

    def missing() -> None:
        raise RuntimeError("Failure finding libnvrtc.so")

    nvrtc.bindings.cache_clear()
    nvrtc.version.cache_clear()
    nvrtc.architectures.cache_clear()
    monkeypatch.setattr(real, "nvrtcVersion", missing)
    with pytest.raises(CudaError, match=r"libnvrtc.*pip install graphc\[cuda13\]"):
        compile_image(small(), ARCH)
