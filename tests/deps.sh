#!/bin/sh
# deps.sh: installs with apt what is missing to build and test: nothing is asked of the network when all is there.
need=''
want() { # want PACKAGE TEST...: the package when the test fails
    package=$1
    shift
    "$@" >/dev/null 2>&1 || need="$need $package"
}
have() { command -v "$1"; }
llvm() { command -v llvm-config-19 || command -v llvm-config-20 || command -v llvm-config-21; }
header() { printf '#include <%s>\n' "$1" | "${CC:-cc}" -E - ; }

want build-essential have cc
want make have make
want flex have flex
want bison have bison
want pkg-config have pkg-config
want check pkg-config --exists check
want llvm-19-dev llvm
linker() { command -v ld.lld-19 || command -v ld.lld; }
want lld-19 linker
want zlib1g-dev header zlib.h
want libzstd-dev header zstd.h
want cppcheck have cppcheck
format() { command -v clang-format || command -v clang-format-14; }
want clang-format format
[ -z "$need" ] && exit 0
echo "installing:$need"
sudo=''
[ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get update -q || exit 1
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends $need
