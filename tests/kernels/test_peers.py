"""Arguments over all ranks: what calls may give, what they touch, what the source is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphc.gpu.nvrtc import architectures
from graphc.ir import Axis, Buffer, Mode, Role, Rows, RowsKind
from graphc.kernels.bind import MOST_PARAMETER_BYTES, Bound, bind
from graphc.kernels.call import Argument
from graphc.kernels.compile import compile_image
from graphc.kernels.contract import Contract, load_contract
from graphc.kernels.render import image, render
from graphc.plan import KernelImage
from graphc.regions import Region
from graphc.text.diagnostics import CudaError, Span, SpecError

HERE = Span("spec.yaml", 3, 5, 1)
TEXT = """{#
graphc_kernel: 1
name: post
doc: Row rank of y, on every rank, and some of z.
axis: n
symbols: [n, m, ranks, k, words]
args:
  x: {dtype: f32, shape: [n, m], access: read, rows: split}
  y: {dtype: [f32, f16], shape: [k, m], access: write, peers: ranks, rows: {row: rank}}
  z: {dtype: i32, shape: [k], access: read, peers: ranks, optional: true, memory: [device, peer]}
  status: {dtype: u32, shape: [words], access: update, optional: true, faults: {"3": "no {1}"}}
scalars: {rank: i64}
launch: {grid: [ranks], block: [32]}
exact: true
guarded: true
#}
extern "C" __global__ void {{ entry }}({{ params }}) {
  {{ guard }}
  {{ bounds }}
  for (int peer = 0; peer < {{ ranks }}; ++peer) y[peer][rank * {{ m }}] = z[peer] ? 1 : 0;
}
"""


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    return written(tmp_path_factory.mktemp("kernels"), TEXT)


def written(folder: Path, text: str) -> Contract:
    path = folder / "post.cu.j2"
    path.write_text(text)
    return load_contract(path)


def own(rank: int = 0) -> Buffer:
    return Buffer("x", f"gpu{rank}", "f32", (8, 4))


def peers(name: str, ranks: int, *shape: int, dtype: str = "f32") -> tuple[Buffer, ...]:
    return tuple(Buffer(f"rank.{i}/{name}", f"gpu{i}", dtype, shape) for i in range(ranks))


def over(buffers: tuple[Buffer, ...], row: int | None = None) -> Argument:
    rows = None if row is None else Rows(RowsKind.ROW, row)
    return Argument(buffers[0] if buffers else None, rows, HERE, peers=buffers)


def call(contract: Contract, args: dict[str, Argument], **other: Any) -> Bound:
    settings: dict[str, Any] = {"options": {}, "scalars": {}, "span": HERE, "device": "gpu0"}
    return bind(contract, {"x": Argument(own(), None, HERE), **args}, **{**settings, **other})


def codes(contract: Contract, args: dict[str, Argument], **other: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        call(contract, args, **other)
    return sorted(each.code for each in caught.value.diagnostics)


@given(ranks=st.integers(1, 64), data=st.data())
def test_an_argument_touches_the_row_that_the_kernel_is_told_on_all_ranks(
    contract: Contract, ranks: int, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, 63))
    bound = call(contract, {"y": over(peers("y", ranks, 64, 4), row)})
    assert bound.kernel.symbols["ranks"] == ranks
    assert bound.kernel.scalars == {"rank": row}
    assert bound.axis == Axis(8)
    touched = bound.accesses[1:]
    assert [each.region for each in touched] == [
        Region(f"rank.{peer}/y", 16 * row, 16 * row + 16) for peer in range(ranks)
    ]
    assert [each.peer for each in touched] == list(range(ranks))
    assert {each.rows for each in touched} == {Rows(RowsKind.ROW, row)}
    assert {each.mode for each in touched} == {Mode.WRITE}


def test_the_scalar_alone_names_the_row_as_well(contract: Contract) -> None:
    bound = call(contract, {"y": over(peers("y", 2, 3, 4))}, scalars={"rank": 2})
    assert bound.accesses[1].region == Region("rank.0/y", 32, 48)


def test_calls_that_are_alike_but_for_their_row_are_told_apart(contract: Contract) -> None:
    for row in (0, 1, 2, 1):
        bound = call(contract, {"y": over(peers("y", 2, 3, 4), row)})
        assert bound.accesses[2].region == Region("rank.1/y", 16 * row, 16 * row + 16)
        assert bound.kernel.scalars == {"rank": row}


def test_what_is_left_out_is_null(contract: Contract) -> None:
    bound = call(contract, {"y": over(peers("y", 2, 3, 4), 0), "z": over(())})
    assert {each.argument for each in bound.accesses} == {"x", "y"}


def test_calls_that_do_not_fit_are_refused(contract: Contract) -> None:
    y = peers("y", 3, 3, 4)
    right = {"y": over(y, 1)}
    call(contract, right)
    assert codes(contract, {"y": Argument(y[0], None, HERE)}) == ["bad-peers"]
    assert codes(contract, {**right, "x": over(peers("x", 3, 8, 4))}) == ["bad-peers"]
    assert codes(contract, {"y": over(y, 3)}) == ["bad-rows"]
    assert codes(contract, {"y": over(y, 1)}, scalars={"rank": 2}) == ["bad-rows"]
    assert codes(contract, {"y": over(y)}) == ["missing-argument"]
    assert codes(contract, {"y": over(y)}, scalars={"rank": -1}) == ["bad-rows"]
    # One of them is unlike the others.
    for changes in ({"dtype": "f16"}, {"shape": (4, 4)}, {"per_count": 1}):
        unlike = (*y[:2], replace(y[2], **changes))
        assert codes(contract, {"y": over(unlike, 1)}) == ["wrong-shape"]
    # As many ranks for every argument over them.
    assert codes(contract, {**right, "z": over(peers("z", 2, 3, dtype="i32"))}) == ["wrong-shape"]


def test_memory_is_looked_at_on_every_rank(contract: Contract) -> None:
    z = peers("z", 2, 3, dtype="i32")
    right = {"y": over(peers("y", 2, 3, 4), 1)}
    call(contract, {**right, "z": over(z)})
    mapped = (z[0], replace(z[1], device="host"))
    assert codes(contract, {**right, "z": over(mapped)}) == ["wrong-memory"]


def test_bytes_that_one_rank_is_given_twice_are_found(contract: Contract) -> None:
    y = peers("y", 3, 3, 4)
    inside = Buffer("part", "gpu2", "i32", (3,), overlay=("rank.2/y", 4))
    z = (*peers("z", 2, 3, dtype="i32"), inside)
    assert codes(contract, {"y": over(y, 1), "z": over(z)}) == ["aliased-argument"]


def test_faults_are_told_in_a_buffer_for_them(contract: Contract) -> None:
    right = {"y": over(peers("y", 2, 3, 4), 1)}
    words = Buffer("words", "gpu0", "u32", (4,), role=Role.STATUS)
    call(contract, {**right, "status": Argument(words, None, HERE)})
    other = replace(words, role=Role.STATE)
    assert codes(contract, {**right, "status": Argument(other, None, HERE)}) == ["bad-role"]


def test_a_launch_carries_only_so_many_bytes(tmp_path: Path) -> None:
    many = "".join(
        f"  a{number}: {{dtype: f32, shape: [n], access: read, peers: ranks}}\n"
        for number in range(64)
    )
    text = (
        "{#\ngraphc_kernel: 1\nname: post\ndoc: Many tables.\nsymbols: [n, ranks]\n"
        f"args:\n{many}launch: {{grid: [1], block: [1]}}\nexact: true\n#}}\n"
    )
    wide = written(tmp_path, text)

    def bound(ranks: int) -> Bound:
        args = {f"a{number}": over(peers(f"a{number}", ranks, 4)) for number in range(64)}
        return bind(wide, args, options={}, scalars={}, span=HERE)

    assert 64 * 63 * 8 < MOST_PARAMETER_BYTES < 64 * 64 * 8
    bound(63)
    with pytest.raises(SpecError, match=r"32,796 bytes of parameters: .* at most 32,764"):
        bound(64)


# What is rendered


def rendered(contract: Contract, ranks: int, *, has_z: bool = True) -> KernelImage:
    args = {"y": over(peers("y", ranks, 64, 4, dtype="f16"), 1)}
    if has_z:
        args["z"] = over(peers("z", ranks, 64, dtype="i32"))
    bound = call(contract, args)
    dtypes = {"x": "f32", "y": "f16"} | ({"z": "i32"} if has_z else {})
    return image(contract, bound.kernel, dtypes, 90)


def test_tables_of_pointers_go_in_by_value(contract: Contract) -> None:
    found = rendered(contract, 5)
    assert found.pointers == ("x", "y", "z", "status")
    assert found.tables == {"y": 5, "z": 5}
    assert "const __grid_constant__ Peers<unsigned short, 5> y" in found.source
    assert "const __grid_constant__ Peers<const int, 5> z" in found.source
    assert rendered(contract, 6).key != found.key
    assert rendered(contract, 5, has_z=False).tables == {"y": 5, "z": 5}


def test_the_guard_is_the_last_parameter(contract: Contract) -> None:
    found = rendered(contract, 2)
    assert found.is_guarded
    assert "int graphc_piece, const unsigned int* graphc_guard)" in found.source
    assert found.source.count("graphc_guard") == 3
    assert found.faults == {"status": {"3": "no {1}"}}


def test_a_guarded_kernel_that_never_looks_is_refused(tmp_path: Path) -> None:
    blind = written(tmp_path, TEXT.replace("{{ guard }}", ""))
    bound = call(blind, {"y": over(peers("y", 2, 64, 4), 1)})
    with pytest.raises(SpecError, match="never looks"):
        render(blind, bound.kernel, {"x": "f32", "y": "f32"}, 90)


def test_the_key_of_an_image_follows_its_faults_and_its_guard(tmp_path: Path) -> None:
    keys = {
        rendered(written(tmp_path, text), 2).key
        for text in (
            TEXT,
            TEXT.replace("no {1}", "no place"),
            TEXT.replace("guarded: true\n", "").replace("{{ guard }}", ""),
        )
    }
    assert len(keys) == 3


def test_what_is_rendered_compiles(contract: Contract) -> None:
    try:
        architectures()
    except CudaError as problem:
        pytest.skip(str(problem))
    assert compile_image(rendered(contract, 64), "sm_90a")
