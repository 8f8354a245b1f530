#!/bin/sh
# sanitize_gpu.sh BUILD: runs a small set of kernels on a GPU of this machine under compute-sanitizer: memcheck (accesses outside memory) and racecheck (shared memory),
# at small odd shapes, for every target that the device takes. Ends with `N passed, N failed`. Without the tool or a device it says so and runs nothing.
build=${1:-build}
tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
skip() {
    echo "SKIPPED: $*, NOTHING WAS RUN UNDER compute-sanitizer"
    echo "0 passed, 0 failed"
    exit 0
}
[ "$tool" ] || skip "compute-sanitizer is not installed"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
runs() { "$build/attnc" run stdlib/softmax.attn --device=cuda --shape=Sq=64 "$@" >"$work/probe" 2>&1; }
runs || ! grep -q 'there is no NVIDIA' "$work/probe" || skip "no GPU on this machine"

files=${FILES:-stdlib/causal.attn stdlib/relu.attn stdlib/document.attn stdlib/alibi.attn stdlib/sliding_window.attn stdlib/mla.attn
    tests/regress/outgrown_shift.attn}
shapes='--shape=B=1,H=2,Hkv=1,Sq=129,Sk=129 --shape=H=1,Sq=1,Sk=333 --shape=H=2,Sq=70,Sk=17'
again=tests/regress/outgrown_shift.attn # in clusters, too: tiles come again there in both blocks
many='--shape=H=150,Sq=129,Sk=300' # more tiles of queries than multiprocessors, for kernels whose blocks take several
for check in memcheck racecheck; do
    for target in sm_80 sm_90a; do
        runs --target=$target || ! grep -q 'the artifact is for' "$work/probe" || continue
        for dtype in bf16 f32; do
            [ $target$dtype = sm_90abf16 ] && all="$shapes $many" || all=$shapes
            for file in $files; do echo "$check $file --target=$target --dtype=$dtype $all"; done
        done
        # Only without FILES: the backward, recurrences, and decoding with the heads of a group in one tile.
        [ -n "$FILES" ] || for file in causal gqa softcap; do
            echo "$check stdlib/$file.attn --phase=fwd,bwd --target=$target --dtype=bf16 -DD=64 -DDv=64 --shape=H=2,Hkv=1,Sq=129,Sk=200"
            echo "$check stdlib/$file.attn --phase=fwd,bwd --target=$target --dtype=bf16 -DD=128 -DDv=128 --shape=H=1,Sq=70,Sk=300"
            echo "$check stdlib/$file.attn --target=$target --dtype=bf16 --shape=B=1,H=8,Hkv=2,Sq=2,Sk=700"
        done
        # Two warpgroups with half of the columns each; parts with few tiles, or none that is full.
        [ -n "$FILES" ] || echo "$check tests/run/share.attn --target=$target --dtype=bf16 -DD=576 -DDv=512 --layout=paged:16 --in=kv_len=0,300,64,20 --shape=Tq=4,H=64,Hkv=1,table=20"
        [ -n "$FILES" ] || for file in mamba2 gla gated_deltanet; do
            echo "$check stdlib/$file.attn --target=$target --dtype=bf16 --shape=H=2,S=129 --shape=H=2,S=5"
            echo "$check stdlib/$file.attn --phase=fwd,bwd --target=$target --dtype=bf16 --shape=H=2,S=129 --shape=H=2,Hk=1,S=5"
        done
        case $target$files in sm_90a*"$again"*) echo "$check $again --target=$target --dtype=bf16 -DD=128 -DDv=128 --schedule=cluster=2 $many" ;; esac
    done
done >"$work/cases"

# The sanitizer and the comparison with float64 must both pass.
cat >"$work/one" <<'ONE'
check=$1
shift
if timeout 200 $TOOL --tool $check --error-exitcode 99 $ATTNC check "$@" --device=cuda >$WORK/out.$$ 2>&1; then echo COUNT 1 0; else
    echo "FAILED (status $?): compute-sanitizer --tool $check attnc check $* --device=cuda"
    grep -E '^(=========|WRONG|OVER|attnc:)' $WORK/out.$$ | head -n 14
    echo COUNT 0 1
fi
ONE
export TOOL="$tool" ATTNC="$build/attnc" WORK="$work"
xargs -P 8 -I '{}' sh -c 'sh $WORK/one {}' <"$work/cases" >"$work/log"
grep -v '^COUNT' "$work/log"
awk '$1 == "COUNT" { passed += $2; failed += $3 } END { print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 || !passed }' "$work/log"
