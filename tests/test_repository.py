"""The repository keeps its own rules: layers, doors to libraries, golden files, lists in docs."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import graphc

ROOT = Path(__file__).parent.parent
ARCHITECTURE = ROOT / "docs" / "architecture.md"
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "graphc").rglob("*.py"))
GOLDEN = ROOT / "tests" / "golden"
# Where a file looks up on purpose, when it is called and not before.
LOOKS_UP = {("graphc/plan.py", "graphc/api.py"), ("graphc/cli/__init__.py", "graphc/api.py")}
PYDANTIC = {"graphc/kernels/contract.py", "graphc/plan.py", "graphc/routes.py"}
PYDANTIC |= {"graphc/spec/model.py", "graphc/text/explain.py", "graphc/profiles.py"}


def documented() -> list[str]:
    """The modules in the order in which the architecture page describes them."""
    return re.findall(r"(?m)^\*\*`(graphc/[\w/]+\.py)`\*\*", ARCHITECTURE.read_text())


def imports(module: str) -> Iterator[tuple[str, str]]:
    """What is imported, at the top or within functions: (module, name or nothing)."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has a relative import"
            yield from ((node.module or "", each.name) for each in node.names)


def file_of(module: str, name: str) -> str | None:
    """The file that an import reaches, if it is one of ours."""
    for dotted in (f"{module}.{name}" if name else module, module):
        path = dotted.replace(".", "/")
        for candidate in (f"{path}.py", f"{path}/__init__.py"):
            if candidate in MODULES:
                return candidate
    return None


def has_code(module: str) -> bool:
    body = ast.parse((ROOT / module).read_text()).body
    return any(not isinstance(each, ast.Expr | ast.ImportFrom) for each in body)


def tracked() -> list[Path]:
    """The files of the repository; of a copy without git, those that are not built or cached."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
        return [ROOT / each for each in listed if each and (ROOT / each).is_file()]
    except (OSError, subprocess.CalledProcessError):
        found = (path for path in ROOT.rglob("*") if path.is_file())
        return [
            path
            for path in found
            if not any(
                part.startswith(".") or part in ("__pycache__", "build", "dist", "out")
                for part in path.relative_to(ROOT).parts
            )
        ]


def test_every_module_is_described_and_every_module_described_exists() -> None:
    listed = documented()
    assert len(listed) == len(set(listed))
    assert set(listed) - set(MODULES) == set()
    missing = set(MODULES) - set(listed)
    assert {each for each in missing if not each.endswith("__init__.py") or has_code(each)} == set()


def test_every_file_that_the_architecture_names_exists() -> None:
    for name in re.findall(
        r"`((?:tests|docs|graphc|specs|templates)/[\w/.]+)`", ARCHITECTURE.read_text()
    ):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("module", documented())
def test_a_file_imports_only_what_stands_above_it(module: str) -> None:
    place = {each: index for index, each in enumerate(documented())}
    for imported, name in imports(module):
        found = file_of(imported, name)
        if found not in place or found == module or (module, found) in LOOKS_UP:
            continue
        if module.startswith(found.removesuffix("__init__.py")) and found.endswith("__init__.py"):
            continue  # a package that a file of it names
        assert place[found] < place[module], f"{module} imports {found}, which stands below it"


@pytest.mark.parametrize("module", MODULES)
def test_each_library_has_its_door(module: str) -> None:
    roots = {imported.partition(".")[0] for imported, _ in imports(module)}
    if not module.startswith("graphc/gpu/"):
        assert "cuda" not in roots
    if module not in PYDANTIC:
        assert not {"pydantic", "pydantic_core"} & roots
    if not module.startswith("graphc/cli/"):
        assert not {"typer", "rich"} & roots


def test_the_proof_shares_no_code_with_the_passes() -> None:
    rooms = [each for each in MODULES if each.startswith("graphc/verify/")]
    reached = {file_of(*each) for room in rooms for each in imports(room)}
    assert "graphc/verify/trace.py" in reached
    assert not [each for each in reached if each and "passes" in each]


def test_every_pass_is_a_function_of_its_own_name() -> None:
    passes = [each for each in MODULES if each.startswith("graphc/passes/")]
    for module in passes:
        name = Path(module).stem
        if name in ("__init__", "closure"):
            continue
        functions = [
            each.name
            for each in ast.parse((ROOT / module).read_text()).body
            if isinstance(each, ast.FunctionDef)
        ]
        assert functions[0] == name, module


def test_every_golden_folder_has_a_test() -> None:
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    readers = [text for text in tests if '"golden"' in text and "glob(" in text]
    for folder in sorted(GOLDEN.iterdir()):
        assert folder.is_dir(), f"{folder} lies in no folder of a pass"
        assert any(f'"{folder.name}"' in text for text in readers), folder.name


def test_no_golden_file_is_an_orphan() -> None:
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file():
            assert path.suffix == ".yaml", path
            assert path.parent.parent == GOLDEN, path
            case, expected = yaml.safe_load_all(path.read_text())
            assert isinstance(case, dict), path
            assert isinstance(expected, str), path


def test_the_changelog_knows_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == graphc.__version__
    assert re.search(
        rf"(?m)^## {re.escape(project['version'])}\b", (ROOT / "CHANGELOG.md").read_text()
    )


def test_the_base_install_is_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=~\[ ]", each)[0] for each in project["dependencies"]}
    assert not [each for each in names if each.startswith(("cuda", "nvidia", "torch", "optuna"))]


def test_nothing_tells_on_whose_machine_it_was_written() -> None:
    homes = ("work/", "root/", r"home/\w", r"Users/\w")
    marks = re.compile("|".join(rf"(?<![\w./-])/{each}" for each in homes))
    for path in tracked():
        if path == Path(__file__):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        assert not marks.search(text), path


def test_ci_brings_a_browser_runs_the_tests_and_does_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [
        line.strip() for line in lines if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == [
        "if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then",
        "apt-get update -qq",
        "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \\",
        "chromium chromium-driver fonts-dejavu-core >/dev/null",
        "fi",
        "export GRAPHC_NEEDS_CHROMIUM=1",
        "make test",
    ]


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by name alone, and would leave out the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
