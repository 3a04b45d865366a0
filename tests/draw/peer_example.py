"""A schedule of a small peer layer made by hand, for tests of what is drawn from one."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from graphc.ir import (
    Access,
    Allocation,
    Axis,
    Buffer,
    Copy,
    Instruction,
    Kernel,
    Memory,
    Mode,
    Op,
    Piece,
    Program,
    Record,
    Role,
    Run,
    Schedule,
    Slot,
    Stream,
    Wait,
    Work,
)
from graphc.regions import Region

ROW = 1024  # bytes
PRIMARY, PEER = "primary.0", "peer.0"


@dataclass
class Builder:
    """Ops in issue order, each on a stream behind the ops that it waits for."""

    tokens: int
    streams: dict[str, str] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    home: dict[str, str] = field(default_factory=dict)

    def __call__(
        self,
        name: str,
        stream: str,
        work: Work,
        reads: list[str],
        writes: list[str],
        *,
        piece: Piece | None = None,
        after: tuple[str, ...] = (),
    ) -> str:
        """Add one op; give back its name."""
        share = piece or Piece()
        full = f"{name}/piece.{share.index}" if share.of > 1 else name
        lo, hi = int(share.start * self.tokens) * ROW, int(share.stop * self.tokens) * ROW
        accesses = [Access(buffer, Region(buffer, lo, hi), Mode.READ) for buffer in reads]
        accesses += [Access(buffer, Region(buffer, lo, hi), Mode.WRITE) for buffer in writes]
        device = self.streams.setdefault(stream, stream.split(".")[0])
        self.ops.append(Op(full, name, device, work, tuple(accesses), Axis(self.tokens, 1), share))
        for before in after:
            self.edges.append((before, full))
            if self.home[before] != stream:
                self.record(before)
                self.instructions.append(Wait(stream, before))
        self.instructions.append(Run(stream, full))
        self.home[full] = stream
        return full

    def record(self, op: str) -> None:
        """Right behind the op, once."""
        run = self.instructions.index(Run(self.home[op], op))
        if Record(self.home[op], op) not in self.instructions:
            self.instructions.insert(run + 1, Record(self.home[op], op))


def peer_schedule(pieces: int = 3, *, tokens: int = 1024, layers: int = 1) -> Schedule:
    """Activations down and up, the peer's experts and their sums in pieces, then combine."""
    add = Builder(tokens)
    add.streams |= {PRIMARY: "primary", PEER: "peer"}
    names = ("residual", "mixed", "ids", "rows", "out")
    for layer in range(layers):
        layer_ops(add, f"layer.{layer}/", pieces)
    buffers = {
        name: Buffer(name, "primary", "f32", (tokens, ROW // 4), 1, Role.SCRATCH) for name in names
    }
    buffers["residual"] = Buffer("residual", "primary", "f32", (tokens, ROW // 4), 1, Role.INOUT)
    for name in ("wire", "wire_back"):
        buffers[name] = Buffer(name, "host", "f32", (tokens, ROW // 4), 1)
    for name in ("p_x", "p_rows", "p_sum"):
        buffers[name] = Buffer(name, "peer", "f32", (tokens, ROW // 4), 1)
    program = Program(
        "moe_peer", ("primary", "peer"), buffers, tuple(add.ops), tokens, tokens, "tokens"
    )
    streams = tuple(Stream(name, device) for name, device in add.streams.items())
    return Schedule(
        program,
        streams,
        PRIMARY,
        (*forks(streams), *add.instructions, *joins(streams)),
        tuple(add.edges),
        memory_of(buffers),
    )


def layer_ops(add: Builder, at: str, pieces: int) -> None:
    down_lane, up_lane = "primary.activations.down", "peer.activations.up"
    back_lane, land_lane = "peer.results.down", "primary.results.up"
    cuts = [Piece(i, pieces, Fraction(i, pieces), Fraction(i + 1, pieces)) for i in range(pieces)]
    mix = [
        add(f"{at}mix", PRIMARY, kernel("rms_mix"), ["residual"], ["mixed"], piece=p) for p in cuts
    ]
    sent = [
        add(f"{at}activations/down", down_lane, Copy(), ["mixed"], ["wire"], piece=p, after=(m,))
        for p, m in zip(cuts, mix, strict=True)
    ]
    landed = [
        add(
            f"{at}activations/up",
            up_lane,
            kernel("convert"),
            ["wire"],
            ["p_x"],
            piece=p,
            after=(s,),
        )
        for p, s in zip(cuts, sent, strict=True)
    ]
    router = add(f"{at}route", PRIMARY, kernel("router"), ["mixed"], ["ids"])
    routing = add(f"{at}routing", "primary.routing", Copy(), ["ids"], ["wire"], after=(router,))
    add(f"{at}p_group", PEER, kernel("group_rows"), ["wire"], ["p_rows"], after=(routing,))
    sums = []
    for p, x in zip(cuts, landed, strict=True):
        add(f"{at}p_up", PEER, kernel("grouped_up"), ["p_x"], ["p_rows"], piece=p, after=(x,))
        add(f"{at}p_down", PEER, kernel("grouped_down"), ["p_rows"], ["p_rows"], piece=p)
        sums.append(add(f"{at}sums", PEER, kernel("weighted_sums"), ["p_rows"], ["p_sum"], piece=p))
    back = [
        add(f"{at}results/down", back_lane, Copy(), ["p_sum"], ["wire_back"], piece=p, after=(s,))
        for p, s in zip(cuts, sums, strict=True)
    ]
    own = [
        add(f"{at}up", PRIMARY, kernel("grouped_up"), ["mixed", "ids"], ["rows"]),
        add(f"{at}down", PRIMARY, kernel("grouped_down"), ["rows"], ["rows"]),
    ]
    home = [
        add(
            f"{at}results/up",
            land_lane,
            kernel("convert"),
            ["wire_back"],
            ["out"],
            piece=p,
            after=(b,),
        )
        for p, b in zip(cuts, back, strict=True)
    ]
    for p, h in zip(cuts, home, strict=True):
        add(
            f"{at}combine",
            PRIMARY,
            kernel("moe_combine"),
            ["rows", "out"],
            ["out"],
            piece=p,
            after=(h, own[1]),
        )
    add(f"{at}add", PRIMARY, kernel("residual_add"), ["out"], ["residual"])


def kernel(template: str) -> Kernel:
    return Kernel(template, {"n": 1024, "m": 256})


def forks(streams: tuple[Stream, ...]) -> list[Instruction]:
    waits = [Wait(each.name, "fork") for each in streams if each.name != PRIMARY]
    return [Record(PRIMARY, "fork"), *waits]


def joins(streams: tuple[Stream, ...]) -> list[Instruction]:
    others = [each.name for each in streams if each.name != PRIMARY]
    return [
        step
        for name in others
        for step in (Record(name, f"join {name}"), Wait(PRIMARY, f"join {name}"))
    ]


def memory_of(buffers: dict[str, Buffer]) -> Memory:
    sizes: dict[str, int] = {}
    slots: dict[str, Slot] = {}
    for name, buffer in buffers.items():
        own = f"{buffer.device}/scratch" if buffer.role is Role.SCRATCH else name
        slots[name] = Slot(own, sizes.get(own, 0))
        sizes[own] = sizes.get(own, 0) + buffer.nbytes
    devices = {slots[name].allocation: buffer.device for name, buffer in buffers.items()}
    return Memory(tuple(Allocation(n, devices[n], size) for n, size in sizes.items()), slots)
