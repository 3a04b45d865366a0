"""The kernel images of a plan: each rendered once, however many ops, plans or compiles call it.

Rendering one takes ten milliseconds, and half of a first compile in a new process went into it. So
an image is found again by all that it follows from: in this process first, then on disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import graphc
from graphc.ir import Kernel, Program
from graphc.kernels.bind import built_in
from graphc.kernels.cache import from_disk, key_of, to_disk
from graphc.kernels.contract import Catalog, Contract
from graphc.kernels.signals import signal_image
from graphc.plan import KernelImage, Launch

State: TypeAlias = tuple[tuple[str, int, int], ...]  # of files: path, time of change, size

# Images of this process by all that they follow from; clearing it changes nothing but time.
RENDERED: dict[tuple[object, ...], KernelImage] = {}


@dataclass(slots=True)
class Images:
    """Renders the kernels of programs, and keeps the images that a plan is to hold."""

    catalog: Catalog
    arch: str  # "sm_90a"
    by_key: dict[str, KernelImage] = field(default_factory=dict)
    stamp: tuple[State, ...] = ()

    def __post_init__(self) -> None:
        self.stamp = tuple(state_of(folder) for folder in self.catalog.folders)

    def of(self, program: Program) -> dict[str, str]:
        """Step -> key of its image, for every kernel of the program."""
        found: dict[str, str] = {}
        keys: dict[tuple[int, tuple[str, ...]], str] = {}  # calls that are alike share their kernel
        for op in program:
            if (own := signal_image(op)) is not None:
                self.by_key[own.key] = own
            if not isinstance(op.work, Kernel) or op.step in found:
                continue
            kinds = tuple(program.buffers[each.region.buffer].dtype for each in op.accesses)
            call = id(op.work), kinds
            if call not in keys:
                names = (each.argument for each in op.accesses)
                keys[call] = self.image(op.work, dict(zip(names, kinds, strict=True))).key
            found[op.step] = keys[call]
        return found

    def image(self, kernel: Kernel, dtypes: Mapping[str, str]) -> KernelImage:
        contract = self.catalog.contract(kernel.template)
        if contract.binary is not None:  # nothing to render, and its file may have changed
            made = rendered(contract, kernel, dtypes, self.arch)
        else:
            what = (
                self.stamp,
                arch_number(self.arch),
                kernel.template,
                tuple(sorted(built_in(contract, kernel).items())),
                tuple(sorted((*each, type(each[1])) for each in kernel.options.items())),
                tuple(sorted(dtypes.items())),
            )
            if what not in RENDERED:
                RENDERED[what] = self.found(what, contract, kernel, dtypes)
            made = RENDERED[what]
        self.by_key[made.key] = made
        return made

    def found(
        self,
        what: tuple[object, ...],
        contract: Contract,
        kernel: Kernel,
        dtypes: Mapping[str, str],
    ) -> KernelImage:
        """The image that is on disk; else a new one, which is then put there."""
        try:
            contents = [contents_of(folder) for folder in self.stamp]
        except OSError:  # a file that nobody may read, or that is gone again
            return rendered(contract, kernel, dtypes, self.arch)
        key = key_of("image", graphc.__version__, str(contract.path), contents, what[1:])
        known = loaded(from_disk(key, "image"))
        if known is None:
            known = rendered(contract, kernel, dtypes, self.arch)
            to_disk(key, "image", json.dumps(asdict(known)).encode())
        return known


def rendered(
    contract: Contract, kernel: Kernel, dtypes: Mapping[str, str], arch: str
) -> KernelImage:
    from graphc.kernels.render import image

    return image(contract, kernel, dtypes, arch_number(arch))


def loaded(entry: bytes | None) -> KernelImage | None:
    """The image of an entry; None if there is none, or one that means nothing to this graphc."""
    try:
        fields: dict[str, Any] = json.loads(entry or b"{}")
        launch: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each
            for name, each in fields.pop("launch").items()
        }
        scalars = tuple((name, kind) for name, kind in fields.pop("scalars"))
        pointers = tuple(fields.pop("pointers"))
        return KernelImage(pointers=pointers, scalars=scalars, launch=Launch(**launch), **fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


@lru_cache(maxsize=64)
def contents_of(state: State) -> str:
    """A digest of the files of a folder, and of the code that renders them."""
    files = [Path(path) for path, _, _ in state]
    code = Path(__file__).with_name("render.py")
    return key_of(files, [each.read_bytes() for each in (*files, code)])


def state_of(folder: Path) -> State:
    """What changes when a template, or a file that it includes, does."""
    return tuple(
        (str(path), state.st_mtime_ns, state.st_size)
        for path in sorted(folder.rglob("*.j2"))
        for state in [path.stat()]
    )


def arch_number(arch: str) -> int:
    """
    >>> arch_number("sm_90a")
    90
    """
    return int("".join(each for each in arch if each.isdigit()))
