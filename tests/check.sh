#!/bin/sh
# check.sh BUILD: runs every test that needs no GPU, shows each one's output, and ends with the sum: `N passed, N failed`.
# A program counts by its own last line of that form; one that dies without it counts as one failure.
build=${1:-build}
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
passed=0 failed=0

run() {
    echo "== $*"
    "$@" >"$log" 2>&1
    status=$?
    cat "$log"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    if [ -z "$line" ]; then
        echo "$1 ended with status $status and without a count"
        failed=$((failed + 1))
        return
    fi
    f=${line#*, }
    f=${f% failed}
    [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    passed=$((passed + ${line%% *}))
    failed=$((failed + f))
}

run "$build/tests/check_unit"
run "$build/tests/check_lang"
run tests/run/cli.sh "$build/attnc"
run "$build/tests/check_run" stdlib
run "$build/tests/check_gen" 1 "${GEN:-300}"
echo "== in all"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
