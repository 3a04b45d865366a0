"""A schedule as one self-contained SVG: a lane a stream, ops as boxes, waits as arrows.

Lanes are grouped by device. A step has one hue in all its pieces and layers, a box carries its
piece's number; copies are hatched. A dark arrow is a wait that decided when its op starts, a pale
one was met already. The width grows with the number of boxes; a box too small for its text has
none, and every box tells its facts in a tooltip.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from graphc.draw.dump import access_text, work_text
from graphc.draw.palette import Style, styles
from graphc.draw.timeline import Arrow, Box, Timeline, timeline
from graphc.ir import Await, Begin, Copy, Join, Op, Schedule, Signal, Wait

LANE, BOX, GAP, GROUP, MARGIN = 30, 22, 14, 20, 20  # heights of a lane, a box, between devices, ...
GLYPH = 6.2  # the width of a character at 11 px, about
BOX_PX = 30  # a box of middling length should be this wide: its piece and a short name fit
MIN_PLOT, MAX_PLOT = 1200, 12_000
TICKS = (1, 2, 5)
MANY = 200  # arrows from which on pale ones are paler still

STYLE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;fill:#222}
.title{font-size:18px;font-weight:600}.sub{font-size:12.5px;fill:#555}
.device{font-size:12px;font-weight:600;fill:#444}.stream{font-size:11.5px;fill:#444}
.tick{font-size:10.5px;fill:#777}.in{font-size:11px;pointer-events:none}
.key{font-size:11.5px}.grid{stroke:#e6e6e6}.lane{stroke:#dcdcdc}
.met{fill:none;stroke:#8a8a8a;stroke-width:.8;opacity:.5}
.many .met{opacity:.2}
.binds{fill:none;stroke:#222;stroke-width:1.1;opacity:.85}
.idle{fill:#cc3311;opacity:.4}
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie on the page, in pixels."""

    left: float
    top: float
    plot: float  # the width of the time axis
    px_per_us: float
    lanes: Mapping[str, float]  # stream -> the middle of its lane
    devices: Mapping[str, tuple[float, float]]  # device -> top and bottom of its lanes
    bottom: float

    def x(self, time_us: float) -> float:
        return self.left + time_us * self.px_per_us


def swimlanes(
    schedule: Schedule,
    *,
    title: str | None = None,
    subtitle: str | None = None,
    durations: Mapping[str, float] | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None,
    basis: str | None = None,
) -> str:
    """Draw a schedule; ``durations`` and ``measured`` as for ``timeline``, in microseconds.

    ``basis`` says beside the axis where the times are from.
    """
    times = timeline(schedule, durations=durations, measured=measured)
    layout = lay_out(schedule, times)
    ops = {op.name: op for op in schedule.program}
    looks = styles(hue_of(op) for op in schedule.program)
    keys, legend_bottom = legend(looks, ops, layout)
    width, height = layout.left + layout.plot + MARGIN, legend_bottom + MARGIN
    if basis is None:
        basis = "measured" if measured else "estimated at nominal rates"
    name = schedule.program.name if title is None else title
    facts = caption(schedule) if subtitle is None else subtitle
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(name)}</title>",
        f"<style>{STYLE}</style>",
        DEFINITIONS,
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
        text(MARGIN, 32, name, "title"),
        text(MARGIN, 52, facts, "sub"),
        *grid(layout, times, basis),
        *lanes(schedule, layout),
        *idle_marks(times, layout),
        f'<g class="{"many" if len(times.arrows) > MANY else "few"}">',
        *arrows(times.arrows, layout, is_binding=False),
        "</g>",
        *boxes(times, ops, looks, layout),
        *arrows(times.arrows, layout, is_binding=True),
        *keys,
        "</svg>",
    ]
    return "\n".join(body) + "\n"


DEFINITIONS = (
    "<defs>"
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0 0V6" stroke="#fff" stroke-width="2.4" '
    'opacity=".6"/></pattern>'
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
    'orient="auto" markerUnits="userSpaceOnUse"><path d="M0 1L8 4L0 7z" fill="#222"/></marker>'
    '<marker id="pale" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" '
    'orient="auto" markerUnits="userSpaceOnUse"><path d="M0 1L8 4L0 7z" fill="#8a8a8a"/></marker>'
    "</defs>"
)


def hue_key(step: str) -> str:
    """The step without its layer: what shares a hue.

    >>> hue_key("layer.12/activations/down")
    'activations/down'
    """
    return re.sub(r"^(?:[A-Za-z_]\w*\.\d+/)+", "", step)


def hue_of(op: Op) -> str:
    """What is made for the order of others is named after these; all of a kind look alike."""
    if isinstance(op.work, Join | Begin | Signal | Await):
        return op.work.kind
    return hue_key(op.step)


def caption(schedule: Schedule) -> str:
    """Pieces, streams and waits in a line."""
    pieces = {hue_key(op.step): op.piece.of for op in schedule.program if op.piece.of > 1}
    counts = ", ".join(f"{step} {count}" for step, count in pieces.items())
    waits = sum(isinstance(each, Wait) for each in schedule.instructions)
    signals = sum(isinstance(op.work, Signal) for op in schedule.program)
    units = f" in {len(schedule.units)} units, {signals} signals" if schedule.units else ""
    return (
        f"{len(schedule.program.ops)} ops on {len(schedule.streams)} streams{units}, {waits} "
        f"waits; pieces: {counts or 'none'}"
    )


def lay_out(schedule: Schedule, times: Timeline) -> Layout:
    left = MARGIN + 12 + max(GLYPH * max(len(each.name) for each in schedule.streams), 60)
    plot = plot_width(times)
    middles: dict[str, float] = {}
    devices: dict[str, tuple[float, float]] = {}
    top = y = 96.0
    order = dict.fromkeys([*schedule.program.devices, *(each.device for each in schedule.streams)])
    for device in order:
        own = [each.name for each in schedule.streams if each.device == device]
        if not own:
            continue
        start = y
        y += GROUP
        for name in own:
            middles[name] = y + LANE / 2
            y += LANE
        devices[device] = (start, y)
        y += GAP
    per_us = plot / times.stop_us if times.stop_us else 1.0
    return Layout(left, top, plot, per_us, middles, devices, y - GAP)


def plot_width(times: Timeline) -> float:
    """Wide enough that a box of middling length holds its text, within limits."""
    spans = sorted(box.stop_us - box.start_us for box in times.boxes if box.stop_us > box.start_us)
    if not spans:
        return MIN_PLOT
    middling = spans[len(spans) // 2]
    return min(MAX_PLOT, max(MIN_PLOT, times.stop_us / middling * BOX_PX))


def grid(layout: Layout, times: Timeline, basis: str) -> Iterator[str]:
    step = tick_us(layout.px_per_us)
    y = layout.top - 8
    free = 0.0  # where the first label, which also says the basis, has ended
    for index in range(int(times.stop_us / step + 1e-9) + 1):
        x = layout.x(index * step)
        yield (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{layout.bottom:.1f}"/>'
        )
        label = f"{index * step:g}" + (f" us ({basis})" if index == 0 else "")
        if index == 0:
            free = x + GLYPH * len(label)
            yield text(x, y - 5, label, "tick")
        elif x - GLYPH * len(label) / 2 > free:
            yield text(x, y - 5, label, "tick", anchor="middle")


def tick_us(px_per_us: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that keeps labels apart.

    >>> tick_us(10.0)
    20.0
    """
    power = 1e-3
    while True:
        for factor in TICKS:
            if factor * power * px_per_us >= 160:
                return factor * power
        power *= 10


def lanes(schedule: Schedule, layout: Layout) -> Iterator[str]:
    right = layout.left + layout.plot
    for device, (top, bottom) in layout.devices.items():
        yield (
            f'<rect x="{MARGIN - 8}" y="{top:.1f}" width="{right - MARGIN + 16:.1f}" '
            f'height="{bottom - top:.1f}" rx="6" fill="#000" opacity=".035"/>'
        )
        yield text(MARGIN, top + 15, device, "device")
    for stream in schedule.streams:
        y = layout.lanes[stream.name]
        yield f'<path class="lane" d="M{layout.left:.1f} {y:.1f}H{right:.1f}"/>'
        label = stream.name.removeprefix(f"{stream.device}.")
        is_origin = stream.name in {each.origin for each in schedule.parts}
        origin = " (origin)" if is_origin else ""
        yield text(MARGIN + 10, y + 4, label + origin, "stream")


def idle_marks(times: Timeline, layout: Layout) -> Iterator[str]:
    """A thin bar where a stream that has begun stands idle for a wait."""
    binding = {arrow.after.op for arrow in times.arrows if arrow.is_binding}
    free: dict[str, float] = {}
    for box in times.boxes:
        start = free.get(box.stream)
        if start is not None and box.op in binding and box.start_us > start:
            y, width = layout.lanes[box.stream], (box.start_us - start) * layout.px_per_us
            yield (
                f'<rect class="idle" x="{layout.x(start):.1f}" y="{y - 1.5:.1f}" '
                f'width="{width:.1f}" height="3"><title>waits {box.start_us - start:.1f} us for '
                f"{escape(box.op)}</title></rect>"
            )
        free[box.stream] = box.stop_us


def boxes(
    times: Timeline, ops: Mapping[str, Op], looks: Mapping[str, Style], layout: Layout
) -> Iterator[str]:
    for box in times.boxes:
        op = ops[box.op]
        x, y = layout.x(box.start_us), layout.lanes[box.stream] - BOX / 2
        width = max(1.0, (box.stop_us - box.start_us) * layout.px_per_us)
        look = looks[hue_of(op)]
        yield f"<g><title>{escape(tooltip(op, box))}</title>"
        yield from rectangle(x, y, width, look, is_hatched=isinstance(op.work, Copy))
        label = label_of(op, width)
        if label:
            yield text(x + width / 2, y + BOX / 2 + 4, label, "in", anchor="middle")
        yield "</g>"


def rectangle(x: float, y: float, width: float, look: Style, *, is_hatched: bool) -> Iterator[str]:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX}"'
    rim = f'stroke="{look.rim}" stroke-width="{1 if width > 4 else 0.3}"'
    yield f'<rect {place} rx="{min(3, width / 4):.1f}" fill="{look.fill}" {rim}/>'
    if is_hatched:
        yield f'<rect {place} fill="url(#hatch)"/>'


def label_of(op: Op, width: float) -> str:
    """Name and piece, or the piece alone, or nothing: what fits."""
    name = hue_key(op.step)
    short = name.rsplit("/", 1)[-1]
    number = [str(op.piece.index)] if op.piece.of > 1 else []
    wishes = [" ".join([each, *number]) for each in (name, short)] + number
    return next((wish for wish in wishes if len(wish) * GLYPH + 3 <= width), "")


def tooltip(op: Op, box: Box) -> str:
    took = box.stop_us - box.start_us
    return "\n".join(
        [
            op.name,
            f"{work_text(op.work)} on {op.device}, stream {box.stream}",
            f"{box.start_us:.1f} to {box.stop_us:.1f} us ({took:.1f} us)",
            *(access_text(access) for access in op.accesses),
        ]
    )


def arrows(found: tuple[Arrow, ...], layout: Layout, *, is_binding: bool) -> Iterator[str]:
    for arrow in found:
        if arrow.is_binding is not is_binding:
            continue
        down = layout.lanes[arrow.after.stream] > layout.lanes[arrow.before.stream]
        half = BOX / 2 if down else -BOX / 2
        x1, y1 = layout.x(arrow.before.stop_us) - 1, layout.lanes[arrow.before.stream] + half
        x2, y2 = layout.x(arrow.after.start_us) + 2, layout.lanes[arrow.after.stream] - half
        bend = (y2 - y1) * 0.45
        look, tip = ("binds", "tip") if is_binding else ("met", "pale")
        yield (
            f'<path class="{look}" marker-end="url(#{tip})" d="M{x1:.1f} {y1:.1f}'
            f'C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}">'
            f"<title>{escape(arrow.after.op)} waits for {escape(arrow.before.op)}</title></path>"
        )


def legend(
    looks: Mapping[str, Style], ops: Mapping[str, Op], layout: Layout
) -> tuple[list[str], float]:
    """Steps by hue, then what the marks mean; and how far down it reaches."""
    copies = {hue_of(op) for op in ops.values() if isinstance(op.work, Copy)}
    right = min(layout.left + layout.plot, 1600)
    x, y = float(MARGIN), layout.bottom + 26
    parts: list[str] = []
    for key, look in looks.items():
        width = 20 + len(key) * GLYPH + 18
        if x + width > right:
            x, y = float(MARGIN), y + 20
        swatch = rectangle(x, y - 10, 14, look, is_hatched=key in copies)
        parts += [each.replace(f'height="{BOX}"', 'height="14"') for each in swatch]
        parts.append(text(x + 20, y + 1, key, "key"))
        x += width
    return parts + marks(y + 24), y + 30


def marks(y: float) -> list[str]:
    x = float(MARGIN)
    return [
        f'<path class="binds" marker-end="url(#tip)" d="M{x} {y - 4}h26"/>',
        text(x + 32, y, "wait that decides the start", "key"),
        f'<path class="met" marker-end="url(#pale)" d="M{x + 210} {y - 4}h26"/>',
        text(x + 242, y, "wait met already", "key"),
        f'<rect class="idle" x="{x + 360}" y="{y - 5.5}" width="26" height="3"/>',
        text(x + 392, y, "stream idle, waiting", "key"),
        f'<rect x="{x + 530}" y="{y - 11}" width="26" height="14" rx="3" fill="#999"/>',
        f'<rect x="{x + 530}" y="{y - 11}" width="26" height="14" fill="url(#hatch)"/>',
        text(x + 562, y, "copy engine; a number in a box is its piece", "key"),
    ]


def text(x: float, y: float, content: str, look: str, *, anchor: str = "start") -> str:
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}"{at}>{escape(content)}</text>'
