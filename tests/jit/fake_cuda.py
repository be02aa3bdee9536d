"""Tensors that claim to be on a CUDA device, for checks of bindings on a machine without one. They are never dereferenced."""

import ctypes

import tvm_ffi

CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _Fake:
    def __init__(self, managed):
        self.managed = managed

    def __dlpack_device__(self):
        return self.managed.device.type, self.managed.device.id

    def __dlpack__(self, **_):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.managed), b"dltensor", None)


_alive = []  # keeps the structures alive that DLPack borrows


def tensor(shape, dtype="float32", strides=None, device=0, data=0x1000):
    """A tensor of this shape, dtype and (element) strides on `cuda:<device>` at address `data`."""
    if strides is None:
        strides = [1] * len(shape)
        for axis in reversed(range(len(shape) - 1)):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
    name = dtype.rstrip("0123456789")
    sizes, steps = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides)
    managed = _Tensor(
        data, _Device(2, device), len(shape), CODES[name], int(dtype[len(name) :]), 1, sizes, steps, 0, None, None
    )
    _alive.append((managed, sizes, steps))
    return tvm_ffi.from_dlpack(_Fake(managed))
