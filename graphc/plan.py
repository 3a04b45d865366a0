"""What is saved and instantiated: verified schedules, one for each choice of routes, and kernels.

A plan never contains ``auto``: it holds one variant for each route that ``auto`` may take, each
verified; ``instantiate`` tests the machine and takes the first whose requirements hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from graphc.ir import Schedule
from graphc.text.diagnostics import Span, error

FORMAT = 1
Backend = Literal["auto", "cuda", "reference"]


class Need(StrEnum):
    """What a route asks of a pair of devices; each is tested with data before it is believed."""

    PEER_COPY = "peer_copy"  # a copy engine moves bytes from source to target
    PEER_READ = "peer_read"  # a kernel on target reads the source's memory
    PEER_WRITE = "peer_write"  # a kernel on source writes the target's memory
    SAME_GPU = "same_gpu"


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    need: Need
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch shape as expressions over symbols, options, lo, hi, blocks, arch and device."""

    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str = "0"
    cluster: tuple[str, ...] = ()
    is_cooperative: bool = False


@dataclass(frozen=True, slots=True)
class KernelImage:
    """One rendered kernel: its source, how to call it, and its cubins by architecture."""

    key: str  # "grouped_up-1f3a90c2"
    template: str
    entry: str
    source: str  # CUDA C++, for NVRTC
    pointers: tuple[str, ...]  # the arguments that are pointers, in call order; null when unbound
    scalars: tuple[tuple[str, str], ...]  # (name, dtype), in call order
    launch: Launch
    min_capability: int = 70
    reference: str | None = None
    cubins: Mapping[str, str] = field(default_factory=dict)  # "sm_90a" -> cubin in base 64


@dataclass(frozen=True, slots=True)
class Proof:
    """What ``verify`` went through to find no race."""

    ops: int
    pairs: int  # conflicting accesses compared
    nbytes: int  # bytes covered by regions
    redundant: tuple[Span, ...] = ()  # waits of a hand-written schedule that order nothing


@dataclass(frozen=True, slots=True)
class Variant:
    """One choice of routes, scheduled and proven."""

    routes: Mapping[str, str]  # transfer -> route
    requires: tuple[Requirement, ...]
    schedule: Schedule
    images: Mapping[str, str]  # step -> key of its kernel image
    proof: Proof


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    params: Mapping[str, int | float | str | bool]
    variants: tuple[Variant, ...]
    images: Mapping[str, KernelImage]
    arch: str = "sm_90a"  # what the images were rendered for
    graphc_plan: int = FORMAT

    def instantiate(
        self,
        backend: Backend = "auto",
        *,
        devices: Mapping[str, int] | Sequence[int] | None = None,
    ) -> Any:
        """A graph ready to bind and launch; see ``graphc.api.instantiate``."""
        from graphc.api import instantiate

        return instantiate(self, backend, devices=devices)

    def save(self, path: str | Path) -> None:
        """Write the plan as readable JSON, whole or not at all."""
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        try:
            partial.write_bytes(adapter().dump_json(self, indent=1))
            partial.replace(target)
        except OSError as problem:
            partial.unlink(missing_ok=True)
            raise error("cannot-write", f"cannot write '{target}': {problem.strerror}") from None


@cache
def adapter() -> TypeAdapter[Plan]:
    """Between plans and JSON; made when the first plan is saved or loaded."""
    return TypeAdapter(Plan)


def load_plan(path: str | Path) -> Plan:
    """Read a saved plan; a ``SpecError`` if it is missing, no plan, or of another format."""
    try:
        return adapter().validate_json(Path(path).read_bytes())
    except OSError as problem:
        raise error("missing-file", f"cannot read '{path}': {problem.strerror}") from None
    except ValidationError as problem:
        first = problem.errors()[0]
        where = "/".join(str(part) for part in first["loc"])
        raise error(
            "bad-plan",
            f"'{path}' is no plan of format {FORMAT}: at '{where}': {first['msg']}",
            hint="compile the spec again with this version of graphc",
        ) from None
