#!/bin/sh
# deps.sh [build|browser]: installs what is missing to build and to test; with `build` only to build; with `browser` also for check-browser.
#
# Each row of rows() names one thing, what it is for, and how to see that it is there. It comes from Debian's packages (apt, for the whole machine),
# or into build/tools: from PyPI, from Debian's archive of sources, or from Debian 13. The network is asked only for what is missing. The status is 1 if something
# could not be installed, or if another version than the installed one would be used.
#
# NumPy, PyTorch, Jupyter's kernel and client and pip are Debian's, for /usr/bin/python3. A python3 that stands before it on the PATH
# (pyenv, conda) does not see them; tests/tools.sh takes the first one that has all.
cd "$(dirname "$0")/.." || exit 1
level=${1:-test}
case $level in build | test | browser) ;; *) echo "deps.sh: $level is neither build nor browser" >&2; exit 2 ;; esac

rows() {
    debian build build-essential have cc
    debian build make have make
    debian build flex have flex
    debian build bison have bison
    debian build llvm-19-dev tool llvm-config
    debian build "lld-$(llvm_major)" tool ld.lld
    debian build zlib1g-dev header zlib.h
    debian build libzstd-dev header zstd.h
    debian build libcjson-dev header cjson/cJSON.h
    debian test pkg-config have pkg-config
    debian test check pkg-config --exists check
    debian test cppcheck tool cppcheck
    debian test clang-format-14 tool clang-format
    debian test python3 have /usr/bin/python3
    debian test python3-pip /usr/bin/python3 -m pip --version
    debian test "python3-numpy python3-torch" tool python3
    debian test "python3-ipykernel python3-nbclient" tool python3 "numpy, torch, IPython, ipykernel, nbclient"
    debian test vim have vim
    debian test neovim have nvim
    # the compiler as WebAssembly, and what `make playground` puts into its page, and `make vscode` into its extension
    debian test clang-19 tool clang
    debian test wasi-libc test -e /usr/include/wasm32-wasi/stdio.h
    debian test libclang-rt-19-dev-wasm32 wasm_runtime
    debian test nodejs have node
    debian test esbuild have esbuild
    debian test node-minimatch test -e /usr/share/nodejs/minimatch/package.json
    debian test node-semver test -e /usr/share/nodejs/semver/functions/satisfies.js
    debian test libjs-codemirror test -e /usr/share/javascript/codemirror/lib/codemirror.js
    debian test node-diff test -e /usr/share/nodejs/diff/lib/index.mjs
    debian test fonts-stix test -e /usr/share/fonts/opentype/stix-word/STIXMath-Regular.otf
    debian test "python3-fonttools python3-brotli" tool python3 "fontTools, brotli"
    debian browser chromium have chromium
    debian browser fonts-dejavu-core test -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
    debian_install
    # NVIDIA's assembler, under NVIDIA's licence. It needs no GPU. The tests' limits on spills were met with this version.
    pypi test . "nvidia-cuda-nvcc==13.0.88" tool ptxas
    # the grammars of the editors, run by packages of their makers
    pypi test editors "tree-sitter==0.26.1 babi==1.8.0 identify==2.6.20 onigurumacffi==1.5.0 cffi==2.1.1 Pygments==2.21.0" tool editors-python
    # a client of language servers
    pypi test lsp "pytest-lsp==1.0.1 pygls==2.1.1 lsprotocol==2025.0.0 cattrs==26.2.1 attrs==26.1.0 pytest==9.2.0 pytest-asyncio==1.5.0
        packaging==26.3 pluggy==1.7.0 iniconfig==2.3.1 pygments==2.21.0 typing_extensions==4.16.0" tool lsp-python
    # what drives Chromium
    pypi browser browser "playwright==1.65.2 greenlet==3.5.6 pyee==13.0.1 typing_extensions==4.16.0 axe-playwright-python==0.1.8" \
        test -e build/tools/browser/axe_playwright_python
    # what is in Debian's archive and in no package: the JSON library, for WebAssembly, and Microsoft's client for language servers, for VS Code
    source_of test cjson/cjson c/cjson/cjson_1.7.15.orig.tar.gz 5308fd4bd90cef7aa060558514de6a1a4a0819974a26e6ed13973c5f624c24b2 'cJSON.[ch]' LICENSE
    source_of test vscode-languageserver-node n/node-vscode-lsp/node-vscode-lsp_1.0.0~git20230424.1320922.orig.tar.xz \
        c886fec0b77832a63f58edba366b0532332c97c692a9b3e5317cd7e3d4250f65 'client/src/*' 'protocol/src/*' 'jsonrpc/src/*' 'types/src/*' License.txt
    debian13 test tree-sitter-cli debian13 tree-sitter tool tree-sitter
    # a PyTorch that has operators (torch.library) and a compiler, with Hugging Face's models: 1 GB on disk
    debian13 test python3-torch pytorch python3 test -x build/tools/pytorch/python3
    for_python='--python-version 3.13 --only-binary=:all:' # which Debian 13 has
    pypi test transformers "transformers==5.17.0 huggingface_hub==1.33.0 tokenizers==0.23.3 safetensors==0.8.0 regex==2026.11.19 PyYAML==6.0.4
        tqdm==4.70.1 packaging==26.4 filelock==4.3.1 fsspec==2026.9.0 httpx==0.28.1 httpcore==1.0.9 h11==0.16.0 anyio==4.16.0 certifi==2026.10.19.post1
        idna==3.20 typer==0.29.2 click==8.5.1 hf-xet==1.8.0 rich==15.0.0 pygments==2.21.0 markdown-it-py==4.3.0 mdurl==0.1.2 shellingham==1.5.4
        annotated-doc==0.0.7 typing_extensions==4.16.0" tool torch-python
    for_python=''
}

# ---- tests that something is there
have() { command -v "$1"; }
tool() { tests/tools.sh "$@"; }
header() { printf '#include <%s>\n' "$1" | "${CC:-cc}" -E - ; }
wasm_runtime() { # the compiler's own functions for WebAssembly
    clang=$(tool clang) && test -e "$("$clang" --target=wasm32-wasi -rtlib=compiler-rt -print-libgcc-file-name)"
}
llvm_major() { # of the LLVM that the build takes, or will take
    llvm=$(tool llvm-config 2>/dev/null) && "$llvm" --version | cut -d. -f1 || echo 19
}

# ---- ways to install
installed='' checking='' status=0 for_python=''
# missing LEVEL TEST...: it is wanted, and the test fails. When all is installed, a tool that is still not found is told of, and is not tried again.
missing() {
    case $1-$level in build-* | test-test | test-browser | browser-browser) shift ;; *) return 1 ;; esac
    if [ ! "$checking" ]; then
        ! "$@" >/dev/null 2>&1
        return
    fi
    [ "$1" != tool ] || "$@" >/dev/null || status=1
    return 1
}
packages=''
debian() { # debian LEVEL PACKAGES TEST...
    for_what=$1 these=$2
    shift 2
    if missing "$for_what" "$@"; then packages="$packages $these"; fi
}
debian_install() { # all at once
    [ "$packages" ] || return
    echo "installing:$packages"
    sudo=''
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    # shellcheck disable=SC2086
    $sudo apt-get update -q && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends $packages || exit 1
    packages='' installed=1
}
pypi() { # pypi LEVEL FOLDER PACKAGES TEST...
    for_what=$1 folder=$2 these=$3
    shift 3
    missing "$for_what" "$@" || return
    # shellcheck disable=SC2086
    echo "installing into build/tools/$folder:" $these
    # shellcheck disable=SC2086
    /usr/bin/python3 -m pip install -q --no-deps --upgrade $for_python --target "build/tools/$folder" $these || exit 1
    installed=1
}
source_of() { # source_of LEVEL FOLDER PATH SHA256 PATTERN...: what the patterns choose of an archive of sources
    for_what=$1 to=build/tools/$2
    shift
    missing "$for_what" grep -qx "$3" "$to/.sha256" || return
    echo "installing into $to: ${2##*/}"
    /usr/bin/python3 - "$@" <<'FETCH' || exit 1
import fnmatch, hashlib, io, pathlib, shutil, sys, tarfile, urllib.request
folder, path, digest, *patterns = sys.argv[1:]
data = urllib.request.urlopen(f"http://deb.debian.org/debian/pool/main/{path}", timeout=60).read()
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit(f"{path} is another file than it was")
to = pathlib.Path("build/tools", folder)
shutil.rmtree(to, ignore_errors=True)
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    for member in archive:
        name = member.name.partition("/")[2]
        if member.isfile() and any(fnmatch.fnmatch(name, p) for p in patterns):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(archive.extractfile(member).read())
(to / ".sha256").write_text(digest)
FETCH
    installed=1
}
# debian13 LEVEL PACKAGE FOLDER PROGRAM TEST...: a program of Debian 13, with the C library and all else that it needs, on a machine that need not be
# one. apt takes the packages, checked by Debian's keys, from a list of its own. The system's lists and packages stay as they are.
debian13() {
    for_what=$1 these=$2 folder=$3 program=$4
    shift 4
    missing "$for_what" "$@" || return
    echo "installing into build/tools/$folder: $these"
    debian13_install "$these" "$PWD/build/tools/$folder" "$program" || exit 1
    installed=1
}
debian13_install() {
    to=$2
    rm -rf "$to" && mkdir -p "$to/lists/partial" "$to/cache/archives/partial" && : >"$to/status" || return
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" >"$to/sources.list"
    mine="-q -o Dir::Etc::sourcelist=$to/sources.list -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=$to/lists"
    mine="$mine -o Dir::State::status=$to/status -o Dir::Cache=$to/cache -o Acquire::Languages=none -o APT::Sandbox::User="
    # shellcheck disable=SC2086
    apt-get $mine update && apt-get $mine install -y --no-install-recommends --download-only "$1" || return
    for package in "$to"/cache/archives/*.deb; do dpkg -x "$package" "$to" || return; done
    rm -rf "$to/lists" "$to/cache" "$to/etc" "$to/usr/share/doc" "$to/usr/share/man" "$to/usr/share/locale"
    [ -e "$to/lib" ] || ln -s usr/lib "$to/lib" # where Python looks for its modules
    cat >"$to/$3" <<'RUN' && chmod +x "$to/$3"
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")
lib=$(dirname "$(find "$root/usr/lib" -name libc.so.6)")
exec "$lib"/ld-linux-*.so.* --argv0 "$0" --library-path "$lib:$lib/blas:$lib/lapack" "$root/usr/bin/$(basename "$0")" "$@"
RUN
}

rows
[ "$installed" ] || exit 0
checking=1 # what was installed may still not be what is found
rows
exit $status
