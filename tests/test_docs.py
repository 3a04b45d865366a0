"""The README and the docs are run: commands, programs and specs, in the order in which they stand.

The blocks of one page share a folder and a Python namespace. What a fence says decides:

    ```sh                 lines of graphc, python or make are run; "# exit 1": it must end with 1
    ```python             is executed
    ```yaml file=x.yaml   is written to x.yaml; a spec is checked, too
    ```jinja file=x       is written to x; so is text and everything else with a file
    ```yaml fragment      is read as strict YAML and no more
    ```text               every line stands in the output of the block before; "..." is anything
    ```text picture       is for the eye
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from graphc import api
from graphc.cli.guard import guarded
from graphc.text.load import parse_yaml

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"(?ms)^```(\w+)([^\n`]*)\n(.*?)^```$")
TARGETS = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
KNOWN = {"sh", "python", "yaml", "jinja", "cuda", "text"}


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    words: dict[str, str]
    text: str
    line: int


@dataclass(slots=True)
class Page:
    """A page while it is run."""

    namespace: dict[str, Any] = field(default_factory=dict)
    output: str = ""

    def run(self, block: Block) -> None:
        if "file" in block.words:
            path = Path(block.words["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        match block.language:
            case "sh":
                self.output = "".join(map(run_command, commands(block.text)))
            case "python" if "file" not in block.words:
                self.output = self.execute(block.text)
            case "yaml":
                check_yaml(block)
            case "text" if not {"file", "picture"} & block.words.keys():
                compare(block.text, self.output)

    def execute(self, text: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(text, "a block of the page", "exec"), self.namespace)
        return out.getvalue()


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        language, words, body = found.groups()
        pairs = (word.partition("=") for word in words.split())
        line = text.count("\n", 0, found.start()) + 1
        yield Block(language, {name: value for name, _, value in pairs}, body, line)


def commands(text: str) -> Iterator[str]:
    yield from (line for line in text.replace("\\\n", "").splitlines() if line.strip())


def run_command(line: str) -> str:
    """What it prints; other programs than ours are not run."""
    command, _, comment = line.partition(" #")
    expected = re.search(r"exit (\d+)", comment)
    words = shlex.split(command)
    values = {}
    while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
        name, _, values[name] = words.pop(0).partition("=")
    if not words or words[0] not in ("graphc", "python", "make"):
        return ""
    if words[0] == "make":
        assert set(words[1:]) <= set(TARGETS), line
        return ""
    code, output = (
        run_graphc(words[1:], values) if words[0] == "graphc" else run_python(words, values)
    )
    assert code == int(expected[1] if expected else 0), f"{line}\n{output}"
    return output


def run_graphc(words: list[str], values: dict[str, str]) -> tuple[int, str]:
    """In this process, which is faster than a new one."""
    out = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        for name, value in values.items():
            patch.setenv(name, value)
        return guarded(words), out.getvalue()


def run_python(words: list[str], values: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *words[1:]],
        env={**os.environ, **values},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def check_yaml(block: Block) -> None:
    document = parse_yaml(block.text, block.words.get("file", "fragment"), keys=frozenset({"on"}))
    assert not document.mistakes, document.mistakes
    if "fragment" in block.words:
        return
    assert "file" in block.words, f"line {block.line}: say file=NAME or fragment"
    if (
        isinstance(document.data, dict)
        and "graphc" in document.data
        and "unchecked" not in block.words
    ):
        assert api.check(
            block.words["file"], kernels=[each for each in ("kernels",) if Path(each).is_dir()]
        )


def compare(expected: str, output: str) -> None:
    for line in expected.splitlines():
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("..."))
        assert re.search(pattern, output), f"no line like {line!r} in:\n{output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_works(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("specs", "templates", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    running = Page()
    for block in blocks(page):
        assert block.language in KNOWN, f"{page.name}:{block.line}: {block.language}"
        try:
            running.run(block)
        except Exception as problem:
            problem.add_note(f"in the block at {page.name}:{block.line}")
            raise


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_fence_is_closed() -> None:
    for page in PAGES:
        assert page.read_text().count("\n```") % 2 == 0, page.name


def test_the_readmes_spec_is_that_of_the_examples() -> None:
    shown = [each.text for each in blocks(ROOT / "README.md") if each.words.get("file")]
    assert shown == [(ROOT / "examples" / "offload.yaml").read_text()]
