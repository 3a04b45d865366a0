"""Contracts: what they may say, and how calls are checked against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphc.ir import MAPPED, Axis, Buffer, Mode, Rows, RowsKind
from graphc.kernels.bind import Bound, bind
from graphc.kernels.call import Argument
from graphc.kernels.contract import Catalog, Contract, load_contract
from graphc.regions import Region
from graphc.resources import shipped
from graphc.text.diagnostics import Span, SpecError
from graphc.text.expr import factor_of

TEXT = """{#
graphc_kernel: 1
name: toy
doc: A kernel with an argument of every kind.
axis: n
symbols: [n, k, m, pieces]
args:
  x: {dtype: [f32, f16], shape: [n, "*m"], access: read, rows: split}
  ids: {dtype: i32, shape: [n, k], access: read, rows: split}
  slots: {dtype: i32, shape: [n * k], access: write_some, rows: {split: k}, memory: [device]}
  offsets: {dtype: i32, shape: [pieces, 3], access: write, rows: piece}
  rows: {dtype: f32, shape: [n * k, 2], access: read, rows: gather, optional: true}
scalars: {first: i32, scale: f32}
options: {tile: {default: 64, choices: [32, 64]}, fast: {default: false}}
launch: {grid: ["ceil_div(hi - lo, tile)"], block: [256], shared: 1024, cooperative: true}
exact: {tolerance: {rtol: 1.0e-2, atol: 0.001}, row_independent: true}
cost: {flops: "rows_used * m", bytes: "n * m * bytes(x)", estimate: {rows_used: (hi - lo) * k}}
reference: graphc.reference.convert:convert
#}
body
"""
HERE = Span("spec.yaml", 3, 5, 1)


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    path = tmp_path_factory.mktemp("kernels") / "toy.cu.j2"
    path.write_text(TEXT)
    return load_contract(path)


def buffers(n: int = 8, k: int = 2, per_count: int = 1) -> dict[str, Buffer]:
    return {
        "x": Buffer("x", "one", "f32", (n, 4, 5), per_count),
        "ids": Buffer("ids", "one", "i32", (n, k), per_count),
        "slots": Buffer("slots", "one", "i32", (n * k,), per_count * k),
        "offsets": Buffer("offsets", "one", "i32", (4, 3)),
    }


def call(contract: Contract, given: Mapping[str, Buffer | Argument | None], **other: Any) -> Bound:
    args = {
        name: each if isinstance(each, Argument) else Argument(each, None, HERE)
        for name, each in given.items()
    }
    settings: dict[str, Any] = {"options": {}, "scalars": {"first": 0, "scale": 1.0}}
    return bind(contract, args, **{**settings, "span": HERE, "device": "one", **other})


def codes(contract: Contract, given: Mapping[str, Any], **other: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        call(contract, given, **other)
    return sorted(each.code for each in caught.value.diagnostics)


@given(n=st.integers(0, 50), k=st.integers(1, 5), per_count=st.integers(0, 3))
def test_a_fitting_call_is_bound(contract: Contract, n: int, k: int, per_count: int) -> None:
    bound = call(contract, buffers(n, k, per_count))
    assert bound.kernel.symbols == {"n": n, "k": k, "m": 20, "pieces": 4}
    assert factor_of(bound.kernel.symbols["n"]) == per_count
    assert bound.axis == Axis(n, per_count)
    assert bound.kernel.options == {"tile": 64, "fast": False}
    assert [each.argument for each in bound.accesses] == ["x", "ids", "slots", "offsets"]
    assert bound.accesses[2].mode is Mode.WRITE_SOME
    assert bound.accesses[2].rows == Rows(RowsKind.SPLIT, k)
    assert bound.accesses[2].region == Region("slots", 0, 4 * n * k)
    assert bound.accesses[3].rows.kind is RowsKind.PIECE


@given(data=st.data())
def test_any_wrong_extent_is_found(contract: Contract, data: st.DataObject) -> None:
    """A changed extent is refused, unless nothing else of the call hangs on it."""
    right = buffers(per_count=0)
    name = data.draw(st.sampled_from(sorted(right)))
    dim = data.draw(st.integers(0, len(right[name].shape) - 1))
    if name == "x" and dim > 0:
        return  # the rest of x is free
    if name == "offsets" and dim == 0:
        return  # as many pieces as there are
    shape = list(right[name].shape)
    shape[dim] += data.draw(st.sampled_from([-1, 1, 7]))
    wrong = {**right, name: replace(right[name], shape=tuple(shape))}
    assert set(codes(contract, wrong)) == {"wrong-shape"}


def test_a_mismatch_names_the_symbol_both_extents_and_both_places(contract: Contract) -> None:
    first, second = Span("spec.yaml", 1, 1), Span("spec.yaml", 2, 2)
    given = {
        **buffers(),
        "x": Argument(buffers()["x"], None, first),
        "ids": Argument(Buffer("ids", "one", "i32", (9, 2), 1), None, second),
    }
    with pytest.raises(SpecError) as caught:
        call(contract, given)
    found = caught.value.diagnostics[-1]
    assert "'n'" in found.message
    assert "9" in found.message
    assert "8" in found.message
    assert found.span == second
    assert found.notes[0].span == first


def test_rows_that_follow_the_count_differently_do_not_fit(contract: Contract) -> None:
    fixed = replace(buffers()["x"], per_count=0)
    assert set(codes(contract, {**buffers(), "x": fixed})) == {"wrong-shape"}
    slots = replace(buffers()["slots"], per_count=1)
    assert codes(contract, {**buffers(), "slots": slots}) == ["wrong-shape"]


def test_the_rank_must_fit(contract: Contract) -> None:
    flat = replace(buffers()["x"], shape=(8,))
    assert call(contract, {**buffers(), "x": flat}).kernel.symbols["m"] == 1
    deep = replace(buffers()["ids"], shape=(8, 2, 1))
    assert codes(contract, {**buffers(), "ids": deep}) == ["wrong-shape"]


def test_dtypes_memories_and_names_are_checked_all_at_once(contract: Contract) -> None:
    given = buffers()
    wrong = {
        "x": replace(given["x"], dtype="i32"),
        "slots": replace(given["slots"], device=MAPPED),
        "offsets": replace(given["offsets"], device="two"),
        "idz": given["ids"],
    }
    found = codes(contract, wrong, options={"tile": 65, "tiel": 3}, scalars={"first": 0.5})
    assert found == [
        "bad-option",
        "bad-option",
        "bad-scalar",
        "missing-argument",
        "missing-argument",
        "unknown-argument",
        "wrong-dtype",
        "wrong-memory",
    ]


def test_a_peers_memory_is_allowed_where_the_contract_says_so(contract: Contract) -> None:
    given = buffers()
    call(contract, {**given, "x": replace(given["x"], device="two")})
    slots = replace(given["slots"], device="two")
    assert codes(contract, {**given, "slots": slots}) == ["wrong-memory"]
    call(contract, {**given, "slots": slots}, device=None)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("first", 2**31, "bad-scalar"),
        ("first", 1.0, "bad-scalar"),
        ("first", True, "bad-scalar"),
        ("scale", "1", "bad-scalar"),
        ("other", 1, "unknown-argument"),
    ],
)
def test_scalars_fit_their_types(contract: Contract, name: str, value: Any, code: str) -> None:
    scalars = {"first": 0, "scale": 1.0, name: value}
    assert codes(contract, buffers(), scalars=scalars) == [code]


@pytest.mark.parametrize("options", [{"tile": True}, {"fast": 1}, {"tile": "64"}, {"blocks": 1}])
def test_options_have_the_type_of_their_default(
    contract: Contract, options: dict[str, Any]
) -> None:
    assert codes(contract, buffers(), options=options) == ["bad-option"]


def test_only_optional_arguments_may_be_null(contract: Contract) -> None:
    call(contract, {**buffers(), "rows": None})
    assert codes(contract, {**buffers(), "x": None}) == ["missing-argument"]


def test_blocks_are_said_at_the_call_and_for_gathered_arguments_only(contract: Contract) -> None:
    blocks = Rows(RowsKind.BLOCKS)
    rows = Buffer("rows", "one", "f32", (16, 2), 2)
    bound = call(contract, {**buffers(), "rows": Argument(rows, blocks, HERE)})
    assert bound.accesses[-1].rows == blocks
    wrong = Argument(buffers()["x"], blocks, HERE)
    assert codes(contract, {**buffers(), "x": wrong}) == ["bad-rows"]


def test_one_buffer_may_be_read_twice_but_not_written_besides(contract: Contract) -> None:
    given = buffers(k=1)
    both = Buffer("both", "one", "i32", (8, 1), 1)
    flat = replace(both, shape=(8,))
    assert "aliased-argument" in codes(contract, {**given, "ids": both, "slots": flat})


def laid(name: str, offset: int, *shape: int, dtype: str = "i32") -> Buffer:
    return Buffer(name, "one", dtype, shape, overlay=("arena", offset))


def test_arguments_that_share_bytes_are_aliases_too(contract: Contract) -> None:
    """Calls that are alike but for where their buffers lie are checked apart."""
    given = {**buffers(per_count=0), "ids": laid("ids", 0, 8, 2), "slots": laid("slots", 64, 16)}
    call(contract, given)
    call(contract, {**given, "slots": replace(given["slots"], overlay=("other", 0))})
    for offset in (0, 4, 60):
        with pytest.raises(SpecError) as caught:
            call(contract, {**given, "slots": laid("slots", offset, 16)})
        (found,) = caught.value.diagnostics
        assert found.code == "aliased-argument"
        assert found.message == (
            "'slots' ('slots') and 'ids' ('ids') share bytes, and one of them is written"
        )
    arena = Buffer("arena", "one", "i32", (16,))
    assert codes(contract, {**given, "slots": arena}) == ["aliased-argument"]
    elsewhere = replace(given["slots"], overlay=("other", 0))
    call(contract, {**given, "x": laid("x", 0, 8, 4, 5, dtype="f32"), "slots": elsewhere})


@pytest.mark.parametrize("per_count", [0, 1])
def test_an_axis_fits_in_32_bits(contract: Contract, per_count: int) -> None:
    given = buffers(2**31 - 1, 1, per_count)
    assert call(contract, given).axis.extent == 2**31 - 1
    assert set(codes(contract, buffers(2**31, 1, per_count))) == {"wrong-shape"}


WRONG = {
    "name: toy": "name: other",
    "axis: n": "axis: q",
    "symbols: [n, k, m, pieces]": "symbols: [n, k, m, pieces, z]",
    "access: read, rows: split}\n  ids": "access: red, rows: split}\n  ids",
    "dtype: [f32, f16]": "dtype: [f32, half]",
    "rows: piece": "rows: blocks",
    "rows: gather": "rows: {split: k, blocks: c}",
    "memory: [device]": "memory: [gpu]",
    "default: 64": "default: 48",
    "hi - lo, tile": "hi - lo, tyle",
    "block: [256]": "block: []",
    "estimate: {rows_used": 'peers: "n * m", estimate: {rows_used',
    "first: i32": "first: int",
    "exact: {tolerance": "exact: {tolerence",
    "rows_used * m": "row_used * m",
    "convert:convert": "convert",
    "options: {tile": "options: {blocks",
    '"*m"]': '"*m", 3]',
    "graphc_kernel: 1": "graphc_kernel: 2",
    "doc: A": "dok: A",
}


@pytest.mark.parametrize("right", sorted(WRONG))
def test_a_wrong_contract_is_refused_at_its_line(right: str, tmp_path: Path) -> None:
    path = tmp_path / "toy.cu.j2"
    path.write_text(TEXT.replace(right, WRONG[right], 1))
    with pytest.raises(SpecError) as caught:
        load_contract(path)
    for each in caught.value.diagnostics:
        assert each.span.file == str(path)
        assert each.span.line > 1


def test_fields_of_a_contract_have_their_meaning(contract: Contract) -> None:
    assert contract.exact.tolerance is not None
    assert contract.exact.tolerance.rtol == 0.01
    assert contract.exact.row_independent
    assert contract.launch.cooperative
    assert contract.path.name == "toy.cu.j2"


def test_a_catalog_takes_the_first_folder_and_guesses_names(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "toy.cu.j2").write_text(TEXT)
    (own / "convert.cu.j2").write_text(TEXT.replace("name: toy", "name: convert"))
    catalog = Catalog([own, shipped("templates")])
    assert catalog.contract("convert").path.parent == own
    assert catalog.contract("toy") is catalog.contract("toy")
    with pytest.raises(SpecError, match="did you mean 'convert'"):
        catalog.contract("convrt", HERE)


def test_an_edited_contract_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "toy.cu.j2"
    path.write_text(TEXT)
    catalog = Catalog([tmp_path])
    assert catalog.contract("toy").options["tile"].default == 64
    path.write_text(TEXT.replace("default: 64", "default: 32 "))
    assert catalog.contract("toy").options["tile"].default == 32


@pytest.mark.parametrize("path", sorted(shipped("templates").glob("*.cu.j2")), ids=lambda p: p.name)
def test_every_shipped_contract_is_right(path: Path) -> None:
    assert load_contract(path).name == path.name.removesuffix(".cu.j2")
