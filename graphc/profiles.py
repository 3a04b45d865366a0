"""Machine profiles: what takes how long, from files of ``specs/machines`` and of the user.

Rates are in GB/s and Tflop/s, times in microseconds. A curve is a list of points, its first numbers
ascending; between two points it is a line over the logarithm of the first, outside of them flat.
Every section says where its figures come from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field, PrivateAttr

from graphc.dtypes import DTYPES
from graphc.kernels.costs import Cost, Costs, GpuShape
from graphc.plan import Need, Requirement
from graphc.resources import machine_path
from graphc.text.diagnostics import Diagnostic, SpecError, error
from graphc.text.explain import Number, Written, examine, fault
from graphc.text.expr import check_expression
from graphc.text.load import Document, Site, kind, read_yaml
from graphc.text.suggest import did_you_mean

Curve: TypeAlias = "list[list[float]]"


def is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_positive(value: object) -> object:
    if not is_real(value) or value <= 0:  # type: ignore[operator]
        raise fault(f"expected a number above 0, found {kind(value)}")
    return float(value)  # type: ignore[arg-type]


def as_time(value: object) -> object:
    if not is_real(value) or value < 0:  # type: ignore[operator]
        raise fault(f"expected microseconds, 0 or more, found {kind(value)}")
    return float(value)  # type: ignore[arg-type]


def as_curve(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise fault(f"expected points such as [[1, 10.0], [8, 40.0]], found {kind(value)}")
    points: list[list[float]] = []
    for each in value:
        is_point = isinstance(each, list) and len(each) == 2 and all(map(is_real, each))
        if not is_point or min(each) <= 0:
            raise fault(f"a point is two numbers above 0, such as [8, 40.0]; found {each}")
        if points and each[0] <= points[-1][0]:
            raise fault(f"the points ascend, but {each[0]} follows {points[-1][0]}")
        points.append([float(each[0]), float(each[1])])
    return points


def as_shares(value: object) -> object:
    points = as_curve(value)
    for x, share in points:  # type: ignore[attr-defined]
        if share > 1:
            raise fault(f"a share of the rate is at most 1, but at {x:g} it is {share:g}")
    return points


def as_rates(value: object) -> object:
    return [as_positive(each) for each in value] if isinstance(value, list) else as_positive(value)


def as_version(value: object) -> object:
    if value != 1 or isinstance(value, bool):
        raise fault(f"this is format {value}; only format 1 is known", code="bad-version")
    return value


Rate = Annotated[float, BeforeValidator(as_positive)]
Rates = Annotated[Any, BeforeValidator(as_rates)]  # of all GPUs, or one for each
Time = Annotated[float, BeforeValidator(as_time)]
Points = Annotated[Any, BeforeValidator(as_curve)]
Shares = Annotated[Any, BeforeValidator(as_shares)]


class GpuSpec(Written):
    """The GPUs, all of one kind."""

    name: str
    count: Annotated[int, Field(ge=1)]
    arch: Annotated[int, Field(ge=50)]  # 90
    sms: Annotated[int, Field(ge=1)]
    shared_optin: Annotated[int, Field(ge=1)]  # bytes of shared memory that one block may have
    sm_threads: Annotated[int, Field(ge=1)] = 2048  # that one multiprocessor holds
    copy_engines: Annotated[int, Field(ge=1)]
    source: str


class MemorySpec(Written):
    """A GPU's own memory."""

    gb_s: Rate
    one_sm_gb_s: Rate  # what a single multiprocessor reaches
    source: str


class ArithmeticSpec(Written):
    """Operations of kernels in matrix products of one dtype; the curves say what they reach."""

    tflops: dict[str, Rate]
    source: str


class HostLinkSpec(Written):
    """Between each GPU and the host, one way at a time, both ways, and all GPUs at once."""

    to_host_gb_s: Rates
    from_host_gb_s: Rates
    both_ways_gb_s: Rate  # each way of one GPU
    all_gb_s: Rate  # each way of each GPU
    copy_us: Time  # what a copy costs beside its bytes
    reads_gb_s: Points  # of a kernel, by blocks
    writes_gb_s: Points
    source: str


class PeerLinkSpec(Written):
    """Between two GPUs, where they reach each other's memory."""

    copy_gb_s: Rate
    both_ways_gb_s: Rate
    copy_us: Time
    reads_gb_s: Points
    writes_gb_s: Points
    source: str


class OverheadSpec(Written):
    """What everything costs beside its work."""

    launch_us: Time  # host time of launching a graph
    node_us: Time  # more of it for each node
    copy_node_us: Time  # more of it for each copy in a graph of several GPUs
    call_us: Time  # host time of one call where ops are issued one by one
    start_us: Time  # of a replay, beside its ops: before the first, and after the last
    kernel_us: Time  # the shortest kernel
    same_stream_us: Time  # from the end of an op to the start of the next of its stream
    same_gpu_us: Time  # of another stream
    across_gpus_us: Time  # of another GPU
    source: str


class CurveSpec(Written):
    """What was measured of one kernel template."""

    start_us: Time = 0.0  # beside its work: filling and draining the GPU
    over: Number | None = None  # an expression over the contract's symbols and estimates
    efficiency: Shares | None = None  # share of the rate that the formula has, over that
    source: str


class ProfileSpec(Written):
    """One machine."""

    graphc_machine: Annotated[Any, BeforeValidator(as_version)]
    name: str
    doc: str
    gpus: GpuSpec
    memory: MemorySpec
    arithmetic: ArithmeticSpec
    host: HostLinkSpec
    peer: PeerLinkSpec | None = None  # null: no GPU reaches another's memory
    overhead: OverheadSpec
    kernels: dict[str, CurveSpec] = Field(default={})

    _document: Document | None = PrivateAttr(None)
    _costs: Costs | None = PrivateAttr(None)  # only a cache

    @property
    def site(self) -> Site:
        assert self._document is not None
        return self._document.root

    @property
    def shape(self) -> GpuShape:
        return GpuShape(self.gpus.arch, self.gpus.sms, self.gpus.shared_optin)

    @property
    def costs(self) -> Costs:
        """The costs of kernels on its GPUs, kept from one schedule to the next."""
        if self._costs is None:
            measures = {
                name: (each.over, self.site["kernels"][name]["over"].span)
                for name, each in self.kernels.items()
                if each.over is not None
            }
            self._costs = Costs(self.shape, measures)
        return self._costs

    def to_host_gb_s(self, gpu: int) -> float:
        return rate_of(self.host.to_host_gb_s, gpu)

    def from_host_gb_s(self, gpu: int) -> float:
        return rate_of(self.host.from_host_gb_s, gpu)

    def why_not(self, need: Requirement, placed: Mapping[str, int]) -> str | None:
        """Why a route's requirement does not hold on this machine, or None if it does."""
        is_one = placed[need.source] == placed[need.target]
        if is_one:
            return None
        if need.need is Need.SAME_GPU:
            return f"'{need.source}' and '{need.target}' are two GPUs"
        if self.peer is None:
            return f"the GPUs of '{self.name}' do not reach each other's memory"
        return None


def rate_of(rates: float | list[float], gpu: int) -> float:
    return rates[gpu] if isinstance(rates, list) else rates


def at(curve: Curve, x: float) -> float:
    """The value of a curve: a line over the logarithm between its points, flat outside.

    >>> at([[1.0, 10.0], [4.0, 30.0]], 2.0), at([[1.0, 10.0], [4.0, 30.0]], 9.0)
    (20.0, 30.0)
    """
    index = bisect_right(curve, x, key=lambda point: point[0])
    if index == 0:
        return curve[0][1]
    if index == len(curve):
        return curve[-1][1]
    (x0, y0), (x1, y1) = curve[index - 1], curve[index]
    return y0 + (y1 - y0) * log(x / x0) / log(x1 / x0)


def load_profile(path: str | Path) -> ProfileSpec:
    """A profile from its file, or the shipped one of that name; a ``SpecError`` of all mistakes."""
    found = machine_path(path)
    try:
        state = found.stat()
    except OSError as problem:
        known = sorted(each.stem for each in machine_path("h200x2").parent.glob("*.yaml"))
        hint = did_you_mean(str(path), known) or f"graphc brings {', '.join(known)}"
        what = f"cannot read '{path}': {problem.strerror}"
        raise error("missing-file", what, hint=hint) from None
    return kept_profile(str(found), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=32)
def kept_profile(path: str, mtime_ns: int, nbytes: int) -> ProfileSpec:
    """Profiles read before, by the state of their files: they are frozen."""
    document = read_yaml(path)
    profile, mistakes = examine(ProfileSpec, document)
    if profile is None or mistakes:
        raise SpecError(mistakes)
    profile._document = document
    faults = list(contradictions(profile))
    if faults:
        raise SpecError(faults)
    return profile


def contradictions(profile: ProfileSpec) -> Iterator[Diagnostic]:
    """What each field alone allows but the profile as a whole does not."""
    site = profile.site
    host = profile.host
    ways = {"to_host_gb_s": host.to_host_gb_s, "from_host_gb_s": host.from_host_gb_s}
    for field, rates in ways.items():
        if isinstance(rates, list) and len(rates) != profile.gpus.count:
            what = f"{len(rates)} rates for {profile.gpus.count} GPUs"
            yield bad(site["host"][field], what, hint="write one number for all, or one for each")
    for name in profile.arithmetic.tflops:
        if name not in DTYPES:
            hint = did_you_mean(name, DTYPES)
            at_key = site["arithmetic"]["tflops"][name]
            yield Diagnostic("bad-machine", f"there is no dtype '{name}'", at_key.key, hint=hint)
    if "f32" not in profile.arithmetic.tflops:
        what = "the rate of f32 is missing: other dtypes fall back on it"
        yield bad(site["arithmetic"]["tflops"], what)
    for name, each in profile.kernels.items():
        own = site["kernels"][name]
        if (each.over is None) != (each.efficiency is None):
            yield bad(own, "'over' and 'efficiency' go together: a curve and what it is drawn over")
        if isinstance(each.over, str):
            try:
                check_expression(each.over, own["over"].span)
            except SpecError as problem:
                yield from problem.diagnostics


def unknown_kernels(profile: ProfileSpec, known: Collection[str]) -> list[Diagnostic]:
    """The templates of a profile that are none of the known ones: such figures count nowhere.

    That is no mistake by itself, for one profile serves the specs of many folders of kernels.
    """
    return [
        Diagnostic(
            "unknown-kernel",
            f"there is no kernel '{name}' here: no prediction rests on these figures",
            profile.site["kernels"][name].key,
            hint=did_you_mean(name, known) or "--kernels FOLDER names a folder that has it",
        )
        for name in profile.kernels
        if name not in known
    ]


def unknown_rates(profile: ProfileSpec, costs: Iterable[tuple[str, Cost]]) -> list[Diagnostic]:
    """The dtypes of kernels, by template, whose time is that of f32, for want of a rate.

    What a kernel does beside its memory counts nowhere: most have a few operations in any dtype.
    """
    rates, gb_s = profile.arithmetic.tflops, profile.memory.gb_s
    found: dict[str, list[str]] = {}
    for template, cost in costs:
        is_bound = cost.flops / (1e3 * rates["f32"]) > cost.nbytes / gb_s
        if cost.dtype not in rates and is_bound:
            found.setdefault(cost.dtype, []).append(template)
    return [
        Diagnostic(
            "unknown-rate",
            f"no rate of {dtype} is here: that of f32 counts for {', '.join(sorted({*templates}))}",
            profile.site["arithmetic"]["tflops"].key,
            hint=f"write what products of {dtype} reach, in Tflop/s",
        )
        for dtype, templates in found.items()
    ]


def bad(site: Site, message: str, *, hint: str | None = None) -> Diagnostic:
    return Diagnostic("bad-machine", message, site.span, hint=hint)
