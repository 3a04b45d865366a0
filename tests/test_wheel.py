"""The wheel holds all that it needs: it works from an empty folder, without the tree and CUDA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Installed:
    """A wheel, and the folder into which it was installed."""

    wheel: Path
    site: Path
    empty: Path

    def run(self, *words: str) -> str:
        """What a command prints, run from the empty folder with the wheel in front of the tree."""
        done = subprocess.run(
            [sys.executable, "-P", *words],
            cwd=self.empty,
            env={**os.environ, "PYTHONPATH": str(self.site), "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder)]
    subprocess.run([*build, str(ROOT)], capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    site, empty = folder / "site", folder / "empty"
    empty.mkdir()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*install, "--target", str(site), str(wheel)], capture_output=True, check=True)
    # What the tests' environment has and a base install has not.
    (site / "cuda").mkdir()
    (site / "cuda" / "__init__.py").write_text("raise ImportError('no CUDA in a base install')\n")
    return Installed(wheel, site, empty)


def test_templates_specs_and_license_are_in_it_and_tests_are_not(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    for folder in ("templates", "specs"):
        here = {
            path.relative_to(ROOT / folder).as_posix()
            for path in (ROOT / folder).rglob("*.*")
            if path.is_file()
        }
        prefix = f"graphc/data/{folder}/"
        assert {each.removeprefix(prefix) for each in names if each.startswith(prefix)} == here
    assets = {f"graphc/draw/assets/{path.name}" for path in (ROOT / "graphc/draw/assets").iterdir()}
    assert assets <= {*names}
    assert any(each.endswith("licenses/LICENSE") for each in names)
    tops = {each.partition("/")[0] for each in names}
    assert {each for each in tops if not each.endswith(".dist-info")} == {"graphc"}


def test_a_base_install_asks_for_nothing_of_cuda(installed: Installed) -> None:
    archive = zipfile.ZipFile(installed.wheel)
    (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
    needs = [
        line.removeprefix("Requires-Dist: ")
        for line in archive.read(name).decode().splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    assert needs
    assert not [each for each in needs if "cuda" in each or "nvidia" in each]


def test_it_is_the_wheel_that_runs(installed: Installed) -> None:
    found = installed.run("-c", "import graphc; print(graphc.__file__)")
    assert found.startswith(str(installed.site))


def test_a_shipped_spec_is_proven_and_run_by_name(installed: Installed) -> None:
    assert "no race" in installed.run("-m", "graphc", "check", "moe_peer", "--preset", "small")
    words = ["run", "moe_peer", "--preset", "small", "--set", "route=p2p", "--set", "pieces=3"]
    words += ["--set", "layers=1", "--compare", "pieces=1", "--json"]
    found = json.loads(installed.run("-m", "graphc", *words, "--backend", "reference"))
    assert found["ok"]
    assert not list(installed.empty.iterdir())


def test_pages_are_drawn_with_what_the_wheel_brings(installed: Installed, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["show", "moe_peer", "--preset", "small", "--set", "layers=1", "--html", str(page)]
    installed.run("-m", "graphc", *words)
    assert "layer.0/combine/piece.1" in page.read_text()


def test_the_command_is_installed(installed: Installed) -> None:
    assert installed.run(str(installed.site / "bin" / "graphc"), "--version").startswith("graphc ")
