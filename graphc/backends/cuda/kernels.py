"""Kernel images -> loaded functions, launch shapes and arguments.

Everything is loaded, and touched once in every context, before the first capture: a kernel that
is loaded lazily while others spin deadlocks.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import lcm, prod

import numpy as np

from graphc.backends.cuda.memory import Gpu
from graphc.dtypes import dtype
from graphc.gpu.probe import arch_name, current
from graphc.gpu.protocol import Argument, Dim, Driver, KernelCall
from graphc.ir import Kernel, Op
from graphc.plan import KernelImage
from graphc.text.diagnostics import NOWHERE, CompilerBug, CudaError, error

# struct codes of scalars; floats that no C type holds go by their bits.
CODES = {
    "f64": "d", "f32": "f", "i64": "q", "u64": "Q", "i32": "i", "u32": "I", "i16": "h",
    "i8": "b", "u8": "B", "f16": "H", "bf16": "H", "fp8_e4m3": "B",
}  # fmt: skip
BITS = {"f16": np.uint16, "bf16": np.uint16, "fp8_e4m3": np.uint8}
POINTER = "Q"


@dataclass(slots=True)
class Kernels:
    """The plan's kernels, loaded: one library for each architecture, one function a context."""

    driver: Driver
    images: Mapping[str, KernelImage]
    libraries: dict[tuple[str, str], int] = field(default_factory=dict)
    functions: dict[tuple[str, int], int] = field(default_factory=dict)
    shared: dict[tuple[str, int], int] = field(default_factory=dict)  # bytes allowed so far

    def load(self, key: str, gpu: Gpu, op: Op) -> int:
        """The kernel's function in the GPU's context."""
        return self.load_image(self.images[key], gpu, op)

    def load_image(self, image: KernelImage, gpu: Gpu, op: Op) -> int:
        key = image.key
        if (key, gpu.ordinal) not in self.functions:
            check_capability(image, gpu, op)
            with current(self.driver, gpu.context):
                library = self.library(image, gpu, op)
                with loading(image, gpu, op):
                    kernel = self.driver.kernel(library, image.entry)
                    self.functions[key, gpu.ordinal] = self.driver.function(kernel)
        return self.functions[key, gpu.ordinal]

    def load_beside(self, image: KernelImage, gpu: Gpu, op: Op) -> int:
        """A kernel that waits while others run: a multiprocessor that it is on stays divided as
        those want it that need the most shared memory, which have no room there else."""
        function = self.load_image(image, gpu, op)
        if (image.key, gpu.ordinal) not in self.shared:
            kernel = self.driver.kernel(self.library(image, gpu, op), image.entry)
            self.driver.prefer_shared(kernel, gpu.ordinal)
            self.shared[image.key, gpu.ordinal] = 0
        return function

    def library(self, image: KernelImage, gpu: Gpu, op: Op | None = None) -> int:
        arch = arch_name(gpu.facts.capability)
        if (image.key, arch) not in self.libraries:
            code = cubin(image, arch)
            with loading(image, gpu, op):
                self.libraries[image.key, arch] = self.driver.load_library(code)
        return self.libraries[image.key, arch]

    def allow_shared(self, key: str, gpu: Gpu, nbytes: int) -> None:
        """Raise the kernel's limit of dynamic shared memory on the GPU to what a launch asks."""
        if nbytes > self.shared.get((key, gpu.ordinal), 0):
            image = self.images[key]
            check_shared(image, gpu, nbytes)
            kernel = self.driver.kernel(self.library(image, gpu), image.entry)
            self.driver.allow_shared(kernel, gpu.ordinal, nbytes)
            self.shared[key, gpu.ordinal] = nbytes

    def check_cooperative(self, key: str, gpu: Gpu, call: KernelCall, op: Op) -> None:
        """Blocks that wait for each other must all have room at once."""
        if not call.is_cooperative:
            return
        with current(self.driver, gpu.context):
            each = self.driver.blocks_at_once(call.function, prod(call.block), call.shared)
        blocks, room = prod(call.grid), each * gpu.facts.sms
        if blocks > room:
            raise CudaError(
                "load kernels",
                "TOO_MANY_BLOCKS",
                f"cooperative kernel '{self.images[key].template}' has {blocks:,} blocks of "
                f"{prod(call.block)} threads; GPU {gpu.ordinal} ({gpu.facts.name}) holds {room:,} "
                f"of them at once, {each} on each of {gpu.facts.sms} multiprocessors",
                op=op.name,
                span=op.span,
                hint="bound its grid: 'blocks' in the schedule, or the contract's launch",
            )

    def release(self) -> None:
        for library in self.libraries.values():
            self.driver.unload_library(library)
        self.libraries.clear()
        self.functions.clear()


def check_capability(image: KernelImage, gpu: Gpu, op: Op) -> None:
    if gpu.facts.capability < image.min_capability:
        raise CudaError(
            "load kernels",
            "GPU_TOO_OLD",
            f"kernel '{image.template}' needs compute capability "
            f"{dotted(image.min_capability)}; GPU {gpu.ordinal} ({gpu.facts.name}) has "
            f"{dotted(gpu.facts.capability)}",
            op=op.name,
            span=op.span,
            hint="use a newer GPU, the reference backend, or a kernel that asks for less",
        )


def check_shared(image: KernelImage, gpu: Gpu, nbytes: int) -> None:
    if nbytes > gpu.facts.shared_optin:
        raise CudaError(
            "load kernels",
            "TOO_MUCH_SHARED_MEMORY",
            f"kernel '{image.template}' asks for {nbytes:,} bytes of shared memory; a block on GPU "
            f"{gpu.ordinal} ({gpu.facts.name}) may have {gpu.facts.shared_optin:,}",
            hint="choose smaller tiles by the kernel's options",
        )


# What the driver says of code that it cannot use.
BAD_CODE = {
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_SOURCE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_INVALID_VALUE",
}


@contextmanager
def loading(image: KernelImage, gpu: Gpu, op: Op | None) -> Iterator[None]:
    """Say which kernel's code the driver does not take, and for which op."""
    try:
        yield
    except CudaError as problem:
        advice = "compile the plan again: its cubin is damaged, or made for another GPU"
        raise CudaError(
            problem.call,
            problem.error,
            f"the code of kernel '{image.template}' (entry '{image.entry}') cannot be loaded on "
            f"GPU {gpu.ordinal} ({gpu.facts.name}): {problem.explanation}",
            op=op.name if op else None,
            span=op.span if op else NOWHERE,
            hint=advice if problem.error in BAD_CODE else problem.hint,
        ) from None


def dotted(capability: int) -> str:
    """
    >>> dotted(90)
    '9.0'
    """
    return f"{capability // 10}.{capability % 10}"


def cubin(image: KernelImage, arch: str) -> bytes:
    """The plan's own cubin for the architecture, else a new one."""
    if arch in image.cubins:
        return decoded(image, arch)
    from graphc.kernels.compile import compile_image

    return compile_image(image, arch)


def decoded(image: KernelImage, arch: str) -> bytes:
    try:
        return b64decode(image.cubins[arch], validate=True)
    except binascii.Error as problem:
        raise error(
            "bad-plan",
            f"the {arch} cubin of kernel '{image.template}' is not in base 64: {problem}",
            hint="compile the spec again",
        ) from None


def kernel_call(
    op: Op,
    image: KernelImage,
    gpu: Gpu,
    *,
    function: int,
    pointers: Sequence[Argument],
    capacity: int | None,
    priority: int,
    guard: int = 0,
) -> KernelCall:
    """The launch of an op; the same for every count, which the kernel reads on the device."""
    assert isinstance(op.work, Kernel)
    scope = launch_scope(op, op.work, gpu, capacity)
    launch = image.launch
    return KernelCall(
        function=function,
        grid=extents(launch.grid, scope, op),
        block=extents(launch.block, scope, op),
        shared=evaluated(launch.shared, scope, op),
        arguments=(
            *pointers,
            *scalars(image, op.work),
            *piece_arguments(op, gpu),
            *([(POINTER, guard)] if image.is_guarded else []),
        ),
        cluster=extents(launch.cluster, scope, op) if launch.cluster else None,
        is_cooperative=launch.is_cooperative,
        priority=priority,
    )


def launch_scope(op: Op, kernel: Kernel, gpu: Gpu, capacity: int | None) -> dict[str, object]:
    from graphc.text.expr import Record

    lo, hi = most_rows(op, capacity)
    facts = gpu.facts
    return {
        **kernel.symbols,
        **kernel.options,
        "lo": lo,
        "hi": hi,
        "blocks": op.placement.blocks or 0,
        "arch": facts.capability,
        "device": Record({"sms": facts.sms, "shared_optin": facts.shared_optin}),
    }


def most_rows(op: Op, capacity: int | None) -> tuple[int, int]:
    """Rows of a launch that is large enough for every count: at the capacity, rounded up.

    A piece may have a row more with a smaller count than at the capacity, because bounds are
    rounded down: of 8 pieces of 5 rows the first is empty, and of 4 rows the second is not.

    >>> from fractions import Fraction
    >>> from graphc.ir import Axis, Join, Piece
    >>> piece = Piece(1, 8, Fraction(1, 8), Fraction(2, 8))
    >>> most_rows(Op("a", "a", "g0", Join(), (), Axis(10, 2), piece), 5)
    (0, 2)
    """
    lo, hi = op.piece.bounds(op.axis, capacity)
    if not op.axis.per_count or capacity is None:
        return lo, hi
    share = capacity * (op.piece.stop - op.piece.start)
    rows = op.axis.per_count * -(-share.numerator // share.denominator)
    hi = min(lo + rows, op.axis.per_count * capacity)
    return hi - rows, hi


def extents(texts: Sequence[str], scope: Mapping[str, object], op: Op) -> Dim:
    """Three extents, each at least 1: an empty launch is no launch, and a kernel of empty pieces
    does nothing by itself."""
    values = [max(1, evaluated(text, scope, op)) for text in texts]
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


def evaluated(text: str, scope: Mapping[str, object], op: Op) -> int:
    from graphc.text.expr import evaluate_count

    return evaluate_count(text, scope, op.span)


def scalars(image: KernelImage, kernel: Kernel) -> list[Argument]:
    found: list[Argument] = []
    for name, kind in image.scalars:
        if name not in kernel.scalars:
            raise CompilerBug("cuda", f"scalar '{name}' of kernel '{image.template}' has no value")
        found.append((CODES[kind], as_argument(kernel.scalars[name], kind)))
    return found


def as_argument(value: int | float, kind: str) -> int | float:
    if kind in BITS:
        return int(np.array(value, dtype(kind).numpy).view(BITS[kind])[()])
    return float(value) if dtype(kind).is_float else int(value)


def piece_arguments(op: Op, gpu: Gpu) -> tuple[tuple[str, int], ...]:
    """count, scale, lo, hi, den, piece: how the kernel finds its rows."""
    start, stop = op.piece.start, op.piece.stop
    den = lcm(start.denominator, stop.denominator)
    lo = start.numerator * (den // start.denominator)
    hi = stop.numerator * (den // stop.denominator)
    is_counted = op.axis.per_count > 0
    count = gpu.count_word if is_counted else 0
    scale = op.axis.per_count if is_counted else op.axis.extent
    return (
        (POINTER, count), ("i", scale), ("i", lo), ("i", hi), ("i", den), ("i", op.piece.index),
    )  # fmt: skip
