"""Every stage as text: a stage always prints the same, and two that differ never print alike.

One line an op: its name, device and work, then what it touches, as ``x=mixed[0:4096] read``. The
bytes are those of the nominal extent (see ``graphc.ir``). Places in files are left out, so that a
dump does not depend on where the spec lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import assert_never

from graphc.ir import (
    ALL,
    WHOLE,
    Access,
    Await,
    Awaited,
    Begin,
    Buffer,
    Copy,
    Extern,
    Fill,
    Graph,
    Instruction,
    Join,
    Kernel,
    Memory,
    Op,
    Opaque,
    Placed,
    Placement,
    Program,
    Role,
    Rows,
    RowsKind,
    Run,
    Schedule,
    Signal,
    Stream,
    Transfer,
    Unit,
    Work,
)
from graphc.plan import KernelImage

DEFAULT_PLACEMENT = Placement()


def dump(stage: Program | Graph | Placed | Schedule | Memory) -> str:
    """A stage as text that ends with a newline."""
    match stage:
        case Program():
            lines = program_lines(stage)
        case Graph():
            lines = graph_lines(stage)
        case Placed():
            lines = placed_lines(stage)
        case Schedule():
            lines = schedule_lines(stage)
        case Memory():
            lines = memory_lines(stage, {})
        case _:
            assert_never(stage)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def dump_any(stage: object) -> str:
    """Whatever a pass gave: a stage, several of them, or a value that prints itself."""
    if isinstance(stage, Program | Graph | Placed | Schedule | Memory):
        return dump(stage)
    if isinstance(stage, tuple):
        return "\n".join(dump_any(each) for each in stage)
    return f"{stage}\n"


def dump_memory(schedule: Schedule) -> str:
    """The memory of a schedule, with the bytes of each buffer in its allocation."""
    return "\n".join(memory_lines(schedule.memory, schedule.program.buffers)) + "\n"


def dump_kernels(images: Mapping[str, KernelImage]) -> str:
    """Every rendered kernel: how it is called, then its source."""
    return "\n".join(line for image in images.values() for line in kernel_lines(image)) + "\n"


def program_lines(program: Program) -> Iterator[str]:
    yield heading("program", program)
    yield from indent(table(buffer_cells(buffer) for buffer in program.buffers.values()))
    yield f"ops: {len(program.ops)}"
    yield from indent(table(op_cells(op) for op in program))


def heading(stage: str, program: Program) -> str:
    entry = f" entry {program.entry}" if program.entry != "step" else ""
    text = f"{stage} {program.name}{entry}: devices {', '.join(program.devices)}"
    if program.capacity is not None:
        text += f"; capacity {program.capacity} {program.count_name or 'rows'}"
        text += f", nominal {program.nominal}"
    return f"{text}; buffers: {len(program.buffers)}"


def buffer_cells(buffer: Buffer) -> tuple[str, ...]:
    facts = [buffer.role.value] if buffer.role is not Role.SCRATCH else []
    facts += ["optional"] if buffer.is_optional else []
    facts += [f"rows {buffer.per_count}*count"] if buffer.per_count else []
    facts += [f"at {buffer.overlay[0]}+{buffer.overlay[1]}"] if buffer.overlay else []
    facts += [f"near {' '.join(buffer.near)}"] if buffer.near else []
    shape = f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"
    return buffer.name, buffer.device, shape, f"{buffer.nbytes} bytes", ", ".join(facts)


def op_cells(op: Op) -> tuple[str, ...]:
    touched = ", ".join(access_text(access) for access in op.accesses)
    return op.name, op.device, work_text(op.work), touched, "; ".join(op_facts(op))


def op_facts(op: Op) -> Iterator[str]:
    """What the name, the work and the accesses do not say."""
    if op.piece != WHOLE:
        piece = op.piece
        yield f"piece {piece.index} of {piece.of} [{piece.start}, {piece.stop})"
    if op.axis.extent != 1 or op.axis.per_count:
        scale = f" = {op.axis.per_count}*count" if op.axis.per_count else ""
        yield f"axis {op.axis.extent}{scale}"
    if op.step != op.name and op.name != f"{op.step}/piece.{op.piece.index}":
        yield f"step {op.step}"
    # Of a piece, its siblings tell how the op was cut.
    if op.piece == WHOLE and op.placement.pieces != DEFAULT_PLACEMENT.pieces:
        yield f"pieces {fractions(op.placement.pieces)}"
    yield from placement_facts(op.placement)


def placement_facts(placement: Placement) -> Iterator[str]:
    if placement.stream is not None:
        yield f"stream {placement.stream}"
    if placement.priority:
        yield f"priority {placement.priority}"
    if placement.blocks is not None:
        yield f"blocks {placement.blocks}"
    if placement.after:
        yield f"after {', '.join(placement.after)}"
    if placement.lane is not None:
        yield f"lane {placement.lane}"


def work_text(work: Work) -> str:
    match work:
        case Kernel():
            values = {**work.symbols, **work.options, **work.scalars}
            estimate = f", estimate {assignments(work.estimate)}" if work.estimate else ""
            return f"kernel {work.template}({assignments(values)}){estimate}"
        case Fill():
            return f"fill {work.value}"
        case Extern():
            return f"extern {work.function}({assignments(work.scalars)})"
        case Transfer():
            small = ", small" if work.is_small else ""
            streams = f", {assignments(work.streams)}" if work.streams else ""
            return f"transfer(route={work.route}, wire={work.wire or 'as is'}{small}{streams})"
        case Signal():
            return f"signal {work.signal} to {', '.join(work.to)}"
        case Await():
            return f"await {', '.join(map(awaited_text, work.signals))}"
        case Copy() | Join() | Opaque() | Begin():
            return work.kind
        case _:
            assert_never(work)


def awaited_text(awaited: Awaited) -> str:
    launch = " in the launch before" if awaited.is_handshake else ""
    return f"{awaited.signal} of {awaited.unit}{launch}"


def assignments(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def access_text(access: Access) -> str:
    rows = f" {rows_text(access.rows)}" if access.rows != ALL else ""
    return f"{access.argument}={access.region} {access.mode.value}{rows}"


def rows_text(rows: Rows) -> str:
    match rows.kind:
        case RowsKind.SPLIT:
            return f"(split*{rows.factor})" if rows.factor != 1 else "(split)"
        case RowsKind.BLOCKS:
            return f"(blocks {fractions(rows.blocks)})"
        case RowsKind.RING:
            return f"(ring of {rows.factor})"
        case RowsKind.ROW:
            return f"(row {rows.factor})"
        case RowsKind.ALL | RowsKind.PIECE | RowsKind.GATHER:
            return f"({rows.kind.value})"
        case _:
            assert_never(rows.kind)


def fractions(bounds: Iterable[Fraction]) -> str:
    return " ".join(map(str, bounds))


def graph_lines(graph: Graph) -> Iterator[str]:
    yield from program_lines(graph.program)
    yield f"edges: {graph.edges.number_of_edges()}"
    yield from indent(table(edge_cells(graph)))


def edge_cells(graph: Graph) -> Iterator[tuple[str, ...]]:
    """Edges by the program order of their ends, whatever order they were added in."""
    place = {op.name: index for index, op in enumerate(graph.program)}
    edges = sorted(graph.edges.edges(data=True), key=lambda edge: (place[edge[0]], place[edge[1]]))
    for before, after, data in edges:
        yield f"{before} -> {after}", ", ".join(str(each) for each in data.get("hazards", ()))


def placed_lines(placed: Placed) -> Iterator[str]:
    yield from graph_lines(placed.graph)
    yield from unit_lines(placed.units)
    yield from stream_lines(placed.streams, origins(placed.origin, placed.units))
    yield "issue order:"
    yield from indent(table((placed.stream_of[op], op) for op in placed.order))


def unit_lines(units: Sequence[Unit]) -> Iterator[str]:
    """What makes one graph each; nothing of a schedule that is not divided."""
    if units:
        yield f"units: {len(units)}"
        yield from indent(table((each.name, ", ".join(each.devices)) for each in units))


def origins(origin: str, units: Sequence[Unit]) -> frozenset[str]:
    return frozenset(each.origin for each in units) or frozenset({origin})


def stream_lines(streams: Iterable[Stream], origins: frozenset[str]) -> Iterator[str]:
    cells = [
        (
            stream.name,
            stream.device,
            f"priority {stream.priority}" if stream.priority else "",
            "origin" if stream.name in origins else "",
        )
        for stream in streams
    ]
    yield f"streams: {len(cells)}"
    yield from indent(table(cells))


def schedule_lines(schedule: Schedule) -> Iterator[str]:
    program = schedule.program
    written = ", hand-written" if schedule.is_handwritten else ""
    divided = f", launched {schedule.launch.value}, sync {schedule.sync.value}"
    way = f"emit {schedule.emit.value}{divided if schedule.units else ''}"
    yield f"{heading('schedule', program)}; {way}{written}"
    yield from unit_lines(schedule.units)
    yield from stream_lines(schedule.streams, origins(schedule.origin, schedule.units))
    yield f"issue order: {len(schedule.instructions)} instructions"
    yield from indent(table(issue_cells(schedule)))
    yield f"edges: {len(schedule.edges)}"
    yield from indent(f"{before} -> {after}" for before, after in schedule.edges)


def issue_cells(schedule: Schedule) -> Iterator[tuple[str, str]]:
    """One line for what a stream is given at once: its waits, one op, and its records."""
    told = {
        op.name: f" ({work_text(op.work)})"
        for op in schedule.program
        if isinstance(op.work, Signal | Await)
    }
    for group in grouped(schedule.instructions):
        yield group[0].stream, "; ".join(instruction_text(each, told) for each in group)


def grouped(instructions: Iterable[Instruction]) -> Iterator[list[Instruction]]:
    group: list[Instruction] = []
    for each in instructions:
        if group and (
            each.stream != group[0].stream or rank(each) < rank(group[-1]) or is_full(group, each)
        ):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def rank(instruction: Instruction) -> int:
    return {"wait": 0, "sync": 0, "run": 1, "record": 2}[instruction.kind]


def is_full(group: list[Instruction], following: Instruction) -> bool:
    return isinstance(following, Run) and isinstance(group[-1], Run)


def instruction_text(instruction: Instruction, told: Mapping[str, str]) -> str:
    match instruction.kind:
        case "run":
            return f"run {instruction.op}{told.get(instruction.op, '')}"
        case "record" | "wait":
            return f"{instruction.kind} {instruction.event}"
        case "sync":
            return "the host waits"
        case _:
            assert_never(instruction)


def memory_lines(memory: Memory, buffers: Mapping[str, Buffer]) -> Iterator[str]:
    added = f"; orders added: {memory.added_orders}" if memory.added_orders else ""
    yield f"memory: {len(memory.allocations)} allocations of {len(memory.slots)} buffers{added}"
    slots_of: dict[str, list[tuple[int, str]]] = {each.name: [] for each in memory.allocations}
    for name, slot in memory.slots.items():
        slots_of[slot.allocation].append((slot.offset, name))
    for allocation in memory.allocations:
        near = f", near {' '.join(allocation.near)}" if allocation.near else ""
        yield f"  {allocation.name}: {allocation.device}, {allocation.nbytes} bytes{near}"
        slots = sorted(slots_of[allocation.name])
        yield from indent(
            table((slot_text(offset, buffers.get(name)), name) for offset, name in slots), by=4
        )


def slot_text(offset: int, buffer: Buffer | None) -> str:
    return f"[{offset}:{offset + buffer.nbytes}]" if buffer else f"+{offset}"


def kernel_lines(image: KernelImage) -> Iterator[str]:
    launch = image.launch
    arguments = ", ".join([*image.pointers, *(f"{kind} {name}" for name, kind in image.scalars)])
    yield f"// {image.key}: kernel {image.template}, {image.entry}({arguments})"
    yield f"//   grid ({', '.join(launch.grid)}), block ({', '.join(launch.block)})"
    if launch.shared != "0":
        yield f"//   shared memory {launch.shared}"
    if launch.cluster:
        yield f"//   cluster ({', '.join(launch.cluster)})"
    if launch.is_cooperative:
        yield "//   cooperative"
    built = ", ".join(image.cubins) or "not built yet"
    yield f"//   compute capability {image.min_capability} and up; cubins: {built}"
    yield f"//   reference {image.reference or 'none'}"
    yield image.source.rstrip("\n")
    yield ""


def indent(lines: Iterable[str], by: int = 2) -> Iterator[str]:
    return (" " * by + line for line in lines)


def table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows in columns, the last column as wide as it likes.

    >>> table([("a", "bb"), ("ccc", "d")])
    ['a    bb', 'ccc  d']
    """
    cells = list(rows)
    if not cells:
        return []
    widths = [min(48, max(len(row[i]) for row in cells)) for i in range(len(cells[0]) - 1)]
    return [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    ]
