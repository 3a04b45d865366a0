"""What each op of a schedule needs of a machine: an engine, multiprocessors, bytes on links.

A **copy** occupies one copy engine of its GPU. A kernel that asks for much shared memory is
**wide**: each of its blocks (or few) has a multiprocessor to itself, as the products of tensor
cores do, and cannot begin while another kernel is on it. Other kernels are **narrow**: they share
multiprocessors with each other, but not with wide ones. Everything else has no engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from graphc.ir import (
    HOST,
    MAPPED,
    Access,
    Await,
    Begin,
    Copy,
    Join,
    Kernel,
    Op,
    Schedule,
    Signal,
)
from graphc.kernels.contract import Catalog, Contract
from graphc.kernels.costs import contracts_of
from graphc.profiles import Curve, ProfileSpec, at
from graphc.text.diagnostics import UsageError

WIDE_SHARED = 48 * 1024  # bytes of shared memory of a block, above which a kernel is wide
MOST_BLOCKS = 32  # of narrow kernels on one multiprocessor


class Kind(IntEnum):
    NONE = 0
    COPY = 1
    WIDE = 2
    NARROW = 3


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes over links: ``links`` are all that they pass; the rate of a kernel is by its blocks."""

    links: tuple[int, ...]
    nbytes: float
    rate: Curve  # GB/s by blocks; a single point for copies


@dataclass(frozen=True, slots=True)
class Demand:
    """What one op needs; the same for pieces that are alike."""

    kind: Kind
    engine: str  # "sm", "copy to host", ...
    gpu: int = 0
    fixed_us: float = 0.0  # beside what the machine's rates decide
    compute_us: float = 0.0  # with all the multiprocessors that it wants
    sms: float = 0.0  # that it wants: all to itself if wide
    blocks: int = 1
    blocks_a_sm: int = 1
    memory: tuple[tuple[int, float], ...] = ()  # (GPU, bytes)
    flows: tuple[Flow, ...] = ()
    pushes: bool = False  # a kernel that writes over a link


NOTHING = Demand(Kind.NONE, "none")


@dataclass(frozen=True, slots=True)
class Links:
    """The machine's links, numbered: what each of them carries in all, in bytes a microsecond."""

    rates: tuple[float, ...]
    ends: tuple[tuple[int, str], ...]  # of each: the GPU at its end, and what to call it

    @staticmethod
    def of(profile: ProfileSpec) -> Links:
        host, peer, count = profile.host, profile.peer, profile.gpus.count
        rates, ends = [2 * count * host.all_gb_s], [(-1, "all links of the host")]
        for gpu in range(count):
            to_host, from_host = profile.to_host_gb_s(gpu), profile.from_host_gb_s(gpu)
            rates += [to_host, from_host, max(2 * host.both_ways_gb_s, to_host, from_host)]
            ends += [(gpu, "GPU to host"), (gpu, "host to GPU"), (gpu, "GPU and host")]
            one, both = (peer.copy_gb_s, 2 * peer.both_ways_gb_s) if peer else (1.0, 1.0)
            if peer is not None:
                one = max(one, *(rate for _, rate in peer.reads_gb_s + peer.writes_gb_s))
            rates += [one, one, max(both, one)]
            ends += [
                (gpu, "GPU to peers"),
                (gpu, "peers to GPU"),
                (gpu, "GPU and peers"),
            ]
        return Links(tuple(1e3 * each for each in rates), tuple(ends))


def to_host(gpu: int) -> tuple[int, ...]:
    return (0, 1 + 6 * gpu, 3 + 6 * gpu)


def from_host(gpu: int) -> tuple[int, ...]:
    return (0, 2 + 6 * gpu, 3 + 6 * gpu)


def to_peer(source: int, target: int) -> tuple[int, ...]:
    return (4 + 6 * source, 6 + 6 * source, 5 + 6 * target, 6 + 6 * target)


@dataclass(slots=True)
class Demands:
    """The demands of the ops of one schedule on one machine, at one count."""

    profile: ProfileSpec
    schedule: Schedule
    placed: Mapping[str, int]  # device -> GPU
    catalog: Catalog
    count: int | None
    contracts: dict[str, Contract] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    places: dict[str, int | None] = field(default_factory=dict)  # buffer -> GPU; None: mapped
    shares: dict[str, float] = field(default_factory=dict)  # of a buffer's nominal bytes in use
    known: dict[tuple[str, int], Demand] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.schedule.program
        count = program.capacity if self.count is None else self.count
        self.count = count
        self.contracts = contracts_of(program, self.catalog)
        for name, each in program.buffers.items():
            self.dtypes[name] = each.dtype
            self.places[name] = None if each.device == MAPPED else self.placed[each.device]
            is_counted = each.per_count and count is not None
            self.shares[name] = (count or 0) / program.nominal if is_counted else 1.0

    def of(self, op: Op) -> Demand:
        lo, hi = op.piece.bounds(op.axis, self.count)
        key = (op.step, hi - lo)
        if key not in self.known:
            self.known[key] = self.found(op, hi - lo)
        return self.known[key]

    def found(self, op: Op, rows: int) -> Demand:
        if op.device == HOST:
            return Demand(Kind.NONE, "host", fixed_us=self.profile.overhead.call_us)
        match op.work:
            case Join() | Begin():
                return NOTHING
            case Copy():
                return self.copy(op)
            case Kernel() if op.work.template in self.contracts:
                return self.kernel(op, op.work, rows)
            case Signal() | Await():
                return self.signalling(op)
            case _:
                return self.unknown(op)

    def nbytes(self, access: Access) -> float:
        return access.region.nbytes * self.shares[access.region.buffer]

    def copy(self, op: Op) -> Demand:
        gpu = self.placed[op.device]
        source, target = (self.places[op[each].region.buffer] for each in ("source", "target"))
        nbytes = self.nbytes(op["target"])
        memory = tuple((each, nbytes) for each in (source, target) if each is not None)
        host, peer = self.profile.host, self.profile.peer
        if source is None and target is None:
            return NOTHING
        if source == target:
            doubled = ((gpu, 2 * nbytes),)
            return Demand(Kind.COPY, "copy within", gpu, host.copy_us, memory=doubled)
        if source is None or target is None:
            end = source if target is None else target
            assert end is not None
            links, rate, way = (
                (to_host(end), self.profile.to_host_gb_s(end), "copy to host")
                if target is None
                else (from_host(end), self.profile.from_host_gb_s(end), "copy from host")
            )
            # The link is so much slower than the GPU's memory that other users do not notice.
            flow = Flow(links, nbytes, [[1.0, rate]])
            return Demand(Kind.COPY, way, gpu, host.copy_us, flows=(flow,))
        if peer is None:
            raise self.no_peer(op)
        flow = Flow(to_peer(source, target), nbytes, [[1.0, peer.copy_gb_s]])
        return Demand(Kind.COPY, "copy to peer", gpu, peer.copy_us, memory=memory, flows=(flow,))

    def spread(self, op: Op, nbytes: float) -> float:
        """The share that a kernel touches of arguments that lie on several ranks.

        Its rows go to some of them, so it may touch all; what it touches in all its cost says.
        """
        times = Counter(each.argument for each in op.accesses)
        apart = sum(self.nbytes(each) for each in op.accesses if times[each.argument] > 1)
        return min(1.0, nbytes / apart) if apart else 1.0

    def flows(self, op: Op, spread: float = 1.0) -> tuple[Flow, ...]:
        """What a kernel reads and writes in memory that is not its GPU's, by the way it goes.

        What goes one way is one flow: it has one share of the links, whatever arguments it is of.
        """
        found: dict[tuple[int, ...], Flow] = {}
        for each in self.each_flow(op, spread):
            nbytes = found[each.links].nbytes if each.links in found else 0.0
            found[each.links] = replace(each, nbytes=nbytes + each.nbytes)
        return tuple(found.values())

    def each_flow(self, op: Op, spread: float) -> Iterator[Flow]:
        times = Counter(each.argument for each in op.accesses)
        gpu = self.placed[op.device]
        host, peer = self.profile.host, self.profile.peer
        for access in op.accesses:
            place, nbytes = self.places[access.region.buffer], self.nbytes(access)
            if place == gpu:
                continue
            if times[access.argument] > 1:
                nbytes *= spread
            is_write, is_read = access.mode.is_write, access.mode.is_read
            if place is None:
                if is_read:
                    yield Flow(from_host(gpu), nbytes, host.reads_gb_s)
                if is_write:
                    yield Flow(to_host(gpu), nbytes, host.writes_gb_s)
                continue
            if peer is None:
                raise self.no_peer(op)
            if is_read:
                yield Flow(to_peer(place, gpu), nbytes, peer.reads_gb_s)
            if is_write:
                yield Flow(to_peer(gpu, place), nbytes, peer.writes_gb_s)

    def kernel(self, op: Op, kernel: Kernel, rows: int) -> Demand:
        profile, gpu = self.profile, self.placed[op.device]
        cost = profile.costs.of(op, kernel, self.contracts[kernel.template], self.dtypes, rows)
        flows = self.flows(op, self.spread(op, cost.peers_nbytes))
        own = max(0.0, cost.nbytes - sum(each.nbytes for each in flows))
        curve = profile.kernels.get(kernel.template)
        tflops = profile.arithmetic.tflops.get(cost.dtype, profile.arithmetic.tflops["f32"])
        efficiency = at(curve.efficiency, cost.measure) if curve and curve.efficiency else 1.0
        sms = profile.gpus.sms
        is_wide = cost.shared > WIDE_SHARED
        if is_wide:
            fit = max(1, profile.gpus.shared_optin // cost.shared)
            wanted = min(float(sms), cost.blocks / fit)
        else:
            fit = max(1, min(MOST_BLOCKS, profile.gpus.sm_threads // max(1, cost.threads)))
            wanted = min(sms, cost.blocks)
        # Arithmetic needs multiprocessors in proportion; a narrow kernel has all that it touches.
        share = wanted / sms
        compute_us = cost.flops / (1e6 * tflops) / efficiency / (share or 1.0)
        nbytes = own / efficiency
        fixed = profile.overhead.kernel_us + (curve.start_us if curve else 0.0)
        return Demand(
            Kind.WIDE if is_wide else Kind.NARROW,
            "sm",
            gpu,
            fixed,
            compute_us,
            wanted,
            cost.blocks,
            fit,
            ((gpu, nbytes),),
            flows,
            any(each.mode.is_write and self.is_remote(each, gpu) for each in op.accesses),
        )

    def is_remote(self, access: Access, gpu: int) -> bool:
        return self.places[access.region.buffer] != gpu

    def signalling(self, op: Op) -> Demand:
        """A memory node, or a warp for which the products leave room: on no multiprocessor."""
        return Demand(Kind.NONE, "none", self.placed[op.device], self.profile.overhead.kernel_us)

    def unknown(self, op: Op) -> Demand:
        """A fill, a function of another library, an opaque op: as long as its bytes take."""
        profile, gpu = self.profile, self.placed[op.device]
        here = (each for each in op.accesses if self.places[each.region.buffer] == gpu)
        own = sum(self.nbytes(each) for each in here)
        return Demand(
            Kind.NARROW,
            "sm",
            gpu,
            profile.overhead.kernel_us,
            sms=float(profile.gpus.sms),
            blocks=profile.gpus.sms,
            blocks_a_sm=MOST_BLOCKS,
            memory=((gpu, own),),
            flows=self.flows(op),
        )

    def no_peer(self, op: Op) -> UsageError:
        return UsageError(
            f"'{op.name}' needs two GPUs that reach each other's memory, and those of machine "
            f"'{self.profile.name}' do not: take a machine with peer access, place its devices on "
            "one GPU, or go by way of the host, as the route host_copy does"
        )
