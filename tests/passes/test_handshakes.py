"""The barriers and handshakes of known layers are those that were worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from all_to_all import MOVE, PREPARE, layer
from division import FREE, scheduled

import graphc
from graphc.ir import Await, Begin, Division, Program, Schedule, Settings, Signal
from graphc.pipeline import verify

ROUTES = ("host", "host_copy", "host_push", "p2p", "p2p_read", "p2p_write")
Order = tuple[str, str, str, str]  # the unit and op that signal, the unit and op that await


def divided(ranks: int, *, is_shared: bool = False, **entries: Sequence[str]) -> list[Schedule]:
    """Dispatch and combine over ranks, a unit each, from nothing but their accesses."""
    programs = [
        undivided(layer(ranks, FREE, entry=entry, steps=tuple(steps), is_shared=is_shared).program)
        for entry, steps in entries.items()
    ]
    schedules = scheduled(programs, Settings(units=Division.RANK, launch=FREE))
    verify(schedules)
    return schedules


def undivided(program: Program) -> Program:
    ops = (op for op in program if not isinstance(op.work, Begin | Signal | Await))
    return replace(program, ops=tuple(ops))


def orders(schedules: Sequence[Schedule], *, handshakes: bool) -> set[Order]:
    return {order for each in schedules for order in orders_of(each, handshakes=handshakes)}


def orders_of(schedule: Schedule, *, handshakes: bool) -> Iterator[Order]:
    unit_of = {device: unit.name for unit in schedule.units for device in unit.devices}
    for op in schedule.program:
        for each in op.work.signals if isinstance(op.work, Await) else ():
            if each.is_handshake is handshakes:
                signal = each.signal.removeprefix(f"{each.entry}/").removesuffix(".previous")
                awaiting = op.name.removeprefix("await/").removesuffix(".previous")
                yield each.unit, step(signal), unit_of[op.device], step(awaiting)


def step(op: str) -> str:
    return op.rpartition("/")[2]


def all_to_all(ranks: int, *pairs: tuple[str, str]) -> set[Order]:
    """Every rank's first op before every other rank's second op."""
    units = [f"gpu{rank}" for rank in range(ranks)]
    return {
        (one, before, two, after)
        for before, after in pairs
        for one in units
        for two in units
        if one != two
    }


RANKS = pytest.mark.parametrize("ranks", [2, 3, 8, 64])
BARRIERS = (("dispatch", "expert"), ("expert", "combine"))


@RANKS
def test_automatic_preparation_takes_three_barriers_and_no_handshake(ranks: int) -> None:
    schedules = divided(ranks, step=PREPARE + MOVE)
    barriers = (("exchange", "scan"), *BARRIERS)
    assert orders(schedules, handshakes=False) == all_to_all(ranks, *barriers)
    assert orders(schedules, handshakes=True) == set()


@RANKS
def test_explicit_preparation_takes_two_barriers_and_no_handshake(ranks: int) -> None:
    step, prepare = divided(ranks, step=MOVE, prepare=PREPARE)
    assert orders([step], handshakes=False) == all_to_all(ranks, *BARRIERS)
    assert orders([step], handshakes=True) == set()
    assert orders([prepare], handshakes=False) == all_to_all(ranks, ("exchange", "scan"))
    # Twice in a row, it must not overwrite counts that another rank has yet to read.
    assert orders([prepare], handshakes=True) == all_to_all(ranks, ("scan", "exchange"))


@RANKS
def test_with_one_buffer_for_both_ways_all_combine_before_any_dispatches_again(ranks: int) -> None:
    schedules = divided(ranks, is_shared=True, step=MOVE)
    assert orders(schedules, handshakes=True) == all_to_all(ranks, ("combine", "dispatch"))


@RANKS
def test_with_one_buffer_and_automatic_preparation_a_barrier_is_in_between(ranks: int) -> None:
    assert orders(divided(ranks, is_shared=True, step=PREPARE + MOVE), handshakes=True) == set()


@RANKS
def test_without_combine_all_experts_are_done_before_any_dispatches_again(ranks: int) -> None:
    schedules = divided(ranks, step=("dispatch", "expert"))
    assert orders(schedules, handshakes=True) == all_to_all(ranks, ("expert", "dispatch"))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("pieces", [1, 4])
def test_the_peer_layer_with_its_return_needs_no_handshake(route: str, pieces: int) -> None:
    (found,) = graphc.check(
        "moe_peer", preset="small", route=route, pieces=pieces, units="device", launch="free"
    )
    schedule, proof = found
    assert len(schedule.units) == 2
    assert (proof.handshakes, proof.signals > 0) == (0, True)


def test_a_barrier_of_64_ranks_takes_a_signal_and_an_await_each() -> None:
    (schedule,) = divided(64, step=PREPARE + MOVE)
    kinds = [op.work.kind for op in schedule.program]
    assert (kinds.count("signal"), kinds.count("await")) == (3 * 64, 3 * 64)
