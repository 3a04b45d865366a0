"""Program -> units: which devices make one graph of their own, if the program is divided at all.

Every device is in one unit, also where an entry runs nothing there: so all units count the same
launches. A program on one device is not divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.ir import Division, Program, Unit
from graphc.text.diagnostics import error


def find_units(program: Program, division: Division) -> tuple[Unit, ...]:
    """The units in the order of the devices; none if there would be only one."""
    if division is Division.RANK:
        check_ranks(program)
    if division is Division.ONE or len(program.devices) < 2:
        return ()
    return tuple(Unit(device, (device,)) for device in program.devices)


def check_ranks(program: Program) -> None:
    """Each rank has a device of its own: units on one device could wait for each other forever."""
    if not program.rank_devices:
        raise error(
            "bad-units",
            f"units: rank divides by ranks, but '{program.name}' has none",
            hint="units: device makes one graph a device",
        )
    first: dict[str, int] = {}
    for rank, device in enumerate(program.rank_devices):
        other = first.setdefault(device, rank)
        if other != rank:
            raise error(
                "bad-units",
                f"units: rank needs a device for each rank, but ranks {other} and {rank} are both "
                f"on '{device}'",
                hint="units: device makes one graph a device, however many ranks are on it",
            )


def unit_numbers(units: Sequence[Unit]) -> Mapping[str, int]:
    """Device -> the place of its unit."""
    return {device: place for place, unit in enumerate(units) for device in unit.devices}
