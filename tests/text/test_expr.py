"""Expressions: what they can say, what they cannot reach, and how wrong ones are shown."""

from __future__ import annotations

import pickle
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphc.text.diagnostics import Diagnostic, Span, SpecError, render
from graphc.text.expr import (
    LARGEST,
    Record,
    Scaled,
    evaluate,
    evaluate_count,
    evaluate_number,
    evaluate_text,
    evaluate_word,
    factor_of,
)

NAMES = {"a": 7, "b": 3, "c": 12}
OPERATORS = ("+", "-", "*", "//", "%")


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(sorted(NAMES)) | st.integers(0, 99).map(str)
    return st.recursive(
        leaves,
        lambda inner: (
            st.tuples(inner, st.sampled_from(OPERATORS), inner).map(
                lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
            )
            | st.tuples(inner, inner, inner).map(
                lambda p: f"({p[0]} if {p[1]} > {p[2]} else {p[2]})"
            )
            | st.tuples(inner, inner).map(lambda p: f"max({p[0]}, {p[1]})")
        ),
        max_leaves=12,
    )


@given(expressions())
def test_arithmetic_is_that_of_python(text: str) -> None:
    try:
        expected = eval(text, {"max": max}, dict(NAMES))
    except ZeroDivisionError:
        with pytest.raises(SpecError, match="division by zero"):
            evaluate(text, NAMES)
        return
    if abs(expected) < LARGEST:
        assert evaluate(text, NAMES) == expected


@given(st.text(max_size=30))
def test_any_text_gives_a_value_or_a_spec_error(text: str) -> None:
    with suppress(SpecError):
        evaluate(text, NAMES)


@given(st.integers(0, 1000), st.lists(st.sampled_from(["* 2", "* 3", "// 2", "// 3", "+ 0"])))
def test_a_factor_that_is_kept_is_true_for_every_count(count: int, steps: list[str]) -> None:
    text = "n"
    for step in steps[:8]:
        text = f"({text} {step})"
    capacity = 36
    found = evaluate(text, {"n": Scaled(capacity, 1)})
    if factor_of(found):
        plain = evaluate(text.replace("//", "/"), {"n": float(count)})
        assert plain == pytest.approx(factor_of(found) * count)
        assert found == factor_of(found) * capacity


def test_a_scaled_number_remembers_what_keeps_it_proportional() -> None:
    tokens = {"tokens": Scaled(64, 1), "k": 10}
    assert factor_of(evaluate("tokens", tokens)) == 1
    assert factor_of(evaluate("tokens * k", tokens)) == 10
    assert factor_of(evaluate("k * tokens", tokens)) == 10
    assert factor_of(evaluate("tokens * k // 5", tokens)) == 2
    for text in ("tokens + 1", "tokens // 2", "min(tokens, k)", "tokens * 0", "-tokens"):
        assert factor_of(evaluate(text, tokens)) == 0, text
    assert factor_of(evaluate("tokens * tokens", tokens)) == 0
    assert factor_of(pickle.loads(pickle.dumps(Scaled(64, 3)))) == 3


@pytest.mark.parametrize(
    "text",
    [
        "range(10**9)",
        "'a' * 10**9",
        "[0] * 10**9",
        "9**9**9",
        "2**63",
        "1e308 * 10",
        "().__class__",
        "a.__class__",
        "''.join",
        "a | string",
        "'%1000000000d' % a",
        "a is defined",
        "a['x']",
        "{'a': 1}",
        "a ~ b",
        "lipsum()",
        "self",
        "cycler('a')",
        "a if b",
        "max(*[a])",
        "max(x=a)",
        "f(a)",
        "a }} {{ b",
        "{% set x = 1 %}",
        "(" * 300 + "a" + ")" * 300,
        "a" * 2000,
        "'x" + "y" * 1500 + "'",
        "",
        "   ",
        "a b",
        "a == ",
        "a = b",
        "a && b",
        "(-8) ** 0.5",
        "0 ** -1",
        "clamp(a)",
        "bytes('f61')",
        "min('a', 1)",
        "max()",
    ],
)
def test_what_expressions_cannot_do_is_refused_at_once(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(SpecError):
        evaluate(text, NAMES)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil_div(a, b)", 3),
        ("clamp(a, 0, 5)", 5),
        ("min(a, b, c)", 3),
        ("bytes('bf16')", 2),
        ("a > b and not b > c", True),
        ("'x' if a == 7 else null", "x"),
        ("null if a == 7 else 1", None),
        ("['x'] + ['y']", ["x", "y"]),
        ("[] if a else [b]", []),
        ("a in [1, 7]", True),
        ("1 < b < a", True),
        ("a / 2", 3.5),
        ("2 ** 10", 1024),
        ("true", True),
        ("'a' + 'b'", "ab"),
        ("a or b", 7),
    ],
)
def test_what_expressions_can_do(text: str, value: object) -> None:
    assert evaluate(text, NAMES) == value


def test_dotted_names_are_names_of_their_own_or_fields() -> None:
    scope = {"compute.count": 4, "compute": 9, "device": Record({"sms": 132})}
    assert evaluate("compute.count + compute", scope) == 13
    assert evaluate("4 * device.sms", scope) == 528
    with pytest.raises(SpecError, match="sm"):
        evaluate("device.sm", scope)


@pytest.mark.parametrize(
    ("written", "column"),
    [("a + fooo", 8), ('"a + fooo"', 9), ("=a + fooo", 9), ('"=a + fooo"', 10)],
)
def test_the_caret_is_at_the_name(written: str, column: int) -> None:
    line = f"x: {written}"
    text = written.strip('"').removeprefix("=")
    with pytest.raises(SpecError) as caught:
        evaluate(text, {"a": 1, "foo": 2}, Span("f.yaml", 1, 4, len(written)))
    (found,) = caught.value.diagnostics
    assert found.span == Span("f.yaml", 1, column, 4)
    assert found.hint == "did you mean 'foo'?"
    assert render(found, {"f.yaml": line}).splitlines()[2].count("^") == 4


def test_the_caret_skips_names_behind_a_dot_and_in_text() -> None:
    text = "'n' == x.n or n"
    with pytest.raises(SpecError) as caught:
        evaluate(text, {"x": Record({"n": 1})}, Span("f.yaml", 1, 1, len(text)))
    assert caught.value.diagnostics[0].span.column == 15


def test_numbers_and_words_are_told_apart() -> None:
    assert evaluate_number("2 * a", NAMES) == 14
    assert evaluate_number(3, NAMES) == 3
    assert evaluate_word("a", NAMES) == "a"
    assert evaluate_word("=a", NAMES) == 7
    assert evaluate_word(None, NAMES) is None
    assert evaluate_text("{{ a }} of {{b}}", NAMES) == "7 of 3"
    for wrong in ("a == 7", "'x'", "null"):
        with pytest.raises(SpecError, match="a number is needed"):
            evaluate_number(wrong, NAMES)
    for wrong in ("a / 2", "b - a", "-1"):
        with pytest.raises(SpecError):
            evaluate_count(wrong, NAMES)
    with pytest.raises(SpecError, match="never closed"):
        evaluate_text("{{ a", NAMES)


def test_a_parsed_expression_is_kept_and_quick() -> None:
    scope: dict[str, Any] = {"tokens": Scaled(64, 1), "k": 4}
    evaluate("tokens * k // 2 + 1", scope)
    start = time.perf_counter()
    for _ in range(1000):
        evaluate("tokens * k // 2 + 1", scope)
    assert time.perf_counter() - start < 0.5


def test_messages_keep_their_hints() -> None:
    with pytest.raises(SpecError) as caught:
        evaluate("tokns", {"tokens": 1})
    assert caught.value.diagnostics == (
        Diagnostic("unknown-name", "unknown name 'tokns'", hint="did you mean 'tokens'?"),
    )
