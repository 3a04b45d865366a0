"""Times of the specs: what is asked of a machine, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from graphc.calibrate import specs
from graphc.gpu.protocol import DeviceFacts

CHAIN = 40  # ops in a chain
DIAMONDS = 12
HOPS = 6  # of tiny copies there and back
PIECES = 16
PARTS = 4  # of copies to a peer, which are short
COUNTS = (256, 512, 1024, 2048, 4096, 8192, specs.ROWS)  # tokens of the layer

Times = Mapping[str, float]  # op -> us, with what timing it costs


class Bench(Protocol):
    """A machine that runs specs, given as text or by their file."""

    gpus: tuple[DeviceFacts, ...]
    has_peer: bool  # the first two GPUs reach each other's memory
    about: str  # the machine in words

    def ops(
        self,
        spec: str | Path,
        devices: Sequence[int],
        counts: Sequence[int | None] = (None,),
        **values: Any,
    ) -> list[Times]:
        """The time of every op, for each count."""
        ...

    def replay(self, spec: str | Path, devices: Sequence[int], **values: Any) -> float:
        """Microseconds of one replay."""
        ...

    def launch(self, spec: str | Path, devices: Sequence[int]) -> float:
        """Microseconds of the host for one launch."""
        ...


@dataclass(frozen=True, slots=True)
class Launches:
    """Host time of launches: one op, a chain on one GPU, copies over several, and op by op."""

    one_us: float
    chain_us: float
    copies_us: float | None  # None: there is one GPU
    eager_us: float


@dataclass(frozen=True, slots=True)
class Moves:
    """Copies of all bytes one after the other, of pieces at once, and of next to nothing."""

    alone: Times
    at_once_us: float  # of a piece
    tiny_us: float  # of a tiny copy and the way to the next


@dataclass(frozen=True, slots=True)
class Figures:
    """All that was measured."""

    gpus: tuple[DeviceFacts, ...]
    about: str
    single_us: float  # a replay of one tiny op
    same_stream_us: float  # of a tiny op and the way to the next
    same_gpu_us: float  # of a tiny op and the way to another stream
    across_gpus_us: float | None
    launches: Launches
    reach: Times  # "reads_32", ..., and "tiny"
    blocks: tuple[int, ...]
    through_host: Moves
    both_ways_us: float  # of a piece, both ways of one GPU
    by_peer: Moves | None
    layer: Mapping[int, Times]  # by tokens
    layer_pieces: Times  # all tokens, cut where memory bounds
    layer_pieces_us: float  # a replay of it


def measure(bench: Bench) -> Figures:
    sms = bench.gpus[0].sms
    blocks = (4, 8, 16, 32, 64, sms, 4 * sms)
    two = [0, 1] if len(bench.gpus) > 1 else [0, 0]
    near = [0]
    single = specs.chain(1, devices=["near"])
    return Figures(
        gpus=bench.gpus,
        about=bench.about,
        single_us=bench.replay(single, near),
        same_stream_us=chain_us(bench, near, devices=["near"]),
        same_gpu_us=diamond_us(bench, near) / 2,
        across_gpus_us=chain_us(bench, two, devices=["near", "far"]) if two[1] else None,
        launches=launches(bench, two),
        reach=bench.ops(
            specs.reach(blocks, has_peer=bench.has_peer), two if bench.has_peer else near
        )[0],
        blocks=blocks,
        through_host=moves(bench, two, "host_copy", PIECES),
        both_ways_us=at_once_us(bench, [0, 0], "host_copy", PIECES, ways=["there"]),
        by_peer=moves(bench, two, "p2p", PARTS) if bench.has_peer else None,
        layer=dict(zip(COUNTS, bench.ops(specs.layer(), near, COUNTS), strict=True)),
        layer_pieces=bench.ops(specs.layer(), near, pieces=PIECES)[0],
        layer_pieces_us=bench.replay(specs.layer(), near, pieces=PIECES),
    )


def chain_us(bench: Bench, placed: Sequence[int], *, devices: Sequence[str]) -> float:
    """What each op of a chain adds to it."""
    one, many = (
        bench.replay(specs.chain(length, devices=devices), placed)
        for length in (len(devices), CHAIN)
    )
    return (many - one) / (CHAIN - len(devices))


def diamond_us(bench: Bench, near: Sequence[int]) -> float:
    """What each fork and join of two streams adds: two ops and two ways."""
    one, many = (bench.replay(specs.diamonds(length), near) for length in (1, DIAMONDS))
    return (many - one) / (DIAMONDS - 1)


def launches(bench: Bench, two: Sequence[int]) -> Launches:
    copies = specs.moves(route="host_copy", pieces=PIECES, in_turn=False)
    return Launches(
        bench.launch(specs.chain(1, devices=["near"]), [0]),
        bench.launch(specs.chain(CHAIN, devices=["near"]), [0]),
        bench.launch(copies, two) if two[1] else None,
        bench.launch(specs.chain(CHAIN, devices=["near"], emit="streams"), [0]),
    )


def moves(bench: Bench, two: Sequence[int], route: str, pieces: int) -> Moves:
    tiny = bench.replay(specs.moves(route=route, in_turn=True, rows=1, hops=HOPS), two)
    less = bench.replay(specs.moves(route=route, in_turn=True, rows=1), two)
    copies_a_hop = 4 if route == "host_copy" else 2
    return Moves(
        alone=bench.ops(specs.moves(route=route, in_turn=True), two)[0],
        at_once_us=at_once_us(bench, two, route, pieces),
        tiny_us=(tiny - less) / ((HOPS - 1) * copies_a_hop),
    )


def at_once_us(
    bench: Bench,
    two: Sequence[int],
    route: str,
    pieces: int,
    ways: Sequence[str] = ("there", "back"),
) -> float:
    """A piece in the middle, while all directions are in use."""
    text = specs.moves(route=route, pieces=pieces, in_turn=False, ways=ways)
    times = bench.ops(text, two)[0]
    middle = [f"/piece.{index}" for index in range(pieces // 4, pieces * 3 // 4)]
    return median(us for name, us in times.items() if name.endswith(tuple(middle)))
