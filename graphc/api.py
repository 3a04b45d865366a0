"""compile, check, load, instantiate: the surface that users call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.ir import Program, Schedule
from graphc.kernels.contract import Catalog
from graphc.kernels.images import Images
from graphc.passes.choose_routes import chosen_routes, has_auto, requirements
from graphc.pipeline import Observer, collector_paused, ignore, schedule_program
from graphc.plan import Backend, KernelImage, Plan, Proof, Variant, load_plan
from graphc.resources import kernel_folders, route_folders, spec_path
from graphc.routes import RouteSpec, load_routes
from graphc.spec.build import Built, build
from graphc.spec.model import load_spec
from graphc.text.diagnostics import error
from graphc.verify import verify

if TYPE_CHECKING:
    from graphc.backends.cuda import CudaGraph
    from graphc.backends.reference import ReferenceGraph

PathLike = str | Path


@collector_paused()
def compile(
    path: PathLike,
    *,
    preset: str | None = None,
    schedule: PathLike | None = None,
    arch: str | None = None,
    cubins: bool = True,
    kernels: Sequence[PathLike] = (),
    routes: Sequence[PathLike] = (),
    observe: Observer = ignore,
    **values: Any,
) -> Plan:
    """Compile a spec, a file or the name of a shipped one, to a verified plan.

    ``values`` override params by name, and schedule values by their path
    (``**{"schedule.activations.pieces": 4}``). ``preset`` names one of the spec's presets;
    ``schedule`` a file that replaces its schedule section. ``kernels`` and ``routes`` are folders
    searched before the shipped ones. ``arch`` ("sm_90a") is what kernels are compiled for: that of
    the GPU at hand if None; ``cubins=False`` leaves compiling them to ``instantiate``.

    Raises ``SpecError`` with all mistakes found, ``CudaError`` if NVRTC refuses the machine.
    """
    built, catalog, known = read(path, preset, schedule, kernels, routes, values)
    if built.schedule is not None:
        raise error(
            "handwritten-schedule",
            f"'{path}' is a hand-written schedule: its ops are opaque and cannot run",
            hint="prove it with 'graphc check'",
        )
    assert built.program is not None
    target = arch or arch_at_hand()
    images = Images(catalog, target)
    variants = tuple(
        variant(built.program, auto, built, known, catalog, images, observe)
        for auto in candidates(built.program, known)
    )
    plan = Plan(built.name, built.params, variants, images.by_key, arch=target)
    return with_cubins(plan) if cubins else plan


@collector_paused()
def check(
    path: PathLike,
    *,
    preset: str | None = None,
    schedule: PathLike | None = None,
    kernels: Sequence[PathLike] = (),
    routes: Sequence[PathLike] = (),
    observe: Observer = ignore,
    **values: Any,
) -> list[tuple[Schedule, Proof]]:
    """Prove a spec's schedules, or a hand-written one, free of races; no kernel is rendered."""
    built, catalog, known = read(path, preset, schedule, kernels, routes, values)
    if built.schedule is not None:
        return [(built.schedule, verify(built.schedule))]
    assert built.program is not None
    results = (
        schedule_program(built.program, known, catalog, built.settings, auto=auto, observe=observe)
        for auto in candidates(built.program, known)
    )
    return [(found, proof) for _, found, proof in results]


def load(path: PathLike) -> Plan:
    """Read a plan that ``Plan.save`` wrote."""
    return load_plan(path)


def instantiate(
    plan: Plan,
    backend: Backend = "auto",
    *,
    devices: Mapping[str, int] | Sequence[int] | None = None,
) -> CudaGraph | ReferenceGraph:
    """Make a plan ready to launch: on CUDA if there is a device, else on the reference."""
    if backend == "reference" or (backend == "auto" and not has_gpu()):
        from graphc.backends.reference import ReferenceGraph

        return ReferenceGraph(plan)
    from graphc.backends.cuda import CudaGraph

    return CudaGraph(plan, devices=devices)


def has_gpu() -> bool:
    from graphc.gpu.probe import gpu_count

    return gpu_count() > 0


def arch_at_hand() -> str:
    """The architecture of the first GPU; that of Hopper where there is none."""
    from graphc.gpu.probe import gpu_arch

    return gpu_arch() or "sm_90a"


def read(
    path: PathLike,
    preset: str | None,
    schedule: PathLike | None,
    kernels: Sequence[PathLike],
    routes: Sequence[PathLike],
    values: Mapping[str, Any],
) -> tuple[Built, Catalog, dict[str, RouteSpec]]:
    catalog = Catalog(kernel_folders(kernels))
    known = load_routes(route_folders(routes))
    spec = load_spec(spec_path(path))
    built = build(spec, values, catalog, known, preset=preset, schedule=schedule)
    return built, catalog, known


def candidates(program: Program, routes: Mapping[str, RouteSpec]) -> list[str]:
    """The routes that ``auto`` may take, best first; one that needs nothing ends the list."""
    if not has_auto(program):
        return [next(iter(routes))]  # not looked at
    found: list[str] = []
    for route in sorted(routes.values(), key=lambda each: (-each.prefer, each.name)):
        found.append(route.name)
        if not route.requires:
            break
    return found


def variant(
    program: Program,
    auto: str,
    built: Built,
    routes: Mapping[str, RouteSpec],
    catalog: Catalog,
    images: Images,
    observe: Observer,
) -> Variant:
    chosen, schedule, proof = schedule_program(
        program, routes, catalog, built.settings, auto=auto, observe=observe
    )
    return Variant(
        routes=chosen_routes(chosen),
        requires=requirements(chosen, routes),
        schedule=schedule,
        images=images.of(schedule.program),
        proof=proof,
    )


def with_cubins(plan: Plan) -> Plan:
    """The plan with every kernel compiled for its architecture, several at a time."""
    from base64 import b64encode
    from concurrent.futures import ThreadPoolExecutor

    from graphc.kernels.compile import compile_image
    from graphc.kernels.render import READY

    def compiled(image: KernelImage) -> KernelImage:
        if READY in image.cubins:
            return image
        cubin = b64encode(compile_image(image, plan.arch)).decode()
        return replace(image, cubins={plan.arch: cubin})

    with ThreadPoolExecutor() as threads:  # NVRTC works outside the interpreter's lock
        images = dict(zip(plan.images, threads.map(compiled, plan.images.values()), strict=True))
    return replace(plan, images=images)
