#!/bin/sh
# deps.sh [build]: installs what is missing to build, and, without `build`, to test: with apt, and what Debian has no package for with pip into
# build/tools. Nothing is asked of the network when all is there. Fails, with what is missing, when it could not be installed.
#
# NumPy and PyTorch are Debian's, for /usr/bin/python3: apt installs all else here, too, once for all checkouts. A python3 that stands before
# it on the PATH (pyenv, conda) does not see them; tests/tools.sh takes the first one that has both.
# ptxas is NVIDIA's assembler, under NVIDIA's licence. It needs no GPU. The tests' limits on spills were met with this version.
cd "$(dirname "$0")/.." || exit 1
ptxas='nvidia-cuda-nvcc==13.0.88'
need=''
want() { # want PACKAGE TEST...: the package when the test fails
    package=$1
    shift
    "$@" >/dev/null 2>&1 || need="$need $package"
}
have() { command -v "$1"; }
tool() { tests/tools.sh "$1"; }
header() { printf '#include <%s>\n' "$1" | "${CC:-cc}" -E - ; }
apt() {
    sudo=''
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -q && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends "$@"
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
    want python3 have /usr/bin/python3
    want "python3-numpy python3-torch" tool python3
    tool ptxas >/dev/null 2>&1 || want python3-pip /usr/bin/python3 -m pip --version
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
# What was installed may still not be what is found.
tests/tools.sh llvm-config >/dev/null && tests/tools.sh ld.lld >/dev/null || exit 1
[ "$1" = build ] || for name in cppcheck clang-format python3 ptxas; do tests/tools.sh $name >/dev/null || exit 1; done
