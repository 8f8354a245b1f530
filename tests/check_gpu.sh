#!/bin/sh
# check_gpu.sh BUILD [DEVICE]: compares the kernels of the standard library and of tests/regress, on a GPU of this machine, with the float64 reference: odd shapes,
# all element types and head sizes, the backward where there is one, every target that the device takes. One process for each core, each with many cases. Then functions of
# f32 (check_math). Ends with `N passed, N failed`.
# Without a device it says so and runs nothing. FILES="a.attn b.attn" and TARGETS="sm_80" replace the defaults. PART=2/5 runs the second fifth of the cases; what
# comes after the cases of the command goes with the last part.
build=${1:-build}
device=${2:-cuda}
part=${PART:-1/1} last=''
[ "${part%/*}" -eq "${part#*/}" ] && last=1
case $device in
cpu) none='-' all='host' ;; # to try this script
hip*) none='there is no AMD' all='gfx90a gfx942 gfx1100' ;;
*) none='there is no NVIDIA' all='sm_80 sm_90a' ;;
esac
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Skip only if there is no device, and not if a kernel fails.
if ! "$build/attnc" run stdlib/softmax.attn --device="$device" --shape=Sq=64 >"$work/probe" 2>&1 && grep -qE "$none|target gfx[0-9a-f]+ is not supported" "$work/probe"; then
    echo "SKIPPED: no $device device on this machine, NO GPU TEST WAS RUN"
    echo "0 passed, 0 failed"
    exit 0
fi
for target in ${TARGETS:-$all}; do
    if ! "$build/attnc" run stdlib/softmax.attn --device="$device" --target="$target" --shape=Sq=64 >"$work/probe" 2>&1 && grep -q 'the artifact is for' "$work/probe"; then
        echo "SKIPPED: $target, which the device does not take"
    else
        targets="$targets $target"
    fi
done
grep -l '^attention' ${FILES:-stdlib/*.attn tests/regress/*.attn} >"$work/attentions"
grep -l '^recurrence' ${FILES:-stdlib/*.attn tests/regress/*.attn tests/run/norm_of_values.attn} >"$work/recurrences"
export ATTNC="$build/attnc" DEVICE="$device" WORK="$work"

# What has no kernels of a phase is left out. tests/refused.txt says what that is: each line a phase, a target, an element type and a file.
cat >"$work/ask" <<'ASK'
case $2 in
host) $ATTNC $4 --phase=$1 -o $WORK/$$.o >/dev/null 2>&1 ;;
*) $ATTNC $4 --phase=$1 --target=$2 --dtype=$3 --emit=asm -o $WORK/$$.s >/dev/null 2>&1 ;;
esac && echo "takes $*" || echo "refuses $*"
rm -f $WORK/$$.o $WORK/$$.s
ASK
{
    sed 's/^/fwd,bwd host f32 /' "$work/attentions"
    sed 's/^/part host f32 /' "$work/attentions"
    for target in $targets; do
        for dtype in bf16 f16 f32; do sed "s/^/fwd,bwd $target $dtype /" "$work/recurrences"; done
    done
} | xargs -P "$(nproc)" -I '{}' sh -c 'sh $WORK/ask {}; :' | sort >"$work/asked"
sed -n 's/^takes fwd,bwd host f32 //p' "$work/asked" >"$work/gradients"
sed -n 's/^takes part host f32 //p' "$work/asked" >"$work/parts"
sed -n 's/^refuses //p' "$work/asked" | sort >"$work/refused"

# Six files together, as `FILE,... OPTIONS`. A file whose first line, `// data: NAME=VALUE ...`, says numbers for scalar inputs stands alone with them.
scalars_of() {
    sed -n '1s|^// data: ||p' "$1" | tr ' ' '\n' |
        while read -r one; do grep -qE "^ *input ${one%%=*}: *[a-z0-9]+;" "$1" && echo "--in=$one"; done | xargs
}
for list in attentions gradients parts; do
    while read -r file; do
        in=$(scalars_of "$file")
        [ -z "$in" ] && echo "$file" >>"$work/six" || echo "$file $in"
    done <"$work/$list" >"$work/$list.groups"
    [ -s "$work/six" ] && xargs -n 6 <"$work/six" | tr ' ' , >>"$work/$list.groups"
    rm -f "$work/six"
done

# One per line: a list of files, how many cases a file has, and the arguments of attnc check without files.
shapes='--shape=B=1,H=2,Sq=128,Sk=128 --shape=B=2,H=4,Hkv=2,Sq=129,Sk=129 --shape=B=1,H=2,Sq=1,Sk=1000 --shape=B=1,H=1,Sq=70,Sk=17
    --shape=B=1,H=1,Sq=1,Sk=1 --shape=B=1,H=2,Sq=3,Sk=0'
groups='--shape=B=2,H=8,Hkv=1,Sq=1,Sk=3000 --shape=B=1,H=16,Hkv=2,Sq=2,Sk=700 --shape=B=1,H=24,Hkv=8,Sq=5,Sk=131'
pairs='--shape=B=1,H=2,Sq=128,Sk=128 --shape=B=2,H=4,Hkv=2,Sq=129,Sk=200 --shape=B=1,H=2,Sq=5,Sk=300 --shape=B=1,H=1,Sq=70,Sk=17 --shape=B=1,H=2,Sq=3,Sk=0'
chunks='--shape=B=1,H=2,S=64 --shape=B=2,H=3,S=129 --shape=B=1,H=2,S=1000 --shape=B=2,H=2,S=1 --shape=B=1,H=2,S=16 --shape=B=1,H=2,S=17'
packed='--in=q_start=0,1,5,5,70,100 --in=state_index=2,0,-4,9,1 --shape=Tq=104,H=2,slots=7 --shape=Tq=104,H=4,slots=5'
kinds() {
    for target in $targets; do
        for dtype in bf16 f16 f32; do
            echo attentions 6 --target="$target" --dtype=$dtype $shapes
            echo attentions 3 --target="$target" --dtype=$dtype $groups # decoding, with the heads of a group in one tile
            echo gradients 5 --phase=fwd,bwd --target="$target" --dtype=$dtype $pairs
            echo parts 3 --parts=3 --target="$target" --dtype=$dtype $groups
        done
        for d in 8 32 40 96 128 256; do echo attentions 1 --target="$target" --shape=H=2,Sq=200 -DD=$d -DDv=$d; done
        for d in 40 128 256; do echo gradients 1 --phase=fwd,bwd --target="$target" --shape=H=4,Hkv=2,Sq=200 -DD=$d -DDv=$d; done
        echo attentions 1 --target="$target" --shape=H=2,Sq=150,Sk=300 -DD=64 -DDv=96
        echo attentions 1 --target="$target" --shape=H=2,Sq=300,Sk=1300 # fewer tiles than multiprocessors: their keys are split
    done
}

# Of a recurrence of the library: inputs whose states stay small; with a second argument, whose states last longer than a segment.
inputs_of() {
    case $2$1 in
    lasting*mamba2*) echo --in dt=0.0..0.5 --in A=-0.02..0.0 && return ;;
    lasting*kda* | lasting*gated_deltanet*) echo --in log_decay=-0.01..0.0 --in beta=0.0..1.0 && return ;;
    lasting*gla* | lasting*rwkv6* | lasting*hgrn2*) echo --in log_decay=-0.01..0.0 && return ;;
    lasting*rwkv7*) echo --in log_decay=-0.01..0.0 --in a=-0.1..0.1 --in b_=-0.1..0.1 && return ;;
    esac
    case $1 in
    *gla* | *rwkv6* | *hgrn2*) echo --in log_decay=-0.5..0.0 ;;
    *kda* | *gated_deltanet*) echo --in log_decay=-0.5..0.0 --in beta=0.0..1.0 ;;
    *mlstm*) echo --in i_gate=-8.0..1.0 --in f_gate=0.0..4.0 ;;
    *mamba2*) echo --in dt=0.0..0.5 --in A=-2.0..-0.1 ;;
    *rwkv7*) echo --in log_decay=-0.5..0.0 --in a=-0.2..0.0 --in b_=0.0..0.1 ;;
    esac
}

# part FILE,... CASES ARGUMENTS: prints the failed cases and the number of good ones. If the device fails or hangs, the process says nothing about later files; then
# they run one by one.
cat >"$work/part" <<'PART'
files=$(echo $1 | tr , ' ') cases=$2 out=$WORK/out.$$
shift 2
timeout 100 $ATTNC check $files --device=$DEVICE "$@" >$out 2>&1
status=$?
if [ $status -gt 2 ] && [ "$files" != "${files#* }" ]; then
    for file in $files; do sh $WORK/part $file $cases "$@"; done
    exit
fi
good=$(grep -cE '^good( in part)?: ' $out)
all=$(($(echo $files | wc -w) * cases))
if [ $good -ne $all ]; then
    echo "FAILED ($((all - good)) of $all, status $status): attnc check $files --device=$DEVICE $*"
    grep -vE '^good( in part)?: |^ |: (note|warning): ' $out | head -n 12
fi
echo "COUNT $good $((all - good))"
PART

kinds | while read -r list cases arguments; do
    while read -r files in; do echo "$files $cases $in $arguments"; done <"$work/$list.groups"
done >"$work/todo"
while read -r file; do
    for target in $targets; do
        for dtype in bf16 f16 f32; do
            echo "$file 6 --target=$target --dtype=$dtype $(inputs_of "$file") $chunks"
            if grep -qxF "takes fwd,bwd $target $dtype $file" "$work/asked"; then
                echo "$file 6 --phase=fwd,bwd --target=$target --dtype=$dtype $(inputs_of "$file") $chunks"
                # In segments, from sequences and heads that are too few for a device.
                echo "$file 1 --phase=fwd,bwd --target=$target --dtype=$dtype $(inputs_of "$file" lasting) --shape=H=2,S=2048"
            fi
            echo "$file 2 --layout=ragged --target=$target --dtype=$dtype $(inputs_of "$file") $packed"
        done
    done
done <"$work/recurrences" >>"$work/todo"
# Ragged and paged batches of the library.
if [ -z "$FILES" ]; then
    library=$(grep '^stdlib/' "$work/attentions")
    for target in $targets; do
        tests/serving.sh all $library | sed "s/$/ --target=$target --dtype=bf16/"
        for dtype in f16 f32; do tests/serving.sh some $library | sed "s/$/ --target=$target --dtype=$dtype/"; done
    done >>"$work/todo"
fi
# Tiles that are computed again in clusters, and more of them than there are clusters.
case " $targets " in *' sm_90a '*)
    grep -E '(^|/)outgrown_shift\.attn$' "$work/attentions" |
        while read -r file; do echo "$file 1 --target=sm_90a --shape=H=60,Sq=300,Sk=700 -DD=128 -DDv=128 --schedule=cluster=2"; done >>"$work/todo" ;;
esac
awk -v k="${part%/*}" -v n="${part#*/}" 'NR % n == k % n' "$work/todo" >"$work/these" && mv "$work/these" "$work/todo"
xargs -P "$(nproc)" -I '{}' sh -c 'sh $WORK/part {}; :' <"$work/todo" | tee "$work/log" | grep -v '^COUNT'
cp "$work/log" "$work/results"
# A part that was killed has not counted.
expected=$(awk '{ n += $2 * split($1, files, ",") } END { print n + 0 }' "$work/todo")
missing=$(awk -v n="$expected" '$1 == "COUNT" { n -= $2 + $3 } END { print n }' "$work/results")
if [ "$missing" -ne 0 ]; then
    echo "FAILED: of $expected cases $missing have no result: parts of the test were killed" >>"$work/log"
    echo "COUNT 0 $missing" >>"$work/log"
fi

# A kernel that has gone, and one that has come and is still on the list.
grep -v '^#' tests/refused.txt | sort | comm -3 - "$work/refused" >"$work/changed"
known=$(sed 's/.* //' "$work/attentions" "$work/recurrences" | sort -u)
while read -r line; do
    line=$(echo $line)
    echo "$known" | grep -qxF "${line##* }" || continue
    case $line in *' host '* | *' sm_'*) ;; *) continue ;; esac # AMD has no backward of recurrences
    echo "FAILED: tests/refused.txt and what was refused differ in: $line"
    echo "COUNT 0 1"
done <"$work/changed" >>"$work/log"

# Documents, prefixes, tables of biases: inputs that say something, from tests/gpu, where PyTorch sees the GPU.
if [ "$device" = cuda ] && [ "$last" ] && [ -z "$FILES" ] && python=$(tests/tools.sh python3 torch 2>/dev/null) && "$python" -c 'import torch; assert torch.cuda.is_available()'; then
    export PYTHONPATH="python:tests/gpu" ATTNRT_LIBRARY="${ATTNRT_LIBRARY:-$build/libattnrt.so}"
    for target in $targets; do
        : >"$work/cases"
        "$python" tests/gpu/cases.py "$ATTNC" "$work/$target" "$target" && "$python" tests/gpu/check.py "$work/$target" >"$work/cases"
        [ $? -le 1 ] && grep -q ' failed$' "$work/cases" || echo "FAIL tests/gpu/check.py for $target did not come to its end" >>"$work/cases"
        sed -n "s/^FAIL/FAILED, $target, seed $(sed -n 's/^seed //p' "$work/cases"):/p" "$work/cases" >>"$work/log"
        echo "COUNT $(grep -c '^ok ' "$work/cases") $(grep -c '^FAIL' "$work/cases")" >>"$work/log"
    done
    for target in $targets; do
        timeout 300 "$python" tests/gpu/serving.py "$target" >"$work/serving" 2>&1
        grep -q ' failed$' "$work/serving" || echo 'FAIL tests/gpu/serving.py did not come to its end' >>"$work/serving"
        sed -n "s/^FAIL/FAILED, $target, serving:/p" "$work/serving" >>"$work/log"
        echo "COUNT $(grep -c '^ok ' "$work/serving") $(grep -c '^FAIL' "$work/serving")" >>"$work/log"
        timeout 300 "$python" tests/gpu/stress.py "$target" "${STRESS_SECONDS:-30}" >"$work/stress" 2>&1
        sed -n "s/^FAIL/FAILED, $target, batch/p" "$work/stress" >>"$work/log"
        sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed; .*$/COUNT \1 \2/p' "$work/stress" | grep . >>"$work/log" || echo "FAILED, $target: tests/gpu/stress.py did not come to its end
COUNT 0 1" >>"$work/log"
    done
else
    echo "SKIPPED: tests/gpu/check.py, serving.py and stress.py, which need all files, CUDA and a PyTorch that sees it"
fi
# Functions over f32: every 31st, all of them with STRIDE=1 (some minutes).
if [ "$last" ] && [ -z "$FILES" ]; then
    for target in $targets; do
        "$build/tests/check_math" "${STRIDE:-31}" --device="$device" --target="$target" >"$work/math" 2>&1
        sed -n "s/^FAILED:/FAILED, $target:/p" "$work/math" >>"$work/log"
        sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/COUNT \1 \2/p' "$work/math" >"$work/counted"
        [ -s "$work/counted" ] || echo "FAILED, $target: check_math did not come to its end" >>"$work/log"
        [ -s "$work/counted" ] || echo "COUNT 0 1" >"$work/counted"
        cat "$work/counted" >>"$work/log"
    done
fi
tail -n +$(($(wc -l <"$work/results") + 1)) "$work/log" | grep -v '^COUNT'
awk '$1 == "COUNT" { passed += $2; failed += $3 } END { print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 || !passed }' "$work/log"
