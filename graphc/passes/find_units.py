"""Program -> units: which devices make one graph of their own, if the program is divided at all.

Every device is in one unit, also where an entry runs nothing there: so all units count the same
launches. A program on one device is not divided. A rank that is a unit has a device of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.ir import Division, Program, Unit


def find_units(program: Program, division: Division) -> tuple[Unit, ...]:
    """The units in the order of the devices; none if there would be only one."""
    if division is Division.ONE or len(program.devices) < 2:
        return ()
    return tuple(Unit(device, (device,)) for device in program.devices)


def unit_numbers(units: Sequence[Unit]) -> Mapping[str, int]:
    """Device -> the place of its unit."""
    return {device: place for place, unit in enumerate(units) for device in unit.devices}
