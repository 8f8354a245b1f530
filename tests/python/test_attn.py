"""The Python package on the CPU, and on an AMD GPU that is none (fake_hip.c). Needs NumPy, PyTorch, cc and libattnrt.so.

    ATTNRT_LIBRARY=build/libattnrt.so python3 -m unittest tests/python/test_attn.py
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock
import warnings

import numpy as np
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

import attn  # noqa: E402


def build(folder):
    cc, source = os.environ.get("CC", "cc"), os.path.join(ROOT, "tests/python/fixture.c")
    flags = ["-D_GNU_SOURCE", "-I" + ROOT, source]
    generate, meta = os.path.join(folder, "generate"), os.path.join(folder, "meta")
    subprocess.check_call([cc, "-DGENERATE", *flags, os.path.join(ROOT, "runtime/abi.c"),
                           os.path.join(ROOT, "runtime/abi_file.c"), "-o", generate])  # fmt: skip
    for name, kind in (("fixture.o", []), ("fixture.hsaco", ["hsaco"])):
        subprocess.check_call([generate, meta, *kind])
        result = os.path.join(folder, name)
        subprocess.check_call([cc, "-c", "-O1", "-fPIC", "-Wno-unused", f'-DMETA="{meta}"', *flags, "-o", result])
    result = os.path.join(folder, "fixture.o")
    shared = os.path.join(folder, "fixture.so")
    subprocess.check_call([cc, "-shared", "-o", shared, result])
    return result, shared


def read(path):
    with open(path, "rb") as f:
        return f.read()


def arguments(sq=3, sk=5):
    r = np.random.default_rng(7)
    shapes = (2, 4, sq, 4), (2, 2, sk, 4), (2, 2, sk, 2), (4, 3)
    return [r.standard_normal(s).astype(np.float32) for s in shapes]


def expected(v, bias, scale, sq):
    s = np.repeat(v.sum(2), 2, axis=1)[:, :, None, :]
    return np.broadcast_to(bias[:, 0][None, :, None, None] + scale * s, (2, 4, sq, 2))


class FakeDevice:
    type, index = "cuda", 0  # what a tensor on an AMD GPU says


class FakeTensor:
    """A tensor of PyTorch for ROCm, as much as the package looks at."""

    device, __module__ = FakeDevice, "torch"

    def __init__(self, array, requires_grad=False):
        self.array, self.shape, self.dtype = array, array.shape, "torch." + array.dtype.name
        self.requires_grad = requires_grad

    layout = "torch.strided"
    is_nested = False

    def is_neg(self):
        return False

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def data_ptr(self):
        return self.array.ctypes.data


def fake_torch():
    torch = types.ModuleType("torch")
    torch.version = types.SimpleNamespace(hip="6.2")
    torch.int8, torch.float32 = "int8", "float32"
    torch.grad = True
    torch.is_grad_enabled = lambda: torch.grad
    torch.empty = lambda shape, dtype, device: FakeTensor(np.empty(shape, dtype))
    torch.cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=0x77))
    return torch


def padded(x):
    """With rows of 16 bytes, as kernels of GPUs want them."""
    room = np.zeros((*x.shape[:-1], 4), np.float32)
    room[..., : x.shape[-1]] = x
    return FakeTensor(room[..., : x.shape[-1]])


class Readonly:
    """An array in the memory of a GPU, as its interface tells it."""

    def __init__(self, array):
        a = array.__array_interface__
        self.__cuda_array_interface__ = {"data": (a["data"][0], True), "shape": array.shape, "typestr": "<f4", "version": 3}


class Versioned:
    """An array that hands out DLPack capsules of version 1, with flags."""

    class Managed(ctypes.Structure):
        _fields_ = [
            ("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64),
            ("data", ctypes.c_void_p), ("device", ctypes.c_int * 2), ("ndim", ctypes.c_int), ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
            ("offset", ctypes.c_uint64),
        ]  # fmt: skip

    def __init__(self, array, flags):
        self.array, self.shape = array, (ctypes.c_int64 * array.ndim)(*array.shape)
        self.held = self.Managed(
            version=(1, 0), flags=flags, data=array.ctypes.data, device=(1, 0), ndim=array.ndim, code=2, bits=32, lanes=1,
            shape=ctypes.addressof(self.shape),
        )  # fmt: skip

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, max_version=None):
        assert max_version >= (1, 0)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.held), b"dltensor_versioned", None)


NO_BACKWARD = "requires grad, and this call has no backward"


class Rocm(unittest.TestCase):
    def test_launches(self):
        with tempfile.TemporaryDirectory() as folder:
            build(folder)
            library = os.path.join(folder, "fake.so")
            subprocess.check_call(
                [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-Wno-unused", "-D_GNU_SOURCE", "-I" + ROOT,
                 "-Wl,-soname,libamdhip64.so.7", os.path.join(ROOT, "tests/python/fake_hip.c"), "-o", library]
            )  # fmt: skip
            fake = ctypes.CDLL(library)  # as PyTorch has its own in the process
            fake.fake_log.restype = ctypes.c_char_p
            with unittest.mock.patch.dict(sys.modules, torch=fake_torch()) as modules:
                q, k, v, bias = arguments(sk=100)
                kernel, o = attn.load(os.path.join(folder, "fixture.hsaco"))["sum"], padded(np.zeros((2, 4, 3, 2), np.float32))
                self.assertIs(kernel(FakeTensor(q), FakeTensor(k), padded(v), FakeTensor(bias), 0.5, q_offset=0, out=o), o)
                np.testing.assert_allclose(o.array, expected(v, bias, 0.5, 3), rtol=1e-5, atol=1e-5)
                self.assertEqual(fake.fake_log(), b"load;zero 77;sum_part 16 77;sum_join 24 77;")
                q, k, v, bias = FakeTensor(q), FakeTensor(k), padded(v), FakeTensor(bias)
                for x in q, v, bias, o:
                    x.requires_grad = True
                    with self.assertRaisesRegex(RuntimeError, NO_BACKWARD):
                        kernel(q, k, v, bias, 0.5, q_offset=0, out=o)
                    modules["torch"].grad = False
                    kernel(q, k, v, bias, 0.5, q_offset=0, out=o)
                    modules["torch"].grad, x.requires_grad = True, False
                bias = bias.array
                empty = [FakeTensor(x) for x in arguments(sq=0, sk=5)[:2]]
                kernel(*empty, padded(arguments(sk=5)[2]), FakeTensor(bias), 0.5, q_offset=0, out=padded(np.zeros((2, 4, 0, 2), np.float32)))
                self.assertTrue(fake.fake_log().endswith(b"sum_join 24 77;"))  # no block is launched


class Python(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.object, cls.shared = build(cls.folder.name)
        cls.artifact = attn.load(cls.shared)
        cls.sum = cls.artifact["sum"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_describes(self):
        self.assertEqual(self.artifact.target, "host")
        self.assertEqual(self.artifact.dtype, "f32")
        self.assertEqual([k.name for k in self.artifact], ["sum", "copy"])
        self.assertEqual(self.sum.inputs, ["q", "k", "v", "bias", "scale"])
        self.assertEqual(self.sum.outputs, ["o", "rows"])
        self.assertEqual(self.sum.sizes, ["B", "H", "Hkv", "Sq", "Sk", "q_offset", "N"])
        self.assertEqual((self.sum.D, self.sum.Dv), (4, 2))

    def test_numpy(self):
        for sk in (0, 5, 100):  # no keys, one kernel, two kernels and a workspace
            q, k, v, bias = arguments(sk=sk)
            o = self.sum(q, k, v, bias, 0.5, q_offset=0)
            np.testing.assert_allclose(o, expected(v, bias, 0.5, 3), rtol=1e-5, atol=1e-5)

    def test_emit_and_out(self):
        q, k, v, bias = arguments()
        o, rows = self.sum(q, k, v, bias=bias, scale=2, q_offset=0, emit=["rows"])
        np.testing.assert_array_equal(rows[1, 2], [5, 6, 7])
        o_too, rows_too = self.sum(q, k, v, bias=bias, scale=2, q_offset=0, emit="rows")  # a name alone
        np.testing.assert_array_equal(o_too, o)
        np.testing.assert_array_equal(rows_too, rows)
        mine = np.zeros((2, 4, 3, 2), np.float32)
        self.assertIs(self.sum(q, k, v, bias=bias, scale=2, q_offset=0, out=mine), mine)
        np.testing.assert_array_equal(mine, o)
        asked = []
        found = self.sum(q, k, v, bias=bias, scale=2, q_offset=0, emit="rows", out=lambda shapes: asked.append(shapes) or {"o": mine})
        self.assertIs(found[0], mine)
        self.assertEqual(asked, [{"o": (2, 4, 3, 2), "rows": (2, 4, 3)}])

    def test_out_overlaps(self):
        q, k, v, bias = arguments(sk=5)
        room = np.zeros((2, 4, 3, 6), np.float32)  # o between other numbers, as parts of one product lie
        room[..., :4] = q
        o = self.sum(q, k, v, bias, 2, q_offset=0)
        self.sum(room[..., :4], k, v, bias, 2, q_offset=0, out=room[..., 4:])
        np.testing.assert_array_equal(room, np.concatenate([q, o], -1))
        for name, x in (("q", q), ("k", k), ("v", v), ("bias", bias)):
            spread = np.zeros(x.size + 48, np.float32)  # the operand, and o from its last number on
            own = spread[: x.size].reshape(x.shape)
            own[...] = x
            into = spread[x.size - 1 : x.size + 47].reshape(2, 4, 3, 2)
            given = {"q": q, "k": k, "v": v, "bias": bias, name: own}
            with self.assertRaisesRegex(ValueError, f"o: overlaps {name} in memory: what is written needs memory of its own"):
                self.sum(**given, scale=2, q_offset=0, out=into)
            np.testing.assert_array_equal(own, x)
            self.sum(**given, scale=2, q_offset=0, out=spread[x.size :].reshape(2, 4, 3, 2))
            np.testing.assert_array_equal(spread[x.size :].reshape(2, 4, 3, 2), o)
        both = np.zeros(48 + 24, np.float32)
        with self.assertRaisesRegex(ValueError, "overlaps (o|rows) in memory"):
            self.sum(q, k, v, bias, 2, q_offset=0, out={"o": both[:48].reshape(2, 4, 3, 2), "rows": both[40:64].reshape(2, 4, 3)})

    def test_no_such_file(self):
        with self.assertRaisesRegex(FileNotFoundError, "no such file: a source is the path of a file.*'softmax'"):
            attn.compile("softmax")

    def test_read_only(self):
        q, k, v, bias = arguments()
        for x in (q, k, v, bias):  # inputs may be
            x.flags.writeable = False
        o = self.sum(q, k, v, bias, 2, q_offset=0)
        view = np.zeros((2, 4, 3, 2), np.float32)
        view.flags.writeable = False
        path = os.path.join(self.folder.name, "readonly.npy")
        np.save(path, view)
        for mine in (view, np.frombuffer(bytes(192), np.float32).reshape(2, 4, 3, 2), np.load(path, mmap_mode="r"), Readonly(o)):
            before = None if isinstance(mine, Readonly) else mine.copy()
            with self.assertRaisesRegex(TypeError, "o: the array given with out= is read-only"):
                self.sum(q, k, v, bias, 2, q_offset=0, out=mine)
            if before is not None:
                np.testing.assert_array_equal(mine, before)
        np.testing.assert_array_equal(self.sum(q, k, v, bias, 2, q_offset=0, out=np.load(path, mmap_mode="c")), o)

    def test_read_only_capsules(self):
        q, k, v, bias = arguments()
        for flags in (0, 1):  # inputs may be read-only
            x = Versioned(v, flags)
            np.testing.assert_array_equal(self.sum(q, k, x, bias, 2, q_offset=0), self.sum(q, k, v, bias, 2, q_offset=0))
        o = np.zeros((2, 4, 3, 2), np.float32)
        self.sum(q, k, v, bias, 2, q_offset=0, out=Versioned(o, 0))
        np.testing.assert_array_equal(o, self.sum(q, k, v, bias, 2, q_offset=0))
        with self.assertRaisesRegex(TypeError, "o: the array given with out= is read-only"):
            self.sum(q, k, v, bias, 2, q_offset=0, out=Versioned(o, 1))

    def test_bf16_of_numpy(self):
        q, k, v, bias = arguments()
        types = [(n, (2, *t[1:]) if n in "qkv" else t) for n, t in self.sum._tensors.items()]
        with unittest.mock.patch.object(self.sum, "_tensors", dict(types)):
            with self.assertRaisesRegex(attn.Error, 'q: has elements of type f32, expected bf16.*ml_dtypes.*dtype="f32"'):
                self.sum(q, k, v, bias, 2, q_offset=0)

    def test_stored_in_8_bits(self):
        source = """
        attention stored {
            dim D = 16;
            input k_scale: f32[B, Hkv, Sk];
            input v_scale: f32;
            key(x, b, h, j, d) = x * k_scale[b, h, j];
            value(x, b, h, j, d) = x * v_scale;
            score(q, k) = dot(q, k) / D;
            normalize(s) = s;
        }"""
        g = torch.Generator().manual_seed(1)
        q, scale = torch.randn(2, 4, 3, 16, generator=g), torch.rand(2, 2, 9, generator=g)
        for dtype in [getattr(torch, n) for n in ("float8_e4m3fn", "float8_e5m2", "int8") if hasattr(torch, n)]:
            kernel = attn.compile(source, kv_dtype=dtype)
            k, v = ((torch.randn(2, 2, 9, 16, generator=g) * 5).to(dtype) for _ in range(2))
            wide = [x.float().repeat_interleave(2, 1) for x in (k, v)]
            expected = torch.einsum("bhid,bhjd,bhj->bhij", q, wide[0], scale.repeat_interleave(2, 1)) / 16 @ wide[1] * 0.5
            torch.testing.assert_close(kernel(q, k, v, k_scale=scale, v_scale=0.5), expected, rtol=1e-5, atol=1e-4)
            with self.assertRaisesRegex(TypeError, f"v: has elements of type f32, expected {attn._compiler.kv_dtype_name(dtype)}"):
                kernel(q, k, v.float(), k_scale=scale, v_scale=0.5)
            with self.assertRaisesRegex(TypeError, "q: has elements of type .*, expected f32"):
                kernel(k, k, v, k_scale=scale, v_scale=0.5)
        codes = np.random.default_rng(2).integers(0, 100, (2, 2, 9, 16)).astype(np.uint8)  # where a library has no such type
        for name, shift in ("e4m3", 3), ("e5m2", 2):
            mantissa, exponent = codes % 2**shift / 2.0**shift, codes.astype(int) >> shift
            bias = 2 ** (6 - shift) - 1
            wide = np.where(exponent > 0, (1 + mantissa) * 2.0 ** (exponent - bias), mantissa * 2.0 ** (1 - bias)).repeat(2, 1)
            kernel, ones = attn.compile(source, kv_dtype=name), np.ones((2, 2, 9), np.float32)
            expected = np.einsum("bhid,bhjd->bhij", q.numpy().astype(np.float64), wide) / 16 @ wide
            for x, k in (q.numpy(), codes), (q, torch.from_numpy(codes)):
                found = np.asarray(kernel(x, k, k, k_scale=ones if k is codes else torch.from_numpy(ones), v_scale=1.0))
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
            with self.assertRaisesRegex(TypeError, "q: elements of type uint8 are not supported"):
                kernel(codes, codes, codes, k_scale=ones, v_scale=1.0)
        with self.assertRaisesRegex(ValueError, "kv_dtype: 'tf32' is none of keys and values"):
            attn.compile(source, kv_dtype="tf32")
        with self.assertRaisesRegex(attn.CompileError, "no backward with --kv-dtype=e4m3"):
            attn.compile(source, kv_dtype="e4m3", phase="fwd,bwd")

    def test_bf16_of_an_input(self):  # which no dtype= would change
        q, k, v, bias = arguments()
        types = [(n, (2, *t[1:]) if n == "bias" else t) for n, t in self.sum._tensors.items()]
        with unittest.mock.patch.object(self.sum, "_tensors", dict(types)):
            with self.assertRaisesRegex(attn.Error, "bias: has elements of type f32, expected bf16.*ml_dtypes.*, or declare this input f32$"):
                self.sum(q, k, v, bias, 2, q_offset=0)

    def test_names_of_types(self):
        for name in "bf16", "bfloat16", torch.bfloat16, types.SimpleNamespace(name="bfloat16"):  # as ml_dtypes has it
            self.assertEqual(attn._compiler.dtype_name(name), "bf16")
        for name in "f32", "float32", torch.float32, np.float32, np.dtype("float32"):
            self.assertEqual(attn._compiler.dtype_name(name), "f32")
        for name in torch.float64, "double", 3, float:
            with self.assertRaisesRegex(ValueError, "dtype: .* is none of kernels"):
                attn.compile("attention a {}", dtype=name)

    def test_mistakes_are_value_errors(self):
        q, k, v, bias = arguments()
        for given in ({"v": v[:, :1]}, {"bias": bias[:3]}, {"q": q.astype(np.float16)}):
            (name,) = given
            with self.assertRaisesRegex(ValueError, f"^{name}: "):
                self.sum(**{"q": q, "k": k, "v": v, "bias": bias, **given}, scale=0.5, q_offset=0)

        text = "attention one { dim D = 8; score(q, k) = dot(q, k); normalize(s) = s; }"
        for options, said in (({"entry": "two"}, "named two; it holds one"), ({"defines": {"E": 8}}, "-DE: .* no dim and no const"), ({"defines": {"D": "x"}}, "'D' is i32"),
                              ({"entry": ""}, "named ; it holds one"), ({"target": "x"}, "--target: bad value 'x'"), ({"target": 80}, "bad value '80'"), ({"layout": "x"}, "--layout"), ({"phase": "x"}, "--phase")):  # fmt: skip
            with self.assertRaisesRegex(ValueError, said):
                attn.compile(text, **options)
        for made in attn.compile, attn.Attention:
            with self.assertRaisesRegex(TypeError, "^defines: a mapping is expected"):
                made(text, defines=["D=8"])
        with self.assertRaises(FileNotFoundError):
            attn.compile("nowhere.attn", entry="two")

    def test_defines_of_other_types(self):
        text = "const ON = true; const N = 9; attention one { dim D = 8; score(q, k) = dot(q, k); mask(b, h, i, j) = ON && j < N; normalize(s) = s; }"
        x = torch.ones(1, 1, 3, 8)
        for n, defines in ((3, {}), (0, {"ON": False}), (2, {"ON": np.True_, "N": np.int64(2)}), (1, {"N": torch.tensor(1)})):
            with self.subTest(defines), warnings.catch_warnings():
                warnings.simplefilter("ignore", attn.CompileWarning)  # a mask that no pair passes
                for o in attn.compile(text, defines=defines, include=".")(x, x, x), attn.attention(text, x, x, x, defines=defines, include="."):
                    self.assertTrue((o == 8 * n).all())

    def test_threads_open_one_context(self):
        library, found = attn._runtime._Library(), []
        threads = [threading.Thread(target=lambda: found.append(library.context)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((len(found), len(set(found))), (8, 1))

    def test_byte_order(self):
        q, k, v, bias = arguments()
        o = self.sum(q, k, v, bias, 0.5, q_offset=0)
        np.testing.assert_array_equal(self.sum(q.astype("<f4"), k, v, bias, 0.5, q_offset=0), o)
        for name, x in {"q": q, "v": v, "bias": bias}.items():
            given = {"q": q, "k": k, "v": v, "bias": bias, name: x.astype(">f4")}
            with self.assertRaisesRegex(TypeError, f"{name}: elements of type >f4 are big-endian"):
                self.sum(**given, scale=0.5, q_offset=0)
        with self.assertRaisesRegex(TypeError, "o: elements of type >f4 are big-endian"):
            self.sum(q, k, v, bias, 0.5, q_offset=0, out=np.zeros((2, 4, 3, 2), ">f4"))
        with self.assertRaisesRegex(TypeError, "t: elements of type >i4 are big-endian"):
            attn._arrays.view(np.zeros(2, ">i4"), "t")

    def test_masked_arrays(self):
        q, k, v, bias = arguments()
        masked = np.ma.masked_greater(q, 1)
        with self.assertRaisesRegex(TypeError, "q: a masked array, whose mask"):
            self.sum(masked, k, v, bias, 0.5, q_offset=0)
        with self.assertRaisesRegex(TypeError, "o: a masked array, whose mask"):
            self.sum(q, k, v, bias, 0.5, q_offset=0, out=np.ma.zeros((2, 4, 3, 2), np.float32))
        np.testing.assert_array_equal(self.sum(masked.data, k, v, bias, 0.5, q_offset=0), self.sum(q, k, v, bias, 0.5, q_offset=0))

    def test_sizes(self):
        q, k, v, bias = arguments()
        o = self.sum(q, k, v, bias, 0.5, q_offset=0)
        for zero in (np.int32(0), np.array(0)):
            np.testing.assert_array_equal(self.sum(q, k, v, bias, 0.5, q_offset=zero), o)
        for bad in (3.9, 0.0, "0", None, np.ones(2)):
            with self.assertRaisesRegex(TypeError, "q_offset: is a size and takes an integer, not "):
                self.sum(q, k, v, bias, 0.5, q_offset=bad)
        with self.assertRaisesRegex(TypeError, "q_offset: 18446744073709551616 is out of range"):  # and not 0
            self.sum(q, k, v, bias, 0.5, q_offset=2**64)

    def test_scalars(self):
        q, k, v, bias = arguments()
        o = self.sum(q, k, v, bias, 0.5, q_offset=0)
        for half in (np.float32(0.5), np.array(0.5)):
            np.testing.assert_array_equal(self.sum(q, k, v, bias, half, q_offset=0), o)
        for bad in (np.ones(2, np.float32), "x", "0.5", None, 1j, 10**400, True):
            with self.assertRaisesRegex(TypeError, "scale: is a scalar and takes a number, not "):
                self.sum(q, k, v, bias, bad, q_offset=0)
        with self.assertRaisesRegex(attn.Error, r"scale: 1e\+60 is more than f32 holds"):
            self.sum(q, k, v, bias, 1e60, q_offset=0)
        self.sum(q, k, v, bias, float("inf"), q_offset=0)

    def test_strides(self):
        q, k, v, bias = arguments()
        wide = np.zeros((2, 2, 5, 3), np.float32)
        wide[..., :2] = v
        mine = np.zeros((2, 3, 4, 2), np.float32)
        self.sum(q, k, wide[..., :2], bias, 0.5, q_offset=0, out=mine.transpose(0, 2, 1, 3))
        np.testing.assert_allclose(mine.transpose(0, 2, 1, 3), expected(v, bias, 0.5, 3), rtol=1e-5, atol=1e-5)

    def test_object_is_linked(self):
        q, k, v, bias = arguments()
        for source in (self.object, read(self.object)):
            o = attn.load(source)["sum"](q, k, v, bias, 1, q_offset=0)
            np.testing.assert_allclose(o, expected(v, bias, 1, 3), rtol=1e-5, atol=1e-5)

    def test_tile_map(self):
        m, places = attn.TileMap(), []
        for sk in (100, 100, 101, 5):  # the same sizes find the same workspace, others do not; none at all
            q, k, v, bias = arguments(sk=sk)
            o = self.sum(q, k, v, bias, 0.5, q_offset=0, tile_map=m)
            np.testing.assert_allclose(o, expected(v, bias, 0.5, 3), rtol=1e-5, atol=1e-5)
            places.append((m._key, m._address))
        self.assertEqual(places[0], places[1])
        self.assertNotEqual(places[1][0], places[2][0])
        self.assertIsNone(m._address)
        m.clear()
        self.assertIsNone(m._key)
        with self.assertRaisesRegex(TypeError, "tile_map takes an attn.TileMap, not 3"):
            self.sum(*arguments(), 0.5, q_offset=0, tile_map=3)

    def test_share(self):
        kernel = attn.compile(os.path.join(ROOT, "tests/run/share.attn"), dtype="f32").kernels[0]
        q, k = np.random.rand(1, 2, 3, 64).astype("f"), np.random.rand(1, 2, 5, 64).astype("f")
        self.assertEqual(kernel(q, k).shape, (1, 2, 3, 40))
        with self.assertRaisesRegex(TypeError, "v: share shares v with k, it is not passed"):
            kernel(q, k, v=k)

    def test_errors(self):
        q, k, v, bias = arguments()
        with self.assertRaisesRegex(attn.Error, "k: dimension 0 is 1, expected B = 2 .from q."):
            self.sum(q, k[:1], v, bias, 1, q_offset=0)
        with self.assertRaisesRegex(attn.Error, "bias: is indexed by q_idx"):
            self.sum(q, k, v, bias, 1)
        with self.assertRaisesRegex(attn.Error, "scale: this scalar is missing"):
            self.sum(q, k, v, bias, q_offset=0)
        with self.assertRaisesRegex(attn.Error, r'v: has elements of type f16, expected f32: attn.compile\(..., dtype="f16"\) takes these'):
            self.sum(q, k, v.astype(np.float16), bias, 1, q_offset=0)
        with self.assertRaisesRegex(attn.Error, r'q: dimension 3 is 3, expected D = \d+: attn.compile\(..., defines={"D": 3}\) takes these \(attnc: -DD=3\)'):
            self.sum(q[..., :3], k, v, bias, 1, q_offset=0)
        with self.assertRaisesRegex(attn.Error, r'v: dimension 3 is 1, expected Dv = \d+: attn.compile\(..., defines={"Dv": 1}\)'):
            self.sum(q, k, v[..., :1], bias, 1, q_offset=0)
        with self.assertRaisesRegex(TypeError, r"scal: sum has no such input or size \(did you mean 'scale'\?\)"):
            self.sum(q, k, v, bias, scal=2)
        with self.assertRaisesRegex(TypeError, "nope: sum has no such input or size; it has q, k, v, bias, scale"):
            self.sum(q, k, v, bias, 1, nope=1)
        with self.assertRaisesRegex(TypeError, r"v: elements of type float64 .*; it takes float32: pass v.astype\('float32'\)"):
            self.sum(q, k, v.astype(np.float64), bias, 1, q_offset=0)
        with self.assertRaisesRegex(TypeError, r"o: elements of type int64 .*; it takes float32"):
            self.sum(q, k, v, bias, 1, q_offset=0, out=np.zeros((2, 4, 3, 2), np.int64))
        with self.assertRaisesRegex(TypeError, "lse: sum has no such output"):
            self.sum(q, k, v, bias, 1, q_offset=0, emit=["lse"])
        with self.assertRaisesRegex(TypeError, "several variants"):
            self.artifact(q, k, v)
        with self.assertRaisesRegex(attn.Error, "no artifact"):
            attn.load(b"text")
        with self.assertRaises(KeyError):
            self.artifact["nope"]

    def test_compile(self):  # goes to the command, which is not needed here
        def run(argv, text=None):
            given.append(argv)
            shutil.copy(self.object, argv[argv.index("-o") + 1])
            return "", said

        given, said = [], ""
        with unittest.mock.patch.multiple(attn._compiler, _run=run, _command=lambda: "attnc"):
            attn.compile("sum.attn", schedule="rows=32,keys=64")
            attn.compile("sum.attn")
        self.assertIn("--schedule=rows=32,keys=64", given[0])
        self.assertFalse([a for a in given[1] if a.startswith("--schedule")])
        said = "sum.attn:3:5: warning: hardly meant"
        with unittest.mock.patch.multiple(attn._compiler, _run=run, _command=lambda: "attnc"):
            with self.assertWarnsRegex(attn.CompileWarning, "hardly meant") as w:
                attn.compile("sum.attn")
        self.assertEqual(w.filename, __file__)

    def test_damage(self):
        data = bytearray(read(self.object))
        data[data.index(b"attnmeta") + 40] ^= 1
        with self.assertRaisesRegex(attn.Error, "checksum"):
            attn.load(bytes(data))

    def test_a_forked_child(self):
        q = np.random.default_rng(0).standard_normal((1, 2, 64, 16)).astype(np.float32)
        kernel = attn.compile("import std.normalization; attention a { dim D = 16; score(q, k) = dot(q, k); normalize(s) = softmax(s); }")
        want, child = kernel(q, q, q), os.fork()
        if not child:
            signal.alarm(60)
            os._exit(0 if (kernel(q, q, q) == want).all() else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue((kernel(q, q, q) == want).all())

    def test_threads(self):
        q, k, v, bias = arguments()
        for n in (1, 3, 0):
            attn.set_threads(n)
            o = self.sum(q, k, v, bias, 0.5, q_offset=0)
            np.testing.assert_allclose(o, expected(v, bias, 0.5, 3), rtol=1e-5, atol=1e-5)
        with self.assertRaises(attn.Error):
            attn.set_threads(-1)

    def test_dlpack(self):
        class Only:  # an array that speaks DLPack and nothing else
            def __init__(self, x):
                self.x = x

            def __dlpack__(self, **kw):
                return self.x.__dlpack__(**kw)

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        q, k, v, bias = arguments()
        o = np.empty((2, 4, 3, 2), np.float32)
        self.sum(Only(q), Only(k), Only(v), Only(bias), 0.5, q_offset=0, out=o)
        np.testing.assert_allclose(o, expected(v, bias, 0.5, 3), rtol=1e-5, atol=1e-5)
        with self.assertRaisesRegex(TypeError, "pass them with out="):
            self.sum(Only(q), Only(k), Only(v), Only(bias), 0.5, q_offset=0)

    def test_torch(self):
        q, k, v, bias = arguments(sk=100)
        o = self.sum(*map(torch.from_numpy, (q, k, v, bias)), 0.5, q_offset=0)
        self.assertIsInstance(o, torch.Tensor)
        np.testing.assert_allclose(o.numpy(), expected(v, bias, 0.5, 3), rtol=1e-5, atol=1e-5)

    @unittest.skipUnless(torch, "PyTorch is not installed")
    def test_torch_without_a_backward(self):
        q, k, v, bias = map(torch.from_numpy, arguments(sk=100))
        wanted, scale, o = self.sum(q, k, v, bias, 0.5, q_offset=0), torch.tensor(0.5), torch.empty(2, 4, 3, 2)
        for x in q, k, v, bias, scale, o:
            x.requires_grad_()
            with self.assertRaisesRegex(RuntimeError, NO_BACKWARD):
                self.sum(q, k, v, bias, scale, q_offset=0, out=o)
            with self.assertRaisesRegex(RuntimeError, NO_BACKWARD):  # what is computed from it, and a model's parameter
                self.sum(q, k, v, bias, scale * 1, q_offset=0, out=o * 1)
            with self.assertRaisesRegex(RuntimeError, NO_BACKWARD):
                self.sum(torch.nn.Parameter(q.detach()), k, v, bias, scale.detach(), q_offset=0)
            for off in torch.no_grad, torch.inference_mode:
                with off():
                    self.assertTrue(torch.equal(self.sum(q, k, v, bias, scale, q_offset=0), wanted))
            x.requires_grad_(False)
        self.assertTrue(torch.equal(self.sum(q.requires_grad_().detach(), k, v, bias, scale, q_offset=0), wanted))


@unittest.skipUnless(os.environ.get("ATTNC"), "without the command")
class Command(unittest.TestCase):
    def test_failures(self):
        """What the command says; else its status; the signal that ended it, with the end of what it said."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "attnc")
            for script, said in [
                ("exit 3", "attnc failed with status 3$"),
                ("echo because >&2; exit 1", "^because$"),
                ("kill -SEGV $$", r"attnc was ended by signal 11 \(SIGSEGV\), and said nothing$"),
                ("for i in $(seq 30); do echo line $i. >&2; done; kill -KILL $$", r"(?s)signal 9 \(SIGKILL\):\nline 11\..*line 30\.$"),
            ]:
                with open(path, "w") as f:
                    f.write("#!/bin/sh\n" + script + "\n")
                os.chmod(path, 0o755)
                with unittest.mock.patch.dict(os.environ, {"ATTNC": path}), self.assertRaisesRegex(attn.CompileError, said):
                    attn.compile("attention a {}")


@unittest.skipUnless(os.environ.get("ATTNC"), "without the command")
class Names(unittest.TestCase):
    def test_of_layouts(self):  # a dense variant may have them, and passes them as any input
        text = "attention a { dim D = 8; input kv_len: i32[B]; score(q, k) = dot(q, k); mask(b, h, i, j) = j < kv_len[b]; normalize(s) = s; }"
        kernel, q = attn.compile(text), np.ones((1, 1, 3, 8), np.float32)
        self.assertEqual(kernel(q, q, q, np.array([2], np.int32))[0, 0, 0, 0], 16)


class Parts(unittest.TestCase):
    """Ranges of keys leave states, which go on and are combined."""

    def test_states(self):
        for name, given, rows in (("attention_sink", {"sink": np.linspace(-1, 2, 4, dtype=np.float32)}, True), ("relu", {}, False)):
            kernel = attn.compile(os.path.join(ROOT, "stdlib", name + ".attn"), defines={"D": 16}, phase="fwd,part")[name]
            rng = np.random.default_rng(3)
            q, (k, v) = rng.standard_normal((1, 4, 20, 16), np.float32), rng.standard_normal((2, 1, 2, 50, 16), np.float32)
            whole = kernel(q, k, v, **given)
            states = {n: np.zeros((2, *kernel.part(q, k, v, **given, Sk_all=50)[i].shape) if rows else (2, *q.shape), np.float32)
                      for i, n in enumerate(kernel.part.outputs)}  # fmt: skip
            self.assertEqual(kernel.part.outputs, ["state", "rows"] if rows else ["state"])

            def part(slot, first, last, rows=slice(None), goes_on=False):
                into = {n: x[slot][..., rows, :] if n == "state" else x[slot][..., rows] for n, x in states.items()}
                before = {n + "0": x for n, x in into.items()} if goes_on else {}
                at = {"q_first": rows.start or 0, "q_offset": 30 + (rows.start or 0), "kv_first": first, "Sq_all": 20, "Sk_all": 50}
                kernel.part(np.ascontiguousarray(q[:, :, rows]), k[:, :, first:last], v[:, :, first:last], **given, **before, **at, out=into)

            part(0, 30, 50)
            part(0, 0, 13, goes_on=True)  # in any order, and in its place
            for piece in slice(0, 7), slice(7, 20):
                part(1, 13, 30, piece, goes_on=True)  # zeros are a state without keys
            o = kernel.combine(**given, **states, Sk_all=50)
            np.testing.assert_allclose(o, whole, atol=2e-6)
            states = {n: x[:1] for n, x in states.items()}
            self.assertGreater(np.abs(kernel.combine(**given, **states, Sk_all=50) - whole).max(), 0.1)

    def test_gradients(self):
        """Of ranges of keys and pieces of rows: they add up to those of the whole, also of inputs and of what a row alone adds."""
        rng = np.random.default_rng(5)
        shifted = """
            attention shifted {
                dim D = 16;
                input a: f32[B, Sq] grad;
                input c: f32[Sk] grad;
                score(q, k) = dot(q, k) * rsqrt(D);
                modify(s, b, h, i, j) = s + a[b, i - q_offset] * c[j] + f32(i - j) / Sk;
                mask(b, h, i, j) = j <= i + 3;
                normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); emit lse = m + log(l); return exp(s - m) / l; }
            }"""
        for source, inputs in (
            (os.path.join(ROOT, "stdlib", "attention_sink.attn"), {"sink": np.linspace(-1, 2, 4, dtype=np.float32)}),
            (os.path.join(ROOT, "stdlib", "relu.attn"), {}),
            (shifted, {"a": rng.standard_normal((1, 20), np.float32), "c": rng.standard_normal(50, np.float32)}),
        ):
            kernel = attn.compile(source, defines={"D": 16}, phase="fwd,part,bwd")._only()
            backward, part = kernel.backward, kernel.part.backward
            q, (k, v) = rng.standard_normal((1, 4, 20, 16), np.float32), rng.standard_normal((2, 1, 2, 50, 16), np.float32)
            names = [n for n in kernel.outputs if n in ["o", *backward.inputs]]
            made = kernel(q, k, v, **inputs, emit=names)
            of_rows = dict(zip(names, made if isinstance(made, tuple) else (made,)))
            for name in backward.inputs:
                if name == "do" or name[1:] in kernel.outputs and name[0] == "d":
                    of_rows[name] = rng.standard_normal((1, 4, 20, 16) if name == "do" else (1, 4, 20), np.float32)

            def gradients(of, rows, keys, **at):
                given = {**inputs, **{n: x[:, :, rows] for n, x in {"q": q, **of_rows}.items()}, "k": k[:, :, keys], "v": v[:, :, keys]}
                return dict(zip(of.outputs, of(**{n: x for n, x in given.items() if n in of.inputs}, emit=of.outputs, **at)))

            want = gradients(backward, slice(None), slice(None))
            found = {n: np.zeros_like(x) for n, x in want.items()}
            for rows in slice(0, 7), slice(7, 20):
                for keys in slice(30, 50), slice(0, 0), slice(0, 13), slice(13, 30):
                    at = {"q_first": rows.start, "q_offset": 30 + rows.start, "kv_first": keys.start, "Sq_all": 20, "Sk_all": 50}
                    for n, x in gradients(part, rows, keys, **at).items():
                        place = {"dq": (..., rows, slice(None)), "dk": (..., keys, slice(None)), "dv": (..., keys, slice(None))}.get(n, ...)
                        found[n][place] += x
            for n, x in want.items():
                np.testing.assert_allclose(found[n], x, atol=3e-6 * max(1, np.abs(x).max()), err_msg=f"{kernel.name} {n}")

    def test_gradients_of_packed_rows(self):
        """Of ranges of packed keys and pieces of packed rows, from the numbers of rows that a combination gives."""
        rng = np.random.default_rng(7)
        biased = """
            import std.normalization;
            attention biased {
                dim D = 16;
                input bias: f32[B, Sk] grad;
                input slope: f32[H] grad;
                input sink: f32[H] grad;
                score(q, k) = dot(q, k) * rsqrt(D);
                modify(s, b, h, i, j) = s + bias[b, j] + slope[h] * f32(i - j) / Sk;
                mask(b, h, i, j) = j <= i;
                normalize(s, b, h) = softmax_with_sink(s, sink[h]);
            }"""
        starts, kv_starts = np.array([0, 5, 5, 20], np.int32), np.array([0, 9, 20, 50], np.int32)
        heads = {n: rng.standard_normal(4, np.float32) for n in ("slope", "sink")}
        for source, inputs in ((os.path.join(ROOT, "stdlib", "relu.attn"), {}), (biased, {"bias": rng.standard_normal(50, np.float32), **heads})):
            kernel = attn.compile(source, defines={"D": 16}, layout="ragged", phase="fwd,part,bwd")._only()
            q, do = rng.standard_normal((2, 20, 4, 16), np.float32)
            k, v = rng.standard_normal((2, 50, 2, 16), np.float32)
            whole = {"q_start": starts, "kv_start": kv_starts}
            saved = [n for n in kernel.outputs if n.startswith("saved")]
            of_rows = dict(zip(["o", *saved], kernel(q, k, v, **whole, **inputs, emit=["o", *saved]))) if saved else {"o": kernel(q, k, v, **whole, **inputs)}
            want = dict(zip(kernel.backward.outputs, kernel.backward(*(q, k, v), **of_rows, do=do, **whole, **inputs, emit=kernel.backward.outputs)))

            def at(rows, keys):
                """Where these packed rows and keys stand in their sequences."""
                given = {"Sq_all": np.diff(starts), "Sk_all": np.diff(kv_starts)}
                for name, first, line, cut in ("q_start", "q_first", starts, rows), ("kv_start", "kv_first", kv_starts, keys):
                    given[name], given[first] = np.clip(line, cut.start, cut.stop) - cut.start, np.clip(cut.start - line[:-1], 0, np.diff(line))
                return {n: x.astype(np.int32) for n, x in given.items()}

            cuts = slice(0, 13), slice(13, 13), slice(13, 24), slice(24, 50)
            own = {**inputs, "bias": None} if "bias" in inputs else inputs
            states = [kernel.part(q, k[keys], v[keys], **{n: inputs[n][keys] if x is None else x for n, x in own.items()}, **at(slice(0, 20), keys)) for keys in cuts]
            states = {n: np.stack([x[i] if isinstance(x, (tuple, list)) else x for x in states]) for i, n in enumerate(kernel.part.outputs)}
            if "rows" in states:
                combined = {n: x for n, x in {**at(slice(0, 20), slice(0, 50)), **inputs}.items() if n in kernel.combine.inputs}
                of_rows = dict(zip(["o", *saved], kernel.combine(**states, **combined, emit=["o", *saved])))
            found = {n: np.zeros_like(x) for n, x in want.items()}
            for rows in slice(0, 3), slice(3, 20):
                for keys in cuts:
                    given = {**at(rows, keys), **{n: inputs[n][keys] if x is None else x for n, x in own.items()}, **{n: x[rows] for n, x in of_rows.items()}}
                    part = kernel.part.backward
                    made = part(q=q[rows], k=k[keys], v=v[keys], do=do[rows], **{n: x for n, x in given.items() if n in part.inputs}, emit=part.outputs)
                    for n, x in zip(part.outputs, made):
                        found[n][{"dq": rows, "dk": keys, "dv": keys, "dbias": keys}.get(n, ...)] += x
            for n, x in want.items():
                np.testing.assert_allclose(found[n], x, atol=3e-6 * max(1, np.abs(x).max()), err_msg=f"{kernel.name} {n}")

    def test_order_of_emits(self):
        """They come as they are asked for, behind what every call makes."""
        source = """
            import std.normalization;
            attention a { dim D = 8; score(q, k) = dot(q, k); normalize(s) { emit mean = rowsum(s) / rowsum(1.0); return softmax(s); } }"""
        kernel = attn.compile(source, phase="fwd,part")
        q, (k, v) = np.ones((1, 1, 3, 8), np.float32), np.ones((2, 1, 1, 5, 8), np.float32)
        _, mean, lse = kernel(q, k, v, emit=("mean", "lse"))
        np.testing.assert_allclose((mean[0, 0, 0], lse[0, 0, 0]), (8, 8 + np.log(5)), rtol=1e-6)
        state, rows = kernel.part(q, k, v, Sk_all=5)
        for names, want in ((("lse", "mean"), (lse, mean)), (("mean", "lse"), (mean, lse)), (("lse", "lse"), (lse, lse))):
            for found in (kernel(q, k, v, emit=names), kernel.combine(state=state[None], rows=rows[None], Sk_all=5, emit=names)):
                for x, y in zip(found[1:], want):
                    np.testing.assert_allclose(x, y, rtol=1e-6)

    def test_phases(self):
        """An artifact says what it was compiled without."""
        relu = os.path.join(ROOT, "stdlib", "relu.attn")
        q = np.zeros((1, 1, 3, 128), np.float32)
        part, back = attn.compile(relu, phase="part"), attn.compile(relu, phase="bwd")
        with self.assertRaisesRegex(TypeError, "compiled without fwd"):
            part(q, q, q)
        with self.assertRaisesRegex(TypeError, 'compiled without part: attn.compile.*phase="part"'):
            back.part(q, q, q)
        with self.assertRaisesRegex(TypeError, "compiled without bwd"):
            part.backward(q, q, q)
        self.assertEqual(back.backward.outputs, ["dq", "dk", "dv"])

    def test_pieces(self):
        """Rows of a whole and the keys that they see, forward and backward, add up to the whole; what a row alone adds comes with each row once."""
        r = np.random.default_rng(2)
        B, H, Hkv, S, D = 2, 4, 2, 200, 16
        q, k, v, do = (r.standard_normal((B, h, S, D), np.float32) for h in (H, Hkv, Hkv, H))
        doc = np.broadcast_to(np.arange(S, dtype=np.int32) // 37, (B, S)).copy()
        sinks = """import std.mask; import std.normalization;
            attention sinks {
                dim D = 64, Dv = D;
                input sink: f32[H] grad;
                score(q, k) = dot(q, k) * rsqrt(D);
                mask(b, h, i, j) = window(i, j, 40);
                normalize(s, b, h) = softmax_with_sink(s, sink[h]);
            }"""
        window = (0, 100, 0, 110), (100, 180, 61, 180), (180, 200, 141, 200)
        for name, inputs, pieces in (
            ("sinks", {"sink": r.standard_normal(H, np.float32)}, window),
            ("alibi", {}, ((0, 70, 0, 70), (70, 200, 0, 200))),
            ("document", {"doc": doc}, ((0, 100, 0, 130), (100, 200, 74, 200))),
        ):
            source = sinks if name == "sinks" else os.path.join(ROOT, "stdlib", name + ".attn")
            whole, piece = (attn.compile(source, defines={"D": D, "Dv": D}, phase=phase)[name] for phase in ("fwd,bwd", "piece,bwd"))
            self.assertEqual((piece.phase, piece.piece, piece.backward.phase), ("piece", piece, "piece_bwd"))
            saved = [n for n in whole.outputs if n.startswith("saved")]

            def run(kernel, q, k, v, do, at):
                o, *kept = kernel(q, k, v, **inputs, emit=saved, **{n: x for n, x in at.items() if n in kernel.sizes})  # noqa: B023
                back = kernel.backward
                given = {"q": q, "k": k, "v": v, "do": do, "o": o, "dlse": np.zeros(q.shape[:3], np.float32), **dict(zip(saved, kept)), **inputs}  # noqa: B023
                given = {n: x for n, x in given.items() if n in back.inputs}
                return [o, *back(**given, emit=[n for n in back.outputs if n == "dsink"], **{n: x for n, x in at.items() if n in back.sizes})]

            expected = run(whole, q, k, v, do, {})
            found = [np.zeros_like(x) for x in expected]
            for a, b, c, d in pieces:
                at = {"q_offset": a, "q_first": a, "kv_first": c, "Sq_all": S, "Sk_all": S}
                part = run(piece, q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], do[:, :, a:b], at)
                for into, x, (i, j) in zip(found, part, ((a, b), (a, b), (c, d), (c, d))):
                    into[:, :, i:j] += x
                for into, x in zip(found[4:], part[4:]):
                    into += x
            for x, y in zip(found, expected):
                np.testing.assert_allclose(x, y, atol=2e-5)

    def test_scalars_that_combine_does_not_read(self):
        source = """
            import std.normalization;
            attention a {
                dim D = 8;
                input slope: f32[H];
                input cap: f32;
                score(q, k) = dot(q, k);
                modify(s, b, h, i, j) = cap * s + slope[h];
                normalize(s) = softmax(s);
            }"""
        kernel = attn.compile(source, phase="fwd,part")
        q, given = np.ones((1, 1, 3, 8), np.float32), {"slope": np.ones(1, np.float32), "cap": 2}
        state, rows = kernel.part(q, q, q, **given, Sk_all=3)
        np.testing.assert_allclose(kernel.combine(state=state[None], rows=rows[None], Sk_all=3), kernel(q, q, q, **given), rtol=1e-6)

    def test_messages(self):
        softmax = attn.compile(os.path.join(ROOT, "stdlib", "causal.attn"), defines={"D": 16}, phase="part")["causal"]
        q, k = np.zeros((1, 1, 20, 16), np.float32), np.zeros((1, 1, 13, 16), np.float32)
        self.assertEqual((softmax.phase, softmax.part, softmax.combine.phase), ("part", softmax, "combine"))
        for sizes, message in (
            ({}, "q_offset: the position of the first query is not known"),
            ({"Sk_all": 10}, "Sk_all: is 10, but the part ends with key 13"),
            ({"Sk_all": 50, "kv_first": 40}, "Sk_all: is 50, but the part ends with key 53"),
            ({"Sk_all": 50, "q_first": 3, "Sq_all": 22}, "Sq_all: is 22, but the part ends with query 23"),
            ({"Sk_all": 2**24, "kv_first": 2**24 - 12}, "beyond position 16777215"),
            ({"Sk_all": 50, "rows0": np.zeros((3, 1, 1, 20), np.float32)}, "state0: this tensor is missing: state0 and rows0 are one state"),
            ({"Sk_all": 50, "state0": np.zeros((1, 1, 20, 16), np.float32)}, "rows0: this tensor is missing: state0 and rows0 are one state"),
            ({"Sk_all": 50, "state0": np.zeros((1, 1, 20, 16), np.float32), "rows0": np.zeros((2, 1, 1, 20), np.float32)}, "rows0: dimension 0 is 2, expected 3"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                softmax.part(q, k, k, **sizes)
        with self.assertRaisesRegex(ValueError, "rows: this tensor is missing"):
            softmax.combine(state=np.zeros((2, 1, 1, 20, 16), np.float32), Sk_all=50)


class Recurrence(unittest.TestCase):
    def test_state_goes_on_in_its_place(self):
        kernel = attn.compile("recurrence r { dim D = 20, Dv = 24; decay(b, h, t) = 0.9; erase(k) = k; write(k) = -k; }").kernels[0]
        r = np.random.default_rng(3)
        q, k = (r.standard_normal((2, 1, 2, 40, 20)) / 8).astype(np.float32)
        v, state = r.standard_normal((1, 2, 40, 24), dtype=np.float32), r.standard_normal((1, 2, 20, 24), dtype=np.float32)
        o, last = kernel(q, k, v, state0=state, emit="state")
        parts = []
        for at in range(0, 40, 1):
            one = (x[:, :, at : at + 1] for x in (q, k, v))
            part, _ = kernel(*one, state0=state, emit="state", out={"state": state})
            parts.append(part)
        np.testing.assert_allclose(np.concatenate(parts, 2), o, atol=1e-5)
        np.testing.assert_allclose(state, last, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
