"""compile, check, load, instantiate: the surface that users call."""

from __future__ import annotations

import math
import operator
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from graphc.backends.extern import check_externs
from graphc.ir import Join, Program, Schedule
from graphc.kernels.contract import Catalog
from graphc.kernels.images import Images
from graphc.passes.choose_routes import chosen_routes, has_auto, requirements
from graphc.pipeline import Observer, collector_paused, ignore, schedule_programs, verify
from graphc.plan import (
    WAIT_LIMIT_S,
    Backend,
    KernelImage,
    Plan,
    Proof,
    Variant,
    bad_plan,
    checked_path,
    load_plan,
)
from graphc.resources import kernel_folders, route_folders, spec_path
from graphc.routes import RouteSpec, load_routes
from graphc.spec.build import Built, build
from graphc.spec.model import load_spec
from graphc.text.diagnostics import CompilerBug, UsageError, error
from graphc.text.suggest import did_you_mean

if TYPE_CHECKING:
    from graphc.backends.cuda import CudaGraph
    from graphc.backends.reference import ReferenceGraph

PathLike = str | Path
Folders = PathLike | Sequence[PathLike]
PYTHON = "value of '{name}'"  # what messages call the place of a value from a call


@collector_paused()
def compile(
    path: PathLike,
    *,
    preset: str | None = None,
    schedule: PathLike | None = None,
    arch: str | None = None,
    cubins: bool = True,
    kernels: Folders = (),
    routes: Folders = (),
    observe: Observer = ignore,
    origin: str = PYTHON,
    **values: Any,
) -> Plan:
    """Compile a spec, a file or the name of a shipped one, to a verified plan.

    ``values`` override params by name, and schedule values by their path
    (``**{"schedule.activations.pieces": 4}``). ``preset`` names one of the spec's presets;
    ``schedule`` a file that replaces its schedule section. ``kernels`` and ``routes`` are folders
    searched before the shipped ones (a single path is one folder). ``arch`` ("sm_90a") is what
    kernels are compiled for: that of the GPU at hand if None; ``cubins=False`` leaves compiling
    them to ``instantiate``. ``origin`` is what messages call the place of one of the values.

    Raises ``SpecError`` with all mistakes found, ``CudaError`` if NVRTC refuses the machine.
    """
    built, catalog, known = read(path, preset, schedule, kernels, routes, values, origin=origin)
    if built.schedule is not None:
        raise error(
            "handwritten-schedule",
            f"'{path}' is a hand-written schedule: its ops are opaque and cannot run",
            hint="prove it with 'graphc check'",
        )
    target = checked_arch(arch) if arch is not None else arch_at_hand()
    images = Images(catalog, target)
    variants = tuple(
        variant(auto, built, known, catalog, images, observe)
        for auto in candidates(built.programs, known)
    )
    programs = [one.program for each in variants for one in each.schedules.values()]
    phases = phase_steps(built.phases, programs)
    plan = Plan(built.name, built.params, variants, images.by_key, target, phases, built.sequence)
    return with_cubins(plan) if cubins else plan


@collector_paused()
def check(
    path: PathLike,
    *,
    preset: str | None = None,
    schedule: PathLike | None = None,
    kernels: Folders = (),
    routes: Folders = (),
    observe: Observer = ignore,
    origin: str = PYTHON,
    **values: Any,
) -> list[tuple[Schedule, Proof]]:
    """Prove a spec's schedules, or a hand-written one, free of races; no kernel is rendered.

    There is one for each entry, and that for each route of ``auto``; the proof covers all entries.
    """
    built, catalog, known = read(path, preset, schedule, kernels, routes, values, origin=origin)
    if built.schedule is not None:
        return [(built.schedule, verify(built.schedule))]
    results = (
        schedule_programs(
            built.programs, known, catalog, built.settings, auto=auto, observe=observe, dump=dumped
        )
        for auto in candidates(built.programs, known)
    )
    return [(each, proof) for _, found, proof in results for each in found]


@collector_paused()
def load(path: PathLike) -> Plan:
    """Read a plan that ``Plan.save`` wrote, and prove its schedules again."""
    plan = load_plan(path)
    for each in plan.variants:
        schedules = tuple(each.schedules.values())
        for schedule in schedules:
            check_externs(schedule.program)
        try:
            verify(schedules)
        except CompilerBug as bug:
            what = f"its schedule is not the one that was proven:\n\n{bug.message}\n"
            raise bad_plan(path, what) from None
        except LookupError as problem:
            raise bad_plan(path, f"its schedule names {problem}, which is not there") from None
    return plan


def instantiate(
    plan: Plan,
    backend: Backend = "auto",
    *,
    devices: Mapping[str, int] | Sequence[int] | None = None,
    wait_limit_s: float = WAIT_LIMIT_S,
) -> CudaGraph | ReferenceGraph:
    """Make a plan ready to launch: on CUDA if there is a device, else on the reference.

    ``wait_limit_s`` is for how long a unit waits for another before all of them give up.
    """
    if backend not in get_args(Backend):
        hint = did_you_mean(str(backend), get_args(Backend))
        known = ", ".join(get_args(Backend))
        raise UsageError(f"there is no backend '{backend}': {hint or f'there are {known}'}")
    if backend == "reference" or (backend == "auto" and not has_gpu()):
        from graphc.backends.binding import checked_limit
        from graphc.backends.reference import ReferenceGraph

        checked_limit(wait_limit_s)
        return ReferenceGraph(plan, devices=devices)
    from graphc.backends.cuda import CudaGraph

    if has_gpu() and plan.arch == arch_at_hand():
        plan = with_cubins(plan)  # several at a time; what is missing after this is compiled later
    return CudaGraph(plan, devices=devices, wait_limit_s=wait_limit_s)


def has_gpu() -> bool:
    from graphc.gpu.probe import gpu_count

    return gpu_count() > 0


def arch_at_hand() -> str:
    """The architecture of the first GPU; that of Hopper where there is none."""
    from graphc.gpu.probe import gpu_arch

    return gpu_arch() or "sm_90a"


def checked_arch(arch: object) -> str:
    if not isinstance(arch, str) or not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise UsageError(f"arch: expected an architecture such as 'sm_90a', found {arch!r}")
    return arch


def read(
    path: PathLike,
    preset: str | None,
    schedule: PathLike | None,
    kernels: Folders,
    routes: Folders,
    values: Mapping[str, Any],
    *,
    origin: str = PYTHON,
) -> tuple[Built, Catalog, dict[str, RouteSpec]]:
    path = checked_path(path, "a spec")
    if schedule is not None:
        schedule = checked_path(schedule, "a schedule")
    catalog = Catalog(kernel_folders(folders("kernels", kernels)))
    known = load_routes(route_folders(folders("routes", routes)))
    spec = load_spec(spec_path(path))
    plain = {name: plain_value(value) for name, value in values.items()}
    built = build(spec, plain, catalog, known, preset=preset, schedule=schedule, origin=origin)
    for program in built.programs:
        check_externs(program)
    return built, catalog, known


def folders(what: str, given: Folders) -> tuple[Path, ...]:
    """The caller's folders, each found to be one."""
    paths = [given] if isinstance(given, str | os.PathLike) else given
    found = []
    for each in paths:
        if not isinstance(each, str | os.PathLike):
            raise UsageError(f"{what}: expected the path of a folder, found {each!r}")
        if not Path(each).is_dir():
            raise UsageError(f"{what}: there is no folder '{each}'")
        found.append(Path(each))
    return tuple(found)


def plain_value(value: Any) -> Any:
    """A value as specs know it: numbers of other libraries as Python's own, also within lists.

    >>> import numpy as np
    >>> plain_value([np.int64(3), np.float32(0.5), np.bool_(True), "f16"])
    [3, 0.5, True, 'f16']
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of an enum of words, too
    if isinstance(value, Mapping):
        return {name: plain_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    if type(value).__module__ in ("numpy", "ml_dtypes"):
        return plain_value(value.tolist())
    if isinstance(value, float):
        return finite(float(value))
    try:
        return operator.index(value)
    except TypeError:
        return value


def finite(value: float) -> float:
    if not math.isfinite(value):
        raise UsageError(f"the values of specs are finite numbers, and {value} is none")
    return value


def dumped(name: str, stage: object) -> str | None:
    """Write the stage that a broken pass was given to a file, and name it."""
    from graphc.draw.dump import dump_any

    prefix = f"graphc-{name.replace('_', '-')}-"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=prefix, suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(dump_any(stage))
    except OSError:
        return None  # the bug itself matters more
    return file.name


def candidates(programs: Sequence[Program], routes: Mapping[str, RouteSpec]) -> list[str]:
    """The routes that ``auto`` may take, best first; one that needs nothing ends the list."""
    if not any(has_auto(program) for program in programs):
        return [next(iter(routes))]  # not looked at
    found: list[str] = []
    for route in sorted(routes.values(), key=lambda each: (-each.prefer, each.name)):
        found.append(route.name)
        if not route.requires:
            break
    return found


def variant(
    auto: str,
    built: Built,
    routes: Mapping[str, RouteSpec],
    catalog: Catalog,
    images: Images,
    observe: Observer,
) -> Variant:
    chosen, found, proof = schedule_programs(
        built.programs, routes, catalog, built.settings, auto=auto, observe=observe, dump=dumped
    )
    asked = {need for program in chosen for need in requirements(program, routes)}
    return Variant(
        routes={name: route for each in chosen for name, route in chosen_routes(each).items()},
        requires=tuple(sorted(asked)),
        schedule=found[0],
        images={step: key for each in found for step, key in images.of(each.program).items()},
        proof=proof,
        others={each.entry: each for each in found[1:]},
    )


def phase_steps(
    phases: Mapping[str, tuple[str, ...]], programs: Sequence[Program]
) -> dict[str, tuple[str, ...]]:
    """Phase -> the steps of its ops in any program: a transfer has those of its routes."""
    phase_of = {op: phase for phase, ops in phases.items() for op in ops}
    found: dict[str, dict[str, None]] = {phase: {} for phase in phases}
    for op in (op for program in programs for op in program):
        transfer = op.step.rpartition("/")[0]
        phase = phase_of.get(op.step, phase_of.get(transfer))
        if phase is not None and not isinstance(op.work, Join):
            found[phase][op.step] = None
    return {phase: tuple(steps) for phase, steps in found.items()}


def with_cubins(plan: Plan) -> Plan:
    """The plan with every kernel compiled for its architecture, several at a time."""
    from base64 import b64encode
    from concurrent.futures import ThreadPoolExecutor

    from graphc.kernels.compile import compile_image
    from graphc.kernels.render import READY

    def compiled(image: KernelImage) -> KernelImage:
        if READY in image.cubins or plan.arch in image.cubins:
            return image
        cubin = b64encode(compile_image(image, plan.arch)).decode()
        return replace(image, cubins={plan.arch: cubin})

    with ThreadPoolExecutor() as threads:  # NVRTC works outside the interpreter's lock
        images = dict(zip(plan.images, threads.map(compiled, plan.images.values()), strict=True))
    return replace(plan, images=images)
