"""stub"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir import Memory, Placed, Settings


def find_handshakes(
    entries: Sequence[Placed], memories: Sequence[Memory], settings: Settings
) -> list[Placed]:
    return list(entries)
