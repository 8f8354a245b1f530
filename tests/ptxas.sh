#!/bin/sh
# ptxas.sh FILE.ptx SM: assembles. Fails on errors; where a kernel spills or keeps in local memory more than LIMIT bytes (a few words
# are put up with, a fragment that lives there is a mistake of the schedule); and where ptxas says, by an info message and with
# status 0, that it makes one matrix product wait for the other (C7510 to C7518: half the speed). C7519 is none of those: an
# instruction was moved. What is found is printed either way.
LIMIT=256
[ "$2" = sm_90a ] && LIMIT=64
log=$(ptxas -v -arch="$2" -o /dev/null "$1" 2>&1) || { echo "$log"; exit 1; }
most() { echo "$log" | sed -n "s/^ *\(.* \)\{0,1\}\([0-9][0-9]*\) bytes $1.*/\2/p" | sort -n | tail -n 1; }
spilled=$(most 'spill stores') held=$(most 'stack frame')
slow=$(echo "$log" | grep -E 'C75(0[0-9]|1[0-8])')
[ "${spilled:-0}" -eq 0 ] && [ "${held:-0}" -eq 0 ] && [ -z "$slow" ] && exit 0
echo "$(basename "$1") on $2: up to $spilled bytes spilled, $held in local memory"
[ -n "$slow" ] && echo "$slow"
[ "$spilled" -le $LIMIT ] && [ "$held" -le $LIMIT ] && [ -z "$slow" ]
