"""The matrix kernels on a GPU: right against f64, within their regions, the same bits in any cut.

Every buffer lies between guard zones, all poisoned with NaN: what is read outside spoils a result,
what is written outside shows. Both paths run, wgmma where the GPU has it and mma.sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from graphc.dtypes import dtype
from graphc.gpu import open_driver
from graphc.gpu.protocol import Driver
from graphc.text.diagnostics import CudaError

pytestmark = pytest.mark.gpu
Array = NDArray[Any]
GUARD = 4096
PATHS = (90, 80)


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    try:
        found = open_driver()
        found.device(0)
    except CudaError as problem:
        pytest.skip(str(problem))
    context = found.retain_context(0)
    found.push_context(context)
    yield found
    found.pop_context()


class Memory:
    """Arrays on the GPU, each between guard zones, all NaN until written."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.places = driver, dict[str, tuple[int, Array]]()

    def put(self, name: str, array: Array) -> int:
        framed = np.full(array.nbytes + 2 * GUARD, 0xFF, np.uint8)
        framed[GUARD : GUARD + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
        pointer = self.driver.allocate(framed.nbytes)
        self.driver.write(pointer, framed.ctypes.data, framed.nbytes)
        self.places[name] = (pointer, array)
        return pointer + GUARD

    def get(self, name: str) -> Array:
        """The array as the GPU left it; its guard zones must be untouched."""
        pointer, array = self.places[name]
        framed = np.empty(array.nbytes + 2 * GUARD, np.uint8)
        self.driver.synchronize(0)
        self.driver.read(framed.ctypes.data, pointer, framed.nbytes)
        assert (framed[:GUARD] == 0xFF).all()
        assert (framed[GUARD + array.nbytes :] == 0xFF).all()
        return framed[GUARD : GUARD + array.nbytes].view(array.dtype).reshape(array.shape)

    def close(self) -> None:
        for pointer, _ in self.places.values():
            self.driver.free(pointer)


@dataclass(frozen=True)
class Case:
    """A layer's sizes; of ``routed`` experts the first ``experts`` are here."""

    tokens: int
    top_k: int
    hidden: int
    ff: int
    experts: int
    routed: int
    kind: str = "bf16"
    skew: float = 0.0

    def ids(self) -> Array:
        draw = np.random.default_rng(5)
        weight = 1.0 / (1.0 + np.arange(self.routed)) ** self.skew
        keys = draw.gumbel(size=(self.tokens, self.routed)) + np.log(weight)
        return np.argsort(-keys, axis=1)[:, : self.top_k]


CASES = {
    "small": Case(37, 4, 64, 32, 16, 16, "f16"),
    "ragged": Case(301, 3, 200, 72, 5, 9, "bf16", 1.0),
    "one": Case(700, 1, 256, 640, 1, 1, "f16"),
    "many": Case(600, 4, 64, 32, 1024, 1024, "bf16"),
    "none": Case(40, 2, 64, 32, 3, 40, "f16", -9.0),
    "empty": Case(0, 2, 64, 32, 4, 4, "bf16"),
    "h2560": Case(530, 4, 2560, 640, 6, 9, "bf16", 0.7),
    "h2880": Case(260, 4, 2880, 2880, 4, 6, "bf16"),
    "h4096": Case(130, 6, 4096, 1024, 6, 10, "f16", 0.5),
    "h7168": Case(90, 4, 7168, 2048, 3, 6, "bf16"),
}


@dataclass(frozen=True)
class Grouped:
    """Pairs of a case grouped by piece, then expert, in token order."""

    src: Array
    offsets: Array
    pair: Array  # token * top_k + choice of each row, -1 behind the last expert's
    expert: Array


def grouped(case: Case, of: int) -> Grouped:
    ids, pairs = case.ids(), case.tokens * case.top_k
    src, pair = np.full(pairs, -1, np.int32), np.full(pairs, -1)
    expert, offsets = np.full(pairs, -1), np.zeros((of, case.experts + 1), np.int32)
    for piece in range(of):
        lo, hi = case.tokens * piece // of, case.tokens * (piece + 1) // of
        flat = ids[lo:hi].reshape(-1)
        order = np.argsort(flat, kind="stable")
        order = order[flat[order] < case.experts]
        at = lo * case.top_k + np.arange(len(order))
        pair[at], expert[at] = lo * case.top_k + order, flat[order]
        src[at] = pair[at] // case.top_k
        ends = np.searchsorted(flat[order], np.arange(case.experts + 1))
        offsets[piece] = lo * case.top_k + ends
    return Grouped(src, offsets, pair, expert)


def values(seed: int, kind: str, *shape: int) -> Array:
    """Distinct and asymmetric; products of rows have a deviation near 1."""
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return ((drawn + 0.1) / np.float32(shape[-1] ** 0.5 if len(shape) > 2 else 1)).astype(
        dtype(kind).numpy
    )


def run_grouped(
    driver: Driver,
    case: Case,
    *,
    path: int,
    of: int = 1,
    out: str = "f32",
    blocks: int = 0,
    options: dict[str, int] | None = None,
) -> tuple[Grouped, Array, Array]:
    from benchmarks.kernel_call import LoadedKernel

    layout, kind = grouped(case, of), dtype(case.kind).numpy
    pairs = (case.tokens, case.top_k)
    arrays = {
        "x": values(1, case.kind, case.tokens, case.hidden),
        "src": layout.src.reshape(pairs),
        "offsets": layout.offsets,
        "w": values(2, case.kind, case.experts, 2 * case.ff, case.hidden),
        "w_down": values(3, case.kind, case.experts, case.hidden, case.ff),
        "h": np.full((*pairs, case.ff), np.nan, kind),
        "rows": np.full((*pairs, case.hidden), np.nan, dtype(out).numpy),
    }
    kinds = dict.fromkeys(arrays, case.kind) | {"src": "i32", "offsets": "i32", "rows": out}
    buffers = {name: (kinds[name], each.shape) for name, each in arrays.items()}
    up = {name: buffers[name] for name in ("x", "src", "offsets", "w", "h")}
    down = {name: buffers[name] for name in ("h", "offsets", "rows")} | {"w": buffers["w_down"]}
    memory = Memory(driver)
    at = {name: memory.put(name, each) for name, each in arrays.items()}
    first = LoadedKernel(driver, "grouped_up", up, options=options, path=path)
    second = LoadedKernel(driver, "grouped_down", down, options=options, path=path)
    for piece in range(of):
        first.launch(at, piece=piece, of=of, blocks=blocks)
        second.launch(at | {"w": at["w_down"]}, piece=piece, of=of, blocks=blocks)
    h, rows = memory.get("h"), memory.get("rows")
    for name in ("x", "src", "offsets", "w", "w_down"):
        assert memory.get(name).tobytes() == arrays[name].tobytes()
    memory.close()
    return layout, h.reshape(-1, case.ff), rows.reshape(-1, case.hidden)


def check_near(found: Array, exact: Array, kind: str) -> None:
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-14}[kind]
    found = found.astype(np.float64)
    assert np.isfinite(found).all()
    if found.size:
        assert np.linalg.norm(found - exact) <= unit * np.linalg.norm(exact)
        np.testing.assert_allclose(found, exact, rtol=4 * unit, atol=4 * unit)


def exact_product(x: Array, w: Array) -> Array:
    return x.astype(np.float64) @ w.astype(np.float64).T


def gated(both: Array) -> Array:
    gate, up = np.split(both, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CASES)
def test_grouped_products_are_those_of_f64_and_the_rest_stays(
    driver: Driver, name: str, path: int
) -> None:
    case = CASES[name]
    layout, h, rows = run_grouped(driver, case, path=path)
    x = values(1, case.kind, case.tokens, case.hidden)
    w_up = values(2, case.kind, case.experts, 2 * case.ff, case.hidden)
    w_down = values(3, case.kind, case.experts, case.hidden, case.ff)
    for expert in np.unique(layout.expert[layout.expert >= 0]):
        own = layout.expert == expert
        exact = gated(exact_product(x[layout.src[own]], w_up[expert]))
        check_near(h[own], exact, case.kind)
        check_near(rows[own], exact_product(h[own], w_down[expert]), "f32")
    rest = layout.expert < 0
    assert np.isnan(h[rest].astype(np.float32)).all()
    assert np.isnan(rows[rest]).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["small", "ragged", "h2560"])
def test_a_rows_bits_depend_on_neither_piece_nor_tile_nor_blocks(
    driver: Driver, name: str, path: int
) -> None:
    case = CASES[name]

    def by_pair(**how: Any) -> tuple[bytes, bytes]:
        layout, h, rows = run_grouped(driver, case, path=path, **how)
        order = np.argsort(layout.pair[layout.pair >= 0])
        return (
            h[layout.pair >= 0][order].tobytes(),
            rows[layout.pair >= 0][order].tobytes(),
        )

    whole = by_pair()
    for of in (3, 8):
        assert by_pair(of=of) == whole
    assert by_pair(blocks=3) == whole
    for tile_rows in (64, 128):
        assert by_pair(of=2, options={"tile_rows": tile_rows}) == whole


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("kind", "out"), [("f16", "f16"), ("bf16", "bf16"), ("f16", "bf16")])
def test_results_of_16_bits_are_the_rounded_f32_results(
    driver: Driver, kind: str, out: str, path: int
) -> None:
    case = Case(150, 3, 328, 136, 7, 9, kind)
    layout, _, wide = run_grouped(driver, case, path=path)
    _, _, narrow = run_grouped(driver, case, path=path, out=out)
    used = layout.expert >= 0
    assert wide[used].astype(dtype(out).numpy).tobytes() == narrow[used].tobytes()


def run_dense(
    driver: Driver, name: str, arrays: dict[str, Array], kinds: dict[str, str], path: int, of: int
) -> Array:
    from benchmarks.kernel_call import LoadedKernel

    memory = Memory(driver)
    at = {each: memory.put(each, array) for each, array in arrays.items()}
    buffers = {each: (kinds[each], array.shape) for each, array in arrays.items()}
    kernel = LoadedKernel(driver, name, buffers, path=path)
    for piece in range(of):
        kernel.launch(at, piece=piece, of=of)
    result = memory.get(list(arrays)[-1])
    memory.close()
    return result


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("out", ["f32", "bf16"])
@pytest.mark.parametrize(("depth", "columns"), [(200, 72), (64, 512), (2560, 1), (640, 4)])
@pytest.mark.parametrize("is_gated", [False, True])
def test_dense_is_the_product_of_f64_in_any_cut(
    driver: Driver, depth: int, columns: int, out: str, is_gated: bool, path: int
) -> None:
    x, w = values(1, "bf16", 333, depth), values(2, "bf16", 1, columns, depth)[0]
    arrays = {"x": x, "w": w}
    exact = exact_product(x, w)
    if is_gated:
        arrays["gate"] = values(3, "f32", 333, 1)
        exact = exact / (1 + np.exp(-arrays["gate"].astype(np.float64)))
    arrays["y"] = np.full((333, columns), np.nan, dtype(out).numpy)
    kinds = {"x": "bf16", "w": "bf16", "gate": "f32", "y": out}
    whole = run_dense(driver, "dense", arrays, kinds, path, 1)
    check_near(whole, exact, out)
    assert run_dense(driver, "dense", arrays, kinds, path, 7).tobytes() == whole.tobytes()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("depth", "columns"), [(200, 72), (2560, 640)])
def test_dense_up_is_the_gated_product_of_f64_in_any_cut(
    driver: Driver, depth: int, columns: int, path: int
) -> None:
    x, w = values(1, "f16", 333, depth), values(2, "f16", 1, 2 * columns, depth)[0]
    arrays = {"x": x, "w": w, "h": np.full((333, columns), np.nan, np.float16)}
    kinds = dict.fromkeys(arrays, "f16")
    whole = run_dense(driver, "dense_up", arrays, kinds, path, 1)
    check_near(whole, gated(exact_product(x, w)), "f16")
    assert run_dense(driver, "dense_up", arrays, kinds, path, 7).tobytes() == whole.tobytes()


@pytest.mark.parametrize("path", PATHS)
def test_f16_results_saturate_and_keep_nan(driver: Driver, path: int) -> None:
    x = np.full((4, 64), 400.0, np.float16)
    x[1], x[2, 5], x[3] = -400.0, np.nan, 1.0
    w = np.full((8, 64), 300.0, np.float16)
    arrays = {"x": x, "w": w, "y": np.zeros((4, 8), np.float16)}
    y = run_dense(driver, "dense", arrays, dict.fromkeys(arrays, "f16"), path, 1)
    assert (y[0] == 65504).all()
    assert (y[1] == -65504).all()
    assert np.isnan(y[2]).all()
    assert (y[3] == 19200).all()
