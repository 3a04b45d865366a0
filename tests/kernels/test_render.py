"""Rendering: what a template sees, what it is refused, and where each line came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphc.ir import Kernel
from graphc.kernels.contract import Contract, load_contract
from graphc.kernels.render import bare, image, located, origin, render
from graphc.resources import shipped
from graphc.text.diagnostics import SpecError
from graphc.text.expr import Scaled

CONTRACT = """{#
graphc_kernel: 1
name: mine
doc: a kernel of the tests.
axis: n
symbols: [n, m, pairs]
args:
  x: {dtype: [f32, f16], shape: [n, m], access: read, rows: split}
  y: {dtype: [f32, f16], shape: [n, m], access: write, rows: split, optional: true}
  z: {dtype: i32, shape: [pairs], access: read}
scalars: {first: i32, factor: f32}
options: {tile: {default: 64, choices: [64, 128]}}
launch: {grid: [hi - lo], block: [256]}
exact: true
#}
"""


def mine(folder: Path, body: str) -> Contract:
    path = folder / "mine.cu.j2"
    path.write_text(CONTRACT + body)
    return load_contract(path)


def kernel(**options: int) -> Kernel:
    return Kernel("mine", {"n": 10, "m": 3, "pairs": Scaled(20, 2)}, options)


ALL = {"x": "f16", "y": "f32", "z": "i32"}


def test_a_template_sees_symbols_options_dtypes_and_the_architecture(tmp_path: Path) -> None:
    body = "{{ m }} {{ tile }} {{ dtype.x }} {{ ctype.x }} {{ arch }} {{ entry }}"
    text = render(mine(tmp_path, body), kernel(), ALL, 90)
    assert bare(text).strip() == "3 64 f16 unsigned short 90 mine"
    assert " 128 " in render(mine(tmp_path, body), kernel(tile=128), ALL, 90)


def test_parameters_are_pointers_scalars_and_the_piece(tmp_path: Path) -> None:
    text = bare(render(mine(tmp_path, "{{ params }}"), kernel(), ALL, 90)).strip()
    assert text == (
        "const unsigned short* x, float* y, const int* z, int first, float factor, "
        "const int* graphc_count, int graphc_scale, int graphc_lo, int graphc_hi, "
        "int graphc_den, int graphc_piece"
    )


def test_an_absent_argument_has_a_ctype_but_no_dtype(tmp_path: Path) -> None:
    body = "{{ ctype.y }} {{ dtype.y is defined }}"
    given = {"x": "f32", "z": "i32"}
    assert bare(render(mine(tmp_path, body), kernel(), given, 90)).strip() == "float False"


@pytest.mark.parametrize("symbol", ["n", "pairs"])
def test_what_follows_the_count_cannot_be_built_in(tmp_path: Path, symbol: str) -> None:
    contract = mine(tmp_path, f"int a;\nint b = {{{{ {symbol} }}}};\n")
    with pytest.raises(SpecError, match=f"'{symbol}' is undefined") as caught:
        render(contract, kernel(), ALL, 90)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "bad-kernel"
    assert diagnostic.span.line == CONTRACT.count("\n") + 2
    assert "use lo and hi" in str(diagnostic.hint)


@pytest.mark.parametrize(
    ("body", "message", "line"),
    [
        ("\n{{ nothing }}", "'nothing' is undefined", 2),
        ("\n\n{% if %}", "Expected an expression", 3),
        ('asm("{%0, %1}");', "tag name expected", 1),
        ("\n{{ reject('no such thing') }}", "no such thing", 2),
        ("\n{{ m // 0 }}", "division", 2),
        ("\n{% include 'missing.cuh.j2' %}", "missing.cuh.j2", 2),
    ],
)
def test_a_template_that_cannot_be_rendered_is_quoted(
    tmp_path: Path, body: str, message: str, line: int
) -> None:
    contract = mine(tmp_path, body)
    with pytest.raises(SpecError, match=message) as caught:
        render(contract, kernel(), ALL, 90)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "bad-kernel"
    assert Path(diagnostic.span.file) == tmp_path / "mine.cu.j2"
    assert diagnostic.span.line == CONTRACT.count("\n") + line


def test_every_line_knows_its_template(tmp_path: Path) -> None:
    (tmp_path / "more.cuh.j2").write_text("// more 1\n{# gone #}\n// more 3\n")
    body = (
        "// 1\n{% if arch > 80 %}\n// 3\n{% endif %}\n{% include 'more.cuh.j2' %}\n// 6\n"
        "{% for i in range(2) %}\n// 8\n// 9\n{% endfor %}\n{{ bounds }} // 11\n"
        "#define A \\\n  {% if m %}\n  1\n  {% endif %}\n" + "\n" * 9 + "// 25\n"
    )
    text = render(mine(tmp_path, body), kernel(), ALL, 90)
    first = CONTRACT.count("\n")
    seen = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("// ")
        place = origin(text, number)
        if len(words) == 2:
            assert place is not None
            name = Path(place.file).name
            wanted = words[1].removeprefix("more ")
            assert name == ("more.cuh.j2" if "more" in line else "mine.cu.j2"), line
            assert place.line == int(wanted) + (0 if "more" in line else first), line
            seen.append(wanted)
    assert seen == ["1", "3", "1", "3", "6", "8", "9", "8", "9", "11", "25"]
    # A directive must not break a line that goes on.
    lines = text.splitlines()
    assert all(not lines[i + 1].startswith("#line") for i, x in enumerate(lines) if x[-1:] == "\\")


def test_shipped_templates_are_named_wherever_they_lie() -> None:
    contract = load_contract(shipped("templates") / "convert.cu.j2")
    source = render(contract, Kernel("convert", {"n": 1, "m": 8}), {"x": "f32", "y": "f16"}, 90)
    assert '"graphc:convert.cu.j2"' in source
    assert '"graphc:shared/convert.cuh.j2"' in source
    assert str(shipped("templates")) not in source
    assert located("graphc:shared/convert.cuh.j2").is_file()


def test_a_user_can_include_the_shipped_parts(tmp_path: Path) -> None:
    text = render(mine(tmp_path, '{% include "shared/memory.cuh.j2" %}\n'), kernel(), ALL, 90)
    assert "gc_load_words" in text


def test_the_key_depends_on_the_source_and_not_on_where_it_lies(tmp_path: Path) -> None:
    keys = set()
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        keys.add(image(mine(folder, "int {{ m }};\n"), kernel(), ALL, 90).key)
    assert len(keys) == 1
    other = image(mine(tmp_path, "int {{ m }} ;\n"), kernel(), ALL, 90)
    assert other.key not in keys
    assert other.pointers == ("x", "y", "z")
    assert other.scalars == (("first", "i32"), ("factor", "f32"))
    assert other.launch.grid == ("hi - lo",)


def test_the_capacity_is_in_no_key() -> None:
    contract = load_contract(shipped("templates") / "convert.cu.j2")
    keys = {
        image(contract, Kernel("convert", {"n": n, "m": 8}), {"x": "f32", "y": "f16"}, 90).key
        for n in (1, 4096)
    }
    assert len(keys) == 1
