"""Views of buffers for other libraries: DLPack, the CUDA array interface, numpy.

A view shares the graph's memory and dies with it: after ``close`` it must not be used, and that
holds for arrays that others made from it, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.backends.cuda.arrays import (
    AS_BITS,
    DLPACK_CODES,
    DLPACK_CUDA,
    DLPACK_CUDA_HOST,
    DLDataType,
    DLDevice,
    DLManagedTensor,
    as_host_array,
)
from graphc.dtypes import dtype
from graphc.gpu.probe import current
from graphc.gpu.protocol import Driver, FillCall
from graphc.ir import Buffer
from graphc.text.diagnostics import UsageError

DEFAULT_STREAM = 0  # of the current context


@dataclass(frozen=True, slots=True)
class View:
    """One buffer as it lies in memory now."""

    buffer: Buffer
    pointer: int
    ordinal: int | None  # the GPU; None for mapped memory
    context: int
    driver: Driver
    wait: Callable[[], None]  # for the launches so far; raises once the graph is closed
    check_open: Callable[[], object]  # raises once the graph is closed

    @property
    def shape(self) -> tuple[int, ...]:
        return self.buffer.shape

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.check_open()
        kind = dtype(self.buffer.dtype).numpy
        if self.buffer.dtype in AS_BITS:
            raise AttributeError(f"the CUDA array interface has no {self.buffer.dtype}: use DLPack")
        return {
            "shape": self.shape,
            "typestr": kind.str,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (DLPACK_CUDA_HOST, 0) if self.ordinal is None else (DLPACK_CUDA, self.ordinal)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule over this memory; order it after the launches by the stream given to them."""
        self.check_open()
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a view shares memory where it lies: it cannot be copied or moved")
        return capsule(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, after the launches so far."""
        self.wait()
        array = np.empty(self.shape, dtype(self.buffer.dtype).numpy)
        if array.nbytes:
            with current(self.driver, self.context):
                self.driver.read(array.ctypes.data, self.pointer, array.nbytes)
        return array

    def write(self, value: np.ndarray[Any, Any]) -> None:
        """Copy a numpy array in, after the launches so far."""
        if not isinstance(value, np.ndarray):
            raise UsageError(
                f"'{self.buffer.name}': expected a numpy array, found {type(value).__name__}"
            )
        self.write_bytes(as_host_array(self.buffer, value))

    def write_bytes(self, array: np.ndarray[Any, Any]) -> None:
        self.wait()
        if array.nbytes:
            with current(self.driver, self.context):
                self.driver.write(self.pointer, array.ctypes.data, array.nbytes)

    def fill_bytes(self, value: int) -> None:
        """Set every byte, after the launches so far: on a GPU by the GPU itself."""
        if self.ordinal is None:
            self.write_bytes(np.full(self.nbytes, value, np.uint8))
            return
        self.wait()
        if self.nbytes:
            with current(self.driver, self.context):
                self.driver.fill(FillCall(self.pointer, value, 1, self.nbytes), DEFAULT_STREAM)
                self.driver.synchronize_context()


# Exported tensors by the address of their record, until their consumer calls the deleter.
EXPORTS: dict[int, tuple[DLManagedTensor, Any, View]] = {}
NAME = b"dltensor"  # a module constant: the capsule keeps only its address


def delete_export(address: int) -> None:
    EXPORTS.pop(address, None)


def delete_capsule(capsule_address: int) -> None:
    """The end of a capsule that nobody consumed (a consumer renames it)."""
    if is_valid(capsule_address, NAME):
        EXPORTS.pop(get_pointer(capsule_address, NAME), None)


# Prototypes of their own, so that nobody else's settings of ``ctypes.pythonapi`` meet ours.
get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


call_back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
export_deleter, capsule_deleter = call_back(delete_export), call_back(delete_capsule)


def capsule(view: View) -> Any:
    shape = (ctypes.c_int64 * max(1, len(view.shape)))(*view.shape)
    managed = DLManagedTensor()
    tensor = managed.tensor
    tensor.data = view.pointer
    tensor.device = DLDevice(*view.__dlpack_device__())
    tensor.ndim = len(view.shape)
    tensor.dtype = DLDataType(*DLPACK_CODES[view.dtype], 1)
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(export_deleter, ctypes.c_void_p).value
    address = ctypes.addressof(managed)
    EXPORTS[address] = (managed, shape, view)
    return new_capsule(address, NAME, ctypes.cast(capsule_deleter, ctypes.c_void_p).value)
