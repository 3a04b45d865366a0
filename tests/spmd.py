"""Random programs of several ranks: each op over its own rank's buffers and those of others."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import strategies as st
from oracles import conflict_within_kin
from strategies import CUTS

from graphc.ir import (
    ALL,
    SPLIT,
    Access,
    Axis,
    Buffer,
    Kernel,
    Mode,
    Op,
    Opaque,
    Placement,
    Program,
    Role,
    Rows,
    RowsKind,
)
from graphc.passes.split_pieces import split_pieces
from graphc.regions import Region

OWN = (Mode.READ, Mode.READ, Mode.WRITE, Mode.WRITE, Mode.UPDATE, Mode.WRITE_SOME, Mode.SCATTER)
OF_ALL = (Mode.READ, Mode.READ, Mode.SCATTER, Mode.SCATTER, Mode.ACCUMULATE)
OF_ROW = (Mode.READ, Mode.WRITE, Mode.WRITE, Mode.UPDATE, Mode.WRITE_SOME)


def spmd_programs(max_steps: int = 5) -> st.SearchStrategy[Program]:
    return st.builds(
        lambda steps, seed: random_spmd_program(Random(seed), max_steps=steps),
        st.integers(1, max_steps),
        st.integers(0, 2**32),
    )


def random_spmd_program(rng: Random, *, max_steps: int = 5, gpus: int | None = None) -> Program:
    ranks = rng.randint(2, 4)
    gpus = gpus or rng.randint(1, ranks)
    devices = tuple(f"gpu{rank % gpus}" for rank in range(ranks))
    kinds = {f"b{number}": random_kind(rng, ranks) for number in range(rng.randint(2, 4))}
    buffers = {
        each.name: each
        for rank in range(ranks)
        for name, kind in kinds.items()
        for each in [replace(kind, name=f"rank.{rank}/{name}", device=devices[rank])]
    }
    program = Program("random", tuple(dict.fromkeys(devices)), buffers, (), rank_devices=devices)
    filled = [name for name, kind in kinds.items() if kind.role in (Role.SCRATCH, Role.OUTPUT)]
    filled = filled or [*kinds][:1]
    for name in filled:
        op = Op(f"fill/{name}", f"fill/{name}", "", Opaque(), (access("y", name, Mode.WRITE),))
        program = replace(program, ops=(*program.ops, *on_all_ranks(op, program)))
    for number in range(max_steps):
        op = random_family(rng, f"s{number}", kinds, ranks)
        for pieces in (op.placement.pieces, CUTS[0]):
            cut = replace(op, placement=replace(op.placement, pieces=pieces))
            more = replace(program, ops=(*program.ops, *on_all_ranks(cut, program)))
            if not conflict_within_kin(split_pieces(more)):
                program = more
                break
    return split_pieces(program)


def random_kind(rng: Random, ranks: int) -> Buffer:
    return Buffer(
        "",
        "",
        rng.choice(("u8", "i32", "f32")),
        (ranks * rng.randint(1, 2), 1),
        role=rng.choice((Role.SCRATCH,) * 3 + (Role.STATE, Role.INOUT, Role.INPUT, Role.OUTPUT)),
        is_symmetric=rng.random() < 0.7,
    )


def access(argument: str, buffer: str, mode: Mode, rows: Rows = ALL) -> Access:
    return Access(argument, Region(buffer, 0, 0), mode, rows)


def random_family(rng: Random, name: str, kinds: dict[str, Buffer], ranks: int) -> Op:
    """An op as a spec has it: ``peer`` -1 stands for all ranks, and row -1 for one's own."""
    is_sum = rng.random() < 0.3
    accesses = []
    for number in range(rng.randint(1, 3)):
        buffer, kind = rng.choice([*kinds.items()])
        how = rng.choice(("own", "all", "row")) if kind.is_symmetric else "own"
        modes = {"own": OWN, "all": OF_ALL, "row": OF_ROW}[how]
        mode = rng.choice(modes)
        if mode is Mode.ACCUMULATE and not is_sum:
            mode = Mode.SCATTER
        # The rows of a kernel are looked at by the proof: these do not follow its axis.
        split = ALL if is_sum else rng.choice((ALL, SPLIT, SPLIT))
        rows = {"own": split, "all": ALL}.get(how)
        made = access(f"a{number}", buffer, mode, rows or Rows(RowsKind.ROW, -1))
        accesses.append(made if how == "own" else replace(made, peer=-1))
    work = Kernel(rng.choice(("sum", "greatest")), {}, {"bits": False}) if is_sum else Opaque()
    after = (f"s{rng.randrange(9)}",) if rng.random() < 0.1 else ()
    placement = Placement(rng.choice(CUTS), after=after)
    return Op(name, name, "", work, tuple(accesses), Axis(8), placement=placement)


def on_all_ranks(op: Op, program: Program) -> list[Op]:
    return [on_rank(op, rank, program) for rank in range(len(program.rank_devices))]


def on_rank(op: Op, rank: int, program: Program) -> Op:
    accesses = []
    for each in op.accesses:
        rows = replace(each.rows, factor=rank) if each.rows.kind is RowsKind.ROW else each.rows
        for peer in range(len(program.rank_devices)) if each.peer is not None else (None,):
            owner = rank if peer is None else peer
            name = f"rank.{owner}/{each.region.buffer}"
            accesses.append(replace(each, region=Region(name, 0, 0), rows=rows, peer=peer))
    known = {each.step for each in program.ops}
    after = tuple(f"rank.{rank}/{each}" for each in op.placement.after)
    return replace(
        op,
        name=f"rank.{rank}/{op.name}",
        step=f"rank.{rank}/{op.name}",
        family=op.name,
        device=program.rank_devices[rank],
        accesses=tuple(accesses),
        placement=replace(op.placement, after=tuple(each for each in after if each in known)),
    )
