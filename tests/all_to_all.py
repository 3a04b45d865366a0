"""Dispatch and combine over ranks, a unit a rank, with its barriers laid by hand.

count -> exchange (a row of every rank's counts) -> scan -> dispatch (to all) -> expert -> combine
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphc.ir import (
    ALL,
    Access,
    Await,
    Awaited,
    Begin,
    Buffer,
    Instruction,
    Kernel,
    LaunchContract,
    Mode,
    Op,
    Program,
    Record,
    Role,
    Rows,
    RowsKind,
    Run,
    Schedule,
    Signal,
    Stream,
    Unit,
    Wait,
    Work,
)
from graphc.passes.plan_memory import separate
from graphc.regions import Region

R, W, SCATTER = Mode.READ, Mode.WRITE, Mode.SCATTER
PREPARE, MOVE = ("count", "exchange", "|", "scan"), ("dispatch", "|", "expert", "|", "combine")
RECEIVED = ("recv", "recv_ids", "recv_w")


def layer(
    ranks: int,
    launch: LaunchContract,
    *,
    entry: str = "step",
    steps: tuple[str, ...] = PREPARE + MOVE,
    is_shared: bool = False,
) -> Schedule:
    """One entry; ``|`` is a barrier of all ranks. ``is_shared``: combine gathers what was sent."""
    made = Layer(ranks, entry, "recv" if is_shared else "partial")
    made.each(lambda rank: made.add(rank, f"gpu{rank}/begin", Begin()))
    for number, step in enumerate(steps):
        if step == "|":
            made.barrier(number)
        else:
            made.step(step)
    made.finish()
    devices = tuple(f"gpu{rank}" for rank in range(ranks))
    program = Program(
        "ep", devices, made.buffers, tuple(made.ops), entry=entry, rank_devices=devices
    )
    streams = tuple(Stream(f"{each}.{name}", each) for each in devices for name in ("0", "signal"))
    units = tuple(Unit(each, (each,), f"{each}.0") for each in devices)
    return Schedule(
        program, streams, "gpu0.0", tuple(made.instructions), (), separate(program),
        units=units, launch=launch,
    )  # fmt: skip


@dataclass(slots=True)
class Layer:
    ranks: int
    entry: str
    gathered: str
    buffers: dict[str, Buffer] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)

    def each(self, do: object) -> None:
        assert callable(do)
        for rank in range(self.ranks):
            do(rank)

    def add(
        self, rank: int, name: str, work: Work, *accesses: Access, family: str = "", on: str = "0"
    ) -> None:
        op = Op(name, name, f"gpu{rank}", work, accesses, family=family)
        self.ops.append(op)
        self.instructions.append(Run(f"gpu{rank}.{on}", name))

    def one(self, argument: str, rank: int, name: str, mode: Mode, role: Role) -> Access:
        buffer = self.buffer(rank, name, role)
        return Access(argument, Region(buffer.name, 0, buffer.nbytes), mode)

    def peers(self, argument: str, name: str, mode: Mode, row: int | None = None) -> list[Access]:
        found = []
        for peer in range(self.ranks):
            buffer = self.buffer(peer, name, Role.STATE if name == "counts" else Role.SCRATCH)
            first, stop = (0, buffer.rows) if row is None else (row, row + 1)
            region = Region(buffer.name, first * buffer.row_nbytes, stop * buffer.row_nbytes)
            rows = ALL if row is None else Rows(RowsKind.ROW, row)
            found.append(Access(argument, region, mode, rows, peer=peer))
        return found

    def buffer(self, rank: int, name: str, role: Role) -> Buffer:
        full = f"rank.{rank}/{name}"
        return self.buffers.setdefault(
            full, Buffer(full, f"gpu{rank}", "i32", (self.ranks, 4), role=role, is_symmetric=True)
        )

    def step(self, name: str) -> None:
        for rank in range(self.ranks):
            accesses = self.accesses(name, rank)
            self.add(rank, f"rank.{rank}/{name}", Kernel(name, {}), *accesses, family=name)

    def accesses(self, step: str, rank: int) -> list[Access]:
        scratch, state = Role.SCRATCH, Role.STATE
        match step:
            case "count":
                topk = self.one("topk", rank, "topk", R, Role.INPUT)
                return [topk, self.one("mine", rank, "mine", W, scratch)]
            case "exchange":
                mine = self.one("mine", rank, "mine", R, scratch)
                return [mine, *self.peers("counts", "counts", W, rank)]
            case "scan":
                counts = self.one("counts", rank, "counts", R, state)
                return [counts, self.one("offsets", rank, "offsets", W, state)]
            case "dispatch":
                x = self.one("x", rank, "x", R, Role.INPUT)
                offsets = self.one("offsets", rank, "offsets", R, state)
                sent = [each for name in RECEIVED for each in self.peers(name, name, SCATTER)]
                return [x, offsets, *sent]
            case "expert":
                received = [self.one(name, rank, name, R, scratch) for name in RECEIVED]
                is_shared = self.gathered == "recv"
                mode = Mode.UPDATE if is_shared else W
                own = received[1:] if is_shared else received
                return [*own, self.one("y", rank, self.gathered, mode, scratch)]
            case _:
                gathered = self.peers("y", self.gathered, R)
                return [*gathered, self.one("out", rank, "out", W, Role.OUTPUT)]

    def barrier(self, number: int) -> None:
        units = [f"gpu{rank}" for rank in range(self.ranks)]
        for unit in units:
            name = f"{number}/{unit}"
            self.instructions += [Record(f"{unit}.0", name), Wait(f"{unit}.signal", name)]
            others = tuple(each for each in units if each != unit)
            signal = Signal(f"{self.entry}/{name}", others)
            self.add(int(unit[3:]), f"signal/{name}", signal, on="signal")
        for unit in units:
            signals = tuple(
                Awaited(f"{self.entry}/{number}/{other}", other, self.entry)
                for other in units
                if other != unit
            )
            self.add(int(unit[3:]), f"await/{number}/{unit}", Await(signals))

    def finish(self) -> None:
        for rank in range(self.ranks):
            event = f"end/gpu{rank}"
            self.instructions.append(Record(f"gpu{rank}.signal", event))
            self.instructions.append(Wait(f"gpu{rank}.0", event))
