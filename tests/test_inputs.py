"""Inputs that a run makes up."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.dtypes import DTYPES, dtype
from graphc.inputs import random_array, random_inputs
from graphc.ir import Buffer, Program, Role
from graphc.text.diagnostics import UsageError


@pytest.mark.parametrize(("kind", "total"), [("f64", 9999), ("f32", 70_001), ("f16", 8192)])
def test_floats_are_distinct_in_every_element(kind: str, total: int) -> None:
    array = random_array(Buffer("x", "g0", kind, (total,)))
    assert len(np.unique(array.view(f"u{array.dtype.itemsize}"))) == total


@pytest.mark.parametrize("kind", sorted(DTYPES))
@pytest.mark.parametrize("role", [Role.INPUT, Role.WEIGHT])
def test_every_dtype_gets_finite_values_of_its_own_type(kind: str, role: Role) -> None:
    array = random_array(Buffer("x", "g0", kind, (7, 4096), role=role))
    assert array.dtype == dtype(kind).numpy
    assert np.isfinite(array.astype(np.float64)).all()
    assert len(np.unique(array.astype(np.float64))) > 60


def test_values_follow_from_seed_and_name_alone() -> None:
    x = Buffer("x", "g0", "f32", (64, 8))
    assert np.array_equal(random_array(x), random_array(x))
    assert not np.array_equal(random_array(x), random_array(x, seed=1))
    assert not np.array_equal(random_array(x), random_array(Buffer("y", "g0", "f32", (64, 8))))


def test_weights_keep_sums_of_order_one() -> None:
    weight = random_array(Buffer("w", "g0", "f32", (64, 4096), role=Role.WEIGHT))
    x = random_array(Buffer("x", "g0", "f32", (4096,)))
    assert 0.02 < np.abs(weight @ x).mean() < 1.0


def test_rows_of_a_weight_are_apart_where_values_come_again() -> None:
    """With equal rows for many experts a router would see nothing but ties."""
    weight = random_array(Buffer("w", "g0", "f16", (512, 2560), role=Role.WEIGHT))
    assert len(np.unique(weight.view("u2"), axis=0)) == 512
    x = random_array(Buffer("x", "g0", "f32", (128, 2560)))
    logits = x @ weight.T.astype(np.float32)
    chosen = np.argsort(-logits, axis=1)[:, :10]
    assert 0.45 < (chosen < 256).mean() < 0.55
    assert np.bincount(chosen.ravel(), minlength=512).max() < 25


def test_integers_are_a_permutation() -> None:
    array = random_array(Buffer("ids", "g0", "i32", (10, 10)))
    assert sorted(array.ravel().tolist()) == list(range(100))


def test_rows_that_are_not_in_use_are_poison() -> None:
    array = random_array(Buffer("x", "g0", "f32", (8, 4), per_count=2), count=3)
    assert np.isfinite(array[:6]).all()
    assert np.isnan(array[6:]).all()


def test_only_what_the_caller_fills_gets_values() -> None:
    buffers = {role.value: Buffer(role.value, "g0", "f32", (4,), role=role) for role in Role}
    made = random_inputs(Program("p", ("g0",), buffers, ()))
    assert set(made) == {"input", "inout", "weight", "state"}


def optional(*names: str) -> Program:
    buffers = [Buffer(each, "g0", "f32", (4,), role=Role.INPUT, is_optional=True) for each in names]
    buffers += [Buffer("x", "g0", "f32", (4,), role=Role.INPUT), Buffer("w", "g0", "f32", (4,))]
    return Program("p", ("g0",), {each.name: each for each in buffers}, ())


def test_optional_buffers_get_values_but_for_those_that_are_to_be_null() -> None:
    program = optional("rank.0/w", "rank.1/w", "s")
    assert {*random_inputs(program)} == {"rank.0/w", "rank.1/w", "s", "x"}
    assert {*random_inputs(program, null=["w"])} == {"s", "x"}
    assert {*random_inputs(program, null=["rank.1/w", "s"])} == {"rank.0/w", "x"}


@pytest.mark.parametrize(
    ("program", "name", "hint"),
    [
        (optional("rank.0/weight", "rank.1/weight", "s"), "wieght", r"did you mean 'weight'\?"),
        (optional("rank.0/weight", "rank.1/weight", "s"), "rank.2/q", "there are weight, s"),
        (optional("s"), "x", "there are s"),
        (optional(), "x", "there is none"),
    ],
)
def test_only_optional_buffers_can_be_null(program: Program, name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"^'{name}' is no optional input, .* null: {hint}$"):
        random_inputs(program, null=[name])


def test_an_empty_buffer_gets_an_empty_array() -> None:
    assert random_array(Buffer("x", "g0", "f32", (0, 8))).shape == (0, 8)


def test_integers_with_a_bound_stay_below_it() -> None:
    array = random_array(Buffer("ids", "g0", "i32", (40, 10), below=7))
    assert {*array.ravel().tolist()} == {*range(7)}


def test_odd_integers_stand_among_the_others() -> None:
    array = random_array(Buffer("ids", "g0", "i64", (400, 10), below=7, odd=(-1, 2**32)))
    found = array.ravel().tolist()
    assert {*found} == {*range(7), -1, 2**32}
    assert 100 < sum(each in (-1, 2**32) for each in found) < 500
