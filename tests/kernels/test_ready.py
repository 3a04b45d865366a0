"""Kernels that were compiled elsewhere, and references that lie beside their kernels."""

from __future__ import annotations

import ctypes
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver
from small_plan import rows

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.cli.guard import guarded
from graphc.gpu import nvrtc
from graphc.kernels.compile import READY, compile_image
from graphc.kernels.contract import Catalog, load_contract
from graphc.text.diagnostics import SpecError

SOURCE = """
extern "C" __global__ void twice_f32(const float* x, float* y, float plus, const int* count,
                                     int scale, int lo_, int hi_, int den, int piece) {
  const long long unit = count ? *(const volatile int*)count : scale, rows = count ? scale : 1;
  const long long lo = rows * (unit * lo_ / den), hi = rows * (unit * hi_ / den);
  for (long long i = lo * 8 + threadIdx.x; i < hi * 8; i += blockDim.x) y[i] = 2 * x[i] + plus;
}
"""
PTX = """.version 8.0
.target sm_75
.address_size 64
.visible .entry twice_f32(.param .u64 x) { ret; }
"""
CONTRACT = """graphc_kernel: 1
name: twice
doc: y = 2 x + plus.
binary: build/twice.cubin
entry: twice_f32
axis: n
symbols: [n]
args:
  x: {dtype: f32, shape: [n, 8], access: read, rows: split}
  y: {dtype: f32, shape: [n, 8], access: write, rows: split}
scalars: {plus: f32}
options: {wide: {default: false}}
launch: {grid: [1], block: [256]}
min_capability: 90
exact: true
reference: twice_meaning:twice
"""
MEANING = """def twice(*, x, y, plus, lo, hi):
    y[lo:hi] = 2 * x[lo:hi] + plus
"""
SPEC = """graphc: 1
name: doubled
params:
  tokens: {default: 10, min: 0, count: true}
  pieces: {default: 3, min: 1}
devices: [gpu]
buffers:
  x: {device: gpu, dtype: f32, shape: [tokens, 8], role: input}
  y: {device: gpu, dtype: f32, shape: [tokens, 8], role: output}
ops:
  - {name: double, kernel: twice, device: gpu, args: {x: x, y: y}, scalars: {plus: 1.0}}
schedule:
  double: {pieces: pieces}
"""
X = np.random.default_rng(3).standard_normal((10, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def cubin() -> bytes:
    return nvrtc.compile_cubin(SOURCE, "twice.cu", ("-arch=sm_90",))


@pytest.fixture
def folder(tmp_path: Path, cubin: bytes) -> Path:
    """A folder with a spec, and one of kernels that holds a cubin, its contract, its meaning."""
    kernels = tmp_path / "kernels"
    (kernels / "build").mkdir(parents=True)
    (kernels / "build" / "twice.cubin").write_bytes(cubin)
    (kernels / "twice.yaml").write_text(CONTRACT)
    (kernels / "twice_meaning.py").write_text(MEANING)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


def plan_of(folder: Path, **options: Any) -> graphc.Plan:
    return graphc.compile(folder / "spec.yaml", kernels=[folder / "kernels"], **options)


@pytest.mark.parametrize("cubins", [True, False])
def test_a_cubin_goes_into_the_plan_as_it_is(folder: Path, cubin: bytes, cubins: bool) -> None:
    before = nvrtc.counter.compiles
    plan = plan_of(folder, cubins=cubins)
    (image,) = plan.images.values()
    assert (image.template, image.entry) == ("twice", "twice_f32")
    assert {READY} == {*image.cubins}
    assert b64decode(image.cubins[READY]) == compile_image(image, "sm_100") == cubin
    assert nvrtc.counter.compiles == before


def test_ptx_ends_with_a_zero_for_the_driver(folder: Path) -> None:
    (folder / "kernels" / "twice.ptx").write_text(PTX)
    contract = folder / "kernels" / "twice.yaml"
    contract.write_text(CONTRACT.replace("build/twice.cubin", "twice.ptx"))
    (image,) = plan_of(folder).images.values()
    assert b64decode(image.cubins[READY]) == PTX.encode() + b"\0"


def test_a_binary_that_changes_is_another_kernel(folder: Path, cubin: bytes) -> None:
    first = {*plan_of(folder).images}
    (folder / "kernels" / "build" / "twice.cubin").write_bytes(cubin + b"\0")
    assert first.isdisjoint(plan_of(folder).images)


def test_it_is_found_by_name_among_other_files(folder: Path) -> None:
    (folder / "kernels" / "notes.yaml").write_text("these: are no kernels\n")
    assert Catalog([folder / "kernels"]).names() == ("twice",)


def test_it_runs_on_the_reference(folder: Path) -> None:
    with plan_of(folder).instantiate("reference") as graph:
        graph.bind(x=X)
        graph.launch()
        assert np.array_equal(graph["y"], 2 * X + 1)


def twice(x: int, y: int, plus: float, *piece: int) -> None:
    lo, hi = rows(*piece[:5])
    ours, theirs = (
        np.ctypeslib.as_array((ctypes.c_float * (8 * (hi - lo))).from_address(each + 32 * lo))
        for each in (x, y)
    )
    theirs[:] = 2 * ours + plus


def test_it_is_launched_by_its_entry(folder: Path, cubin: bytes) -> None:
    driver = RecordingDriver(kernels={"twice_f32": twice})
    with CudaGraph(plan_of(folder, pieces=4), driver=driver) as graph:
        graph.bind(x=X)
        for count in (10, 3, 0):
            graph["y"].write(np.zeros_like(X))
            graph.launch(count=count)
            assert np.array_equal(graph["y"].numpy()[:count], 2 * X[:count] + 1)
            assert not graph["y"].numpy()[count:].any()
    assert not driver.leaks()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("build/twice.cubin", "build/twise.cubin", r"cannot read '.*/kernels/build/twise.cubin'"),
        ("build/twice.cubin", "twice_meaning.py", r"expected a file \.cubin or \.ptx"),
        ("binary: build/twice.cubin\n", "", "this contract needs a 'binary'"),
        ("entry: twice_f32", "entry: twice_f23", "has no kernel 'twice_f23'"),
        ("entry: twice_f32\n", "", "has no kernel 'twice'"),
        ("x: {dtype: f32", "x: {dtype: [f32, f16]", "compiled for one dtype, 'x' has 2"),
        ("name: twice", "name: thrice", "the contract is named 'thrice', its file 'twice'"),
    ],
)
def test_a_contract_beside_a_binary_is_held_to_it(
    folder: Path, right: str, wrong: str, message: str
) -> None:
    path = folder / "kernels" / "twice.yaml"
    path.write_text(CONTRACT.replace(right, wrong))
    with pytest.raises(SpecError, match=message) as caught:
        load_contract(path)
    for each in caught.value.diagnostics:
        assert each.code == "bad-contract"
        assert Path(each.span.file) == path


@pytest.mark.parametrize("binary", ["twice.cubin", "twice.ptx"])
@pytest.mark.parametrize("data", [b"", b"\x7fELF" + bytes(60), b"nothing of the kind"])
def test_a_binary_is_one(folder: Path, binary: str, data: bytes) -> None:
    (folder / "kernels" / binary).write_bytes(data)
    path = folder / "kernels" / "twice.yaml"
    path.write_text(CONTRACT.replace("build/twice.cubin", binary))
    with pytest.raises(SpecError, match=r"is no (PTX|cubin)"):
        load_contract(path)


def test_a_template_has_no_binary(folder: Path) -> None:
    path = folder / "kernels" / "twice.cu.j2"
    path.write_text(f"{{#\n{CONTRACT}#}}\n")
    with pytest.raises(SpecError, match="'binary' is for the contract of a ready binary"):
        load_contract(path)


def test_options_are_what_they_were_compiled_with(folder: Path) -> None:
    spec = SPEC.replace("scalars:", "options: {wide: true}, scalars:")
    (folder / "spec.yaml").write_text(spec)
    with pytest.raises(SpecError, match="compiled with 'wide' at its default") as caught:
        plan_of(folder)
    assert Path(caught.value.diagnostics[0].span.file) == folder / "spec.yaml"


# References beside their kernels


def run(folder: Path) -> int:
    words = ["run", str(folder / "spec.yaml"), "--backend", "reference", "--compare", "pieces=1"]
    return guarded([*words, "--kernels", str(folder / "kernels")])


@pytest.mark.parametrize("name", ["twice_meaning", "kernels.twice_meaning"])
def test_a_reference_beside_its_kernel_needs_no_path(folder: Path, name: str) -> None:
    path = folder / "kernels" / "twice.yaml"
    path.write_text(CONTRACT.replace("reference: twice_meaning", f"reference: {name}"))
    before = list(sys.path)
    assert run(folder) == 0
    assert sys.path == before


def test_it_comes_before_a_module_of_that_name(folder: Path) -> None:
    """There is a module ``colorsys``, and beside the kernel there is another."""
    (folder / "kernels" / "twice_meaning.py").rename(folder / "kernels" / "colorsys.py")
    path = folder / "kernels" / "twice.yaml"
    path.write_text(CONTRACT.replace("twice_meaning", "colorsys"))
    assert run(folder) == 0
    import colorsys

    assert not hasattr(colorsys, "twice")


def test_it_may_import_what_lies_beside_it(folder: Path) -> None:
    (folder / "kernels" / "factor_of_twice.py").write_text("FACTOR = 2\n")
    meaning = folder / "kernels" / "twice_meaning.py"
    meaning.write_text(
        "from factor_of_twice import FACTOR\n\n" + MEANING.replace("2 *", "FACTOR *")
    )
    assert run(folder) == 0


def test_a_plan_finds_the_reference_again(folder: Path, tmp_path: Path) -> None:
    plan_of(folder, cubins=False).save(tmp_path / "twice.graphc")
    graph = graphc.load(tmp_path / "twice.graphc").instantiate("reference")
    graph.bind(x=X)
    graph.launch()
    assert np.array_equal(graph["y"], 2 * X + 1)


def test_a_reference_that_changes_is_read_again(folder: Path) -> None:
    meaning = folder / "kernels" / "twice_meaning.py"
    for factor in (2, 33):
        meaning.write_text(MEANING.replace("2 *", f"{factor} *"))
        graph = plan_of(folder).instantiate("reference")
        graph.bind(x=X)
        graph.launch()
        assert np.array_equal(graph["y"], factor * X + np.float32(1))


def test_a_reference_that_is_nowhere_is_told_where_it_is_looked_for(folder: Path) -> None:
    (folder / "kernels" / "twice_meaning.py").unlink()
    with pytest.raises(SpecError, match="beside the template or importable"):
        plan_of(folder).instantiate("reference")
