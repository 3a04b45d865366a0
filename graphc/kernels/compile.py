"""A rendered kernel -> a cubin for one architecture, by way of a cache.

A cubin is found again by source, options, architecture and the version of NVRTC: in this process
first, then on disk (see ``cache``).
"""

from __future__ import annotations

import re
from base64 import b64decode

from graphc.gpu import nvrtc
from graphc.kernels.cache import from_disk, key_of, to_disk
from graphc.kernels.render import READY, bare, origin
from graphc.plan import KernelImage
from graphc.text.diagnostics import CudaError, Diagnostic, Note, SpecError

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
    key = key_of("cubin", source, options, nvrtc.version())
    if key not in compiled:
        compiled[key] = from_disk(key, "cubin") or compile_new(image, source, options, key)
    return compiled[key]


def compile_new(image: KernelImage, source: str, options: tuple[str, ...], key: str) -> bytes:
    try:
        cubin = nvrtc.compile_cubin(source, f"{image.template}.cu", options)
    except nvrtc.Refused as refused:
        raise SpecError(mistakes(image, refused.log)) from None
    to_disk(key, "cubin", cubin)
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
