"""Whether the pieces and ranks of an op scatter apart, as the contract of its kernel says.

Bytes that two of them change were written by both: the result hangs on who came last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphc.ir import Access, Mode, Op
from graphc.text.diagnostics import SpecError, error

Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class Scatters:
    """Watches one replay: who changed which bytes."""

    arrays: Mapping[str, NDArray[Any] | None]
    members: dict[str, list[Op]] = field(default_factory=dict)  # kin -> its ops so far
    # (kin, buffer) -> for each byte, who changed it: their place among the kin, from 1 on.
    owners: dict[tuple[str, str], NDArray[np.uint32]] = field(default_factory=dict)

    def watch(self, op: Op, run: Callable[[], None]) -> None:
        """Run an op; a ``SpecError`` if it changes what one of its kin has scattered."""
        scattered = [
            (each, raw)
            for each in op.accesses
            if each.mode is Mode.SCATTER and (raw := self.bytes_of(each)) is not None
        ]
        before = [raw.copy() for _, raw in scattered]
        run()
        members = self.members.setdefault(op.kin, [])
        members.append(op)
        for (access, raw), old in zip(scattered, before, strict=True):
            self.note(op, access, np.flatnonzero(raw != old))

    def bytes_of(self, access: Access) -> Bytes | None:
        array = self.arrays[access.region.buffer]
        return None if array is None else array.reshape(-1).view(np.uint8)

    def note(self, op: Op, access: Access, changed: NDArray[np.intp]) -> None:
        members, buffer = self.members[op.kin], access.region.buffer
        raw = self.bytes_of(access)
        assert raw is not None
        owners = self.owners.setdefault((op.kin, buffer), np.zeros(raw.size, np.uint32))
        twice = changed[owners[changed] > 0]
        if twice.size:
            other = members[int(owners[twice[0]]) - 1]
            raise not_apart(op, other, access, int(twice[0]))
        owners[changed] = len(members)


def not_apart(op: Op, other: Op, access: Access, at: int) -> SpecError:
    return error(
        "pieces-conflict",
        f"'{op.name}' and '{other.name}' both write byte {at} of '{access.region.buffer}', but "
        f"the contract of argument '{access.argument}' says 'scatter'",
        op.span,
        hint="what is scattered is disjoint among the pieces and ranks of one op",
    )
