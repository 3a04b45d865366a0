"""Every diagnostic has a file that shows it: a wrong spec, then the message that it gets.

Comments of the form ``# as: python`` at the head of a file say how the first document is read;
without one it is a spec and goes through ``graphc.api.check`` with the kernels beside this file.
``# set: a=1, b=2``, ``# preset: p`` and ``# schedule: FILE`` are what the command line would give.
"""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest
import yaml

import graphc
from graphc import api
from graphc.cli.request import assignment
from graphc.kernels.contract import load_contract
from graphc.profiles import load_profile
from graphc.routes import load_route
from graphc.spec.model import load_spec
from graphc.text.diagnostics import SpecError

HERE = Path(__file__).parent
CASES = sorted((HERE.parent / "errors").glob("*.yaml"))
KERNELS = HERE / "kernels"
DIRECTIVE = re.compile(r"# (as|set|preset|schedule|file): (.*)")
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# What `graphc --json` calls errors that are no diagnostics of a spec.
NO_DIAGNOSTICS = {"bug", "compiler-bug", "cuda", "error", "interrupted", "usage"}
WARNINGS = {"unknown-rate"}  # no spec is refused for them: the commands that tell them hold them


def code_of(case: Path) -> str:
    """``bad-rows.ranks.yaml`` is one more file of ``bad-rows``."""
    return case.stem.partition(".")[0]


def parts(case: Path) -> tuple[str, dict[str, str], str]:
    """The first document as text, the directives, and the expected message."""
    text = case.read_text(encoding="utf-8")
    wrong, _, expected = text.partition("\n--- |\n")
    directives = dict(
        match.groups() for match in map(DIRECTIVE.fullmatch, wrong.splitlines()) if match
    )
    lines = [line.removeprefix("  ") for line in expected.splitlines()]
    return wrong + "\n", directives, "\n".join(lines)


def message_of(wrong: str, how: dict[str, str], folder: Path) -> str:
    """What the wrong document gets; files are named relative to the working folder."""
    name = how.get("file", "spec.yaml")
    Path(name).write_text(
        escaped(wrong), encoding="utf-8" if how.get("as") != "latin-1" else "latin-1"
    )
    with pytest.raises(SpecError) as caught:
        run(wrong, how, name)
    return str(caught.value).replace(str(folder) + "/", "")


def escaped(wrong: str) -> str:
    """A template begins with its contract's comment: it stands in for the first directive."""
    first, newline, rest = wrong.partition("\n")
    return "{#" + newline + rest + "#}\n" if first == "# as: contract" else wrong


def run(wrong: str, how: dict[str, str], name: str) -> None:
    match how.get("as", "spec"):
        case "contract":
            load_contract(name)
        case "route":
            load_route(name)
        case "machine":
            load_profile(name)
        case "python":
            exec(compile(yaml.safe_load(wrong)["python"], name, "exec"), {"graphc": graphc})
        case _:
            sets = [each for each in how.get("set", "").split(", ") if each]
            values = dict(assignment(each) for each in sets)
            api.check(
                name,
                preset=how.get("preset"),
                schedule=how.get("schedule"),
                kernels=[KERNELS],
                origin="--set {name}={value}",
                **values,
            )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_wrong_spec_gets_its_message(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update_golden: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in (HERE / "files").iterdir():
        shutil.copy(each, tmp_path)
    wrong, how, expected = parts(case)
    found = message_of(wrong, how, tmp_path)
    if update_golden:
        body = "\n".join(f"  {line}".rstrip() for line in found.splitlines())
        case.write_text(f"{wrong.rstrip()}\n--- |\n{body}\n", encoding="utf-8")
        return
    assert found == expected
    assert f"error[{code_of(case)}]" in found, "a file is named after the code that it shows"


def test_every_code_has_a_file_and_every_file_a_code() -> None:
    assert {code_of(case) for case in CASES} == codes() - NO_DIAGNOSTICS - WARNINGS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_messages_keep_to_the_style(case: Path) -> None:
    _, _, expected = parts(case)
    for line in expected.splitlines():
        message = re.match(r"(?:.*: )?(?:error\[[a-z-]+\]|note): (.*)", line)
        if message:
            assert message[1][:1] not in ("", " "), line
            assert not message[1].endswith("."), line
    assert "Traceback" not in expected
    assert re.search(r"\bNone\b|<class|'(?:dict|str|int)'", expected) is None


def test_a_spec_whose_parts_are_wrong_still_loads() -> None:
    assert load_spec(HERE.parent / "errors" / "unknown-field.yaml").faults


def codes() -> set[str]:
    """The codes that occur in the package, wherever a diagnostic is made."""
    found: set[str] = set()
    for path in Path(graphc.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found |= set(codes_of(node))
    return found


def codes_of(call: ast.Call) -> list[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    named = [each.value for each in call.keywords if each.arg == "code"]
    first = call.args[:1] if name in ("error", "Diagnostic", "mistake") else []
    values = [each.value for each in (*first, *named) if isinstance(each, ast.Constant)]
    return [each for each in values if isinstance(each, str) and CODE.fullmatch(each)]
