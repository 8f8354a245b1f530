#!/bin/sh
# tools.sh NAME [MODULES]: prints the path of a tool that the build or its tests use by name; of python3, one that imports these modules.
# tools.sh --versions: all of them, each with its version.
#
# The first one on the PATH may be of another version. So each candidate is asked for its version, in the order of this file, and the first one
# that fits is taken. Where none fits, stderr says which version is needed and which versions are there, and the status is 1.
# ld.lld and llvm-objdump must be of the LLVM that the build takes. tests/deps.sh puts into build/tools what Debian has no package for.
cd "$(dirname "$0")/.." || exit 1

# The first number with a point in what the tool says: 19.1.7. Nothing where it cannot be run.
version() { "$1" --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1; }

all() { # all NAME...: every file of these names, in the order of the names, then of the PATH
    for name; do
        case $name in
        */*) [ -x "$name" ] && echo "$name" ;;
        *) echo "$PATH" | tr : '\n' | while IFS= read -r folder; do [ -x "$folder/$name" ] && echo "$folder/$name"; done ;;
        esac
    done
}

# pick NAME LEAST MOST CANDIDATE...: by the major version
pick() {
    what=$1 least=$2 most=$3 seen=''
    shift 3
    for path in $(all "$@"); do
        found=$(version "$path")
        major=${found%%.*}
        if [ "${major:-0}" -ge "$least" ] && [ "$major" -le "$most" ]; then
            echo "$path"
            return
        fi
        seen="$seen; $path is ${found:-of no version that it says}"
    done
    if [ "$least" = "$most" ]; then needed="$least"; else needed="$least or later"; fi
    echo "$what $needed is needed and was not found$seen" >&2
    return 1
}
llvm_config() { pick llvm-config 19 99 ${LLVM_CONFIG:-llvm-config-19 llvm-config-20 llvm-config-21 llvm-config /usr/lib/llvm-19/bin/llvm-config}; }
of_llvm() { # of_llvm NAME: of the same version as llvm-config
    config=$(llvm_config) || return
    major=$("$config" --version)
    major=${major%%.*}
    pick "$1" "$major" "$major" "$("$config" --bindir)/$1" "$1-$major" "$1"
}
# python3 needs modules, and one from elsewhere (pyenv, conda) does not see Debian's. The tests of the package need these two.
python() {
    module=${1:-numpy, torch} seen=''
    for path in $(all ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3 | awk '!seen[$0]++'); do
        "$path" -c "import $module" >/dev/null 2>&1 && echo "$path" && return
        seen="$seen; $path does not import them"
    done
    echo "a python3 with ${module%%;*} is needed and was not found (tests/deps.sh brings one)$seen" >&2
    return 1
}
# One whose PyTorch has operators (torch.library.custom_op), with Hugging Face's models beside it: the tests that need these run there.
torch_python() {
    PYTHON=${TORCH_PYTHON:-build/tools/pytorch/python3} PYTHONPATH=build/tools/transformers python "transformers, torch; torch.library.custom_op"
}
# The one release whose generated parsers are those in tools/editors.
tree_sitter() {
    for path in $(all tree-sitter build/tools/debian13/tree-sitter); do
        [ "$(version "$path")" = 0.22.6 ] && readlink -f "$path" && return
    done
    echo "tree-sitter 0.22.6 is needed and was not found" >&2
    return 1
}
find_tool() {
    case $1 in
    llvm-config) llvm_config ;;
    ld.lld | llvm-objdump) of_llvm "$1" ;;
    clang) pick clang 19 99 ${WASM_CC:+"$WASM_CC"} clang-19 clang-20 clang-21 clang ;; # for WebAssembly
    clang-format) pick clang-format 14 14 clang-format-14 clang-format ;; # another one breaks lines elsewhere
    ptxas) pick ptxas 13 99 ptxas /usr/local/cuda/bin/ptxas build/tools/nvidia/cu13/bin/ptxas ;; # older ones allocate registers worse
    python3) python "$2" ;;
    lsp-python) PYTHONPATH=build/tools/lsp python "pytest_lsp, pytest_asyncio" ;;
    editors-python) PYTHONPATH=build/tools/editors python "tree_sitter, babi, pygments" ;;
    torch-python) torch_python ;;
    tree-sitter) tree_sitter ;;
    cppcheck) pick cppcheck 2 99 cppcheck ;;
    *) echo "tools.sh: $1 is no tool of these" >&2; return 2 ;;
    esac
}
if [ "$1" != --versions ]; then
    find_tool "$@"
    exit
fi
for name in llvm-config ld.lld clang clang-format cppcheck ptxas python3 editors-python lsp-python torch-python tree-sitter; do
    path=$(find_tool $name) && echo "$name: $path, version $(version "$path")"
done
for name in "${CC:-cc}" make flex bison vim nvim node; do
    path=$(command -v "$name") && echo "$name: $path, version $(version "$path")"
done
path=$(python 2>/dev/null) && "$path" -c 'import numpy, torch; print("NumPy: version", numpy.__version__); print("PyTorch: version", torch.__version__)'
path=$(command -v pkg-config) && echo "Check: version $("$path" --modversion check)"
