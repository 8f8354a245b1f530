#!/bin/sh
# check.sh BUILD: runs every test that needs no GPU, shows the output of each, and ends with the sum: `N passed, N failed`.
# Each program ends with its own line of this form. A program that dies without it counts as one failure. Those of one process run side by side;
# meanwhile and after them go those that keep all cores busy.
build=${1:-build}
echo "== the tools"
tests/tools.sh --versions
. tests/pool.sh
trap 'rm -rf "$pool"' EXIT
passed=0 failed=0

count() { # count N: the command N of the pool
    echo "== $(cat "$pool/$1.name")"
    cat "$pool/$1.log"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$pool/$1.log" | tail -n 1)
    status=$(cat "$pool/$1.status")
    if [ -z "$line" ]; then
        echo "$(cat "$pool/$1.name") ended with status $status and without a count"
        failed=$((failed + 1))
        return
    fi
    f=${line#*, }
    f=${f% failed}
    [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    passed=$((passed + ${line%% *}))
    failed=$((failed + f))
}
timed() { # each has a cache of its own, not what the user has tuned
    began=$(date +%s)
    export ATTNC_CACHE="$pool/$started.cache"
    "$@" 8>&- 9>&- # what a command leaves running holds neither this script's output nor its cores
    status=$?
    echo "$*: $(tail -n 1 "$pool/$started.log"), $(($(date +%s) - began)) s" >&8
    return $status
}
exec 8>&1
beside() { # beside COMMAND...: with others
    start timed "$@"
    echo "$*" >"$pool/$started.name"
}
run() { # run COMMAND...: has processes for all cores
    started=$((started + 1))
    echo "$*" >"$pool/$started.name"
    timed "$@" >"$pool/$started.log" 2>&1
    echo $? >"$pool/$started.status"
}
# unittest counts differently: each test that ran and did not fail has passed.
unittests() { # unittests PYTHON NAME...: of tests/python
    python=$1
    shift
    echo "$python: $*"
    # shellcheck disable=SC2086
    "$python" -m unittest $(printf 'tests/python/test_%s.py ' "$@") 2>&1 | tee "$pool/$started.python"
    ran=$(sed -n 's/^Ran \([0-9]*\) test.*/\1/p' "$pool/$started.python")
    bad=$(grep -cE '^(FAIL|ERROR):' "$pool/$started.python")
    echo "$((${ran:-0} - bad)) passed, $((ran ? bad : bad + 1)) failed"
}
ranks_test() ( # what runs on several GPUs, over gloo
    export ATTNC="$build/attnc" ATTNRT_LIBRARY="$build/libattnrt.so" PYTHONPATH=python
    "$(tests/tools.sh python3 "numpy, torch" || echo python3)" tests/gpu/ranks.py --small check:attention_sink packed recur:check rates:document decode paged timeline:document
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

# The longest first.
if [ -z "$SANITIZED" ]; then
    beside python_tests # the package's library cannot be loaded into a Python without the sanitizer
    beside torch_tests
    beside ranks_test
else echo "== tests/python: left out, the build is under a sanitizer"; fi
beside tests/run/cli.sh "$build/attnc"
python=$(tests/tools.sh python3) || python=python3 # which then fails
beside "$python" tests/docs.py "$build"
beside "$python" tests/gallery.py "$build"
beside "$build/tests/check_math" 4099
beside tests/hsaco.sh "$build/attnc"
beside tests/run/serving.sh "$build/attnc"
beside "$build/tests/check_lang"
beside tests/format.sh "$build/attnc"
editors_python=$(tests/tools.sh editors-python) || editors_python=python3
beside env BUILD="$build" PYTHONPATH=build/tools/editors "$editors_python" tests/editors/test_editors.py
lsp_python=$(tests/tools.sh lsp-python) || lsp_python=python3
beside env ATTNC="$build/attnc" PYTHONPATH=build/tools/lsp "$lsp_python" tests/lsp/test_lsp.py
if [ -z "$SANITIZED" ]; then
    beside node tests/playground/wasm.mjs "$build"
    beside node tests/playground/panes.mjs "$build"
else echo "== tests/playground/wasm.mjs, panes.mjs: left out, WebAssembly has no sanitizer"; fi

if [ -z "$SANITIZED" ]; then run tests/run/assemble.sh "$build/attnc"
else echo "== tests/run/assemble.sh: left out, a sanitized compiler writes the same PTX"; fi
run "$build/tests/check_unit"
run "$build/tests/check_gen" 1 "${GEN:-300}" --jobs="$(nproc)"
run "$build/tests/check_run" stdlib
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
finish
for i in $(seq "$started"); do count "$i"; done
echo "== in all"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
