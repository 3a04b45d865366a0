"""``python -m graphc.cli``."""

from graphc.cli import main

main()
