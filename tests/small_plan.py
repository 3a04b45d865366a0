"""A plan made by hand, over two devices: copies, fills and kernels in pieces, with a count.

out = (2 x + 1) + 3        x goes down to mapped memory, the peer computes, the sums come back

send    x -> down          primary, copy          down: mapped
affine  down -> y          peer, kernel
back    y -> up            peer, copy             up: mapped, or on primary by peer copy
clear   acc = 3            primary, fill
add     up, acc -> out     primary, kernel
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from graphc.ir import (
    MAPPED,
    SPLIT,
    Access,
    Allocation,
    Axis,
    Buffer,
    Copy,
    Emit,
    Fill,
    Instruction,
    Kernel,
    Memory,
    Mode,
    Op,
    Placement,
    Program,
    Record,
    Role,
    Run,
    Schedule,
    Slot,
    Stream,
    Wait,
)
from graphc.passes.split_pieces import split_pieces
from graphc.plan import KernelImage, Launch, Need, Plan, Proof, Requirement, Variant
from graphc.regions import Region

HIDDEN = 8
PARAMS = "const int* count, int scale, int lo_, int hi_, int den, int piece"
BOUNDS = """
  const long long rows = count ? *count : scale, unit = count ? scale : 1;
  const long long lo = unit * (rows * lo_ / den), hi = unit * (rows * hi_ / den);
  for (long long i = lo * 8 + blockIdx.x * blockDim.x + threadIdx.x; i < hi * 8;
       i += gridDim.x * blockDim.x)
"""
AFFINE = f"""extern "C" __global__ void affine(const float* x, float* y, float plus, {PARAMS}) {{
{BOUNDS} y[i] = 2 * x[i] + plus;
}}"""
ADD = f"""extern "C" __global__ void add(const float* a, const float* b, const float* bias,
                                        float* y, {PARAMS}) {{
{BOUNDS} y[i] = a[i] + b[i] + (bias ? bias[i] : 0);
}}"""
LAUNCH = Launch(grid=("min(ceil_div((hi - lo) * 8, 64), device.sms)",), block=("64",))
IMAGES = {
    "affine-0": KernelImage(
        "affine-0", "affine", "affine", AFFINE, ("x", "y"), (("plus", "f32"),), LAUNCH
    ),
    "add-0": KernelImage("add-0", "add", "add", ADD, ("a", "b", "bias", "y"), (), LAUNCH),
}


def expected(x: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    return 2 * x + 1 + 3 + (0 if bias is None else bias)


def small_plan(
    *,
    tokens: int = 10,
    pieces: int = 3,
    emit: Emit = Emit.CAPTURE,
    p2p: bool = False,
    min_capability: int = 70,
) -> Plan:
    """The plan; with ``p2p`` a first variant that needs peer copies, and the host's after it."""
    images = {
        key: replace(image, min_capability=min_capability, cubins={})
        for key, image in IMAGES.items()
    }
    names = ("p2p", "host") if p2p else ("host",)
    variants = tuple(variant(name, tokens, pieces, emit) for name in names)
    return Plan("small", {"tokens": tokens}, variants, images)


def variant(route: str, tokens: int, pieces: int, emit: Emit) -> Variant:
    need = Requirement(Need.PEER_COPY, "peer", "primary")
    return Variant(
        routes={"back": route},
        requires=(need,) if route == "p2p" else (),
        schedule=scheduled(program(route, tokens, pieces), emit),
        images={"affine": "affine-0", "add": "add-0"},
        proof=Proof(0, 0, 0),
    )


def program(route: str, tokens: int, pieces: int) -> Program:
    def buffer(
        name: str, device: str, role: Role = Role.SCRATCH, *, optional: bool = False
    ) -> Buffer:
        return Buffer(
            name, device, "f32", (tokens, HIDDEN), per_count=1, role=role, is_optional=optional,
            near=("primary", "peer") if device == MAPPED else (),
        )  # fmt: skip

    buffers = (
        buffer("x", "primary", Role.INPUT),
        buffer("bias", "primary", Role.INPUT, optional=True),
        buffer("down", MAPPED),
        buffer("y", "peer"),
        buffer("up", MAPPED if route == "host" else "primary"),
        buffer("acc", "primary"),
        buffer("out", "primary", Role.OUTPUT),
    )
    cut = tuple(Fraction(at, pieces) for at in range(pieces + 1))

    def op(name: str, device: str, stream: str, work: object, **arguments: str) -> Op:
        accesses = tuple(access(name, argument, each) for argument, each in arguments.items())
        return Op(
            name, name, device, work, accesses, Axis(tokens, 1),  # type: ignore[arg-type]
            placement=Placement(pieces=cut, stream=stream),
        )  # fmt: skip

    def access(op: str, argument: str, buffer_name: str) -> Access:
        is_write = argument in ("target", "y")
        region = Region(buffer_name, 0, tokens * HIDDEN * 4)
        return Access(argument, region, Mode.WRITE if is_write else Mode.READ, SPLIT)

    ops = (
        op("send", "primary", "primary.down", Copy(), source="x", target="down"),
        op("affine", "peer", "peer.0", Kernel("affine", {}, {}, {"plus": 1.0}), x="down", y="y"),
        op("back", "peer", "peer.0", Copy(), source="y", target="up"),
        op("clear", "primary", "primary.0", Fill(3.0), target="acc"),
        op("add", "primary", "primary.0", Kernel("add", {}), a="up", b="acc", bias="bias", y="out"),
    )
    whole = Program(
        "small", ("primary", "peer"), {each.name: each for each in buffers}, ops,
        capacity=tokens, count_name="tokens",
    )  # fmt: skip
    return split_pieces(whole)


def scheduled(program: Program, emit: Emit) -> Schedule:
    edges = nearest(conflicts(program))
    streams = (
        Stream("primary.0", "primary"),
        Stream("primary.down", "primary", priority=-1),
        Stream("peer.0", "peer"),
    )
    return Schedule(
        program, streams, "primary.0", instructions(program, edges, streams), edges,
        one_allocation_each(program), emit,
    )  # fmt: skip


def conflicts(program: Program) -> list[tuple[str, str]]:
    return [
        (first.name, second.name)
        for at, second in enumerate(program.ops)
        for first in program.ops[:at]
        if any(
            a.region.overlaps(b.region) and (a.mode.is_write or b.mode.is_write)
            for a in first.accesses
            for b in second.accesses
        )
    ]


def nearest(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Without the pairs that follow from others."""
    before: dict[str, set[str]] = {}
    kept = []
    for second in dict.fromkeys(second for _, second in pairs):
        direct = [first for first, each in pairs if each == second]
        implied = {far for first in direct for far in before.get(first, ())}
        kept += [(first, second) for first in direct if first not in implied]
        before[second] = implied | set(direct)
    return tuple(kept)


def instructions(
    program: Program, edges: tuple[tuple[str, str], ...], streams: tuple[Stream, ...]
) -> tuple[Instruction, ...]:
    origin = streams[0].name
    on = {op.name: op.placement.stream or origin for op in program.ops}
    issued: list[Instruction] = [Record(origin, "fork")]
    issued += [Wait(stream.name, "fork") for stream in streams[1:]]
    for op in program.ops:
        crossing = [
            first for first, second in edges if second == op.name and on[first] != on[op.name]
        ]
        issued += [Wait(on[op.name], first) for first in crossing]
        issued.append(Run(on[op.name], op.name))
        if any(first == op.name and on[second] != on[op.name] for first, second in edges):
            issued.append(Record(on[op.name], op.name))
    for stream in streams[1:]:
        issued += [Record(stream.name, f"join.{stream.name}"), Wait(origin, f"join.{stream.name}")]
    return tuple(issued)


def one_allocation_each(program: Program) -> Memory:
    buffers = program.buffers.values()
    return Memory(
        tuple(Allocation(each.name, each.device, each.nbytes, each.near) for each in buffers),
        {each.name: Slot(each.name, 0) for each in buffers},
    )


# The kernels in Python, over the fake driver's memory.


def rows(count: int, scale: int, lo: int, hi: int, den: int) -> tuple[int, int]:
    if not count:
        return scale * lo // den, scale * hi // den
    used = ctypes.c_int32.from_address(count).value
    return scale * (used * lo // den), scale * (used * hi // den)


def floats(address: int, lo: int, hi: int) -> np.ndarray:
    raw = (ctypes.c_float * ((hi - lo) * HIDDEN)).from_address(address + lo * HIDDEN * 4)
    return np.ctypeslib.as_array(raw)


def affine(x: int, y: int, plus: float, *piece: int) -> None:
    lo, hi = rows(*piece[:5])
    floats(y, lo, hi)[:] = 2 * floats(x, lo, hi) + plus


def add(a: int, b: int, bias: int, y: int, *piece: int) -> None:
    lo, hi = rows(*piece[:5])
    total = floats(a, lo, hi) + floats(b, lo, hi)
    floats(y, lo, hi)[:] = total + floats(bias, lo, hi) if bias else total


KERNELS = {"affine": affine, "add": add}
