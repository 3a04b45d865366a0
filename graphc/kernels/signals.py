"""The kernels by which units wait for each other: what ``Begin``, ``Signal`` and ``Await`` become.

They have no contract, because nobody calls them in a spec; they are rendered, compiled and kept in
a plan as all kernels are. One launch serves up to ``MOST`` words; an op with more has several.
"""

from __future__ import annotations

from functools import lru_cache

from graphc.ir import Await, Begin, Op, Signal
from graphc.plan import KernelImage, Launch
from graphc.resources import shipped

SOURCE = "shared/units.cuh.j2"
BEGIN, SIGNAL, AWAIT = "graphc_begin", "graphc_signal", "graphc_await"
MOST = 64  # words of one launch: 12 bytes of arguments each, of the 4,096 that every GPU takes
WARP = 32  # threads at most
LOOKS = 32  # an await looks at the clock and at the others' failures every so many polls


def signal_image(op: Op) -> KernelImage | None:
    """The kernel of an op that counts, signals or awaits; None of any other op."""
    match op.work:
        case Begin():
            return rendered(BEGIN, 1)
        case Signal(to=units):
            return rendered(SIGNAL, width(len(units)))
        case Await(signals=signals):
            return rendered(AWAIT, width(len(signals)))
    return None


def width(words: int) -> int:
    """Words of a launch that holds so many: a power of two, so that few kernels do.

    >>> [width(each) for each in (1, 3, 63, 200)]
    [1, 4, 64, 64]
    """
    return min(MOST, 1 << max(0, words - 1).bit_length())


@lru_cache(maxsize=64)
def rendered(entry: str, most: int) -> KernelImage:
    # Here, and not above: most plans have one unit, and need no Jinja to run.
    from graphc.kernels.render import bare, digest, environment, with_directives

    template = environment((shipped("templates"),)).get_template(SOURCE)
    source = with_directives(template.render(most=most, looks=LOOKS))
    name = entry.removeprefix("graphc_")
    return KernelImage(
        key=f"{name}-{most}-{digest(bare(source), entry)[:8]}",
        template=name,
        entry=entry,
        source=source,
        pointers=(),
        scalars=(),
        launch=Launch(("1",), (str(min(most, WARP)),)),
    )
