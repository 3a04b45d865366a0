"""Every shipped kernel compiles for every architecture that it claims, at plain and odd sizes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from kernel_cases import CASES, Case, catalog

from graphc.gpu import nvrtc
from graphc.ir import Kernel
from graphc.kernels.compile import compile_image
from graphc.kernels.render import bare, image
from graphc.text.diagnostics import SpecError

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a", "sm_100")

# The sizes of the layer that graphc is first made for.
FULL = {
    "n": 16384, "m": 2560, "k": 2560, "out": 512, "tokens": 16384, "hidden": 2560, "experts": 512,
    "top_k": 10, "ff": 640, "pieces": 8, "ends": 257, "pairs": 163840,
    "capacity": 4096, "ranks": 8, "slots": 8, "local": 16, "parts": 16, "rows": 32768, "scales": 20,
    "words": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cubins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled once for all runs of the tests, away from the user's cache."""
    assert request.config.cache is not None
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(request.config.cache.mkdir("graphc-cubins")))


def full(name: str) -> Case:
    contract = catalog().contract(name)
    fp8 = {"x": "fp8_e4m3", "y": "fp8_e4m3"}
    types = {"convert": {"y": "f16"}, "ep_dispatch": fp8, "ep_identity": {"x": "fp8_e4m3"}}
    return Case(name, {symbol: FULL[symbol] for symbol in contract.symbols}, types.get(name, {}))


def compile_case(case: Case, arch: str) -> bytes:
    number = int("".join(each for each in arch if each.isdigit()))
    dtypes = {name: case.dtype_of(name) for name in case.given}
    return compile_image(image(case.contract, case.call, dtypes, number), arch)


@pytest.mark.parametrize(("name", "arch"), list(product(catalog().names(), ARCHITECTURES)))
def test_a_kernel_compiles_at_full_size(name: str, arch: str) -> None:
    number = int("".join(each for each in arch if each.isdigit()))
    if number < catalog().contract(name).min_capability:
        pytest.skip(f"{name} needs {catalog().contract(name).min_capability}")
    if number not in nvrtc.architectures():
        pytest.skip(f"this NVRTC does not know {arch}")
    assert compile_case(full(name), arch).startswith(b"\x7fELF")


def odd_cases() -> list[tuple[Case, str]]:
    """Of each kernel's cases the first, the middle and the last with a source of its own."""
    by_kernel: dict[str, dict[str, Case]] = {}
    for case in CASES:
        dtypes = {name: case.dtype_of(name) for name in case.given}
        key = image(case.contract, case.call, dtypes, 80).key
        by_kernel.setdefault(case.kernel, {}).setdefault(key, case)
    found = []
    for sources in by_kernel.values():
        cases = list(sources.values())
        found += [(cases[0], "sm_80"), (cases[len(cases) // 2], "sm_90a"), (cases[-1], "sm_80")]
    return found


@pytest.mark.parametrize(("case", "arch"), odd_cases(), ids=str)
def test_a_kernel_compiles_at_odd_sizes(case: Case, arch: str) -> None:
    assert compile_case(case, arch)


@pytest.mark.parametrize("name", catalog().names())
def test_a_kernel_includes_nothing(name: str) -> None:
    case = full(name)
    dtypes = {each: case.dtype_of(each) for each in case.given}
    source = bare(image(case.contract, case.call, dtypes, 90).source)
    assert "#include" not in source
    assert "__restrict__" not in source  # it would allow the read-only path, which is not coherent
    assert "ld.global.nc" not in source
    assert "__ldg" not in source


def rejected(case: Case) -> str:
    dtypes = {name: case.dtype_of(name) for name in case.given}
    with pytest.raises(SpecError) as caught:
        image(case.contract, case.call, dtypes, 90)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "bad-kernel"
    assert Path(diagnostic.span.file).name.endswith(".j2")
    return diagnostic.message


def test_what_a_kernel_cannot_do_is_refused() -> None:
    convert = Case("convert", {"n": 4, "m": 4}, {"x": "i32", "y": "f32"})
    assert "only f32, f16 and bf16 convert" in rejected(convert)
    many = Case("router", {"tokens": 4, "experts": 64, "top_k": 33})
    assert "at most 32 experts" in rejected(many)
    few = Case("router", {"tokens": 4, "experts": 3, "top_k": 4})
    assert "cannot choose 4 of 3" in rejected(few)
    nothing = Case("rms_mix", {"tokens": 4, "hidden": 8}, absent=("mixed", "mixed_h"))
    assert "mixed" in rejected(nothing)
    wide = Case("dense_up", {"tokens": 4, "k": 32768, "ff": 32768})
    assert "32768 columns and depth 32768 spans 2 GiB of weights" in rejected(wide)


WIDTHS = {"capacity": 8, "hidden": 256, "top_k": 4, "slots": 2, "ranks": 2, "rows": 16, "scales": 2}
WIDTHS |= {"local": 4, "parts": 4, "words": 1}


@pytest.mark.parametrize(
    ("kernel", "symbols", "values", "message"),
    [
        ("ep_count", {"slots": 1}, {}, "needs routes of 2 entries a token, not 1"),
        ("ep_count", {"ranks": 65, "slots": 4}, {}, "at most 64 ranks, not 65"),
        ("ep_scan", {"parts": 3}, {}, "writes 4 numbers of what was received"),
        ("ep_scan", {}, {"options": {"layout": "rank_major"}}, "writes 2 numbers"),
        ("ep_quantise", {"hidden": 200}, {}, "hidden (200) must be 128 times scales (2)"),
        ("ep_dispatch_quant", {"hidden": 384}, {}, "hidden (384) must be 128 times scales (2)"),
        ("ep_dispatch", {"top_k": 33}, {}, "at most 32 choices a token, not 33"),
        ("ep_dispatch", {"hidden": 20}, {}, "rows of whole 16 bytes; a row of 20 bf16"),
        ("ep_dispatch", {}, {"dtypes": {"y": "fp8_e4m3"}}, "y is fp8_e4m3, x bf16"),
        ("ep_dispatch", {}, {"absent": ("s",)}, "nothing to store in ys without s"),
        ("ep_identity", {}, {}, "takes scales with fp8_e4m3, and only with it"),
        ("ep_combine", {"hidden": 12}, {}, "rows of whole 16 bytes; a row of 12 bf16"),
        ("ep_combine", {"slots": 33}, {}, "at most 32 shares of a token, not 33"),
    ],
)
def test_what_dispatch_and_combine_cannot_do_is_refused(
    kernel: str, symbols: dict[str, int], values: dict[str, Any], message: str
) -> None:
    sizes = {name: WIDTHS[name] for name in catalog().contract(kernel).symbols}
    assert message in rejected(Case(kernel, sizes | symbols, **values))


def test_the_source_does_not_depend_on_the_capacity() -> None:
    for name in catalog().names():
        keys = set()
        for capacity in (64, 128):
            case = full(name)
            axis = case.contract.axis
            symbols = {**case.symbols, **({axis: capacity} if axis else {})}
            symbols = {k: v * capacity if k == "pairs" else v for k, v in symbols.items()}
            dtypes = {each: case.dtype_of(each) for each in case.given}
            moved = Case(name, symbols, case.dtypes, count=1)
            made = image(case.contract, Kernel(name, moved.call.symbols), dtypes, 90)
            keys.add(made.key)
        assert len(keys) == 1 or name.startswith("grouped"), name
