"""Times and sizes as people read them."""

from __future__ import annotations


def us_text(time_us: float) -> str:
    """
    >>> us_text(12.34), us_text(12_340.0)
    ('12.3 us', '12.34 ms')
    """
    return f"{time_us:.1f} us" if time_us < 1000 else f"{time_us / 1000:.2f} ms"


def bytes_text(nbytes: int) -> str:
    """
    >>> bytes_text(512), bytes_text(84_000_000)
    ('512 B', '84.0 MB')
    """
    number, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{nbytes} B" if unit == "B" else f"{number:.1f} {unit}"
