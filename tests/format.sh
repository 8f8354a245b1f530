#!/bin/sh
# format.sh [ATTNC [--write]], by default build/attnc: the sources of the tree are in the form that `attnc fmt` gives them, or get it. In tests/lang those that do not parse, which
# are tests of mistakes, have no such form.
attnc=${1:-build/attnc}
# Line ends, a byte order mark and comments between tokens are what these test; of the others, mistakes are expected on a
# line that several statements share.
as_they_are=" byte_order_mark comments crlf
    arithmetic clauses_wrong functions_built_in functions_wrong recurrence_wrong variants_twice "
files='' lang='' n=0
for f in stdlib/*.attn tests/regress/*.attn docs/*/*.attn docs/*/*/*.attn; do
    [ -e "$f" ] && files="$files $f" && n=$((n + 1))
done
for f in tests/lang/*.attn tests/lang/lib/*.attn tests/lang/lib/*/*.attn; do
    name=${f##*/}
    case $as_they_are in *[[:space:]]"${name%.attn}"[[:space:]]*) continue ;; esac
    lang="$lang $f" && n=$((n + 1))
done
# shellcheck disable=SC2086 # lists of files without blanks in their names
[ "$2" != --write ] || { "$attnc" fmt $files; "$attnc" fmt $lang 2>/dev/null; }
# shellcheck disable=SC2086
differ=$("$attnc" fmt --check $files 2>&1; "$attnc" fmt --check $lang 2>/dev/null)
failed=$(echo "$differ" | grep -c .)
[ "$failed" -eq 0 ] || echo "attnc fmt would change (make format does):" "$differ"
echo "$((n - failed)) passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$n" -gt 150 ]
