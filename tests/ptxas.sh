#!/bin/sh
# ptxas.sh FILE.ptx SM: assembles. Fails on errors, and where a kernel spills more than LIMIT bytes: a few words are put up with, a
# fragment that lives in local memory is a mistake of the schedule. What is spilled is printed either way.
LIMIT=512
log=$(ptxas -v -arch="$2" -o /dev/null "$1" 2>&1) || { echo "$log"; exit 1; }
most=$(echo "$log" | sed -n 's/.* \([0-9]*\) bytes spill stores.*/\1/p' | sort -n | tail -n 1)
[ "${most:-0}" -eq 0 ] && exit 0
echo "$(basename "$1") on $2: up to $most bytes spilled"
[ "$most" -le $LIMIT ]
