#!/bin/sh
# ptxas.sh FILE.ptx SM: assembles the file. Fails on errors, and if a kernel spills, or keeps in local memory, more than a few words: a
# fragment in local memory is a mistake of the schedule. Kernels with roles have a lower limit; kernels for parts of a row have that of sm_80.
# Also fails if ptxas serializes matrix products, which halves the speed; it says so by an info message (C7510 to C7518) and status 0.
# C7519 is harmless: an instruction was moved. What is found is printed in any case.
ptxas=$("$(dirname "$0")/tools.sh" ptxas) || exit 1
log=$("$ptxas" -v -arch="$2" -o /dev/null "$1" 2>&1) || { echo "$log"; exit 1; }
slow=$(echo "$log" | grep -E 'C75(0[0-9]|1[0-8])')
echo "$log" | awk -v file="$(basename "$1")" -v sm="$2" '
    /Function properties for/ { name = $NF }
    / bytes stack frame/ {
        limit = sm != "sm_90a" || name ~ /_(part|combine)$/ ? 256 : 96
        if ($1 > limit || $5 > limit) bad = 1
        if ($1 > held) held = $1
        if ($5 > spilled) spilled = $5
    }
    END {
        if (held || spilled) print file " on " sm ": up to " spilled + 0 " bytes spilled, " held + 0 " in local memory"
        exit bad
    }'
status=$?
[ -n "$slow" ] && echo "$slow"
[ $status -eq 0 ] && [ -z "$slow" ]
