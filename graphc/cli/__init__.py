"""The command line. Each command is a file; what they share is ``request`` and ``report``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; the working folder is importable, behind all else."""
    from graphc.cli.guard import guarded

    # What is opened next would take the place of a missing one, and be written to.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if "" not in sys.path:
        sys.path.append("")
    sys.exit(guarded(list(sys.argv[1:] if arguments is None else arguments)))
