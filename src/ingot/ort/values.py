"""OrtValue and OrtDevice: an array, a list of arrays or no value, on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.errors import InputError
from ingot.ir.dtype import DType, from_numpy
from ingot.ort.tables import Refuses, completed, refusal


def expect_cpu(call: str, device: Any) -> None:
    """Raise UnsupportedError for a device that is not the CPU."""
    if str(device).lower() != "cpu":
        raise refusal(f"{call} on {device!r}", "there is one device, the CPU")


def dtype_of(call: str, element_type: Any) -> np.dtype:
    """Return the dtype of an element type of numpy, or of a number of ONNX. Raises InputError for other values."""
    if isinstance(element_type, int):
        from ingot.load.onnx.tensors import DTYPES

        if element_type in DTYPES:
            return DTYPES[element_type].numpy
    else:
        try:
            dtype = np.dtype(element_type)
            from_numpy(dtype)
        except (TypeError, KeyError):
            pass
        else:
            return dtype
    raise InputError(f"{call}: no element type, got {element_type!r}, expected a numpy dtype or a number of ONNX")


def array_at(call: str, element_type: Any, shape: Sequence[int], address: int) -> np.ndarray:
    """Return the row-major array at an address, without a copy. Raises InputError for an invalid type or shape."""
    dtype, dims = dtype_of(call, element_type), tuple(int(dim) for dim in shape)
    if any(dim < 0 for dim in dims) or dtype.hasobject:
        raise InputError(f"{call}: no array, got {dtype}{list(dims)}, expected numbers and dims of 0 or more")
    nbytes = dtype.itemsize * int(np.prod(dims, dtype=object))
    if nbytes == 0:
        return np.empty(dims, dtype)
    if address == 0:
        raise InputError(f"{call}: no memory, got address 0, expected {nbytes} bytes")
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)).view(dtype).reshape(dims)


@completed
class OrtDevice:
    """The CPU."""

    device_mem_type: Refuses
    device_vendor_id: Refuses

    def __repr__(self) -> str:
        return "<OrtDevice cpu>"

    @staticmethod
    def make(ort_device_name: str, device_id: int = 0, vendor_id: int = -1) -> OrtDevice:
        """Return the CPU. Raises UnsupportedError for another device."""
        expect_cpu("OrtDevice.make", ort_device_name)
        return OrtDevice()

    def device_type(self) -> int:
        """Return 0."""
        return 0

    def device_id(self) -> int:
        """Return 0."""
        return 0


@completed
class OrtValue:
    """A tensor, a sequence, a map or no value. It refers to its array without a copy."""

    as_sparse_tensor: Refuses
    ort_value_from_sparse_tensor: Refuses
    ortvalue_from_numpy_with_onnx_type: Refuses

    def __init__(self, value: Any):
        """value: an array, a list of arrays or dictionaries, a dictionary, or None."""
        self._value = value

    def __repr__(self) -> str:
        if self._value is None:
            return "<OrtValue: nothing>"
        count = self.shape() if self.is_tensor() else f"of {len(self._value)}"
        return f"<OrtValue {self.data_type()} {count}>"

    def __str__(self) -> str:
        return f"{self!r}\n{self._value}"

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1) -> OrtValue:
        """Return a value that shares the array; an array that is not row-major is copied."""
        expect_cpu("OrtValue.ortvalue_from_numpy", device_type)
        found = np.asarray(array)
        return OrtValue(np.require(found.astype(object) if found.dtype.kind == "U" else found, requirements="C"))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> OrtValue:
        """Return a value with a new uninitialized array; the type is a numpy dtype, or a number of ONNX."""
        expect_cpu("OrtValue.ortvalue_from_shape_and_type", device_type)
        return OrtValue(np.empty(tuple(shape), dtype_of("OrtValue.ortvalue_from_shape_and_type", element_type)))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        """Return a value that shares a tensor of another library; is_bool_tensor: bytes are bools."""
        array = np.from_dlpack(data)
        return OrtValue(array.view(np.bool_) if is_bool_tensor else array)

    def numpy(self) -> np.ndarray:
        """Return the array without a copy. Raises InputError for a sequence or no value."""
        if not isinstance(self._value, np.ndarray):
            raise InputError(f"OrtValue.numpy: not a tensor, got {type(self._value).__name__}, expected a tensor")
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Return the array as DLPack, for `torch.from_dlpack`."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's identifier of the CPU."""
        return self.numpy().__dlpack_device__()

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Copy an array of the same shape and dtype into the value's array. Raises InputError for another."""
        own = self.numpy()
        if np_arr.shape != own.shape or np_arr.dtype != own.dtype:
            got, expected = f"{np_arr.dtype}{list(np_arr.shape)}", f"{own.dtype}{list(own.shape)}"
            raise InputError(f"OrtValue.update_inplace: different type, got {got}, expected {expected}")
        np.copyto(own, np_arr)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self.numpy().ctypes.data)

    def device_name(self) -> str:
        """Return "cpu"."""
        return "cpu"

    def shape(self) -> list[int]:
        """Return the dims."""
        return list(self.numpy().shape)

    def data_type(self) -> str:
        """Return ONNX's name of the type, such as "tensor(float)"; "seq(...)" and "map(...)" by the first element."""
        if isinstance(self._value, dict):
            key = "string" if any(isinstance(each, str) for each in self._value) else "int64"
            return f"map({key},tensor(float))"
        if isinstance(self._value, list):
            return f"seq({OrtValue(self._value[0]).data_type() if self._value else 'undefined'})"
        return self._dtype.onnx

    def element_type(self) -> int:
        """Return ONNX's number of the dtype."""
        from ingot.load.onnx.tensors import DTYPES

        return next(number for number, dtype in DTYPES.items() if dtype is self._dtype)

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of the elements."""
        return int(self.numpy().nbytes)

    def has_value(self) -> bool:
        """Return whether an optional has a value."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Return whether the value is an array."""
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Return whether the value is a list."""
        return isinstance(self._value, list) and not any(isinstance(each, dict) for each in self._value)

    def is_sparse_tensor(self) -> bool:
        """Return False."""
        return False

    @property
    def value(self) -> Any:
        """The value in the form that `run` accepts."""
        return self._value

    @property
    def _dtype(self) -> DType:
        return from_numpy(self.numpy().dtype)
