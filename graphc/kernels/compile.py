"""A rendered kernel -> a cubin for one architecture, by way of a cache.

A cubin is found again by source, options, architecture and the version of NVRTC: in this process
first, then on disk (``GRAPHC_CACHE_DIR``, else ``graphc`` in the user's cache folder). An entry is
written whole or not at all and carries its own checksum; a cache that is corrupted, full or
read-only costs a compilation and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from base64 import b64decode
from contextlib import suppress
from pathlib import Path

from graphc.gpu import nvrtc
from graphc.kernels.render import READY, bare, origin
from graphc.plan import KernelImage
from graphc.text.diagnostics import CudaError, Diagnostic, Note, SpecError

FORMAT = b"graphc-cubin-1\n"
OPTIONS = ("--std=c++17", "--fmad=true")
MOST_MISTAKES = 8

# "convert.cu(12): error: identifier "y" is undefined", and what NVRTC adds in the lines below it.
MISTAKE = re.compile(r"^.*?\((\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (.*)$")

# Cubins of this process by digest; only a cache, so clearing it changes nothing but time.
compiled: dict[str, bytes] = {}


def compile_image(image: KernelImage, arch: str) -> bytes:
    """The cubin of a kernel for ``arch`` ("sm_90a"); a ready one, or PTX, as it came.

    Raises ``SpecError`` at the template's line if NVRTC refuses the source, ``CudaError`` if NVRTC
    is missing or cannot compile for that architecture.
    """
    if READY in image.cubins:
        return b64decode(image.cubins[READY])
    check_architecture(image, arch)
    options = (*OPTIONS, f"-arch={arch}")
    source = bare(image.source)
    key = cache_key(source, options)
    if key not in compiled:
        compiled[key] = from_disk(key) or compile_new(image, source, options, key)
    return compiled[key]


def compile_new(image: KernelImage, source: str, options: tuple[str, ...], key: str) -> bytes:
    try:
        cubin = nvrtc.compile_cubin(source, f"{image.template}.cu", options)
    except nvrtc.Refused as refused:
        raise SpecError(mistakes(image, refused.log)) from None
    to_disk(key, cubin)
    return cubin


def check_architecture(image: KernelImage, arch: str) -> None:
    """Refuse a GPU that is too old for the kernel, or unknown to this NVRTC."""
    number = int("".join(each for each in arch if each.isdigit()) or 0)
    if number < image.min_capability:
        raise CudaError(
            "compile",
            "GPU too old",
            f"kernel '{image.template}' needs compute capability "
            f"{capability(image.min_capability)}, {arch} has {capability(number)}",
        )
    known = nvrtc.architectures()
    if number not in known:
        raise CudaError(
            "compile",
            "unknown architecture",
            f"NVRTC {'.'.join(map(str, nvrtc.version()))} does not compile for {arch}; "
            f"it knows {', '.join(f'sm_{each}' for each in known)}",
        )


def capability(number: int) -> str:
    """
    >>> capability(100)
    '10.0'
    """
    return f"{number // 10}.{number % 10}"


def mistakes(image: KernelImage, log: str) -> list[Diagnostic]:
    """NVRTC's errors, each with its rendered line and the line of the template behind it."""
    found = [match for match in map(MISTAKE.match, log.splitlines()) if match]
    lines = image.source.split("\n")
    if not found:
        message = f"kernel '{image.template}' does not compile: {log.strip()}"
        return [Diagnostic("bad-kernel", message)]
    return [mistake(image, int(match[1]), match[2], lines) for match in found[:MOST_MISTAKES]]


def mistake(image: KernelImage, number: int, said: str, lines: list[str]) -> Diagnostic:
    rendered = lines[number - 1].strip() if 1 <= number <= len(lines) else ""
    place = origin(image.source, number)
    note = Note(f"rendered line {number} is: {rendered}")
    message = f"kernel '{image.template}' does not compile: {said}"
    if place is None:
        return Diagnostic("bad-kernel", message, notes=(note,))
    return Diagnostic("bad-kernel", message, place.span, (note,))


def cache_key(source: str, options: tuple[str, ...]) -> str:
    parts = (FORMAT.decode(), source, options, nvrtc.version())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def cache_folder() -> Path:
    own = os.environ.get("GRAPHC_CACHE_DIR")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphc"


def from_disk(key: str) -> bytes | None:
    """The entry, if it is there and whole."""
    try:
        raw = entry_path(key).read_bytes()
    except (OSError, RuntimeError):
        return None
    checksum, cubin = raw[len(FORMAT) : len(FORMAT) + 32], raw[len(FORMAT) + 32 :]
    is_whole = raw.startswith(FORMAT) and hashlib.sha256(cubin).digest() == checksum
    return cubin if cubin and is_whole else None


def to_disk(key: str, cubin: bytes) -> None:
    """Write the entry beside its place and move it there, so that no reader sees a part of it."""
    partial: Path | None = None
    try:
        target = entry_path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{key[:8]}-", dir=target.parent)
        partial = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(FORMAT + hashlib.sha256(cubin).digest() + cubin)
        partial.replace(target)
    except (OSError, RuntimeError):
        # RuntimeError: there is no home folder. Without a cache the cubin is made again next time.
        if partial is not None:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def entry_path(key: str) -> Path:
    return cache_folder() / f"{key}.cubin"
