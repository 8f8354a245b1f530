#!/bin/sh
# circles.sh OBJECT...: which of these files call each other in circles. Prints each circle and ends with status 1, or ends silently with 0.
nm -A "$@" | awk '
    { sub(/:$/, "", $1); file = $1; sub(/:.*/, "", file); name = $NF; kind = $(NF - 1) }
    kind == "U" { use[file " " name]; next }
    kind ~ /[TDBRC]/ { home[name] = file }
    END {
        for (u in use) {
            split(u, p, " ")
            if (p[2] in home && home[p[2]] != p[1]) print p[1], home[p[2]]
        }
    }' | sort -u | tsort 2>&1 >/dev/null | sed 's/^tsort: //; s/^-: .*/files that call each other in a circle:/' | grep . && exit 1
exit 0
