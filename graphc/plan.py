"""What is saved and instantiated: verified schedules, one for each choice of routes, and kernels.

A plan never contains ``auto``: it holds one variant for each route that ``auto`` may take, each
verified; ``instantiate`` tests the machine and takes the first whose requirements hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Strict, TypeAdapter, ValidationError

from graphc.ir import Await, Kernel, Op, Program, Schedule, Signal
from graphc.text.diagnostics import Span, SpecError, UsageError, error
from graphc.text.write import write_whole

FORMAT = 1
Backend = Literal["auto", "cuda", "reference"]
WAIT_LIMIT_S = 10.0  # for how long a unit waits for another


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
    tables: Mapping[str, int] = field(default_factory=dict)  # pointers by value, one a rank
    is_guarded: bool = False  # its last parameter is a guard: it does nothing where that is set
    # Argument -> what the first word of its status buffer says: code -> message.
    faults: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proof:
    """What ``verify`` went through to find no race."""

    ops: int
    pairs: int  # conflicting accesses compared
    nbytes: int  # bytes covered by regions
    redundant: tuple[Span, ...] = ()  # waits of a hand-written schedule that order nothing
    units: int = 1
    signals: int = 0  # ops that signal other units
    awaits: int = 0  # signals awaited in the launch that sends them, as often as a unit does so
    handshakes: int = 0  # the same, of the launch before


@dataclass(frozen=True, slots=True)
class Variant:
    """One choice of routes, scheduled and proven."""

    routes: Mapping[str, str]  # transfer -> route
    requires: tuple[Requirement, ...]
    schedule: Schedule
    images: Mapping[str, str]  # step -> key of its kernel image
    proof: Proof
    others: Mapping[str, Schedule] = field(default_factory=dict)  # of entries but the first

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Entry -> schedule; the first is what ``launch`` takes where none is named."""
        return {self.schedule.entry: self.schedule, **self.others}


@dataclass(frozen=True, slots=True)
class Plan:
    # First in the file, so that whoever opens it sees what it is.
    graphc_plan: int = field(default=FORMAT, kw_only=True)
    name: str
    params: Mapping[str, int | float | str | bool]
    variants: tuple[Variant, ...]
    images: Mapping[str, KernelImage]
    arch: str = "sm_90a"  # what the images were rendered for
    phases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # phase -> its steps
    sequence: tuple[str, ...] = ()  # the first entry, behind those that ``run`` launches before it

    def instantiate(
        self,
        backend: Backend = "auto",
        *,
        devices: Mapping[str, int] | Sequence[int] | None = None,
        wait_limit_s: float = WAIT_LIMIT_S,
    ) -> Any:
        """A graph ready to bind and launch; see ``graphc.api.instantiate``."""
        from graphc.api import instantiate

        return instantiate(self, backend, devices=devices, wait_limit_s=wait_limit_s)

    def save(self, path: str | Path) -> None:
        """Write the plan as readable JSON with a digest of its content, whole or not at all."""
        write_whole(checked_path(path, "a plan"), signed(adapter().dump_json(self, indent=1)))


FIRST = b'{\n "graphc_plan": %d,\n' % FORMAT
DIGEST = re.compile(rb' "digest": "sha256:([0-9a-f]{64})",\n')


def signed(plan: bytes) -> bytes:
    """The JSON of a plan with a second line that names the SHA-256 of all that follows it."""
    assert plan.startswith(FIRST)
    rest = plan[len(FIRST) :]
    return FIRST + b' "digest": "sha256:%s",\n' % sha256(rest).hexdigest().encode() + rest


def why_not_whole(raw: bytes) -> str | None:
    """What the digest tells against a plan's file, if it does."""
    found = DIGEST.match(raw, len(FIRST)) if raw.startswith(FIRST) else None
    if found is None:
        return "its second line should be the digest of the rest, and is not"
    if sha256(raw[found.end() :]).hexdigest().encode() != found[1]:
        return "its content is not that of its digest: the file was changed or damaged"
    return None


def checked_path(path: object, what: str) -> Path:
    """The path that a caller gave; a ``UsageError`` if it is none."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise UsageError(f"expected the path of {what}, found {path!r}")
    return Path(path)


@dataclass(frozen=True, slots=True)
class Head:
    """What is read of a file before the rest is looked at."""

    graphc_plan: Annotated[int, Strict()]


@cache
def head_adapter() -> TypeAdapter[Head]:
    return TypeAdapter(Head)


@cache
def adapter() -> TypeAdapter[Plan]:
    """Between plans and JSON; made when the first plan is saved or loaded."""
    return TypeAdapter(Plan)


def load_plan(path: str | Path) -> Plan:
    """Read a saved plan; a ``SpecError`` if it is missing, no plan, damaged, or of another format.

    What its schedules promise is not looked at: see ``graphc.api.load``.
    """
    try:
        raw = checked_path(path, "a plan").read_bytes()
        found = head_adapter().validate_json(raw).graphc_plan
        if found != FORMAT:
            raise bad_plan(path, f"it has format {found}; this graphc reads format {FORMAT}")
        if (damage := why_not_whole(raw)) is not None:
            raise bad_plan(path, damage)
        plan = adapter().validate_json(raw)
    except OSError as problem:
        raise error("missing-file", f"cannot read '{path}': {problem.strerror}") from None
    except ValidationError as problem:
        first = problem.errors()[0]
        where = "/".join(str(part) for part in first["loc"])
        what = f"at '{where}': {first['msg']}" if where else first["msg"]
        raise bad_plan(path, what) from None
    for mistake in loose_ends(plan):
        raise bad_plan(path, mistake)
    return plan


def bad_plan(path: str | Path, what: str) -> SpecError:
    return error(
        "bad-plan",
        f"'{path}' is no plan that can be trusted: {what}",
        hint="compile the spec again with this version of graphc",
    )


def loose_ends(plan: Plan) -> Iterator[str]:
    """Names that lead nowhere, and what no plan of ours holds.

    Each is told before what would stumble over it: whoever asks for more than the first may fail.
    """
    if not plan.variants:
        yield "it has no variants"
    all_of = [each for variant in plan.variants for each in variant.schedules.values()]
    known = {op.step for schedule in all_of for op in schedule.program}
    for phase, named in plan.phases.items():
        for step in named:
            if step not in known:
                yield f"phase '{phase}' names the step '{step}', which is not there"
    for variant in plan.variants:
        for entry, schedule in variant.schedules.items():
            yield from loose_ends_of(schedule, variant, plan)
            if entry != schedule.entry:
                yield f"entry '{entry}' calls itself '{schedule.entry}'"
        for name in plan.sequence:
            if name not in variant.schedules:
                yield f"there is no entry '{name}' to launch"


def loose_ends_of(schedule: Schedule, variant: Variant, plan: Plan) -> Iterator[str]:
    program, steps = schedule.program, variant.images
    if schedule.is_handwritten:
        yield "its schedule is hand-written"
    if program.nominal < 1:
        yield f"its regions are of a nominal extent of {program.nominal}, which is none"
    if schedule.origin not in {each.name for each in schedule.streams}:
        yield f"there is no stream '{schedule.origin}' to begin on"
    for name, buffer in program.buffers.items():
        if name not in schedule.memory.slots:
            yield f"buffer '{name}' has no memory"
        if name != buffer.name:
            yield f"buffer '{name}' calls itself '{buffer.name}'"
    for stream in schedule.streams:
        if stream.device not in program.devices:
            yield f"stream '{stream.name}' is on no device of the plan: '{stream.device}'"
    yield from loose_ends_of_units(schedule, variant)
    for op in program:
        if op.device not in program.devices:
            yield f"op '{op.name}' is on no device of the plan: '{op.device}'"
        for access in op.accesses:
            if access.region.buffer not in program.buffers:
                yield f"op '{op.name}' touches buffer '{access.region.buffer}', which is not there"
        if not isinstance(op.work, Kernel):
            continue
        image = plan.images.get(steps.get(op.step, ""))
        if image is None:
            yield f"op '{op.name}' has no kernel image"
        else:
            yield from loose_ends_of_tables(op, image)
            yield from loose_ends_of_reach(op, program, variant)
    for each in variant.requires:
        if not {each.source, each.target} <= {*program.devices}:
            yield f"it requires something of '{each.source}' and '{each.target}'"


def loose_ends_of_tables(op: Op, image: KernelImage) -> Iterator[str]:
    """Tables of pointers that do not hold a buffer of each rank, in the order of ranks."""
    peers: dict[str, list[int | None]] = {}
    for access in op.accesses:
        if access.peer is not None or access.argument in image.tables:
            peers.setdefault(access.argument, []).append(access.peer)
    for argument, found in peers.items():
        if len(found) != image.tables.get(argument, 0) or found != [*range(len(found))]:
            yield f"op '{op.name}' has other buffers for '{argument}' than its kernel takes"


def loose_ends_of_reach(op: Op, program: Program, variant: Variant) -> Iterator[str]:
    """Memory of other devices that a kernel touches, though nobody tests whether it can."""
    tested = {frozenset({each.source, each.target}) for each in variant.requires}
    devices = (program.buffers[each.region.buffer].device for each in op.accesses)
    for device in dict.fromkeys(devices):
        pair = frozenset({op.device, device})
        if device in program.devices and len(pair) > 1 and pair not in tested:
            yield f"op '{op.name}' touches memory of '{device}', which the plan does not require"


def loose_ends_of_units(schedule: Schedule, variant: Variant) -> Iterator[str]:
    """Units that begin nowhere, and signals to or from what is not there."""
    names = {each.name for each in schedule.units}
    streams = {each.name for each in schedule.streams}
    for unit in schedule.units:
        if unit.origin not in streams:
            yield f"unit '{unit.name}' has no stream '{unit.origin}' to begin on"
        for device in unit.devices:
            if device not in schedule.program.devices:
                yield f"unit '{unit.name}' is on no device of the plan: '{device}'"
    for op in schedule.program:
        work = op.work
        others = work.to if isinstance(work, Signal) else ()
        if isinstance(work, Await):
            others = tuple(each.unit for each in work.signals)
            for each in work.signals:
                if each.entry not in variant.schedules:
                    yield f"op '{op.name}' awaits entry '{each.entry}', which is not there"
        for other in others:
            if other not in names:
                yield f"op '{op.name}' speaks of unit '{other}', which is not there"
