"""libattnrt.so through ctypes: the declarations of runtime/attn.h, and nothing more."""

import ctypes as c
import os
import threading

DTYPES = ("f32", "f16", "bf16", "i32", "bool", "e4m3", "e5m2", "i8")
SIZES = (4, 2, 2, 4, 1, 1, 1, 1)
NONE, CPU, CUDA, HIP = 0, 1, 2, 10
OK, ERROR_CALL = 0, 1
MAX_RANK = 8


class Error(Exception):
    """A call that does not fit, an artifact that is damaged, a device that failed. The text names the tensor."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class CallError(Error, ValueError):
    """A call that does not fit: a shape, a device, an element type."""


class ElementError(CallError, TypeError):
    """Of an element type alone."""


def _struct(name, *fields):
    return type(name, (c.Structure,), {"_fields_": list(fields)})


_text, _i, _ptr, _i64, _size = c.c_char_p, c.c_int, c.c_void_p, c.c_int64, c.c_size_t
CError = _struct("attn_error", ("status", _i), ("message", c.c_char * 480))
Device = _struct("attn_device", ("kind", _i), ("number", _i))
ArtifactInfo = _struct(
    "attn_artifact_info", ("target", _text), ("dtype", _i), ("device", Device), ("variants", _i), ("workers", _i)
)
VariantInfo = _struct(
    "attn_variant_info", ("name", _text), ("phase", _i), ("D", _i), ("Dv", _i), ("sizes", _i), ("tensors", _i), ("tile_map", _i)
)
SizeInfo = _struct("attn_size_info", ("name", _text), ("given", _i))
TensorInfo = _struct(
    "attn_tensor_info",
    ("name", _text), ("role", _text), ("dtype", _i), ("rank", _i), ("output", _i), ("optional", _i),
)  # fmt: skip
Tensor = _struct(
    "attn_tensor",
    ("name", _text), ("data", _ptr), ("dtype", _i), ("rank", _i),
    ("shape", c.POINTER(_i64)), ("strides", c.POINTER(_i64)), ("device", Device),
)  # fmt: skip
Scalar = _struct("attn_scalar", ("name", _text), ("value", c.c_double))
Size = _struct("attn_size", ("name", _text), ("value", _i64))
Call = _struct(
    "attn_call",
    ("variant", _text), ("phase", _i),
    ("tensors", c.POINTER(Tensor)), ("ntensors", _size),
    ("scalars", c.POINTER(Scalar)), ("nscalars", _size),
    ("sizes", c.POINTER(Size)), ("nsizes", _size),
    ("stream", _ptr), ("workspace", _ptr), ("workspace_bytes", _size), ("flags", c.c_uint),
)  # fmt: skip

KEEP_MAP = 1  # of a call: ATTN_KEEP_MAP
_ERROR, _OUT = c.POINTER(CError), c.POINTER(_ptr)
_FUNCTIONS = {
    "attn_version": (_text,),
    "attn_create": (_ptr,),
    "attn_set_threads": (_i, _ptr, _i, _ERROR),
    "attn_open": (_i, _ptr, _ptr, _size, Device, _OUT, _ERROR),
    "attn_open_file": (_i, _ptr, _text, Device, _OUT, _ERROR),
    "attn_close": (None, _ptr),
    "attn_get_info": (None, _ptr, c.POINTER(ArtifactInfo)),
    "attn_get_variant": (_i, _ptr, _i, c.POINTER(VariantInfo), _ERROR),
    "attn_get_size": (_i, _ptr, _i, _i, c.POINTER(SizeInfo), _ERROR),
    "attn_get_tensor": (_i, _ptr, _i, _i, c.POINTER(TensorInfo), _ERROR),
    "attn_workspace_bytes": (_i, _ptr, c.POINTER(Call), c.POINTER(_size), _ERROR),
    "attn_shape": (_i, _ptr, c.POINTER(Call), _text, c.POINTER(_i64), c.POINTER(_i), _ERROR),
    "attn_launch": (_i, _ptr, c.POINTER(Call), _ERROR),
}


def _places():
    here = os.path.dirname(os.path.abspath(__file__))
    if os.environ.get("ATTNRT_LIBRARY"):
        yield os.environ["ATTNRT_LIBRARY"]
        return
    yield os.path.join(here, "libattnrt.so")
    yield os.path.join(here, "..", "..", "build", "libattnrt.so")
    yield "libattnrt.so.0"


def _open():
    tried = []
    for path in _places():
        if os.path.isabs(path) and not os.path.exists(path):
            continue
        try:
            return c.CDLL(path)
        except OSError as e:
            tried.append(str(e))
    raise ImportError("libattnrt.so is not here; name it in ATTNRT_LIBRARY. " + "; ".join(tried))


class _Library:
    """The library and its one context, opened when first used, by whichever thread."""

    def __init__(self):
        self._library = self._context = None
        self._lock = threading.Lock()

    def __getattr__(self, name):
        if self._library is None:
            with self._lock:
                self._library = self._library or self._declared(_open())
        return getattr(self._library, name)

    @staticmethod
    def _declared(library):
        for function, (result, *args) in _FUNCTIONS.items():
            f = getattr(library, function)
            f.restype, f.argtypes = result, args
        return library

    @property
    def context(self):
        if self._context is None:
            create = self.attn_create
            with self._lock:
                self._context = self._context or create()
            if not self._context:
                raise MemoryError("attn_create")
        return self._context


lib = _Library()


def check(function, *args):
    """Calls a function that ends with an attn_error, and raises what it says."""
    e = CError()
    status = getattr(lib, function)(*args, c.byref(e))
    if status != OK:
        raise (CallError if status == ERROR_CALL else Error)(e.message.decode(errors="replace"), status)


def set_threads(n: int) -> None:
    """Threads that run host kernels; 0: one per processor."""
    check("attn_set_threads", lib.context, n)


def version() -> str:
    return lib.attn_version().decode()
