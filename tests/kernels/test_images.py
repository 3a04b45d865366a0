"""Rendered kernels are found again: in the process, and on disk by the next one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphc.ir import Kernel
from graphc.kernels import images as imaging
from graphc.kernels import render as rendering
from graphc.kernels.contract import Catalog
from graphc.kernels.images import Images
from graphc.plan import KernelImage
from graphc.resources import shipped
from graphc.text.expr import Scaled

DTYPES = {"x": "f32", "y": "f16"}
KERNEL = Kernel("convert", {"n": Scaled(64, 1), "m": 8})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path / "cache"))
    imaging.RENDERED.clear()
    return tmp_path / "cache"


def found(kernel: Kernel = KERNEL, *, own: tuple[Path, ...] = ()) -> KernelImage:
    """The image as a new process would get it."""
    rendering.environment.cache_clear()
    imaging.RENDERED.clear()
    return Images(Catalog((*own, shipped("templates"))), "sm_90a").image(kernel, DTYPES)


def no_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> KernelImage:
        raise AssertionError("this was rendered before")

    monkeypatch.setattr(rendering, "image", refuse)


def test_another_process_finds_the_image_on_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found()
    assert [each.suffix for each in folder.iterdir()] == [".image"]
    no_rendering(monkeypatch)
    assert found() == first


def test_the_capacity_is_in_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    first = found()
    no_rendering(monkeypatch)
    assert found(Kernel("convert", {"n": Scaled(4096, 1), "m": 8})) == first


def test_a_damaged_entry_is_made_again(folder: Path) -> None:
    first = found()
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    for damage in (b"", whole[:60], whole[:-1], whole[:-1] + b"?", b"x" * len(whole)):
        entry.write_bytes(damage)
        assert found() == first
        assert entry.read_bytes() == whole


@pytest.mark.parametrize("text", [b"{}", b"[1]", b'{"launch": 3}', b'{"launch": {"grid": []}}'])
def test_an_entry_that_means_nothing_is_made_again(
    text: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found()
    monkeypatch.setattr(imaging, "from_disk", lambda *_: text)
    assert found() == first


def test_a_changed_template_has_an_entry_of_its_own(tmp_path: Path) -> None:
    template = tmp_path / "convert.cu.j2"
    template.write_text((shipped("templates") / "convert.cu.j2").read_text())
    first = found(own=(tmp_path,))
    state = template.stat()
    template.write_text(template.read_text() + "// more\n")
    os.utime(template, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert found(own=(tmp_path,)).source != first.source
