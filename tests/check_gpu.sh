#!/bin/sh
# check_gpu.sh BUILD [DEVICE]: the kernels of the standard library and of tests/regress on a GPU of this machine against the float64 reference, over odd shapes,
# all element types and head sizes; eight at a time. Ends with `N passed, N failed`; without a device it says so and runs nothing.
build=${1:-build}
device=${2:-cuda}
# Only where there is no device: a kernel that fails on one must not pass for that.
probe=$("$build/attnc" run stdlib/softmax.attn --device="$device" --shape=Sq=64 2>&1 >/dev/null)
if [ $? -ne 0 ] && echo "$probe" | grep -qE 'there is no NVIDIA|target gfx[0-9a-f]+ is not supported'; then
    echo "SKIPPED: no $device device on this machine, NO GPU TEST WAS RUN"
    echo "0 passed, 0 failed"
    exit 0
fi

cases() { # one per line: the arguments of attnc check
    for file in stdlib/*.attn tests/regress/*.attn; do
        grep -q '^attention' "$file" || continue
        for shape in B=1,H=2,Sq=128,Sk=128 B=2,H=4,Hkv=2,Sq=129,Sk=129 B=1,H=2,Sq=1,Sk=1000 B=1,H=1,Sq=70,Sk=17 \
            B=1,H=1,Sq=1,Sk=1 B=1,H=2,Sq=3,Sk=0; do
            for dtype in bf16 f16 f32; do echo "$file --shape=$shape --dtype=$dtype"; done
        done
        for d in 8 32 40 96 128 256; do echo "$file --shape=H=2,Sq=200 -DD=$d -DDv=$d"; done
        echo "$file --shape=H=2,Sq=150,Sk=300 -DD=64 -DDv=96"
    done
}

log=$(mktemp)
cases | xargs -P 8 -I '{}' sh -c 'if out=$('"$build"'/attnc check {} --device='"$device"' 2>&1); then echo ok; else
    echo "FAILED: attnc check {}"; echo "$out" | tail -n 4; fi' >"$log"
grep -v '^ok$' "$log"
passed=$(grep -c '^ok$' "$log")
failed=$(grep -c '^FAILED' "$log")
rm -f "$log"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
