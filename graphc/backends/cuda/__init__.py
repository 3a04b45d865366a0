"""The CUDA backend: a plan as a CUDA Graph over the GPUs of this process.

choose    the variant whose needs this machine meets, tested with data
memory    the plan's allocations, the caller's arrays in place of them, NUMA placement
words     the memory by which units wait for each other
kernels   cubins loaded in each context before anything is captured; launch shapes, arguments
work      an op and a count -> the driver's calls
emit      calls on streams: captured, as explicit nodes, or eagerly
readback  what was really built, against the plan
session   all that is held on the GPUs while the plan is open
executable  the graphs of an entry: built, updated in place, set to a count, launched
arrays    arrays of other libraries, looked at without copying
views     buffers for other libraries
graph     ``CudaGraph``: bind, launch, views, close
timing    events around every op
"""

from graphc.backends.cuda.graph import CudaGraph

__all__ = ["CudaGraph"]
