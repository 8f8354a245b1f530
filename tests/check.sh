#!/bin/sh
# check.sh BUILD: runs every test that needs no GPU, shows the output of each, and ends with the sum: `N passed, N failed`.
# Each program ends with its own line of this form. A program that dies without it counts as one failure. The random variants take
# longest; they run in parallel with the others.
build=${1:-build}
echo "== the tools"
tests/tools.sh --versions
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
export ATTNC_CACHE="$logs/cache" # not what the user has tuned
passed=0 failed=0

count() { # count STATUS LOG NAME
    cat "$2"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$2" | tail -n 1)
    if [ -z "$line" ]; then
        echo "$3 ended with status $1 and without a count"
        failed=$((failed + 1))
        return
    fi
    f=${line#*, }
    f=${f% failed}
    [ "$1" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    passed=$((passed + ${line%% *}))
    failed=$((failed + f))
}
run() {
    echo "== $*"
    "$@" >"$logs/log" 2>&1
    count $? "$logs/log" "$1"
}
# unittest counts differently: each test that ran and did not fail has passed.
unittests() { # unittests PYTHON NAME...: of tests/python
    python=$1
    shift
    echo "$python: $*"
    # shellcheck disable=SC2086
    "$python" -m unittest $(printf 'tests/python/test_%s.py ' "$@") 2>&1 | tee "$logs/python"
    ran=$(sed -n 's/^Ran \([0-9]*\) test.*/\1/p' "$logs/python")
    bad=$(grep -cE '^(FAIL|ERROR):' "$logs/python")
    echo "$((${ran:-0} - bad)) passed, $((ran ? bad : bad + 1)) failed"
}
ranks_test() ( # what runs on several GPUs, over gloo
    export ATTNC="$build/attnc" ATTNRT_LIBRARY="$build/libattnrt.so" PYTHONPATH=python
    "$(tests/tools.sh python3 "numpy, torch" || echo python3)" tests/gpu/ranks.py --small check:attention_sink recur:check rates:document decode paged timeline:document
)
python_tests() ( # what it exports stays here
    make -s BUILD="$build" wheel # without one, the tests of the wheel fail
    export ATTNC="$build/attnc" ATTNRT_LIBRARY="$build/libattnrt.so" WHEEL="$build/dist/*.whl"
    unittests "$(tests/tools.sh python3 "numpy, torch, IPython, ipykernel, nbclient" || echo python3)" attn notebook package serving torch spread recurrence
)
torch_tests() ( # with operators, a compiler and Hugging Face's models, which Debian's PyTorch has not
    export ATTNC="$build/attnc" ATTNRT_LIBRARY="$build/libattnrt.so" PYTHONPATH=build/tools/transformers
    unittests "$(tests/tools.sh torch-python || echo python3)" torch recurrence huggingface mesh
)

("$build/tests/check_gen" 1 "${GEN:-300}" >"$logs/gen" 2>&1; echo $? >"$logs/gen.status") &
# This takes long, and a sanitized compiler writes the same PTX.
if [ -z "$SANITIZED" ]; then
    (nice tests/run/assemble.sh "$build/attnc" >"$logs/ptxas" 2>&1; echo $? >"$logs/ptxas.status") &
fi
run "$build/tests/check_unit"
run "$build/tests/check_lang"
run tests/format.sh "$build/attnc"
run tests/run/cli.sh "$build/attnc"
run tests/run/serving.sh "$build/attnc"
python=$(tests/tools.sh python3) || python=python3 # which then fails
run "$python" tests/docs.py "$build"
run "$python" tests/gallery.py "$build"
editors_python=$(tests/tools.sh editors-python) || editors_python=python3
run env BUILD="$build" PYTHONPATH=build/tools/editors "$editors_python" tests/editors/test_editors.py
lsp_python=$(tests/tools.sh lsp-python) || lsp_python=python3
run env ATTNC="$build/attnc" PYTHONPATH=build/tools/lsp "$lsp_python" tests/lsp/test_lsp.py
if [ -z "$SANITIZED" ]; then
    run node tests/playground/wasm.mjs "$build"
    run node tests/playground/panes.mjs "$build"
else echo "== tests/playground/wasm.mjs, panes.mjs: left out, WebAssembly has no sanitizer"; fi
# the package's library cannot be loaded into a Python without the sanitizer
if [ -z "$SANITIZED" ]; then
    run python_tests
    run torch_tests
    run ranks_test
else echo "== tests/python: left out, the build is under a sanitizer"; fi
run "$build/tests/check_run" stdlib
run "$build/tests/check_math" 4099
run "$build/tests/check_run" tests/regress
run "$build/tests/check_gcn" stdlib
run env QUICK=1 "$build/tests/check_gcn" stdlib/attention_sink.attn stdlib/relu.attn --turns --parts
run env QUICK=1 "$build/tests/check_gcn" tests/regress
run "$build/tests/check_gcn" tests/regress/exact_maximum.attn --dtype=f16 -DD=96 -DDv=96
for f in capped_weights raw_weights weighted_scores weights_by_position scaled_after_shift; do
    run env QUICK=1 "$build/tests/check_gcn" "tests/regress/$f.attn" --dtype=f16
done
run "$build/tests/check_gcn" tests/regress/softmax_of_powers.attn --dtype=f16 --gradients --shape=B=1,H=1,Sq=5,Sk=12
run env QUICK=1 "$build/tests/check_gcn" tests/tile/packed.tile tests/tile/mamba2.tile tests/tile/gated_delta.tile
run env QUICK=1 "$build/tests/check_gcn" tests/tile/sums.tile
run env QUICK=1 "$build/tests/check_gcn" tests/run/share.attn
for type in e4m3 e5m2 i8; do
    run "$build/tests/check_gcn" tests/regress/stored_in_8_bits.attn --kv-dtype=$type --turns
done
run env QUICK=1 "$build/tests/check_gcn" tests/run/norm_of_values.attn
run "$build/tests/check_run" tests/run mla
run "$build/tests/check_run" tests/run row_inputs
run "$build/tests/check_run" tests/run row_norms
run env QUICK=1 "$build/tests/check_gcn" tests/run/mla.attn tests/run/row_inputs.attn tests/run/row_norms.attn --dtype=bf16
run "$build/tests/check_gcn" stdlib/softmax.attn --target=gfx1100 --dtype=bf16 -DD=9 -DDv=7 # rows that are no whole pieces
run env QUICK=1 "$build/tests/check_gcn" tests/tile/backward_apart.tile
for f in causal attention_sink; do # the backward from source
    { echo "// run: B=1 H=4 Hkv=2 Sq=40 Sk=70"; "$build/attnc" "stdlib/$f.attn" --phase=bwd --target=gfx942 --emit=tile -o -; } > "$build/$f.tile"
    run env QUICK=1 "$build/tests/check_gcn" "$build/$f.tile"
done
# schedules that are not the compiler's choice
gcn_schedule() { run "$build/tests/check_gcn" stdlib/causal.attn stdlib/relative_bias.attn --target="$1" --schedule="$2"; }
gcn_schedule gfx90a waves=1
gcn_schedule gfx942 matrix_rows=16,mt=1,keys=32,waves=2
gcn_schedule gfx942 keys=32,waves=8,keep=0
gcn_schedule gfx90a matrix_rows=16,mt=2,keys=64,waves=4 # where instructions of 32 rows would do
gcn_schedule gfx1100 keys=16,waves=2
run tests/hsaco.sh "$build/attnc"
wait
echo "== $build/tests/check_gen"
count "$(cat "$logs/gen.status")" "$logs/gen" check_gen
if [ -e "$logs/ptxas.status" ]; then
    echo "== tests/run/assemble.sh"
    count "$(cat "$logs/ptxas.status")" "$logs/ptxas" tests/run/assemble.sh
else echo "== tests/run/assemble.sh: left out, the build is under a sanitizer"; fi
echo "== in all"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
