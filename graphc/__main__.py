"""``python -m graphc``: the command line, with the working folder importable."""

from __future__ import annotations

from graphc.cli import main

main()
