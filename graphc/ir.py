"""What the compiler knows: ops over regions, and the three stages Program, Graph and Schedule.

An ``Op`` says what is done (``work``), where, and which bytes it touches and how (``accesses``);
all order comes from the accesses. A ``Program`` is ops in order, a ``Graph`` adds the
dependencies, a ``Schedule`` adds streams, records and waits. All of it is frozen: a pass takes a
stage and returns a new one.

Pieces and counts. One extent may vary from launch to launch: the ``count`` (rows in use), at most
the capacity for which the program was compiled. Piece bounds are therefore fractions:
piece ``[a, b)`` covers the rows ``[floor(a * count), floor(b * count))``. Whether two pieces touch
must hold for every count, so regions are written down at the *nominal* extent: the smallest
multiple of all piece denominators that reaches the capacity. There every bound is a whole row; two
regions overlap there exactly if they overlap for some count.

Ranks. An op of an SPMD spec exists once a rank: ``rank.3/dispatch``. The ops of all ranks are one
*family*, whose members write by ``scatter`` what no other member writes. An argument over the
buffer of every rank is one access a rank, told apart by ``peer``.

Units. A schedule is one CUDA graph, or is divided into units of some devices each, which are
launched together. Order between units is carried by ``Signal`` and ``Await``: a word in the
awaiting unit's memory that the signalling unit sets to the number of its replay. ``Begin`` counts
the replays of a unit. A *handshake* awaits the signal of the launch before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Literal, TypeAlias

from graphc.dtypes import dtype
from graphc.regions import Region
from graphc.text.diagnostics import NOWHERE, Span

if TYPE_CHECKING:
    import networkx as nx

MAPPED = "host"  # the memory that the host and every device see; never a device's name
# Every byte of what nobody wrote: each float type reads it as NaN, each signed integer as -1.
POISON = 0xFF
HOST = "host"  # the actor of a hand-written schedule that issues and runs host steps


class Role(StrEnum):
    """What a buffer is to the caller; scratch is nobody's and ends with its iteration."""

    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    WEIGHT = "weight"
    STATE = "state"
    STATUS = "status"
    SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense array in one memory: ``shape`` at capacity, elements of ``dtype``."""

    name: str  # "x"; inside a repeat "layer.0/x"
    device: str  # a logical device, or MAPPED
    dtype: str
    shape: tuple[int, ...]
    per_count: int = 0  # rows (of the first dimension) for each unit of the count; 0: fixed
    role: Role = Role.SCRATCH
    is_optional: bool = False
    overlay: tuple[str, int] | None = None  # the buffer whose bytes these are, from which byte on
    near: tuple[str, ...] = ()  # of mapped memory: the devices that use it
    is_symmetric: bool = False  # every rank has one, and ops of other ranks may touch it
    below: int | None = None  # of integers that the caller brings: what they do not reach
    odd: tuple[int, ...] = ()  # others that now and then stand among them
    span: Span = NOWHERE

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_nbytes(self) -> int:
        return prod(self.shape[1:]) * dtype(self.dtype).nbytes

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_nbytes

    def nominal_rows(self, nominal: int) -> int:
        """Rows at the nominal extent: those of the capacity, unless the count governs them."""
        return self.per_count * nominal if self.per_count else self.rows


class Mode(StrEnum):
    """How bytes are touched.

    ``write`` covers all declared bytes; ``write_some`` has the hazards of a write but ends no
    lifetime; ``update`` reads and writes; ``scatter`` is disjoint by construction among the pieces
    and ranks of its own op in one replay; ``accumulate`` is an update which, on exact types, is
    free of order among calls of one kernel that are alike but for their buffers.
    """

    READ = "read"
    WRITE = "write"
    WRITE_SOME = "write_some"
    UPDATE = "update"
    SCATTER = "scatter"
    ACCUMULATE = "accumulate"

    @property
    def is_write(self) -> bool:
        return self is not Mode.READ

    @property
    def is_read(self) -> bool:
        """Whether earlier bytes matter to it."""
        return self in (Mode.READ, Mode.UPDATE, Mode.ACCUMULATE)


class RowsKind(StrEnum):
    ALL = "all"  # the whole argument, whatever the piece
    SPLIT = "split"  # the piece's share of the rows
    PIECE = "piece"  # one row for each piece
    BLOCKS = "blocks"  # the whole blocks of a named cut that meet the piece
    GATHER = "gather"  # any row
    ROW = "row"  # one row, whatever the piece
    RING = "ring"  # the piece's slot of a staging buffer: pieces take turns in the slots


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of an argument a piece of the op touches."""

    kind: RowsKind
    # SPLIT: rows for each row of the axis (top_k rows a token); RING: slots; ROW: which one.
    factor: int = 1
    blocks: tuple[Fraction, ...] = ()  # BLOCKS: the bounds of the cut, from 0 to 1


ALL = Rows(RowsKind.ALL)
SPLIT = Rows(RowsKind.SPLIT)


@dataclass(frozen=True, slots=True)
class Access:
    """One argument of an op: the bytes it touches and how."""

    argument: str  # the kernel's name for it; "source" and "target" of copies
    region: Region
    mode: Mode
    rows: Rows = ALL
    span: Span = NOWHERE
    peer: int | None = None  # of an argument over all ranks: whose buffer this is

    @property
    def is_ring(self) -> bool:
        """Whether it begins at the first row of the piece, in its slot, instead of at row 0."""
        return self.rows.kind is RowsKind.RING


@dataclass(frozen=True, slots=True)
class Axis:
    """What an op is cut along: rows at capacity, and rows for each unit of the count (0: fixed)."""

    extent: int = 1
    per_count: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The share ``[start, stop)`` of the axis that an op covers, as fractions of it."""

    index: int = 0
    of: int = 1
    start: Fraction = Fraction(0)
    stop: Fraction = Fraction(1)

    def bounds(self, axis: Axis, count: int | None) -> tuple[int, int]:
        """Rows ``[lo, hi)`` of the axis for a count in use (None where nothing varies).

        >>> Piece(1, 3, Fraction(1, 3), Fraction(2, 3)).bounds(Axis(8, 2), 4)
        (2, 4)
        """
        if axis.per_count and count is not None:
            return (
                axis.per_count * (count * self.start.numerator // self.start.denominator),
                axis.per_count * (count * self.stop.numerator // self.stop.denominator),
            )
        return (
            axis.extent * self.start.numerator // self.start.denominator,
            axis.extent * self.stop.numerator // self.stop.denominator,
        )


WHOLE = Piece()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A call of a kernel template: all that fixes its rendered source, and its scalar arguments."""

    template: str
    symbols: Mapping[str, int]
    # bool comes first: a plan's file would otherwise hold 0 for false.
    options: Mapping[str, bool | int | str] = field(default_factory=dict)
    scalars: Mapping[str, int | float] = field(default_factory=dict)
    # Sizes that only the device knows, of the whole op at capacity: for its cost, nothing else.
    estimate: Mapping[str, int | float] = field(default_factory=dict)
    kind: Literal["kernel"] = "kernel"


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes from access ``source`` to access ``target``, by a copy engine."""

    kind: Literal["copy"] = "copy"


@dataclass(frozen=True, slots=True)
class Fill:
    """Every element of access ``target`` set to a value."""

    value: int | float = 0
    kind: Literal["fill"] = "fill"


@dataclass(frozen=True, slots=True)
class Extern:
    """A Python callable ``module:name`` that enqueues work on the stream that it is given."""

    function: str
    reference: str
    scalars: Mapping[str, int | float | str] = field(default_factory=dict)
    kind: Literal["extern"] = "extern"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A logical copy between devices, in the wire dtype; ``lower_routes`` turns it into steps.

    Its accesses come in pairs: ``source.0, target.0, source.1, target.1, ...``.
    """

    route: str
    wire: str | None = None  # None: the source's own dtype (integers always)
    is_small: bool = False  # several small buffers together
    streams: Mapping[str, str] = field(default_factory=dict)  # step -> named stream
    kind: Literal["transfer"] = "transfer"


@dataclass(frozen=True, slots=True)
class Join:
    """No work: orders all that come before it before all that come after it."""

    kind: Literal["join"] = "join"


@dataclass(frozen=True, slots=True)
class Opaque:
    """Declared accesses and nothing to run: an op of a hand-written schedule."""

    kind: Literal["opaque"] = "opaque"


@dataclass(frozen=True, slots=True)
class Begin:
    """The first op of a unit's graph: it counts the unit's replays of the entry."""

    kind: Literal["begin"] = "begin"


@dataclass(frozen=True, slots=True)
class Signal:
    """Tell other units that in this replay all has been done that comes before this op.

    Released at system scope: what the unit wrote before is seen by whoever has awaited it.
    """

    signal: str  # unique among all entries of a plan
    to: tuple[str, ...]  # the units that await it
    kind: Literal["signal"] = "signal"


@dataclass(frozen=True, slots=True)
class Awaited:
    """A signal of another unit: that of this replay, or of the latest launch before it."""

    signal: str
    unit: str  # whose it is
    entry: str  # whose op it is
    is_handshake: bool = False  # that of the latest launch of ``entry`` before this one, if any


@dataclass(frozen=True, slots=True)
class Await:
    """Hold up what comes after until signals of other units have come, or the time has run out."""

    signals: tuple[Awaited, ...]
    kind: Literal["await"] = "await"


Work: TypeAlias = Kernel | Copy | Fill | Extern | Transfer | Join | Opaque | Begin | Signal | Await


@dataclass(frozen=True, slots=True)
class Placement:
    """How an op is to be run, as far as the schedule says it."""

    pieces: tuple[Fraction, ...] = (Fraction(0), Fraction(1))  # bounds of the cut, from 0 to 1
    stream: str | None = None
    priority: int = 0  # lower runs first, as in CUDA
    blocks: int | None = None  # a bound on the grid
    after: tuple[str, ...] = ()  # steps that all of this op's pieces wait for
    lane: str | None = None  # ops of one lane are laid on streams together; None: compute


@dataclass(frozen=True, slots=True)
class Op:
    """One operation, or one piece of one."""

    name: str  # "layer.0/activations/down/piece.3"
    step: str  # the op before it was cut: "layer.0/activations/down"
    device: str  # where its work is issued; HOST for a host step
    work: Work
    accesses: tuple[Access, ...]
    axis: Axis = Axis()
    piece: Piece = WHOLE
    placement: Placement = Placement()
    span: Span = NOWHERE
    family: str = ""  # the step without its rank: "dispatch"; empty outside of SPMD specs

    @property
    def kin(self) -> str:
        """What the pieces of an op, and those of its twins on other ranks, have in common."""
        return self.family or self.step

    @property
    def reads(self) -> tuple[Region, ...]:
        return tuple(each.region for each in self.accesses if each.mode.is_read)

    @property
    def writes(self) -> tuple[Region, ...]:
        return tuple(each.region for each in self.accesses if each.mode.is_write)

    def __getitem__(self, argument: str) -> Access:
        """The access of an argument; of one over all ranks, that of rank 0."""
        for access in self.accesses:
            if access.argument == argument:
                return access
        raise KeyError(argument)


@dataclass(frozen=True, slots=True)
class Program:
    """Ops in order: run one after the other with their references they define the right result."""

    name: str
    devices: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    ops: tuple[Op, ...]
    capacity: int | None = None  # of the count; None: no extent varies
    nominal: int = 1  # the extent at which regions of counted buffers are written down
    count_name: str | None = None  # the param that is the capacity
    entry: str = "step"  # which of the spec's entries this is
    rank_devices: tuple[str, ...] = ()  # rank -> device; empty outside of SPMD specs

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)


class Hazard(StrEnum):
    RAW = "read-after-write"
    WAR = "write-after-read"
    WAW = "write-after-write"
    AFTER = "after"  # asked for by the schedule, or by way of a join
    SIGNAL = "signal"  # from a signal to what awaits it, in another unit


@dataclass(frozen=True, slots=True)
class Graph:
    """A program and its dependencies: nodes are op names, each edge carries ``hazards``.

    Program order is a topological order of the edges.
    """

    program: Program
    edges: nx.DiGraph[str]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a buffer lies: a byte offset in an allocation."""

    allocation: str
    offset: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """One block of memory: a scratch arena, or one buffer with a role (which can be bound)."""

    name: str
    device: str  # a logical device, or MAPPED
    nbytes: int
    near: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """The physical layout: every buffer has a slot; ``added_orders`` counts those of ``tight``."""

    allocations: tuple[Allocation, ...]
    slots: Mapping[str, Slot]
    added_orders: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """An in-order queue of one device (device HOST: the issuing thread)."""

    name: str
    device: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """One CUDA graph of a plan: all that runs on some devices."""

    name: str
    devices: tuple[str, ...]
    origin: str = ""  # the stream on which its capture begins and ends; empty: not laid yet


@dataclass(frozen=True, slots=True)
class Placed:
    """A graph laid on streams: the order of issue agrees with the edges, so streams do, too."""

    graph: Graph
    streams: tuple[Stream, ...]
    origin: str  # where a capture begins and ends; of the first unit, if there are several
    order: tuple[str, ...]  # op names in order of issue
    stream_of: Mapping[str, str]  # op -> stream
    units: tuple[Unit, ...] = ()  # of a divided schedule; empty: one unit of all devices


@dataclass(frozen=True, slots=True)
class Run:
    stream: str
    op: str
    span: Span = NOWHERE
    kind: Literal["run"] = "run"


@dataclass(frozen=True, slots=True)
class Record:
    stream: str
    event: str
    span: Span = NOWHERE
    kind: Literal["record"] = "record"


@dataclass(frozen=True, slots=True)
class Wait:
    """The stream waits for the latest record of the event that was issued before this wait."""

    stream: str
    event: str
    span: Span = NOWHERE
    kind: Literal["wait"] = "wait"


@dataclass(frozen=True, slots=True)
class Sync:
    """The host waits for all that the stream was given (hand-written schedules only)."""

    stream: str
    span: Span = NOWHERE
    kind: Literal["sync"] = "sync"


Instruction: TypeAlias = Run | Record | Wait | Sync


class Emit(StrEnum):
    CAPTURE = "capture"  # streams and events captured into a graph
    NODES = "nodes"  # explicit nodes with the true edges only
    STREAMS = "streams"  # eager, to compare


class Division(StrEnum):
    """How a plan is divided into graphs."""

    ONE = "one"
    DEVICE = "device"
    RANK = "rank"  # which needs a device for each rank


class Signalling(StrEnum):
    """How units signal and wait."""

    FLAGS = "flags"  # small kernels
    MEMOPS = "memops"  # the driver's memory nodes, which occupy no multiprocessor


class LaunchContract(StrEnum):
    """What a launch of several units promises to the caller; part of what is proven."""

    JOINED = "joined"  # the caller's stream goes on when all units have ended
    FREE = "free"  # each unit on a stream of its own: a unit may be a replay ahead of another


@dataclass(frozen=True, slots=True)
class Schedule:
    """Ops on streams: instructions in issue order, and where the memory lies.

    ``origin`` is the stream on which a capture begins and ends. ``edges`` are the true
    dependencies without those that follow from others: what ``emit: nodes`` builds. Of a divided
    schedule each unit has an origin of its own, instructions are in an order in which every signal
    stands before what awaits it, and no event and no edge leads from one unit to another. Its
    signals are those that its own ``emit`` needs: where streams order, too, edges and signals alone
    may leave races.
    """

    program: Program
    streams: tuple[Stream, ...]
    origin: str
    instructions: tuple[Instruction, ...]
    edges: tuple[tuple[str, str], ...]
    memory: Memory
    emit: Emit = Emit.CAPTURE
    is_handwritten: bool = False
    units: tuple[Unit, ...] = ()  # empty: one unit of all devices
    sync: Signalling = Signalling.FLAGS
    launch: LaunchContract = LaunchContract.JOINED

    @property
    def entry(self) -> str:
        return self.program.entry

    @property
    def parts(self) -> tuple[Unit, ...]:
        """The units; one of all devices where the schedule is not divided."""
        return self.units or (Unit("all", self.program.devices, self.origin),)


@dataclass(frozen=True, slots=True)
class Settings:
    """The schedule's global values: the way of emission, and bounds on memory and streams."""

    emit: Emit = Emit.CAPTURE
    memory: str = "concurrent"  # or "tight"
    max_streams: int = 4  # compute streams for each device, where the schedule names none
    units: Division = Division.ONE
    sync: Signalling = Signalling.FLAGS
    launch: LaunchContract = LaunchContract.JOINED
