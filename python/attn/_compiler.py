"""From .attn source to artifacts, by the command attnc; and from host objects to shared objects, by cc."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import warnings


class CompileError(Exception):
    """The source was wrong. The text is the compiler's, with lines and carets."""


class CompileWarning(UserWarning):
    """The source compiles, and something in it is hardly meant. The text is the compiler's."""


def _command():
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.environ.get("ATTNC"), os.path.join(here, "..", "..", "build", "attnc"), shutil.which("attnc")):
        if path and os.path.exists(path):
            return path
    raise FileNotFoundError("the compiler attnc is not here; name it in ATTNC")


def _run(argv):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        raise CompileError(text or f"{argv[0]} failed")
    return text


def compile(source, *, target="host", dtype=None, opt=3, entry=None, defines=None, include=(), debug=False, schedule=None):
    """Compiles a file, or source text (anything with a line break or a brace in it).

    target: "host", "sm_80", "sm_90a", ...; dtype: of q, k, v, o ("f32" on the host, else "bf16"); entry: only this
    variant; defines: {"D": 128}; include: folders of imports; debug: as -g; schedule: "rows=64,keys=128", as
    --schedule (what `attnc tune` prints)."""
    from ._kernel import Artifact

    text = os.fspath(source)
    with tempfile.TemporaryDirectory(prefix="attn-") as folder:
        path = text
        if "\n" in text or "{" in text:
            path = os.path.join(folder, "source.attn")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        extension = "o" if target == "host" else "hsaco" if target.startswith("gfx") else "ptx"
        result = os.path.join(folder, "artifact." + extension)
        argv = [_command(), path, "-o", result, f"--target={target}", f"-O{opt}"]
        argv += [f"--dtype={dtype or ('f32' if target == 'host' else 'bf16')}"]
        argv += [f"--entry={entry}"] if entry else []
        argv += [f"-D{name}={value}" for name, value in (defines or {}).items()]
        argv += [a for i in include for a in ("-I", os.fspath(i))]
        argv += ["-g"] if debug else []
        argv += [f"--schedule={schedule}"] if schedule else []
        said = _run(argv)
        if ": warning: " in said:
            warnings.warn(said, CompileWarning, stacklevel=2)
        with open(result, "rb") as f:
            return Artifact(f.read())


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
        _run([os.environ.get("CC", "cc"), "-shared", "-o", shared, path, "-lm"])
        yield shared
