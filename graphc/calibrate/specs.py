"""The specs that are timed, as text: copies, kernels on links, chains of tiny kernels, a layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from graphc.resources import shipped

HIDDEN = 2560
ROWS = 16384  # of 84 MB with f16
TINY = "shape: [1, 64]"


def head(name: str, devices: Iterable[str]) -> list[str]:
    return ["graphc: 1", f"name: {name}", f"devices: [{', '.join(devices)}]"]


def moves(
    *,
    route: str,
    pieces: int = 1,
    in_turn: bool,
    rows: int = ROWS,
    hops: int = 1,
    ways: Sequence[str] = ("there", "back"),
) -> str:
    """Bytes there and back between two devices, one way after the other or both at once."""
    lines = [*head("moves", ("near", "far")), "buffers:"]
    shape = f"shape: [{rows}, {HIDDEN}]"
    ends = {"there": ("near", "far"), "back": ("far", "near")}
    order = [f"{way}{hop}" for hop in range(hops) for way in ways]
    ops = ["ops:"]
    for name in order:
        source, target = ends[name.rstrip("0123456789")]
        for end, device, role in ((f"{name}_x", source, "input"), (f"{name}_y", target, "output")):
            lines.append(f"  {end}: {{device: {device}, dtype: f16, {shape}, role: {role}}}")
        ops.append(f"  - {{name: {name}, transfer: {{source: {name}_x, target: {name}_y}}}}")
    lines += ops
    lines.append("schedule:")
    for index, name in enumerate(order):
        after = f", after: [{order[index - 1]}]" if in_turn and index else ""
        lines.append(f"  {name}: {{route: {route}, pieces: {pieces}{after}}}")
    return "\n".join(lines) + "\n"


def reach(blocks: Sequence[int], *, has_peer: bool) -> str:
    """One kernel that copies within a GPU, from and to the host, and from and to a peer."""
    devices = ("near", "far") if has_peer else ("near",)
    shape = f"dtype: f16, shape: [{ROWS}, {HIDDEN}]"
    lines = [
        *head("reach", devices),
        "buffers:",
        f"  own: {{device: near, {shape}, role: input}}",
        f"  into: {{device: near, {shape}, role: output}}",
        f"  host: {{memory: mapped, {shape}}}",
        f"  tiny: {{device: near, dtype: f16, {TINY}, role: input}}",
        f"  tinier: {{device: near, dtype: f16, {TINY}, role: output}}",
    ]
    # What is read has to have been written.
    ways = {"within": ("own", "into"), "writes": ("own", "host"), "reads": ("host", "into")}
    if has_peer:
        lines.append(f"  theirs: {{device: far, {shape}, role: input}}")
        lines.append(f"  there: {{device: far, {shape}, role: output}}")
        ways |= {"peer_reads": ("theirs", "into"), "peer_writes": ("own", "there")}
    lines.append("ops:")
    lines.append("  - {name: tiny, kernel: convert, device: near, args: {x: tiny, y: tinier}}")
    schedule = ["schedule:", "  max_streams: 1"]
    for way, (x, y) in ways.items():
        for each in blocks:
            name = f"{way}_{each}"
            args = f"args: {{x: {x}, y: {y}}}"
            lines.append(f"  - {{name: {name}, kernel: convert, device: near, {args}}}")
            schedule.append(f"  {name}: {{blocks: {each}}}")
    return "\n".join([*lines, *schedule]) + "\n"


def chain(length: int, *, devices: Sequence[str], emit: str = "capture") -> str:
    """Tiny kernels, each behind the one before it, on the devices in turn."""
    behind = [[index - 1] if index else [] for index in range(length)]
    where = [devices[index % len(devices)] for index in range(length)]
    return tiny_kernels(behind, where, where, emit=emit)


def diamonds(length: int) -> str:
    """Tiny kernels that fork to a second stream and join again, one diamond behind the other."""
    behind: list[list[int]] = [[]]
    streams = ["first"]
    for _ in range(length):
        top = len(behind) - 1
        behind += [[top], [top], [top + 1, top + 2]]
        streams += ["first", "second", "first"]
    return tiny_kernels(behind, ["near"] * len(behind), streams)


def tiny_kernels(
    behind: Sequence[Sequence[int]],
    devices: Sequence[str],
    streams: Sequence[str],
    *,
    emit: str = "capture",
) -> str:
    """Kernels of 64 elements, with what each of them comes behind, where, and on which stream."""
    known = dict.fromkeys(devices)
    lines = [*head("tiny", known), "buffers:"]
    lines += [f"  x_{each}: {{device: {each}, dtype: f16, {TINY}, role: input}}" for each in known]
    ops, schedule = ["ops:"], ["schedule:", f"  emit: {emit}"]
    for index, (before, device) in enumerate(zip(behind, devices, strict=True)):
        lines.append(f"  y{index}: {{device: {device}, dtype: f16, {TINY}, role: output}}")
        args = f"args: {{x: x_{device}, y: y{index}}}"
        ops.append(f"  - {{name: op{index}, kernel: convert, device: {device}, {args}}}")
        after = ", ".join(f"op{each}" for each in before)
        schedule.append(f"  op{index}: {{stream: {streams[index]}, after: [{after}]}}")
    return "\n".join([*lines, *ops, *schedule]) + "\n"


def layer() -> Path:
    """The kernels of a mixture-of-experts layer, half of its experts, one after the other."""
    return shipped("specs") / "calibrate" / "layer.yaml"
