"""The kernel images of a plan: each rendered once, however many ops, plans or compiles call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from graphc.ir import Kernel, Program
from graphc.kernels.contract import Catalog
from graphc.plan import KernelImage

# Images rendered before in this process, by all that they follow from: rendering one takes a
# millisecond or more, and a sweep compiles the same kernels thousands of times.
RENDERED: dict[tuple[object, ...], KernelImage] = {}


@dataclass(slots=True)
class Images:
    """Renders the kernels of programs, and keeps the images that a plan is to hold."""

    catalog: Catalog
    arch: str  # "sm_90a"
    by_key: dict[str, KernelImage] = field(default_factory=dict)
    stamp: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        self.stamp = tuple(state_of(folder) for folder in self.catalog.folders)

    def of(self, program: Program) -> dict[str, str]:
        """Step -> key of its image, for every kernel of the program."""
        found: dict[str, str] = {}
        for op in program:
            if isinstance(op.work, Kernel) and op.step not in found:
                dtypes = {
                    each.argument: program.buffers[each.region.buffer].dtype for each in op.accesses
                }
                found[op.step] = self.image(op.work, dtypes).key
        return found

    def image(self, kernel: Kernel, dtypes: Mapping[str, str]) -> KernelImage:
        from graphc.kernels.render import image

        contract = self.catalog.contract(kernel.template)
        if contract.binary is not None:  # nothing to render, and its file may have changed
            made = image(contract, kernel, dtypes, arch_number(self.arch))
            self.by_key[made.key] = made
            return made
        what = (
            self.stamp,
            self.arch,
            kernel.template,
            *sorted(kernel.symbols.items()),
            *sorted(kernel.options.items()),
            *sorted(dtypes.items()),
        )
        if what not in RENDERED:
            RENDERED[what] = image(contract, kernel, dtypes, arch_number(self.arch))
        rendered = RENDERED[what]
        self.by_key[rendered.key] = rendered
        return rendered


def state_of(folder: Path) -> tuple[object, ...]:
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
