"""Arrays of other libraries, looked at without copying: DLPack first, else the CUDA interface.

DLPack first because ``__cuda_array_interface__`` cannot say bf16 (torch calls such a tensor f2).
What is read is the address, dtype, shape and strides; the array itself is kept while it is bound.
Work on bound arrays is ordered by the stream of ``launch``: binding synchronises nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from graphc.backends.binding import ALIGNMENT
from graphc.dtypes import dtype
from graphc.gpu.protocol import Driver, PointerFacts
from graphc.ir import Buffer
from graphc.text.diagnostics import UsageError

# DLPack's (code, bits) of each dtype.
DLPACK_CODES = {
    "i8": (0, 8), "i16": (0, 16), "i32": (0, 32), "i64": (0, 64),
    "u8": (1, 8), "u32": (1, 32), "u64": (1, 64),
    "f16": (2, 16), "f32": (2, 32), "f64": (2, 64), "bf16": (4, 16), "fp8_e4m3": (10, 8),
}  # fmt: skip
# Dtypes that some libraries do not have: their bits as unsigned integers are as good.
AS_BITS = {"bf16": (1, 16), "fp8_e4m3": (1, 8)}
DLPACK_CUDA, DLPACK_CUDA_HOST = 2, 3
REFUSALS = (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError)


class DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", DLTensor),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# A prototype of its own, so that nobody else's settings of ``ctypes.pythonapi`` meet ours.
capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Foreign:
    """An array of another library: where it is and what its bytes mean."""

    pointer: int
    code: tuple[int, int]  # DLPack's code and bits
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None: rows next to each other
    ordinal: int | None = None  # the GPU, where the array says it
    is_read_only: bool = False  # DLPack's plain capsules have no way to say it

    @property
    def is_contiguous(self) -> bool:
        if self.strides is None or 0 in self.shape:
            return True
        wanted, step = [], 1
        for extent in reversed(self.shape):
            wanted.append(step)
            step *= extent
        pairs = zip(self.shape, self.strides, reversed(wanted), strict=True)
        return all(extent == 1 or stride == right for extent, stride, right in pairs)

    @property
    def dtype_name(self) -> str:
        for name, code in DLPACK_CODES.items():
            if code == self.code:
                return name
        kinds = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "complex", 6: "bool"}
        return f"{kinds.get(self.code[0], 'type')}{self.code[1]}"


def look_at(name: str, value: Any) -> Foreign:
    """The array behind an object of any library."""
    refusal = ""
    if hasattr(value, "__dlpack__"):
        try:
            return from_dlpack(value)
        except REFUSALS as problem:
            refusal = str(problem)
    try:
        return from_interface(value.__cuda_array_interface__)
    except REFUSALS:
        if refusal:
            raise UsageError(f"'{name}': its __dlpack__ refuses: {refusal}") from None
    raise UsageError(
        f"'{name}': found {type(value).__name__}; expected a numpy array, or an array with "
        "__dlpack__ or __cuda_array_interface__ (torch, cupy, jax, ...)"
    )


def from_dlpack(value: Any) -> Foreign:
    """Read a capsule and let it go: the array itself is kept by whoever binds it."""
    is_cuda = int(value.__dlpack_device__()[0]) == DLPACK_CUDA
    # -1: no synchronisation; launches are ordered by their stream.
    capsule = value.__dlpack__(stream=-1) if is_cuda else value.__dlpack__()
    tensor = DLManagedTensor.from_address(capsule_pointer(capsule, b"dltensor")).tensor
    shape = tuple(tensor.shape[at] for at in range(tensor.ndim))
    strides = tuple(tensor.strides[at] for at in range(tensor.ndim)) if tensor.strides else None
    code = (tensor.dtype.code, tensor.dtype.bits * tensor.dtype.lanes)
    ordinal = tensor.device.index if tensor.device.kind == DLPACK_CUDA else None
    return Foreign((tensor.data or 0) + tensor.byte_offset, code, shape, strides, ordinal)


def from_interface(interface: dict[str, Any]) -> Foreign:
    kind = np.dtype(interface["typestr"])
    strides: Sequence[int] | None = interface.get("strides")
    in_elements = None if strides is None else tuple(each // kind.itemsize for each in strides)
    codes = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6, "V": 1}  # raw bytes count as bits
    return Foreign(
        int(interface["data"][0] or 0),
        (codes.get(kind.kind, 255), 8 * kind.itemsize),
        tuple(interface["shape"]),
        in_elements,
        is_read_only=bool(interface["data"][1]),
    )


def check_foreign(buffer: Buffer, found: Foreign, ordinal: int | None, driver: Driver) -> int:
    """The address to use for the buffer; every mismatch is a ``UsageError`` of its own.

    ``ordinal`` is the GPU of the buffer's device, None for mapped memory.
    """
    wanted = DLPACK_CODES[buffer.dtype]
    if found.code not in (wanted, AS_BITS.get(buffer.dtype, wanted)):
        raise UsageError(
            f"'{buffer.name}': expected dtype {buffer.dtype}, found {found.dtype_name}"
        )
    if found.shape != buffer.shape:
        raise UsageError(f"'{buffer.name}': expected shape {buffer.shape}, found {found.shape}")
    if not found.is_contiguous:
        raise UsageError(
            f"'{buffer.name}': expected rows next to each other, found strides {found.strides}; "
            "pass a contiguous array"
        )
    if not prod(found.shape):
        return found.pointer
    if found.pointer % ALIGNMENT:
        raise UsageError(
            f"'{buffer.name}': expected an address that {ALIGNMENT} divides, found "
            f"{found.pointer:#x}"
        )
    facts = driver.pointer(found.pointer)
    if facts is not None and found.ordinal is not None:
        facts = replace(facts, ordinal=found.ordinal)
    check_place(buffer, facts, ordinal)
    assert facts is not None
    return facts.device_pointer if facts.is_host else found.pointer


def check_place(buffer: Buffer, facts: PointerFacts | None, ordinal: int | None) -> None:
    place = describe(facts)
    if ordinal is None:
        if facts is None or not facts.is_host:
            raise UsageError(
                f"'{buffer.name}': expected page-locked host memory (the buffer is "
                f"'memory: mapped'), found memory of {place}; a numpy array is copied in"
            )
        return
    if facts is None or facts.is_host or facts.ordinal != ordinal:
        raise UsageError(
            f"'{buffer.name}': expected memory of GPU {ordinal} (device '{buffer.device}'), "
            f"found memory of {place}"
        )


def describe(facts: PointerFacts | None) -> str:
    if facts is None:
        return "the host"
    return "the host (page-locked)" if facts.is_host else f"GPU {facts.ordinal}"


def as_host_array(buffer: Buffer, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A numpy array that can be copied into the buffer."""
    wanted = dtype(buffer.dtype)
    bits = AS_BITS.get(buffer.dtype)
    is_bits = bits is not None and value.dtype.kind == "u" and 8 * value.dtype.itemsize == bits[1]
    if value.dtype != wanted.numpy and not is_bits:
        raise UsageError(
            f"'{buffer.name}': expected dtype {buffer.dtype} ({wanted.numpy}), found {value.dtype}"
        )
    if value.shape != buffer.shape:
        raise UsageError(f"'{buffer.name}': expected shape {buffer.shape}, found {value.shape}")
    return np.ascontiguousarray(value)
