"""Entries on disk, so that another process need not make them again: rendered kernels and cubins.

They lie in ``GRAPHC_CACHE_DIR``, else in ``graphc`` in the user's cache folder. An entry is written
whole or not at all and carries its own checksum; a cache that is corrupted, full or read-only costs
the making of the entry and nothing else.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["cubin", "image"]


def key_of(*parts: object) -> str:
    """The name of an entry: a digest of all that it follows from."""
    return sha256(repr(parts).encode()).hexdigest()


def from_disk(key: str, kind: Kind) -> bytes | None:
    """The entry, if it is there and whole."""
    try:
        raw = entry_path(key, kind).read_bytes()
    except (OSError, RuntimeError):
        return None
    head = header(kind)
    checksum, data = raw[len(head) : len(head) + 32], raw[len(head) + 32 :]
    is_whole = raw.startswith(head) and sha256(data).digest() == checksum
    return data if data and is_whole else None


def to_disk(key: str, kind: Kind, data: bytes) -> None:
    """Write the entry beside its place and move it there, so that no reader sees a part of it."""
    partial: Path | None = None
    try:
        target = entry_path(key, kind)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{key[:8]}-", dir=target.parent)
        partial = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(header(kind) + sha256(data).digest() + data)
        partial.replace(target)
    except (OSError, RuntimeError):
        # RuntimeError: there is no home folder. Without a cache the entry is made again next time.
        if partial is not None:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def header(kind: Kind) -> bytes:
    """What an entry begins with: its kind, and the number of its format."""
    return f"graphc-{kind}-1\n".encode()


def entry_path(key: str, kind: Kind) -> Path:
    return cache_folder() / f"{key}.{kind}"


def cache_folder() -> Path:
    own = os.environ.get("GRAPHC_CACHE_DIR")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphc"
