#!/bin/sh
# check_gpu.sh BUILD: the standard library's kernels on the GPU of this machine against the float64 reference.
build=${1:-build}
passed=0 failed=0
if ! "$build/attnc" run stdlib/softmax.attn --device=cuda --shape=Sq=64 >/dev/null 2>&1; then
    status=$?
    [ "$status" -eq 3 ] && {
        echo "SKIPPED: no CUDA device on this machine, NO GPU TEST WAS RUN"
        echo "0 passed, 0 failed"
        exit 0
    }
fi
check() {
    if "$build/attnc" check "$@" --device=cuda; then passed=$((passed + 1)); else
        echo "FAILED: attnc check $* --device=cuda"
        failed=$((failed + 1))
    fi
}
for file in stdlib/*.attn; do
    grep -q '^attention' "$file" || continue
    for shape in B=1,H=2,Sq=128,Sk=128 B=2,H=4,Hkv=2,Sq=129,Sk=129 B=1,H=2,Sq=1,Sk=1000 B=1,H=1,Sq=70,Sk=17 B=1,H=1,Sq=1,Sk=1; do
        for dtype in bf16 f16 f32; do check "$file" --shape=$shape --dtype=$dtype; done
    done
    for d in 32 40 96 128 256; do check "$file" --shape=Sq=200 -DD=$d -DDv=$d; done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
