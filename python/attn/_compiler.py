"""From .attn source to artifacts and explanations, by the command attnc; and from host objects to shared objects, by cc."""

import collections.abc
import contextlib
import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Optional, Union

if TYPE_CHECKING:
    from ._kernel import Artifact

Path = Union[str, "os.PathLike[str]"]


class CompileError(Exception):
    """The source was wrong. The text is the compiler's, with lines and carets."""


class CompileWarning(UserWarning):
    """The source compiles, and something in it is hardly meant. The text is the compiler's."""


def _command(path=True):
    """Where the compiler is; path: the one on the PATH will do."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.environ.get("ATTNC"), os.path.join(here, "attnc"), os.path.join(here, "..", "..", "build", "attnc")]
    for place in places + ([shutil.which("attnc")] if path else []):
        if place and os.path.exists(place):
            return place
    raise FileNotFoundError("the compiler attnc is not here; name it in ATTNC")


def main():
    """The command attnc of an installed package. It may itself be the one on the PATH."""
    command = _command(path=False)
    os.execv(command, [command, *sys.argv[1:]])


def _failed(command, status, said):
    """What a command says of its failure; of one that a signal ended, this and the end of what it said."""
    if status > 0:
        return said or f"{command} failed with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"{command} was ended by signal {-status} ({name})" + (":\n" + "\n".join(said.splitlines()[-20:]) if said else ", and said nothing")


_WRONG_OPTION = 2  # the status of attnc


def _run(argv, text=None):
    """What a command writes to stdout and to stderr; `text` is its stdin."""
    done = subprocess.run(argv, input=(text or "").encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    out, said = (x.decode(errors="replace").strip() for x in (done.stdout, done.stderr))
    if done.returncode == _WRONG_OPTION:
        raise ValueError(said.replace("attnc: error: ", "", 1))
    if done.returncode:
        raise CompileError(_failed(argv[0], done.returncode, said or out))
    return out, said


_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", **{n: n for n in ("f32", "f16", "bf16", "tf32")}}


_KV_DTYPES = {**_DTYPES, "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "i8", **{n: n for n in ("e4m3", "e5m2", "i8")}}
del _KV_DTYPES["tf32"]


def _known(dtype, names):
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return names.get(text.rpartition(".")[2])


def dtype_name(dtype):
    """As the compiler names an element type: "bf16" of torch.bfloat16, "bfloat16", or NumPy's."""
    name = _known(dtype, _DTYPES)
    if name is None:
        raise ValueError(f"dtype: {dtype!r} is none of kernels; they have float32, float16, bfloat16 and tf32")
    return name


def kv_dtype_name(dtype):
    """Likewise of k and v: "e4m3" of torch.float8_e4m3fn or "float8_e4m3fn"."""
    name = _known(dtype, _KV_DTYPES)
    if name is None:
        raise ValueError(f"kv_dtype: {dtype!r} is none of keys and values; they have float8_e4m3fn, float8_e5m2 or int8, or are as dtype says")
    return name


def check_file(path):
    if os.path.exists(path):
        return
    raise FileNotFoundError(errno.ENOENT, "no such file: a source is the path of a file, or a text with a brace or a line break in it", path)


def defined(defines):
    """What defines= says, as a dict of names and numbers."""
    if not isinstance(defines or {}, collections.abc.Mapping):
        raise TypeError(f"defines: a mapping is expected, as {{'D': 128}}, not {defines!r}")
    return {name: value.item() if hasattr(value, "item") else value for name, value in (defines or {}).items()}


def folders(include):
    """What include= says: one folder, or several."""
    return [include] if isinstance(include, (str, os.PathLike)) else list(include)


class Source:
    """What the compiler reads, a file or a text, and how it reads it. `name` stands for a text in what the compiler says."""

    def __init__(self, source, *, dtype=None, kv_dtype=None, entry=None, defines=None, include=(), name="source"):
        self._text, self._path, self._entry, self._name = None, os.fspath(source), entry, name
        if "\n" in self._path or "{" in self._path:
            self._text, self._path = self._path, "-"
        self._options = [f"--dtype={dtype_name(dtype)}"] if dtype else []
        self._options += [f"--kv-dtype={kv_dtype_name(kv_dtype)}"] if kv_dtype else []
        self._options += [f"-D{name}={str(value).lower()}" for name, value in defined(defines).items()]
        self._options += [a for i in folders(include) for a in ("-I", os.fspath(i))]

    def run(self, verb, *options, entry=None):
        """`attnc VERB SOURCE OPTION...`: stdout and stderr."""
        entry = self._entry if entry is None else entry
        argv = [_command(), *verb, self._path, *self._options, *([] if entry is None else [f"--entry={entry}"]), *options]
        try:
            out, said = _run(argv, self._text)
        except (CompileError, ValueError) as e:
            if self._text is None:
                check_file(self._path)
            raise type(e)(self._named(str(e))) from None
        return out, self._named(said)

    def _named(self, said):
        return said if self._text is None else said.replace("<stdin>", self._name)


def compile(source: Path, *, target: str = "host", dtype: Any = None, opt: int = 3, entry: Optional[str] = None,
            defines: Optional[Mapping[str, Any]] = None, include: Union[Path, Iterable[Path]] = (), debug: bool = False, schedule: Optional[str] = None,
            phase: str = "fwd", layout: str = "dense", kv_dtype: Any = None, invariant: bool = False,
            deterministic: bool = False) -> "Artifact":  # fmt: skip
    """Compiles a file, or source text (anything with a line break or a brace in it).

    target: "host", "sm_80", "sm_90a", ...; dtype: of q, k, v, o ("f32", "float32" or torch.float32, which is the host's; else "bf16");
    entry: only this variant; defines: {"D": 128} (a name or a value that the source does not have is a ValueError, as other wrong arguments are); include: folders of imports; debug: as -g; schedule: "rows=64,keys=128", as
    --schedule (what `attnc tune` prints); phase: "fwd,bwd" adds the backward, .backward, and "fwd,part" .part and .combine; layout: "ragged",
    "paged", or "paged:16" for pages of 16 keys; kv_dtype: of k and v stored in 8 bits, "e4m3", "e5m2", "i8" or torch.float8_e4m3fn,
    torch.float8_e5m2, torch.int8; invariant: a sequence has the same bits in any batch (docs/serving.md); deterministic: gradients
    have the same bits in every run (recurrences refuse it)."""
    dtype = dtype or ("f32" if target == "host" else "bf16")
    made = make(Source(source, dtype=dtype, kv_dtype=kv_dtype, entry=entry, defines=defines, include=include), target, opt, debug, schedule, phase, layout, invariant, deterministic)
    if ": warning: " in made.said:
        warnings.warn(made.said, CompileWarning, stacklevel=2)
    return made


def make(source, target, opt=3, debug=False, schedule=None, phase="fwd", layout="dense", invariant=False, deterministic=False):
    """The artifact of a Source. What the compiler said is its `said`."""
    from ._kernel import Artifact

    with tempfile.TemporaryDirectory(prefix="attn-") as folder:
        extension = "o" if target == "host" else "hsaco" if str(target).startswith("gfx") else "ptx"
        result = os.path.join(folder, "artifact." + extension)
        options = ["-o", result, f"--target={target}", f"-O{opt}", f"--phase={phase}"]
        options += ["-g"] if debug else []
        options += [f"--layout={layout}"] if layout != "dense" else []
        options += ["--invariant"] if invariant else []
        options += ["--deterministic"] if deterministic else []
        options += [f"--schedule={schedule}"] if schedule else []
        _, said = source.run([], *options)
        with open(result, "rb") as f:
            return Artifact(f.read(), source, said)


def is_object(source):
    """Whether this is a relocatable ELF file, which must be linked before it can run."""
    if not isinstance(source, bytes):
        with open(source, "rb") as f:
            source = f.read(18)
    return source[:4] == b"\x7fELF" and source[16:18] == b"\x01\x00"


@contextlib.contextmanager
def linked(source):
    """The path of a shared object made of an object. It need not stay once it has been opened."""
    with tempfile.TemporaryDirectory(prefix="attn-") as folder:
        path = source
        if isinstance(source, bytes):
            path = os.path.join(folder, "artifact.o")
            with open(path, "wb") as f:
                f.write(source)
        shared = os.path.join(folder, "artifact.so")
        _run([*shlex.split(os.environ.get("CC") or "cc"), "-shared", "-o", shared, path, "-lm"])
        yield shared
