#!/bin/sh
# deps.sh [build|browser]: installs what is missing to build, and, without `build`, to test; with `browser`, also for check-browser: with apt, and
# what Debian has no package for with pip, or as a source, into build/tools. Nothing is asked of the network when all is there. Fails, with what
# is missing, when it could not be installed.
#
# NumPy, PyTorch, Jupyter's kernel and client and setuptools are Debian's, for /usr/bin/python3: apt installs all else here, too, once for all
# checkouts. A python3 that stands before it on the PATH (pyenv, conda) does not see them; tests/tools.sh takes the first one that has all.
# The grammars of the editors are run by Python packages of their makers (editors, below); tree-sitter's own command, which generates a parser
# from a grammar, is that of Debian 13, with the C library that it needs.
# ptxas is NVIDIA's assembler, under NVIDIA's licence. It needs no GPU. The tests' limits on spills were met with this version.
cd "$(dirname "$0")/.." || exit 1
ptxas='nvidia-cuda-nvcc==13.0.88'
editors='tree-sitter==0.26.1 babi==1.8.0 identify==2.6.20 onigurumacffi==1.5.0 cffi==2.1.1 Pygments==2.21.0'
lsp='pytest-lsp==1.0.1 pygls==2.1.1 lsprotocol==2025.0.0 cattrs==26.2.1 attrs==26.1.0 pytest==9.2.0 pytest-asyncio==1.5.0 packaging==26.3 pluggy==1.7.0
iniconfig==2.3.1 pygments==2.21.0 typing_extensions==4.16.0'
need=''
want() { # want PACKAGE TEST...: the package when the test fails
    package=$1
    shift
    "$@" >/dev/null 2>&1 || need="$need $package"
}
have() { command -v "$1"; }
tool() { tests/tools.sh "$@"; }
header() { printf '#include <%s>\n' "$1" | "${CC:-cc}" -E - ; }
apt() {
    sudo=''
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -q && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends "$@"
}
browser='playwright==1.65.2 greenlet==3.5.6 pyee==13.0.1 typing_extensions==4.16.0 axe-playwright-python==0.1.8'
wasm() { # the compiler's own functions for WebAssembly
    clang=$(tool clang) && test -e "$("$clang" --target=wasm32-wasi -rtlib=compiler-rt -print-libgcc-file-name)"
}
# Sources that are in Debian's archive and in no package: of the JSON library, for WebAssembly, and of Microsoft's client for language servers,
# for VS Code.
source_of() { # source_of FOLDER PATH SHA256 PATTERN...: what the patterns choose of an archive of Debian, into build/tools/FOLDER, unless it is there
    to=build/tools/$1
    [ "$(cat "$to/.sha256" 2>/dev/null)" != "$3" ] || return 0
    echo "fetching into $to: ${2##*/}"
    /usr/bin/python3 - "$@" <<'FETCH'
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
}
sources() {
    source_of cjson/cjson c/cjson/cjson_1.7.15.orig.tar.gz 5308fd4bd90cef7aa060558514de6a1a4a0819974a26e6ed13973c5f624c24b2 'cJSON.[ch]' LICENSE &&
        source_of vscode-languageserver-node n/node-vscode-lsp/node-vscode-lsp_1.0.0~git20230424.1320922.orig.tar.xz \
            c886fec0b77832a63f58edba366b0532332c97c692a9b3e5317cd7e3d4250f65 'client/src/*' 'protocol/src/*' \
            'jsonrpc/src/*' 'types/src/*' License.txt
}
# Programs of Debian 13 into build/tools/debian13, on a machine that need not be one: apt takes their packages, checked by Debian's keys, from
# a list of its own. The system's lists and packages stay as they are.
debian13() {
    to=$PWD/build/tools/debian13
    rm -rf "$to" && mkdir -p "$to/lists/partial" "$to/cache/archives/partial" && : >"$to/status" || return
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" >"$to/sources.list"
    mine="-q -o Dir::Etc::sourcelist=$to/sources.list -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=$to/lists"
    mine="$mine -o Dir::State::status=$to/status -o Dir::Cache=$to/cache -o Acquire::Languages=none -o APT::Sandbox::User="
    # shellcheck disable=SC2086
    apt-get $mine update && (cd "$to" && apt-get $mine download "$@") || return
    for package in "$to"/*.deb; do dpkg -x "$package" "$to" || return; done
    rm -rf "$to/lists" "$to/cache" "$to/etc" "$to/usr/share" "$to"/*.deb
}

want build-essential have cc
want make have make
want flex have flex
want bison have bison
want llvm-19-dev tool llvm-config
llvm=$(tool llvm-config 2>/dev/null) || llvm=llvm-19-dev
lld=lld-19
case $llvm in /*) lld=lld-$("$llvm" --version | cut -d. -f1) ;; esac
want "$lld" tool ld.lld
want zlib1g-dev header zlib.h
want libzstd-dev header zstd.h
want libcjson-dev header cjson/cJSON.h
if [ "$1" != build ]; then
    want pkg-config have pkg-config
    want check pkg-config --exists check
    want cppcheck tool cppcheck
    want clang-format-14 tool clang-format
    want clang-19 tool clang
    want wasi-libc test -e /usr/include/wasm32-wasi/stdio.h
    want libclang-rt-19-dev-wasm32 wasm
    want python3 have /usr/bin/python3
    want "python3-numpy python3-torch" tool python3
    want vim have vim
    want neovim have nvim
    want nodejs have node
    want "python3-ipykernel python3-nbclient" tool python3 "numpy, torch, IPython, ipykernel, nbclient"
    want "python3-setuptools python3-wheel" tool python3 "setuptools, wheel, pip"
    want python3-pip /usr/bin/python3 -m pip --version
    # what `make playground` puts into its page, and `make vscode` into its extension
    want esbuild have esbuild
    want node-minimatch test -e /usr/share/nodejs/minimatch/package.json
    want node-semver test -e /usr/share/nodejs/semver/functions/satisfies.js
    want libjs-codemirror test -e /usr/share/javascript/codemirror/lib/codemirror.js
    want node-diff test -e /usr/share/nodejs/diff/lib/index.mjs
    want fonts-stix test -e /usr/share/fonts/opentype/stix-word/STIXMath-Regular.otf
    want "python3-fonttools python3-brotli" tests/tools.sh python3 'fontTools, brotli'
fi
if [ "$1" = browser ]; then
    want chromium have chromium
    want fonts-dejavu-core test -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
fi
if [ "$need" ]; then
    echo "installing:$need"
    # shellcheck disable=SC2086
    apt $need || exit 1
fi
[ "$1" = build ] || tool ptxas >/dev/null 2>&1 || {
    echo "installing into build/tools: $ptxas (ptxas)"
    /usr/bin/python3 -m pip install -q --no-deps --target build/tools "$ptxas" || exit 1
}
[ "$1" = build ] || tool editors-python >/dev/null 2>&1 || {
    echo "installing into build/tools: $editors (the grammars of the editors)"
    # shellcheck disable=SC2086
    /usr/bin/python3 -m pip install -q --no-deps --upgrade --target build/tools/editors $editors || exit 1
}
[ "$1" = build ] || tool lsp-python >/dev/null 2>&1 || {
    echo "installing into build/tools: $lsp (a client of language servers)"
    # shellcheck disable=SC2086
    /usr/bin/python3 -m pip install -q --no-deps --upgrade --target build/tools/lsp $lsp || exit 1
}
[ "$1" != browser ] || [ -e build/tools/browser/axe_playwright_python ] || {
    echo "installing into build/tools: $browser (what drives Chromium)"
    # shellcheck disable=SC2086
    /usr/bin/python3 -m pip install -q --no-deps --upgrade --target build/tools/browser $browser || exit 1
}
[ "$1" = build ] || sources || exit 1
[ "$1" = build ] || tool tree-sitter >/dev/null 2>&1 || {
    echo "installing into build/tools: tree-sitter's command, of Debian 13"
    debian13 tree-sitter-cli libc6 libgcc-s1 && cat >build/tools/debian13/tree-sitter <<'RUN' && chmod +x build/tools/debian13/tree-sitter || exit 1
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")
lib=$(dirname "$(find "$root/usr/lib" -name libc.so.6)")
exec "$lib"/ld-linux-*.so.* --library-path "$lib" "$root/usr/bin/tree-sitter" "$@"
RUN
}
# What was installed may still not be what is found.
tests/tools.sh llvm-config >/dev/null && tests/tools.sh ld.lld >/dev/null || exit 1
[ "$1" = build ] || tests/tools.sh python3 "numpy, torch, IPython, ipykernel, nbclient" >/dev/null || exit 1
[ "$1" = build ] || for name in cppcheck clang clang-format python3 editors-python lsp-python ptxas tree-sitter; do tests/tools.sh $name >/dev/null || exit 1; done
