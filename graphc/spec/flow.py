"""Programs -> mistakes: reads of bytes that nothing has written, outputs that nothing writes.

Ops are taken in program order on whole regions. What the caller brings (inputs, weights, state)
is written from the start. Each entry stands for itself: what crosses entries has a role.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir import Access, Buffer, Op, Program, Role
from graphc.regions import Region
from graphc.spec.faults import Faults
from graphc.text.diagnostics import Note

BROUGHT = (Role.INPUT, Role.INOUT, Role.WEIGHT, Role.STATE, Role.STATUS)


def check_flow(programs: Sequence[Program], faults: Faults) -> None:
    """Find the first read of each buffer's unwritten bytes, and outputs left unwritten."""
    written: set[str] = set()
    for program in programs:
        written |= check_reads(program, programs, faults)
    outputs = {
        name: buffer
        for program in programs
        for name, buffer in program.buffers.items()
        if buffer.role is Role.OUTPUT and buffer.nbytes
    }
    for name, buffer in outputs.items():
        if name not in written:
            faults.mistake("output-not-written", f"nothing writes the output '{name}'", buffer.span)


def check_reads(program: Program, programs: Sequence[Program], faults: Faults) -> set[str]:
    """Complain of what an entry reads unwritten; the buffers that it writes, or is brought."""
    written: dict[str, list[tuple[int, int]]] = {
        name: [(0, buffer.nbytes)]
        for name, buffer in program.buffers.items()
        if buffer.role in BROUGHT
    }
    complained: set[str] = set()
    for op in program:
        for access in op.accesses:
            region = physical(access.region, program)
            missing = gap(written.get(region.buffer, []), region)
            if access.mode.is_read and missing and access.region.buffer not in complained:
                complained.add(access.region.buffer)
                complain(op, access, missing, program, programs, faults)
        for access in op.accesses:
            if access.mode.is_write:
                region = physical(access.region, program)
                spans = written.get(region.buffer, [])
                written[region.buffer] = merged(spans, (region.start, region.stop))
    return {*written}


def is_write_of(access: Access, buffer: Buffer) -> bool:
    return access.region.buffer == buffer.name and access.mode.is_write


def physical(region: Region, program: Program) -> Region:
    """The bytes in the buffer that owns them."""
    overlay = program.buffers[region.buffer].overlay
    if overlay is None:
        return region
    base, offset = overlay
    return Region(base, offset + region.start, offset + region.stop)


def gap(written: list[tuple[int, int]], region: Region) -> tuple[int, int] | None:
    """The first bytes of a region that are not covered.

    >>> gap([(0, 4), (6, 9)], Region("x", 2, 9))
    (4, 6)
    """
    start = region.start
    for low, high in written:
        if start >= region.stop or low > start:
            break
        start = max(start, high)
    if start >= region.stop:
        return None
    after = [low for low, _ in written if low > start]
    return start, min([region.stop, *after])


def merged(written: list[tuple[int, int]], new: tuple[int, int]) -> list[tuple[int, int]]:
    """Ranges in order, those that touch joined.

    >>> merged([(0, 4), (8, 9)], (4, 6))
    [(0, 6), (8, 9)]
    """
    out: list[tuple[int, int]] = []
    for low, high in sorted([*written, new]):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def complain(
    op: Op,
    access: Access,
    missing: tuple[int, int],
    program: Program,
    programs: Sequence[Program],
    faults: Faults,
) -> None:
    buffer = program.buffers[access.region.buffer]
    writers = [each for later in program for each in later.accesses if is_write_of(each, buffer)]
    notes = [Note("it is written only later, here", writers[0].span)] if writers else []
    hint = "give it a role if the caller brings it" if not writers else None
    for other in programs if not writers else ():
        found = [each for later in other for each in later.accesses if is_write_of(each, buffer)]
        if found:
            notes = [Note(f"entry '{other.entry}' writes it, here", found[0].span)]
            hint = "what crosses entries has a role, such as state or inout"
    if "/" in buffer.name and writers:
        hint = "scratch ends with the iteration: give it a role, such as state, if it carries over"
    bytes_ = ""
    if (missing[0], missing[1]) != (0, buffer.nbytes) and not buffer.overlay:
        bytes_ = f" in bytes {missing[0]} to {missing[1]}"
    faults.mistake(
        "read-before-write",
        f"'{op.step}' reads '{buffer.name}', but nothing has written it{bytes_}",
        access.span,
        *notes,
        Note("declared here", buffer.span),
        hint=hint,
    )
