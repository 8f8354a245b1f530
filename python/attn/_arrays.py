"""Arrays of other libraries, as address, type, shape, strides and device; and new ones made by the same library."""

import ctypes as c
import functools
import os
import sys

from . import _runtime as rt

_TYPESTR = {"f4": 0, "f2": 1, "i4": 3, "b1": 4, "i1": 7}
_NAMES = {
    "float32": 0, "float16": 1, "bfloat16": 2, "int32": 3, "bool": 4,
    "float8_e4m3fn": 5, "float8_e5m2": 6, "int8": 7,
}  # fmt: skip
BOOL = _NAMES["bool"]
_CODES = _NAMES["float8_e4m3fn"], _NAMES["float8_e5m2"]  # a kernel that takes them takes their codes as uint8, too
_FROM = {number: name for name, number in _NAMES.items()}
_DLPACK = {(2, 32): 0, (2, 16): 1, (4, 16): 2, (0, 32): 3, (6, 8): 4, (10, 8): 5, (12, 8): 6, (0, 8): 7}


class _Elements(TypeError):
    """Of an array: no kernel takes elements of its type."""


class View:
    """What a launch needs to know of an array. `keep` holds on to it; `readonly`: it says that nobody may write it."""

    __slots__ = ("address", "dtype", "shape", "strides", "device", "keep", "readonly")

    def __init__(self, address, dtype, shape, strides, device, keep, readonly=False):
        self.address, self.dtype, self.shape, self.strides = address, dtype, tuple(shape), strides and tuple(strides)
        self.device, self.keep, self.readonly = device, keep, bool(readonly)

    @property
    def signature(self):
        """All but where it lies."""
        return self.dtype, self.shape, self.strides, self.device


def _library(x):
    return type(x).__module__.partition(".")[0]


def _number(name, what, wanted=None):
    if name == "uint8" and wanted in _CODES:
        return wanted
    if name not in _NAMES:
        raise _Elements(f"{what}: elements of type {name} are not supported")
    return _NAMES[name]


@functools.cache
def _torch_name(dtype):
    return str(dtype).partition(".")[2]


@functools.cache
def _torch_device(device):
    kinds = {"cpu": rt.CPU, "cuda": rt.HIP if sys.modules["torch"].version.hip else rt.CUDA}
    return (kinds[device.type], device.index or 0) if device.type in kinds else None


def refuse_layout(what, x):
    """Nested tensors of PyTorch may say that they are strided, and have no shape."""
    if x.is_nested:
        raise TypeError(f"{what}: nested tensors are not supported: pass their rows one behind the other, with q_start= (layout ragged)")
    if str(x.layout) != "torch.strided":
        raise TypeError(f"{what}: tensors of layout {x.layout} are not supported")


def _view_torch(x, what, wanted):
    device = _torch_device(x.device)
    if device is None:
        raise TypeError(f"{what}: tensors on {x.device.type} are not supported")
    refuse_layout(what, x)
    if x.is_neg():
        raise TypeError(f"{what}: its memory holds the numbers without their sign: pass {what}.resolve_neg()")
    return View(x.data_ptr(), _number(_torch_name(x.dtype), what, wanted), x.shape, x.stride(), device, x)


def _strides(shape, strides, item):
    if strides is None:
        return None
    for n, s in zip(shape, strides):
        if n > 1 and s % item:
            raise TypeError("strides that are no whole number of elements are not supported")
    return tuple(s // item for s in strides)


@functools.lru_cache
def _name(dtype):
    """NumPy puts the name together each time that it is asked for."""
    return getattr(dtype, "name", None)


def _view_interface(x, a, device, what, wanted):
    name = _name(getattr(x, "dtype", None))  # ml_dtypes: the type string says only "two bytes"
    if a["typestr"][0] == ">":  # such a type has the name of the native one
        raise TypeError(f"{what}: elements of type {a['typestr']} are big-endian: pass little-endian ones (astype)")
    if name not in _NAMES and a["typestr"][0] in "<|" and a["typestr"][1:] in _TYPESTR:
        dtype = _TYPESTR[a["typestr"][1:]]
    else:
        dtype = _number("uint8" if a["typestr"][1:] == "u1" and not name else name or a["typestr"], what, wanted)
    strides = _strides(a["shape"], a.get("strides"), rt.SIZES[dtype])
    return View(a["data"][0] or 0, dtype, a["shape"], strides, device, x, a["data"][1])


class _DLTensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p), ("device", c.c_int), ("number", c.c_int), ("ndim", c.c_int),
        ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("offset", c.c_uint64),
    ]  # fmt: skip


class _DLVersioned(c.Structure):
    _fields_ = [
        ("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p), ("deleter", c.c_void_p),
        ("flags", c.c_uint64), ("tensor", _DLTensor),
    ]  # fmt: skip


_DL_READONLY = 1


def _capsule(x, **stream):
    """From version 1 on it says whether it may be written; who does not know versions takes no max_version."""
    try:
        return x.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:
        return x.__dlpack__(**stream)


def _dltensor(capsule):
    """What a capsule holds, and whether it is read-only. Not consumed: the capsule gives it back when it goes."""
    valid, get = c.pythonapi.PyCapsule_IsValid, c.pythonapi.PyCapsule_GetPointer
    valid.argtypes = get.argtypes = [c.py_object, c.c_char_p]
    get.restype = c.c_void_p
    if not valid(capsule, b"dltensor_versioned"):
        return _DLTensor.from_address(get(capsule, b"dltensor")), False
    held = _DLVersioned.from_address(get(capsule, b"dltensor_versioned"))
    return held.tensor, held.flags & _DL_READONLY


def _view_dlpack(x, stream, what, wanted):
    kind, number = x.__dlpack_device__()
    if kind == 3:  # pinned host memory
        kind = rt.CPU
    capsule = _capsule(x) if kind == rt.CPU else _capsule(x, stream=stream or 1)
    t, readonly = _dltensor(capsule)
    dtype = _DLPACK.get((t.code, t.bits)) if t.lanes == 1 else None
    if (t.code, t.bits, t.lanes) == (1, 8, 1) and wanted in _CODES:
        dtype = wanted
    if dtype is None:
        raise _Elements(f"{what}: elements of DLPack type {t.code}, {t.bits} bits are not supported")
    strides = t.strides[: t.ndim] if t.strides else None
    return View((t.data or 0) + t.offset, dtype, t.shape[: t.ndim], strides, (kind, number), (x, capsule), readonly)


def _masked(x):
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(x, ma.MaskedArray)


def _instead(x, what, wanted):
    """What a tensor of the kernel takes, and how to come by it where the array's library has that type."""
    name = _FROM[wanted]
    if _library(x) == "torch":
        return f"; it takes {name}: pass {what}.to(torch.{name})"
    if hasattr(x, "astype") and wanted in _TYPESTR.values():
        return f"; it takes {name}: pass {what}.astype('{name}')"
    if wanted in _CODES:
        return f"; it takes {name}: arrays of ml_dtypes, tensors of PyTorch, or its codes as uint8"
    return f"; it takes {name}"


def view(x, what, stream=None, wanted=None):
    """wanted: the number of the element type that the kernel takes, for who has another."""
    try:
        return _view(x, what, stream, wanted)
    except _Elements as e:
        raise TypeError(str(e) + ("" if wanted is None else _instead(x, what, wanted))) from None


def _view(x, what, stream, wanted):
    if _library(x) == "torch":
        return _view_torch(x, what, wanted)
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        kind = rt.HIP if _library(x) == "cupy" and sys.modules["cupy"].cuda.runtime.is_hip else rt.CUDA
        return _view_interface(x, interface, (kind, x.device.id if hasattr(x, "device") else 0), what, wanted)
    interface = getattr(x, "__array_interface__", None)
    if _masked(x):
        raise TypeError(f"{what}: a masked array, whose mask a kernel does not see: pass its filled() or its data")
    if interface is not None:
        return _view_interface(x, interface, (rt.CPU, 0), what, wanted)
    if hasattr(x, "__dlpack__"):
        return _view_dlpack(x, stream, what, wanted)
    raise TypeError(f"{what}: a {type(x).__name__} is no array")


NO_BACKWARD = "{0}: requires grad, and this call has no backward (attn.Attention has one): call under torch.no_grad(), or pass {0}.detach()"


def refuse_grad(name, x):
    """A call of a kernel has no backward: where PyTorch would expect a gradient, the result would come without one, silently."""
    if _library(x) == "torch" and x.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise RuntimeError(NO_BACKWARD.format(name))


NO_TRACE = (
    "torch.jit.trace does not see what a kernel writes; attn.Attention and attn.attention are operators, which it sees, from PyTorch 2.4 on"
)


def refuse_trace(x):
    """The graph would hold the output's memory as it was before the launch, silently."""
    jit = getattr(sys.modules["torch"], "jit", None) if _library(x) == "torch" else None
    if jit and jit.is_tracing():
        raise RuntimeError(NO_TRACE)


def is_numpy(x):
    return _library(x) == "numpy"


def is_array(x):
    return _library(x) == "torch" or any(
        hasattr(x, a) for a in ("__dlpack__", "__cuda_array_interface__", "__array_interface__")
    )


def empty(like, dtype, shape):
    """A new array by the library of `like`, on its device. Each of its own kind: an output is what the user works with."""
    library, name = _library(like), _FROM[dtype]
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, name), device=like.device)
    if library == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype=name)
    if hasattr(like, "__array_interface__"):
        import numpy

        return numpy.empty(shape, dtype=like.dtype if name == _name(like.dtype) else name)
    raise TypeError(f"outputs cannot be allocated like a {type(like).__name__}: pass them with out=")


def save(x, folder, name):
    """The path of a NumPy file that holds a copy of the array."""
    import numpy

    path = os.path.join(folder, name + ".npy")
    numpy.save(path, numpy.asarray(x.cpu() if hasattr(x, "cpu") else x.get() if _library(x) == "cupy" else x))
    return path


def scratch(like, bytes):
    """Workspace: memory (to hold on to) and a 256-byte aligned address in it."""
    memory = empty(like, 7, (bytes + 256,))
    return memory, (view(memory, "workspace").address + 255) // 256 * 256


def current_stream(x):
    """The stream that the array's library works on now; 0 on the CPU."""
    library = _library(x)
    if library == "torch" and x.device.type == "cuda":
        return sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    if library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0
