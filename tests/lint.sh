#!/bin/sh
# lint.sh: the rules that a machine can check. Prints the violations and ends with status 1, or ends silently with 0.
bad=0

# Dependencies point down: FOLDER may include only from the folders after it. Files of the folder itself may be named with or without it.
depends() {
    folder=$1
    shift
    allowed="^($(echo "$folder $*" | tr ' ' '|'))/"
    found=$(grep -nE '^#include "' "$folder"/*.[chly] "$folder"/*/*.[chly] 2>/dev/null | while IFS= read -r line; do
        file=${line#*\"}
        file=${file%%\"*}
        case "$file" in */*) echo "$file" | grep -qE "$allowed" || echo "$line" ;; esac
    done)
    [ -z "$found" ] && return
    echo "$found" | sed "s|\$|: $folder may include only from: $folder $*|"
    bad=1
}
depends ir
depends frontend ir
depends passes ir
depends codegen ir runtime
depends runtime
depends tools/service ir frontend passes tools # also WebAssembly: no LLVM, no kernels
found=$(grep -nE '^#include "runtime/' codegen/*.[ch] codegen/*/*.[ch] | grep -v '"runtime/abi.h"')
[ -n "$found" ] && echo "$found" && echo "codegen may include of the runtime only abi.h" && bad=1

found=$(grep -nE '^#include <llvm' ir/*.[ch] frontend/*.[chly] passes/*.[ch] passes/*/*.[ch] runtime/*.[ch] tools/*.[ch] tools/*/*.[ch])
[ -n "$found" ] && echo "$found" && echo "only codegen includes LLVM" && bad=1

# Libraries do not print and do not end the program. The exception is out_of_memory in arena.c; LLVM does the same there.
# The rule includes the part of tools/ that is in libattnc: all except the verbs and the help of the command. Comments are ignored.
quiet=$(ls tools/*.c tools/service/*.c | grep -vE '^tools/(cmd_.*|cmd|attnc|options)\.c$')
# shellcheck disable=SC2086
found=$(for f in ir/*.c frontend/*.[cly] passes/*.c passes/*/*.c codegen/*.c codegen/*/*.c runtime/*.c $quiet; do sed 's|//.*||' "$f" | grep -nE '(^|[^_a-zA-Z])(_?exit|abort|printf|puts|perror) *\(' | sed "s|^|$f:|"; done |
    grep -v '^ir/arena.c:[0-9]*: *abort();')
[ -n "$found" ] && echo "$found" && echo "a library prints or ends the program" && bad=1

# Size: a file over 1000 lines is too long.
found=$(wc -l ir/*.[ch] frontend/*.[chly] passes/*.[ch] passes/*/*.[ch] codegen/*.[ch] codegen/*/*.[ch] runtime/*.[ch] tools/*.[ch] tools/service/*.[ch] tests/*/*.c | awk '$2 != "total" && $1 > 1000')
[ -n "$found" ] && echo "$found" && echo "over 1000 lines" && bad=1

make -s format-check || bad=1
# Suppressed: what cppcheck gets wrong about C11 (compound literals, pointers that a callback returns) and what compilers check better.
if cppcheck=$(tests/tools.sh cppcheck); then
    "$cppcheck" --quiet -j "$(nproc)" --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=1 -I. -D__x86_64__ \
        --include=tests/cppcheck.h --suppress=missingInclude \
        --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches --suppress=uninitvar --suppress=ctuuninitvar --suppress=returnDanglingLifetime --suppress=internalAstError ir frontend passes runtime tools || bad=1
else bad=1; fi
exit $bad
