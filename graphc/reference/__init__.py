"""The meanings of the shipped kernels in numpy: what "the right result" is, on every backend.

A reference gets the arrays whole and touches the rows ``[lo, hi)`` as its contract declares. A
row's bits depend on nothing but the row's own data: not on ``lo``, ``hi``, the piece or the count.
"""
