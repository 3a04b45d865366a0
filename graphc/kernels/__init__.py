"""Contracts, and how their templates become cubins: rendering, NVRTC, the cubin cache."""
