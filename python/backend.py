"""The package's build backend, as PEP 517 and PEP 660 want one: `pip install .` and `pip install -e .` in a checkout.

It runs make, and writes the wheel: the package, the command attnc and libattnrt.so. What make needs, `tests/deps.sh build` installs. BUILD
names make's folder, as it does for make. Nothing is needed but Python.
"""

import base64
import glob
import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAME = "attn"
METADATA = """Metadata-Version: 2.1
Name: attn
Version: {}
Summary: Attention kernels compiled by attnc, for NumPy, PyTorch, CuPy and every other library that speaks DLPack
License: Apache-2.0
Requires-Python: >=3.9
"""
ENTRY_POINTS = """[console_scripts]
attnc = attn._compiler:main

[pygments.lexers]
attn = attn._pygments:AttnLexer
"""
# What a wheel may expect of every Linux (PEP 600), and cJSON, which the wheel holds.
EXPECTED = r"libc\.so\.6|libm\.so\.6|libdl\.so\.2|libpthread\.so\.0|libgcc_s\.so\.1|ld-linux-.*|libcjson\.so\.1"


def _read(path):
    with open(path, "rb") as f:
        return f.read()


def _version():
    return re.search(r"^VERSION := (\S+)", _read(os.path.join(ROOT, "Makefile")).decode(), re.M)[1]


def _make():
    """The folder of the build, which is made."""
    build = os.path.join(ROOT, os.environ.get("BUILD") or "build")
    env = {n: x for n, x in os.environ.items() if n not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    argv = ["make", f"-j{os.cpu_count() or 1}", f"BUILD={os.path.relpath(build, ROOT)}", "all"]
    try:
        done = subprocess.run(argv, cwd=ROOT, env=env, check=False).returncode
    except FileNotFoundError:
        done = 127
    if done:
        raise SystemExit("attn: the compiler could not be built. `tests/deps.sh build` installs what the build needs (make, a C compiler, LLVM 19).")
    return build


def _stripped(path):
    with tempfile.TemporaryDirectory() as folder:
        to = os.path.join(folder, "stripped")
        subprocess.check_call(["strip", "-o", to, path])
        return _read(to)


def _needed(*paths):
    """The libraries that programs are linked with."""
    said = subprocess.check_output(["readelf", "-d", *paths], env={**os.environ, "LC_ALL": "C"}).decode()
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", said))


def _platform(needed):
    """The C library of this machine is the oldest that the wheel was tested with, so it asks for no older one."""
    machine, (library, version) = os.uname().machine, os.confstr("CS_GNU_LIBC_VERSION").split()
    if library == "glibc" and all(re.fullmatch(EXPECTED, n) for n in needed):
        return f"manylinux_{version.replace('.', '_')}_{machine}"
    return f"linux_{machine}"  # with the shared LLVM: for machines like this one


def _cjson(attnc):
    """The library that the command finds beside it, and its licence."""
    said = subprocess.check_output(["ldd", attnc]).decode()
    found = re.search(r"libcjson\.so\.1 => (\S+)", said)
    yield "attn/libcjson.so.1", _read(found[1]), 0o644
    for path in glob.glob("/usr/share/doc/libcjson1/copyright"):
        yield "attn/libcjson.copyright", _read(path), 0o644


def _files(build):
    """The package's: name in the wheel, content, mode."""
    for path in sorted(glob.glob(os.path.join(ROOT, "python/attn/*.py")) + [os.path.join(ROOT, "python/attn/py.typed")]):
        yield "attn/" + os.path.basename(path), _read(path), 0o644
    attnc = os.path.join(build, "attnc")
    yield "attn/attnc", _stripped(attnc), 0o755
    yield "attn/libattnrt.so", _read(os.path.join(build, "libattnrt.so")), 0o755
    yield from _cjson(attnc)


def _write(folder, tag, files):
    """A wheel: the files, and what is told of them. Returns its name."""
    version = _version()
    about, name = f"{NAME}-{version}.dist-info", f"{NAME}-{version}-{tag}.whl"
    files = [
        *files,
        (f"{about}/METADATA", METADATA.format(version).encode(), 0o644),
        (f"{about}/WHEEL", f"Wheel-Version: 1.0\nGenerator: attn\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
        (f"{about}/entry_points.txt", ENTRY_POINTS.encode(), 0o644),
        (f"{about}/LICENSE", _read(os.path.join(ROOT, "LICENSE")), 0o644),
    ]
    record = ""
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content, mode in files:
            info = zipfile.ZipInfo(path)
            info.external_attr, info.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(info, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(content)}\n"
        wheel.writestr(f"{about}/RECORD", record + f"{about}/RECORD,,\n")
    return name


# ---- the hooks


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build = _make()
    needed = _needed(os.path.join(build, "attnc"), os.path.join(build, "libattnrt.so"))
    return _write(wheel_directory, f"py3-none-{_platform(needed)}", _files(build))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """The package where it lies; it finds what make makes in `build`."""
    _make()
    return _write(wheel_directory, "py3-none-any", [("attn.pth", os.path.join(ROOT, "python").encode() + b"\n", 0o644)])


def build_sdist(sdist_directory, config_settings=None):
    base = f"{NAME}-{_version()}"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT).decode().split("\0")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(os.path.join(sdist_directory, base + ".tar.gz"), "w:gz") as archive:
        about = os.path.join(folder, "PKG-INFO")
        with open(about, "w", encoding="utf-8") as f:
            f.write(METADATA.format(_version()))
        archive.add(about, f"{base}/PKG-INFO")
        for path in filter(None, listed):
            archive.add(os.path.join(ROOT, path), f"{base}/{path}", recursive=False)
    return base + ".tar.gz"
