#!/bin/sh
# ptxas.sh FILE.ptx SM: assembles; fails on errors and on spills to local memory, which a kernel of ours must not have.
log=$(ptxas -v -arch="$2" -o /dev/null "$1" 2>&1) || { echo "$log"; exit 1; }
if echo "$log" | grep -E 'spill' | grep -vqE '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'; then
    echo "$1 for $2:"
    echo "$log" | grep -E 'spill|registers'
    exit 1
fi
