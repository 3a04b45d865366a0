"""Strict YAML: what is read, what is refused, and where everything stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from graphc.text.diagnostics import SpecError
from graphc.text.load import load_comment, load_yaml, parse_yaml, read_comment, surprise

WORDS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=3, max_size=8).filter(
    lambda word: surprise(word) is None and word not in ("true", "false", "null")
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
    | WORDS
    | st.text(max_size=12)
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)
MAPPINGS = st.dictionaries(WORDS, DATA, min_size=1, max_size=4)


def codes(text: str) -> list[str]:
    return [each.code for each in parse_yaml(text, "f.yaml").mistakes]


@given(MAPPINGS, st.booleans())
def test_what_is_dumped_is_read_again(data: dict[str, Any], flow: bool) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=False)
    document = parse_yaml(text, "f.yaml")
    # The dumper writes some floats with an exponent alone, which only YAML 1.2 takes for numbers.
    assert document.mistakes == () or {m.code for m in document.mistakes} == {"ambiguous-value"}
    if not document.mistakes:
        assert document.data == data


@given(MAPPINGS, st.booleans())
def test_every_entry_has_a_place_that_holds_it(data: dict[str, Any], flow: bool) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow)
    document = parse_yaml(text, "f.yaml")
    lines = text.splitlines()
    for path, place in document.places.items():
        if place.key is not None:
            line = lines[place.key.line - 1]
            written = line[place.key.column - 1 : place.key.column - 1 + place.key.length]
            assert written.strip("'\"") == path[-1]


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    document = parse_yaml(text, "f.yaml")
    assert document.mistakes or isinstance(document.data, dict)


@pytest.mark.parametrize("text", ["1" * 5000, f"-{'9' * 400}", "1.0e+400", "-1.0e+400"])
def test_numbers_that_nothing_could_count_are_refused(text: str) -> None:
    (mistake,) = parse_yaml(f"a: {text}", "f.yaml").mistakes
    assert (mistake.code, mistake.message) == ("bad-value", "the number is too large")
    assert (mistake.span.line, mistake.span.column) == (1, 4)


@pytest.mark.parametrize(
    "text",
    [
        *("on", "off", "yes", "no", "On", "YES", "True", "FALSE", "Null", "~", "=", "2024-01-01"),
        *("010", "-010", "0o17", "0x1F", "0b11", "1:30", "12:30:45", "4_096", "0_1"),
        *("1e3", "1e-2", "1.e3", ".5", "5.", "+5", ".inf", ".nan", "-.inf"),
    ],
)
def test_what_readers_disagree_about_is_refused_with_a_hint(text: str) -> None:
    (mistake,) = parse_yaml(f"a: {text}", "f.yaml").mistakes
    assert mistake.code == "ambiguous-value"
    assert (mistake.span.line, mistake.span.column, mistake.span.length) == (1, 4, len(text))
    assert mistake.hint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("10", 10),
        ("2.50", 2.5),
        ("1.0e-3", 1e-3),
        ("null", None),
        ("true", True),
        ("'010'", "010"),
        ('"on"', "on"),
        ("1/16", "1/16"),
        ("=wire", "=wire"),
        ("y", "y"),
        ("n", "n"),
        ("f16", "f16"),
        ("tokens * 4", "tokens * 4"),
        ("one", "one"),
    ],
)
def test_plain_scalars_mean_what_they_show(text: str, value: object) -> None:
    document = parse_yaml(f"a: {text}", "f.yaml")
    assert document.mistakes == ()
    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


def test_all_mistakes_of_a_file_are_named_at_once() -> None:
    text = "a: on\na: 010\nb: [1:30, &x 2, *x]\n<<: {c: !!int 3}\nd:\n7: 1\n"
    assert codes(text) == [
        "ambiguous-value",
        "duplicate-key",
        "ambiguous-value",
        "ambiguous-value",
        "yaml-anchor",
        "yaml-anchor",
        "merge-key",
        "yaml-tag",
        "empty-value",
        "bad-key",
    ]


def test_mistakes_before_a_syntax_error_are_kept() -> None:
    assert codes("a: on\nb: [1, 2\n") == ["ambiguous-value", "yaml-syntax"]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- 1\n", "text\n", "null\n", "3\n"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    (mistake,) = parse_yaml(text, "f.yaml").mistakes
    assert mistake.code == "bad-file"


def test_deep_nesting_is_refused() -> None:
    assert codes("a: " + "[" * 1500 + "]" * 1500)[-1] in ("bad-file", "yaml-syntax")


def test_a_document_of_aliases_cannot_grow() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    assert set(codes("\n".join(lines))) == {"yaml-anchor"}


def test_columns_count_characters_not_bytes() -> None:
    document = parse_yaml('a: {"ключ": "значение", b: on}', "f.yaml")
    assert document.mistakes[0].span.column == 28


def test_a_window_line_end_is_a_line_end() -> None:
    document = parse_yaml("a: 1\r\nb: on\r\n", "f.yaml")
    assert (document.mistakes[0].span.line, document.mistakes[0].span.column) == (2, 4)


def test_words_that_a_format_uses_as_keys_are_let_through() -> None:
    assert parse_yaml("on: source", "f.yaml", keys=frozenset({"on"})).mistakes == ()
    assert codes("on: source") == ["bad-key"]


def test_a_missing_file_a_folder_and_other_encodings_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="cannot read"):
        load_yaml(tmp_path)
    (tmp_path / "utf16.yaml").write_text("a: 1\n", encoding="utf-16")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_yaml(tmp_path / "utf16.yaml")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_text("a: 1\n", encoding="utf-8-sig")
    assert load_yaml(tmp_path / "bom.yaml").data == {"a": 1}


def test_a_contract_keeps_the_lines_and_columns_of_its_template(tmp_path: Path) -> None:
    path = tmp_path / "k.cu.j2"
    path.write_text('{#\nname: k\nargs:\n  x: {dtype: on}\n#}\nextern "C" {}\n')
    document = read_comment(path)
    (mistake,) = document.mistakes
    assert (mistake.span.line, mistake.span.column) == (4, 14)
    assert document.root["name"].span.line == 2
    path.write_text("{#- name: k -#}\n")
    assert load_comment(path).root["name"].span.column == 11
    assert load_comment(path).data == {"name": "k"}


@pytest.mark.parametrize("text", ["name: k\n", "{# name: k\n", ""])
def test_a_template_without_a_contract_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "k.cu.j2"
    path.write_text(text)
    with pytest.raises(SpecError, match="no-contract"):
        load_comment(path)
