"""graphc: a declarative compiler that emits CUDA Graphs."""

__version__ = "0.1.0"
