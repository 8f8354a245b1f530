#!/bin/sh
# cli.sh ATTNC: tests the command from outside: verbs, exit statuses, which files are written and which are not touched.
attnc=$(realpath "$1")
top=$(pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
export ATTNC_CACHE="$dir/cache" # not what the user has tuned
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() {
    echo "FAILED: $*"
    sed 's/^/    /' err | head -n 5
    failed=$((failed + 1))
}
# gives STATUS ARGUMENTS...: the exit status of attnc ARGUMENTS; stdout and stderr are left in out and err.
gives() {
    want=$1
    shift
    "$attnc" "$@" >out 2>err
    is=$?
    if [ $is -eq "$want" ]; then ok; else bad "attnc $*: status $is, expected $want"; fi
}
says() { if grep -qF -- "$2" "$1"; then ok; else bad "$1 lacks '$2' after the last command"; fi; }
holds() { if eval "$1"; then ok; else bad "$1"; fi; }

cat >relu_attn.attn <<'ATTN'
attention relu_attn {
    dim D = 64, Dv = D;
    score(q, k)                    = dot(q, k) / sqrt(D);
    modify(s, b, h, q_idx, kv_idx) = max(s, 0);
    normalize(s)                   = s;
}
ATTN
cat >two.attn <<'ATTN'
import std.normalization;
const CAP = 5;
attention soft { dim D = 16; input cap: f32; score(q, k) = dot(q, k) / cap; normalize(s) = softmax(s); }
attention plain { dim D = 16; input t: f32[N]; input flag: bool; score(q, k) = dot(q, k) * CAP; normalize(s) = flag ? s : s * t[0]; }
ATTN
echo 'attention broken { dim D = 16; score(q, k) = dot(q, j); normalize(s) = s; }' >broken.attn
cat >decay.attn <<'ATTN'
recurrence decay { dim D = 8, Dv = 4; decay(b, h, t) = 0.9; }
ATTN

# ---- compiling
gives 0 -O3 relu_attn.attn -o relu.ptx
says relu.ptx '.target sm_'
gives 0 relu_attn.attn -o relu.o
says relu.h 'relu_open'
gives 0 relu_attn.attn --phase=fwd,bwd -o both.o
says both.h 'with both.o, which holds relu_attn. Link'
gives 0 relu_attn.attn -o relu.s
gives 0 relu_attn.attn -o relu.ll
says relu.ll 'define'
gives 0 relu_attn.attn --target=sm_80 -o relu80.s
says relu80.s '.target sm_80'
gives 0 relu_attn.attn --target=sm_90a -o relu90.ptx
says relu90.ptx '.target sm_90a'
# 40 steps of i32 along a loop's variable: LLVM took 8 s for them
[ -n "$SANITIZED" ] || holds '(ulimit -t 4; "$attnc" "$top/tests/regress/shared_chains.attn" -o chains.o) 2>err'
# a sum of many terms: each part of it was looked at anew, 14 s for a tenth of this
awk 'BEGIN { printf "attention long { dim D = 4; score(q, k) = dot(q, k); modify(s) = s"; for (i = 0; i < 20000; i++) printf " + s * %d.5", i; print "; normalize(s) = s; }" }' >long.attn
[ -n "$SANITIZED" ] || holds '(ulimit -t 8; "$attnc" long.attn --emit=row) >out 2>err'
# ---- tile programs: printing what was read gives the same text; passes one at a time; lowering
for dtype in f32 bf16; do
    target=host
    [ $dtype = bf16 ] && target=sm_90a
    gives 0 relu_attn.attn --target=$target --dtype=$dtype --emit=tile -o a.tile
    gives 0 a.tile
    holds 'cmp -s out a.tile'
    gives 0 a.tile --pass=fuse
    gives 1 a.tile --pass=schedule
    says err '--pass=tile chooses'
    gives 1 a.tile --emit=asm
    says err 'not scheduled'
    gives 0 a.tile --pass=tile -o b.tile
    gives 0 b.tile --pass=classify -o c.tile
    gives 0 c.tile --pass=tidy -o d.tile
    gives 0 d.tile --pass=schedule -o e.tile
    if [ $target = sm_90a ]; then # by way of its places it is the same
        gives 0 d.tile --pass=assign -o d2.tile
        says d2.tile '@consumer 1:'
        gives 0 d2.tile --pass=schedule
        holds 'cmp -s out e.tile'
    else
        gives 1 d.tile --pass=assign
        says err "a schedule of target 'host' has no places"
    fi
    gives 1 e.tile --pass=tidy
    says err 'scheduled already'
    gives 0 e.tile --emit=schedule
    holds 'cmp -s out e.tile'
    gives 0 e.tile --emit=llvm
    says out 'define'
    gives 0 e.tile --emit=asm
    holds '[ -s out ]'
done
gives 1 "$top/tests/tile/roles.tile" --emit=asm
says err 'here are 4 rows'
lowers_not() { # lowers_not TARGET SED WHY: a schedule that somebody changed
    gives 0 relu_attn.attn --target="$1" --emit=schedule -o good.tile
    sed "$2" good.tile >changed.tile
    gives 1 changed.tile --emit=asm
    says err "$3"
}
lowers_not sm_80 's/schedule warps 4/schedule warps 3/' 'has 4 warps, the schedule has 3'
lowers_not sm_90a 's/schedule warps [0-9]*/schedule warps 1/' 'here are 1 warps and'
lowers_not gfx942 's/schedule warps 4/schedule warps 3/' 'has 4 warps, the schedule has 3'
lowers_not gfx1100 's/schedule warps 8/schedule warps 7/' 'has 8 warps, the schedule has 7'
for target in sm_80 gfx942; do # and one that says of no value which thread has it
    gives 0 relu_attn.attn --target=$target --emit=schedule -o good.tile
    sed '/^  layout/d;s/ @[a-z]*/ in fragment/g' good.tile >changed.tile
    gives 0 changed.tile -o out.tile
    gives 1 changed.tile --emit=asm
    says err 'lies in registers and has no layout'
done
lowers_not gfx942 's/axis N: Sk tile [0-9]*/axis N: Sk tile 96/' 'the digits of N in layout n are not those of 96 elements'
for target in sm_80 sm_90a gfx942; do # a loop that loads the same tiles again and again: what nobody uses is not copied
    gives 0 relu_attn.attn --target=$target --dtype=f32 --emit=tile -o la.tile
    gives 0 la.tile --pass=tile -o lb.tile
    gives 0 lb.tile --pass=classify -o lc.tile
    gives 0 lc.tile --pass=schedule -o good.tile
    awk '{ print } /= load k/ { for (i = 0; i < 11; i++) { sub(/%/, "%x"); print } }' lc.tile >ld.tile
    gives 0 ld.tile --pass=schedule -o le.tile
    holds 'cmp -s good.tile le.tile'
    # thirteen, each in a product of its own
    awk '/= load k/ { for (i = 0; i < 13; i++) { s = $0; sub(/%k[0-9]*/, "&_" i, s); print s } next }
        /= mma %q, %k/ { split($0, w, /[%:]/); for (i = 0; i < 13; i++) { s = $0; if (i < 12) sub(/%[a-z0-9_]*/, "%" w[2] "_" i, s)
            sub(/%k[0-9]*/, "&_" i (i ? ", %" w[2] "_" (i - 1) : ""), s); print s } next }
        { print }' lc.tile >ld.tile
    gives 0 ld.tile --pass=schedule -o le.tile
    holds 'test $(grep -c " copy k" le.tile) -gt 13'
    test $target = gfx942 || gives 0 le.tile --emit=asm
done
gives 0 "$top/stdlib/softmax.attn" --target=sm_90a --phase=bwd --emit=schedule -o good.tile # a warp asks once for a buffer of sums
says good.tile 'through %sumsb'
sed '/^ *drop %k1$/d; s/^\( *\)store dv.*through.*$/\1drop %k1\n&/' good.tile >changed.tile
gives 1 changed.tile --emit=asm
says err 'stores through %sumsb, as sums, follow each other'
gives 0 "$top/stdlib/softmax.attn" --target=sm_90a --phase=bwd --emit=tile -o la.tile # and a schedule makes no other
gives 0 la.tile --pass=tile -o lb.tile
gives 0 lb.tile --pass=classify -o lc.tile
sed 's/^\( *\)store dv\(.*\) = \(%[a-z0-9_]*\)$/\1%half: f32[N, E] = map [N, E] (\3) { (\3 * 0.5) }\n\1store dv\2 = %half/' lc.tile >ld.tile
gives 0 ld.tile --pass=schedule -o le.tile
holds 'grep "store dk" le.tile | grep -q "through %sumsb"'
holds 'grep -q "store dv.* = %half$" le.tile'
for target in sm_80 gfx942 gfx1100; do # all threads copy and compute, in one role, also by way of its text
    gives 0 relu_attn.attn --target=$target --emit=tile -o la.tile
    gives 0 la.tile --pass=tile -o lb.tile
    gives 0 lb.tile --pass=classify -o lc.tile
    gives 0 lc.tile --pass=schedule -o ld.tile
    gives 0 lc.tile --pass=assign -o le.tile
    says le.tile '@all 1:'
    says le.tile 'role all'
    gives 0 le.tile --pass=schedule
    holds 'cmp -s out ld.tile'
    holds '! grep -q "@all" ld.tile'
done
# a section says nothing of roles
gives 0 relu_attn.attn --target=sm_90a --dtype=f32 --emit=tile -o la.tile
gives 0 la.tile --pass=tile -o lb.tile
sed 's/\(schedule .*min_blocks [0-9]*\) knobs/\1 section 512 knobs/' lb.tile >lc.tile
gives 0 lc.tile --pass=classify -o ld.tile
gives 0 ld.tile --pass=schedule -o le.tile
holds 'grep -q "section 512" le.tile'
holds '! grep -q "role consumer" le.tile'
gives 2 a.tile --pass=nothing
gives 2 a.tile --emit=ast
gives 2 a.tile -o x.ptx
gives 2 a.tile --target=host
gives 2 relu_attn.attn --pass=tidy --emit=tile
gives 3 none.tile
echo 'program p' >bad.tile
gives 1 bad.tile
for form in ast row tile schedule llvm asm; do
    gives 0 relu_attn.attn --emit=$form
    holds '[ -s out ]'
    cp out first
    gives 0 relu_attn.attn --emit=$form
    holds 'cmp -s out first'
done
gives 0 relu_attn.attn --emit=tile -o relu.tile
holds '[ -s relu.tile ]'
gives 0 relu_attn.attn -DD=32 --emit=row
says out 'D=32'
gives 0 two.attn -o two.ptx
gives 0 two.attn --entry=soft -DCAP=7 -o soft.ptx

# a schedule that was printed and read again gives the same code; one that no lowering takes is refused
gives 0 relu_attn.attn --target=gfx942 --emit=asm
cp out first
gives 0 relu_attn.attn --target=gfx942 --emit=schedule
cp out amd.tile
gives 0 amd.tile --emit=asm
holds 'cmp -s out first'
sed 's/ matrix_rows [0-9]*//; s/ wide$//' amd.tile > lacks.tile
gives 1 lacks.tile --emit=asm
says err 'its schedule does not say how many matrix_rows an instruction has'

# ---- choices of the schedule
gives 0 relu_attn.attn --target=sm_90a --schedule=keys=64,stages=3,after=-1 --emit=schedule
says out 'keys=64,stages=3'
says out 'after=-1'
says out 'axis N: Sk tile 64'
gives 0 relu_attn.attn --target=sm_80 --schedule=rows=64,keys=64 --emit=schedule
says out 'knobs rows=64,keys=64,warps=4,blocks=2'
gives 0 a.tile --pass=tile --schedule=keys=32
says out 'knobs warpgroups=3,registers=160,producer_registers=32,keys=32'
gives 0 check relu_attn.attn --schedule=rows=32,keys=31,few_keys=7 --shape=B=1,H=2,Sq=77,Sk=90
gives 0 check relu_attn.attn --schedule=few_keys=7 --shape=B=1,H=2,Sq=1,Sk=90
gives 2 relu_attn.attn --target=sm_90a --schedule=keys -o x.ptx
says err "'keys' is not of the form NAME=INTEGER,..."
gives 2 relu_attn.attn --target=sm_90a --schedule=keys=16,keys=32 -o x.ptx
says err "'keys' stands twice"
refuses() { # refuses KNOBS TARGET WHY
    gives 1 relu_attn.attn -DD=128 --target="$2" --schedule="$1" --emit=schedule
    says err "$3"
}
refuses keys=100 sm_90a 'keys (of a tile) is 16 to 256 in steps of 16, not 100'
refuses keys=176,stages=3 sm_90a 'it needs 304128 bytes of shared memory; there are 232448'
refuses warpgroups=3,registers=240 sm_90a 'it needs 97280 registers for all threads of a block; there are 65536'
refuses warpgroups=2,registers=232,producer_registers=48 sm_90a 'it needs 65536 registers for all threads of a block; there are 64512'
refuses warpgroups=3,registers=160,producer_registers=24 sm_90a 'registers of a thread for scores, weights and accumulator; there are 160'
refuses blocks=4 sm_80 'registers of a thread for scores and accumulator; there are 128'
refuses rows=64,warps=8 sm_80 '8 warps; there are 64 rows'
refuses rows=256,keys=256 sm_80 'bytes of shared memory; there are 166912'
refuses rows=128,keys=256,warps=8,blocks=1 sm_80 'it needs 174080 bytes of shared memory; there are 166912'
refuses keys=256 gfx942 'bytes of LDS; there are 65536'
gives 1 "$top/stdlib/gla.attn" -DD=256 -DDv=256 --dtype=f32 --target=gfx942 -O0 -o gla.hsaco
says err 'gfx942 has 65536: fewer columns (D, Dv) take less'
gives 0 "$top/stdlib/gla.attn" -DD=32 -DDv=32 --dtype=f32 --target=gfx942 -O0 -o gla.hsaco

# Kernels of a recurrence that leave something for each chunk have the same chunks, or there is none.
gives 1 "$top/stdlib/gla.attn" --phase=bwd --target=sm_90a --schedule=keys=128 -o gla.ptx
says err "kernel 'gla_states' has no room for chunks of 128 positions"
chunks() { grep -c "axis T: S tile $1\$" out; }
gives 0 "$top/stdlib/gla.attn" --target=sm_90a --schedule=keys=32 --emit=schedule
holds '[ "$(chunks 32)" -gt 0 ] && [ "$(chunks 64)" -eq 0 ]'
gives 0 "$top/stdlib/retnet.attn" --phase=bwd -DD=256 -DDv=256 --dtype=f32 --target=sm_90a --emit=schedule
holds '[ "$(chunks 16)" -gt 0 ] && [ "$(chunks 32)" -eq 0 ]'
for name in gla retnet kda; do
    for keys in 48 80; do
        gives 1 "$top/stdlib/$name.attn" --phase=fwd,bwd --target=sm_80 --schedule=keys=$keys -o chunks.ptx
        says err "chunks of a recurrence are a power of two; keys is $keys"
    done
done

# Where there is room sums of dq are converted meanwhile.
gives 0 "$top/stdlib/causal.attn" -DD=128 -DDv=128 --phase=bwd --dtype=bf16 --target=sm_90a -o causal.ptx
holds 'grep -q mbarrier.test_wait causal.ptx && grep -q fence.acq_rel.gpu causal.ptx'
gives 0 "$top/stdlib/causal.attn" -DD=64 -DDv=64 --phase=bwd --dtype=bf16 --target=sm_90a -o causal.ptx
holds '! grep -q mbarrier.test_wait causal.ptx'
refuses waves=3 gfx942 'it needs powers of two of waves and keys; there are 3 and'
refuses keys=96,mt=1,matrix_rows=16 gfx942 'it needs powers of two of waves and keys; there are 8 and 96'
refuses waves=7 gfx1100 'it needs powers of two of waves and keys; there are 7 and'
refuses keys=48,matrix_rows=16,mt=1,waves=4 gfx1100 'it needs powers of two of waves and keys; there are 4 and 48'
refuses matrix_rows=32 gfx1100 "it needs instructions of 16 rows on 'gfx1100', not 32"
refuses keys=16 gfx90a 'it needs 32 keys or more for elements of 2 bytes; there are 16'
refuses matrix_rows=32,mt=2,waves=8,keys=32 gfx942 'it needs 512 rows of a tile; there are 256'
refuses rows=33 host 'rows are a multiple of the'
refuses rows=64 sm_90a "has a choice 'rows' on sm_90a; there are: warpgroups="
gives 1 relu_attn.attn --target=gfx942 --schedule=matrix_rows=32,mt=1,keys=128,waves=1 --emit=schedule
says err 'it needs 64 scores of a lane; there is room for 32'
two_stages="$top/tests/regress/exact_maximum.attn -DD=128 --target=sm_80 --emit=schedule"
gives 1 $two_stages --schedule=rows=128,keys=176,warps=8,blocks=1 # of keys: a sweep loads nothing else
says err 'it needs 178432 bytes of shared memory; there are 166912'
gives 0 $two_stages --schedule=rows=128,keys=160,warps=8,blocks=1
gives 1 relu_attn.attn -DD=256 --target=sm_80 --schedule=few_keys=256 -o few.ptx
says err 'it needs 278784 bytes of shared memory where rows are split; there are 166912'
gives 2 run relu.ptx --schedule=keys=64

# ---- tuning, and the cache that compiling looks into
tuned='tune relu_attn.attn --shape=B=1,H=1,Sq=48,Sk=80 --budget=1'
gives 0 $tuned
says out 'relu_attn, host, f32, B=1 H=1 Hkv=1 Sq=48 Sk=80'
says out '(kept)'
says out '(default)'
says err 'checked 2 of 2'
holds '[ "$(grep -c "(kept)" out)" = 1 ]'
# what is above the kept one in the table says why
holds 'awk "/schedule\$/ {on=1; next} /\(kept\)/ {exit} on && !/may be noise/ {bad=1} END {exit bad}" out'
holds '[ $(ls cache | wc -l) = 1 ]'
file=$(echo cache/*.schedules)
says "$file" 'program relu_attn host f32 D=64 Dv=64'
holds '[ "$(head -n 1 "$file")" = "attnc schedules 1" ]'
holds '[ "$(tail -n 1 "$file")" = end ]'
sed 's/^long [^ ]*/long rows=32,keys=24/' "$file" >changed
cp changed "$file"
gives 0 relu_attn.attn --dtype=f32 --emit=schedule
says out 'knobs rows=32,keys=24'
holds '[ ! -s err ]'
gives 0 check relu_attn.attn --shape=H=2,Sq=50
# On the CPU states of 16-bit recurrences go on in f32, beside their own axis, too.
for type in f16 bf16; do gives 0 check "$top/stdlib/gated_deltanet.attn" --dtype=$type --shape=B=1,H=1,S=16; done
# A gradient of 0 that comes adds nothing, also where the formula is NaN.
gives 0 check "$top/tests/regress/root_of_least.attn" --phase=fwd,bwd --shape=H=2,Sq=40,Sk=3 --in=droot=0.0..0.0
gives 0 check "$top/tests/regress/few_large_scores.attn" --phase=fwd,bwd --shape=H=2,Sq=8,Sk=64 --in q=-60.0..60.0 --in k=-60.0..60.0
for n in 1 40; do gives 0 check "$top/tests/regress/centered_scores.attn" --phase=fwd,bwd --shape=H=2,Sq=$n --in q=-60.0..60.0 --in k=-60.0..60.0 --in g=0.5..2.0; done
gives 0 check "$top/tests/regress/share_of_sink.attn" --phase=fwd,bwd --shape=H=2,Sq=40,Sk=50 --in sink=-200.0..-150.0
gives 0 check "$top/tests/regress/less_its_shift.attn" --phase=fwd,bwd --shape=H=2,Sq=200 --in q=-300.0..300.0 --in k=-300.0..300.0
gives 0 check "$top/tests/regress/some_weights.attn" --phase=fwd,bwd --shape=B=2,H=2,Sq=40,Sk=3
for one in tanh two; do gives 0 check "$top/tests/regress/softmax_by_$one.attn" --phase=fwd,bwd --shape=H=2,Sq=64; done
# What is not there is told with what is.
cat >asks.attn <<'ATTN'
const WINDOW = 8;
attention asks { dim D = 16; input slope: f32[H]; input cap: f32; score(q, k) = dot(q, k) * cap; modify(s, b, h) = s * slope[h]; mask(b, h, i, j) = i - j < WINDOW; normalize(s) = s; }
attention other { dim D = 16; score(q, k) = dot(q, k); normalize(s) = s; }
ATTN
gives 2 run asks.attn --entry=asks --in=slop=1..2
says err "--in slop: asks has no such input (did you mean 'slope'?)"
gives 2 run asks.attn --entry=asks --in=nothing=1
says err '--in nothing: asks has no such input; it has q, k, v, slope, cap'
gives 2 run asks.attn --entry=asks --in=cap=1 --out=result=o.npy
says err '--out result: asks has no such output; it has o'
gives 2 asks.attn --entry=foo -o asks.o
says err 'asks.attn holds no attention or recurrence named foo; it holds asks, other'
gives 2 asks.attn -DWW=3 -o asks.o
says err "-DWW: 'asks.attn' has no dim and no const of this name: it has WINDOW, D"
gives 0 bench --dry --target=sm_80 asks.attn --entry=asks --shape=H=2,Sq=256 # cap is not needed
says out 'Sq=256'
# A workspace gives way to a name of the source, and what a caller passes is refused as one.
for name in x out solved states adjoints sum_q starts parts; do
    echo "recurrence r { dim D = 8; input $name: f32[B, H, S] grad; key(k, b, h, t) = k * $name[b, h, t]; erase(k) = k; write(k) = -k * 0.1; output(o) = tanh(o); decay(b, h, t) = 0.9; }" >names.attn
    gives 0 check names.attn --phase=fwd,bwd --shape=H=2,S=20
done
for name in x row0 wild l_ saved0; do
    echo "import std.normalization; attention a { dim D = 8; input $name: f32[H, Sk] grad; score(q, k) = dot(q, k); modify(s, b, h, i, j) = s * $name[h, j]; normalize(s) = softmax(s); }" >names.attn
    [ $name = saved0 ] || gives 0 check names.attn --phase=fwd,bwd --shape=H=2,Sq=20
done
gives 1 names.attn --phase=fwd,bwd -o names.o
says err "input 'saved0' has the name of a tensor of the backward"
gives 0 relu_attn.attn --dtype=f32 --emit=schedule --no-cache
holds '! grep -q "knobs rows=32,keys=24" out'
gives 0 relu_attn.attn --dtype=f32 --emit=schedule --schedule=keys=36
says out 'keys=36'
holds '! grep -q "keys=24" out'
gives 0 relu_attn.attn --dtype=f32 -DD=32 --emit=schedule # another program
holds '! grep -q "knobs rows=32,keys=24" out'
ignored() { # ignored WHY: the file, as it is now
    gives 0 relu_attn.attn --dtype=f32 --emit=schedule
    says err 'warning:'
    says err "$1"
    holds '! grep -q "rows=32,keys=24" out'
}
head -c 90 changed >"$file" && ignored 'it is damaged'
sed 's/keys=24/keys=24,keys=48/' changed >"$file" && ignored 'it is damaged'
sed 's/keys=24/keys/' changed >"$file" && ignored 'it is damaged'
sed 's/^end/long rows=32,keys=24 1\nend/' changed >"$file" && ignored 'it is damaged'
sed 's/schedules 1/schedules 9/' changed >"$file" && ignored 'of another version'
sed 's/^key ./key x/' changed >"$file" && ignored 'it is of another program'
head -c 100000 /dev/zero >"$file" && ignored 'too large'
printf '\377\000\001' >"$file" && ignored 'it is none'
sed 's/rows=32/rows=33/' changed >"$file" && ignored 'the tuned schedules of relu_attn are ignored: schedule: rows are a multiple'
sed 's/rows=32/columns=32/' changed >"$file" && ignored "has a choice 'columns'"
gives 0 $tuned # replaces what is damaged
holds '! grep -q columns "$file"'
gives 0 tune relu_attn.attn --shape=B=1,H=1,Sq=1,Sk=200 --budget=2 # joins what was there
says out 'few_keys=192'
says "$file" 'long rows='
says "$file" ',few_keys='
gives 0 relu_attn.attn --dtype=f32 -O0 --emit=schedule # without rows that split: it is not looked at
holds '[ ! -s err ]'
cp "$file" whole
ATTNC_CACHE=whole/none gives 3 $tuned
says err 'cannot make the folder'
holds '! grep -q compiled err' # before anything is measured
(trap '' XFSZ && ulimit -f 0 && ATTNC_CACHE=full exec "$attnc" $tuned 2>&1) | cat >out # no room
says out 'cannot write full/'
holds '[ -d full ] && [ -z "$(ls full)" ]'
"$attnc" tune relu_attn.attn --shape=H=8,Sq=2048 --budget=9 >out 2>err &
sleep 0.3
kill $! 2>/dev/null; wait $! 2>/dev/null
holds 'cmp -s "$file" whole && [ $(ls cache | wc -l) = 1 ]' # nothing changed, nothing left behind
HOME="$dir/home" XDG_CACHE_HOME= ATTNC_CACHE= gives 0 $tuned
holds '[ -s home/.cache/attnc/"${file#cache/}" ]'
XDG_CACHE_HOME="$dir/xdg" ATTNC_CACHE= gives 0 $tuned
holds '[ -s xdg/attnc/"${file#cache/}" ]'
rm -r cache
gives 0 tune relu_attn.attn --dry --target=sm_90a --shape=H=16,Sq=8192
says out 'relu_attn, sm_90a, bf16, B=1 H=16 Hkv=16 Sq=8192 Sk=8192'
says out '1.000  warpgroups='
holds '[ $(wc -l <out) -gt 9 ]'
gives 0 tune relu_attn.attn --dry --target=sm_90a --shape=H=1,Sq=8192 # by the kernels it runs
says out ': short, in parts'
gives 0 tune relu_attn.attn --dry --target=sm_90a --shape=H=64,Sq=16384
holds 'grep -q ": long\$" out'
gives 0 tune relu_attn.attn --dry
says out '1.000  rows='
holds '[ ! -e cache ]'
gives 2 tune - --budget=1
gives 2 tune relu_attn.attn --budget=0
gives 2 tune relu.ptx
gives 2 tune relu_attn.attn --schedule=keys=16
gives 1 tune decay.attn
gives 3 tune relu_attn.attn --device=cuda:77

# ---- what is wrong
gives 1 broken.attn -o relu.ptx
says err 'broken.attn:1:'
says err 'error:'
holds 'grep -q relu_attn relu.ptx' # untouched
gives 0 decay.attn -o decay.ptx
gives 0 relu_attn.attn -o relu.hsaco
gives 0 relu_attn.attn --target=gfx1100 -o relu1100.hsaco
holds 'head -c 4 relu1100.hsaco | grep -q ELF'
path=$PATH
export ATTNC_LLVM_BIN=/nowhere
PATH=/nowhere
gives 1 relu_attn.attn --target=gfx90a -o relu90a.hsaco
PATH=$path
says err 'package lld-'
holds '[ ! -e relu90a.hsaco ]'
mkdir old
printf '#!/bin/sh\necho "LLD 14.0.6"\n' >old/ld.lld
chmod +x old/ld.lld
PATH=$dir/old
gives 1 relu_attn.attn --target=gfx90a -o relu90a.hsaco
PATH=$path
says err '; ld.lld is of LLVM 14.0.6'
unset ATTNC_LLVM_BIN
PATH=$dir/old:$path
gives 0 relu_attn.attn --target=gfx90a -o relu90a.hsaco # that of the LLVM which attnc was built with
PATH=$path
gives 0 relu_attn.attn --phase=bwd -o bwd.ptx
gives 0 relu_attn.attn --phase=fwd,bwd -o bwd.ptx
gives 0 relu_attn.attn --phase=fwd -o fwd.ptx
gives 2
gives 2 relu_attn.attn
gives 2 relu_attn.attn -o relu.xyz
gives 2 relu_attn.attn -o relu.ptx --target=host
gives 2 relu_attn.attn -o relu.ptx --nonsense
gives 2 relu_attn.attn -o relu.ptx --phase=piece,foo
says err "--phase: bad value 'piece,foo': it takes fwd, bwd, part, piece, or several: fwd,bwd"
gives 2 relu_attn.attn -o relu.ptx --target=vax
gives 2 relu_attn.attn -o relu.ptx --dtype=f8
gives 2 relu_attn.attn -o relu.ptx -O4
gives 2 relu_attn.attn -o relu.ptx -DNOPE=1
gives 2 relu_attn.attn -o relu.ptx -DD=much
for d in 12000 65536 65537 100000; do # a host's tile of them does not fit, or no tile holds them
    gives 1 run relu_attn.attn -DD=$d --shape=Sq=2,Sk=2
    says err 'head dimensions'
done
gives 1 relu_attn.attn -DD=100000 --emit=tile
says err 'D is 100000; head dimensions up to 65536 are supported'
gives 2 relu_attn.attn -o relu.ptx -DD
gives 2 relu_attn.attn --emit=paper
gives 2 two.attn --entry=none -o two.ptx
(cat two.attn && echo 'attention other { dim D = 8; input z: f32; score(q, k) = dot(q, k); normalize(s) { let x = rowmax(s); return s; } }') >warned.attn
gives 0 warned.attn --entry=soft -o soft.ptx
holds '! grep -q warning err'
gives 0 warned.attn --entry=other -o soft.ptx
holds 'test "$(grep -c warning: err)" = 2'
gives 2 run two.attn
gives 2 run relu_attn.attn -o x
gives 2 rnu relu_attn.attn
says err "did you mean 'run'?"
gives 2 frobnicate
says err 'neither a verb nor a file'
says err 'run, check, bench, tune, explain, mask, fmt, new, lsp and help'
gives 2 relu_attn.attn check
says err 'the verb comes first'
gives 2 run relu_attn.attn --dtype=f64
says err 'f32, f16, bf16'
gives 1 run relu_attn.attn --dtype=tf32
says err 'tf32 are for NVIDIA targets'
gives 0 relu_attn.attn --target=sm_80 --dtype=tf32 -o tf32.ptx
gives 2 relu_attn.attn -o relu.xyz
says err '.ptx (sm_80, sm_90a)'
gives 2 mask relu_attn.attn -o mask.png
gives 2 mask relu_attn.attn -o mask.svg --format=tex
says err 'is json, or left out'
gives 0 mask "$top/stdlib/causal.attn" --shape=Sq=300 --target=sm_80 -o needed.json --format=json
holds 'grep -q "^{\"queries\": 300, \"keys\": 300, \"tile\": \[128, " needed.json'
holds '[ "$(grep -c "^\[\[0, " needed.json)" -eq 3 ]'
gives 0 mask "$top/stdlib/softmax.attn" --shape=Sq=300 -o needed.json --format=json # a power of two of keys
holds 'grep -q "\"tile\": \[[0-9]*, 64\]" needed.json'
gives 0 mask "$top/stdlib/softmax.attn" --shape=Sq=300 --target=host -o needed.json --format=json
holds 'grep -q "\"tile\": \[[0-9]*, 48\]" needed.json'
gives 0 mask "$top/stdlib/softmax.attn" --shape=Sq=16777216,Sk=10 -o needed.json --format=json # of few keys, too
holds '[ "$(grep -c "^\[" needed.json)" -le 262144 ]'
gives 0 mask "$top/stdlib/sliding_window.attn" --target=sm_90a --shape=Sq=2000000,Sk=2000000 -o needed.json --format=json
holds 'grep -q "\"tile\": \[4096, 4096\]" needed.json'
for verb in check explain bench 'mask -o a.svg'; do
    gives 2 $verb relu.o
    says err 'is an artifact'
    holds '[ ! -s out ]'
done
head -c 2000 /bin/sh >binary.attn
gives 2 check binary.attn
printf 'attention a { \000\033[31m }' >zero.attn
gives 1 check zero.attn
says err 'is no text'
holds '[ "$(wc -l <err)" -eq 1 ]'
gives 3 missing.attn -o relu.ptx
gives 3 relu_attn.attn -o no/such/folder/relu.ptx
gives 3 . -o relu.ptx

# ---- linked: the library by its own name
cat >link.c <<'C'
#include "relu.h"
#include <stdio.h>
int main(void) {
    attn_error e = {.status = ATTN_OK};
    attn_artifact *relu;
    attn_context *c = attn_create();
    if (relu_open(c, &relu, &e)) return puts(e.message), 1;
    attn_close(relu);
    attn_destroy(c);
}
C
build=$(dirname "$attnc")
if [ -z "$SANITIZED" ] && [ -e "$build/libattnrt.so" ]; then
    holds 'cc -I"$top/runtime" link.c relu.o -L"$build" -lattnrt -lpthread -ldl -lm -o link'
    holds 'LD_LIBRARY_PATH=$build ./link'
fi

# ---- help
for verb in '' run check bench explain mask fmt new lsp help; do
    gives 0 $verb --help
    says out 'Usage: attnc'
done
gives 0 check --help
says out 'is held against the bound F'
gives 0 --version
says out 'attnc '

gives 0 help
for topic in clauses statements built-ins operators types inputs shapes masks scores functions normalizations variants habits; do
    says out "  $topic "
done
for verb in compile run check bench tune explain mask fmt new lsp help; do
    grep -q "^  $verb  *[a-z]" out && ok || bad "attnc help lacks the verb $verb"
done
for topic in $(sed -n '/^Topics/,/^Verbs/s/^  \([^ ]*\).*/\1/p' out); do
    gives 0 help "$topic"
    says out "$topic: "
    holds '[ ! -s err ] && ! grep -q " $" out && [ "$(grep -v -e "^  -" -e "^const" out | wc -L)" -le 130 ]'
done
gives 0 help masks
holds '[ "$(grep -c "^fn" "$top/stdlib/mask.attn")" -eq "$(grep -c "^  [a-z]" out)" ]'
says out 'The last `size` keys up to the query itself'
gives 0 help clauses
says out 'modify(s, b, h, q_idx, kv_idx) -> f32'
says out 'If absent: true'
gives 0 help builtins
says out 'pow(x: f32, y: f32) -> f32'
"$attnc" fmt --help >want
gives 0 help fmt
holds 'cmp -s out want'
gives 0 help mask
says out 'Usage: attnc mask'
says out 'mask(b, h, q_idx, kv_idx) -> bool'
gives 0 help softcap
says out 'stdlib/softcap.attn'
gives 0 help kv_idx
says out 'modify(s, b, h, q_idx, kv_idx): i32'
gives 0 help gelu
says out 'it is written 0.5 * x'
gives 2 help clausse
says err "did you mean 'clauses'?"
gives 2 help noramlize
says err "did you mean 'normalize'?"
gives 2 help frobnicate
says err '`attnc help` lists what there is'
gives 2 help masks clauses

# ---- new: a variant and a test (which the README runs)
mkdir begun
cd begun || exit 1
gives 0 new mine
holds '[ "$(ls)" = "$(printf "err\nmine.attn\nout\ntest_mine.py")" ] && ! grep -q my_variant mine.attn test_mine.py'
gives 0 check mine.attn --shape=B=2,H=4,Hkv=2,Sq=77
gives 0 fmt --check mine.attn
cp mine.attn kept.attn
echo 'mine = 1' >>mine.attn
gives 1 new mine
says err 'mine.attn is there already'
holds '[ "$(tail -n 1 mine.attn)" = "mine = 1" ]'
: >test_other.py
gives 1 new other
holds '[ ! -e other.attn ] && [ ! -s test_other.py ]'
for name in let 3x a-b dir/x x.attn '' "$(printf %0201d 1 | tr 0 x)"; do
    gives 2 new "$name"
    says err '`attnc new` takes a name'
done
gives 2 new
gives 2 new one two
cd "$dir" || exit 1

# ---- fmt: files in place, only where that changes them; stdin to stdout
cat >loose.attn <<'ATTN'
attention loose{dim D=4; // a
score(q,k)=dot(q,k);normalize(s)=s;}
ATTN
cat >tight.attn <<'ATTN'
attention loose {
    dim D = 4; // a
    score(q, k)  = dot(q, k);
    normalize(s) = s;
}
ATTN
mkdir sources
cp loose.attn sources/a.attn
ln -s sources/a.attn link.attn
chmod 640 sources/a.attn
gives 1 fmt --check link.attn tight.attn loose.attn
holds '[ "$(cat out)" = "$(printf "link.attn\nloose.attn")" ]'
holds 'cmp -s loose.attn sources/a.attn'
gives 0 fmt link.attn tight.attn
holds 'cmp -s tight.attn sources/a.attn && [ -L link.attn ] && [ "$(stat -c %a sources/a.attn)" = 640 ] && [ "$(ls sources)" = a.attn ]'
holds '[ ! -s out ] && [ ! -s err ]'
gives 0 fmt --check link.attn
touch -d @1 sources/a.attn
gives 0 fmt sources/a.attn
holds '[ "$(stat -c %Y sources/a.attn)" = 1 ]'
"$attnc" fmt - <loose.attn >out 2>err
holds 'cmp -s out tight.attn'
"$attnc" fmt --check - <loose.attn >out 2>err
holds '[ $? -eq 1 ] && [ "$(cat out)" = "<stdin>" ]'
"$attnc" fmt --check - <tight.attn >out 2>err
holds '[ $? -eq 0 ] && [ ! -s out ]'
sed "s/=4;/=4/" loose.attn >wrong.attn
cp wrong.attn before.attn
cp loose.attn also.attn
gives 1 fmt wrong.attn also.attn
says err "wrong.attn:1:"
holds 'cmp -s wrong.attn before.attn && cmp -s also.attn tight.attn'
gives 1 fmt --check wrong.attn
gives 3 fmt missing.attn
gives 3 fmt sources
gives 3 fmt /dev/null
gives 2 fmt
gives 2 fmt --target=host tight.attn
says err 'does not go with `attnc fmt`'
printf '\357\273\277attention loose {\r\n\tdim D = 4; // a \r\n\tscore(q, k) = dot(q, k);\r\n\tnormalize(s) = s;}' >dos.attn
gives 0 fmt dos.attn
holds 'cmp -s dos.attn tight.attn'
: >empty.attn
gives 0 fmt empty.attn
holds '[ ! -s empty.attn ]'
if [ "$(id -u)" -eq 0 ]; then
    cp loose.attn theirs.attn
    chown 12345:54321 theirs.attn
    chmod 660 theirs.attn
    gives 0 fmt theirs.attn
    holds '[ "$(stat -c "%u:%g %a" theirs.attn)" = "12345:54321 660" ]'
else
    chmod 400 sources/a.attn
    cp loose.attn kept.attn
    chmod 400 kept.attn
    gives 3 fmt kept.attn
    holds 'cmp -s kept.attn loose.attn'
fi

# ---- running
gives 0 run relu_attn.attn --seed=3 --deviation=64 --out o=o2.npy
gives 2 run relu_attn.attn --deviation=0
gives 2 check relu_attn.attn --deviation=much
gives 0 run relu_attn.attn --seed=3 --out o=o1.npy
holds '! cmp -s o1.npy o2.npy'
gives 0 check relu_attn.attn --deviation=400 --phase=bwd
gives 0 run relu_attn.attn --seed=3 --out o=o2.npy
holds 'cmp -s o1.npy o2.npy'
gives 0 run relu_attn.attn --seed=4 --out o=o3.npy
holds '! cmp -s o1.npy o3.npy'
gives 0 run relu_attn.attn --in q=o1.npy --in k=o2.npy --shape=H=1
says out '[1, 1, 256, 64]'
gives 0 run relu_attn.attn --in q=o1.npy --shape B=1,Sk=40
says err 'Sk=40'
gives 0 run relu.o --seed=3 --out o=o4.npy
mkdir tmp
TMPDIR=$PWD/tmp gives 0 run relu.o
TMPDIR=$PWD/none gives 3 run relu.o
says err /none/
holds 'cmp -s o1.npy o4.npy'
# a byte of the object anywhere, and its end
size=$(wc -c <relu.o)
for part in 0 1 2 3 4 5 6 7 8 9; do
    at=$((size * part / 10 + 18))
    byte=$(dd if=relu.o bs=1 skip=$at count=1 2>/dev/null | od -An -tu1 | tr -d ' ')
    cp relu.o damaged.o
    printf "\\$(printf %o $((byte ^ 16)))" | dd of=damaged.o bs=1 seek=$at conv=notrunc 2>/dev/null
    gives 1 run damaged.o
done
head -c $((size - 1)) relu.o >damaged.o
gives 1 run damaged.o
cc -shared relu.o -o relu.so -lm && gives 0 run relu.so
# outputs: all or none, and each into a file of its own
echo old >kept.npy
gives 3 run two.attn --entry=soft --in cap=2 --out o=kept.npy --out lse=no/such.npy
says kept.npy old
gives 2 run two.attn --entry=soft --in cap=2 --out o=kept.npy --out lse=./kept.npy
says kept.npy old
mkdir taken.h
gives 3 relu_attn.attn -o taken.o
says err 'taken.h'
holds '[ ! -e taken.o ]'
echo old >early.h
gives 3 relu_attn.attn -o no/such/early.o
mkdir early.o
gives 3 relu_attn.attn -o early.o
says early.h old
holds '! ls | grep -q "\.[A-Za-z0-9]\{6\}$"' # no temporary is left
gives 1 run relu_attn.attn --in q=o1.npy --shape=Sq=100
gives 1 run relu_attn.attn --in q=relu.ptx
gives 2 run relu_attn.attn --in z=o1.npy
gives 2 run relu_attn.attn --in q
gives 2 run relu_attn.attn --out z=z.npy
gives 2 run relu_attn.attn --shape=Z=4
says err 'relu_attn has no size Z; it has B, H, Hkv, Sq, Sk'
gives 2 run relu_attn.attn --shape=D=63
gives 0 run relu_attn.attn --shape=D=64
gives 1 run relu_attn.attn --shape=H=3,Hkv=2

# gradients
cat >sinks.attn <<'EOF'
import std.normalization;
attention sinks {
    dim D = 8, Dv = 4;
    input sink: f32[H] grad;
    input temper: f32 grad;
    input slope: f32[H];
    score(q, k) = dot(q, k) * rsqrt(D) * temper;
    normalize(s, b, h) {
        emit top = rowmax(s);
        return softmax_with_sink(s, sink[h]) + slope[h] * s;
    }
}
EOF
sinks="run sinks.attn --in temper=0.7"
gives 0 $sinks --shape=H=2,Sq=9,Sk=5 --out o=do9.npy --out top=top9.npy
gives 0 $sinks --in do=do9.npy --in dtop=top9.npy --shape=Sk=5 --out dq=dq.npy --out dv=dv.npy --out dsink=dsink.npy --out dtemper=dt.npy 
says err 'B=1 H=2 Hkv=2 Sq=9 Sk=5'
gives 0 run sinks.attn --in temper=1 --in q=dq.npy --in v=dv.npy --in slope=dsink.npy # the shapes of what they are gradients of
says out 'o [1, 2, 9, 4]'
gives 0 $sinks --in do=do9.npy --shape=Sk=5
says out 'dsink [2]'
says out 'dtemper [1]'
says out 'dk [1, 2, 5, 8]'
gives 0 $sinks --shape=Sq=3 --out dq=- # do is drawn
gives 1 $sinks --in do=top9.npy
says err 'top9.npy has 3 dimensions, and do has 4'
gives 1 $sinks --in do=do9.npy --shape=Sq=8
says err 'Sq is 9 (from do) and 8 (from --shape)'
gives 1 $sinks --in dtop=do9.npy
gives 2 $sinks --in dlse=top9.npy
says err 'sinks has no such input, and emits no lse'
gives 2 $sinks --in dq=do9.npy
says err 'the backward takes the gradients of outputs'
gives 2 $sinks --out do=x.npy
gives 2 $sinks --out dslope=x.npy
says err 'only inputs that are marked `grad` have a gradient, and slope is not'
gives 2 bench sinks.attn --in do=do9.npy
for type in f16 bf16; do # their gradients are of f32
    sed "s/sink: f32/sink: $type/; s/temper: f32/temper: $type/" sinks.attn >narrow.attn
    gives 0 check narrow.attn --in temper=0.7 --phase=bwd --shape=H=2,Sq=9,Sk=5
    says out 'dsink '
    gives 0 run narrow.attn --in temper=0.7 --shape=H=2,Sq=9,Sk=5 --out dsink=dnarrow.npy --out dtemper=dt.npy
done
for target in sm_80 sm_90a; do
    gives 0 sinks.attn --phase=fwd,bwd --target=$target -o sinks_$target.ptx
    holds "grep -q 'entry.*_gradients' sinks_$target.ptx"
done
for n in 1 2 3; do
    gives 0 run relu_attn.attn --deterministic --shape=H=2,Sq=300 --out dq=dq$n.npy --out dk=dk$n.npy --out dv=dv$n.npy
done
holds 'cmp dq1.npy dq2.npy && cmp dq1.npy dq3.npy && cmp dk1.npy dk2.npy && cmp dv1.npy dv3.npy'
gives 0 check relu_attn.attn --deterministic --phase=bwd --shape=H=2,Sq=300
cat >energy.attn <<'ATTN'
attention energy {
    dim D = 16;
    score(q, k) = dot(q, k);
    normalize(s) {
        emit total = rowsum(s * s);
        return s;
    }
}
ATTN
sed 's/= dot(q, k)/= sqrt(-1 - abs(dot(q, k)))/' energy.attn >nowhere.attn
gives 1 check nowhere.attn
says out 'NOTHING COMPARED: '
says out 'no element of o is finite in the reference'
gives 0 check energy.attn --phase=bwd --shape=Sq=9 --in do=0..0 # what is left comes from the emit
holds '! grep -q "dq 0 " out'
gives 0 check energy.attn --phase=bwd --shape=Sq=9 --in do=0..0 --in dtotal=0..0
says out 'dq 0 (largest difference 0)'
gives 0 check sinks.attn --in temper=1 --deterministic --phase=bwd
for n in 1 2 3; do
    gives 0 run sinks.attn --in temper=1 --deterministic --shape=B=3,H=2,Sq=300,Sk=70 --out dsink=ds$n.npy --out dtemper=dt$n.npy
done
holds 'cmp ds1.npy ds2.npy && cmp ds1.npy ds3.npy && cmp dt1.npy dt2.npy && cmp dt1.npy dt3.npy'
gives 0 relu_attn.attn -o forward.o
gives 1 run forward.o --out dq=dq.npy
says err 'forward.o holds no backward: compile it with --phase=fwd,bwd'
# keys in parts: states, and their combination; what has no parts says so
for target in sm_80 sm_90a; do
    gives 0 "$top/stdlib/attention_sink.attn" --phase=fwd,part --target=$target -o parts.ptx
done
gives 2 check "$top/stdlib/relu.attn" --phase=part
says err '--parts=N cuts the keys'
gives 0 "$top/stdlib/attention_sink.attn" --phase=part -o parts.o
gives 2 run parts.o
gives 0 "$top/stdlib/attention_sink.attn" --phase=part --emit=tile
says out 'program attention_sink algorithm phase part target host'
says out 'tensor rows: f32[parts, 3, B, H, Sq] rows0'
"$attnc" "$top/stdlib/attention_sink.attn" --phase=part --emit=tile | sed '/^program.* phase combine/,$d' >part.tile
gives 0 part.tile
holds 'cmp -s out part.tile'
for parts in 1 2 5; do
    gives 0 check "$top/stdlib/attention_sink.attn" --parts=$parts --shape=B=2,H=4,Hkv=2,Sq=40,Sk=77 --phase=bwd
    gives 0 check relu_attn.attn --parts=$parts --shape=H=2,Sq=3,Sk=300
done
gives 2 check relu_attn.attn --parts=0
gives 2 bench relu_attn.attn --parts=2
gives 0 relu_attn.attn --phase=part --layout=ragged -o parts.o
for target in sm_80 sm_90a; do
    gives 0 "$top/stdlib/attention_sink.attn" --phase=part,bwd --layout=ragged --target=$target -o parts.ptx
done
gives 1 relu_attn.attn --phase=part,bwd --layout=paged -o parts.o
says err 'no backward in layout paged'
gives 1 "$top/stdlib/document.attn" --phase=part --layout=paged -o parts.o
says err "'doc' is read at another row than the pair's own"
# pieces: rows of a whole, and the keys that they see
for target in sm_80 sm_90a; do
    gives 0 "$top/stdlib/document.attn" --phase=fwd,piece,bwd --target=$target -o parts.ptx
done
gives 0 "$top/tests/regress/infinite_divisor.attn" --phase=piece -o parts.o
gives 1 relu_attn.attn --phase=piece --layout=paged -o parts.o
says err 'no pieces in layout paged'
gives 2 check relu_attn.attn --phase=piece
says err '--phase=piece: these kernels are for callers'
gives 0 "$top/stdlib/document.attn" --layout=paged:16 --target=sm_90a --dtype=bf16 -o document.ptx
gives 2 check relu_attn.attn --parts=2 --layout=ragged
says err 'goes with --layout=dense'
for target in sm_80 sm_90a; do
    gives 0 "$top/stdlib/gated_deltanet.attn" --phase=part,bwd --target=$target -o parts.ptx
done
gives 1 "$top/stdlib/mamba2.attn" --phase=piece -o parts.o
says err "recurrence 'mamba2' has no pieces"
gives 1 "$top/stdlib/mamba2.attn" --phase=part --layout=ragged -o parts.o
says err "no parts of recurrences in layout ragged"
gives 1 "$top/tests/regress/infinite_divisor.attn" --phase=part -o parts.o
says err "for 'rowmin(x)' is needed before the keys are seen again"
echo 'attention tops { dim D = 8; score(q, k) = dot(q, k); normalize(s) { let m = rowmax(s); emit top = m; return exp(s - m) / rowsum(exp(s - m)); } }' >tops.attn
gives 0 tops.attn --phase=part -o parts.o
gives 1 tops.attn --phase=part,bwd -o parts.o
says err "the gradient of 'tops' has no parts: it needs a sum over all keys of a row, 'n' of"
gives 2 check "$top/stdlib/mamba2.attn" --parts=2 --shape=S=8
says err '--parts=2: cuts keys, and mamba2 is a recurrence'
gives 1 mask "$top/stdlib/mamba2.attn" -o mask.svg
says err 'mamba2 is a recurrence: it has no mask'
for target in sm_80 sm_90a; do
    gives 0 "$top/stdlib/attention_sink.attn" --phase=part,bwd --target=$target -o parts.ptx
done
echo 'attention named { dim D = 8; input rows: f32[H]; score(q, k) = dot(q, k); normalize(s) = s * rows[0]; }' >named.attn
gives 1 named.attn --phase=part -o parts.o
says err "input 'rows' has the name of a tensor or size of parts"
gives 2 relu_attn.attn -o bwd.ptx --phase=decode
gives 2 relu_attn.attn -o bwd.ptx --phase=,
gives 3 run relu_attn.attn --in q=missing.npy
gives 3 run relu_attn.attn --out o=no/such/o.npy
mkdir folder.npy
for at in no/such/o.npy folder.npy; do # before anything runs
    gives 3 run relu_attn.attn --out o=$at
    says err "cannot write $at"
    holds '[ "$(wc -l <err)" -eq 1 ]'
done
gives 3 bench relu_attn.attn --json=no/such.json
holds '[ ! -s out ]'
gives 0 run relu_attn.attn --out o=- --shape=Sq=4
ln -s made.npy link.npy
gives 0 run relu_attn.attn --out o=link.npy --shape=Sq=4
holds '[ -s made.npy ]'
gives 0 run relu_attn.attn --shape=Sq=0
says out 'no elements'
# sizes beyond the limit, and more than this machine holds, are found before anything is drawn
gives 1 run relu_attn.attn --shape=Sq=16777217,Sk=2
says err 'Sq = 16777217 (from --shape) is out of range: at most 16777216'
gives 1 mask relu_attn.attn --shape=Sk=16777217 -o a.svg
gives 1 run relu_attn.attn --shape=B=16777216,Sq=1048576
says err 'the tensors take'
says err 'this machine has'
gives 1 run relu_attn.attn --in q_offset=16777217
says err 'from -16777216 to 16777216'
# a file that cannot be read does not keep the others from their turn
gives 3 check relu_attn.attn missing.attn two.attn --entry=relu_attn --shape=Sq=40
says err 'missing.attn'
says err 'two.attn'
gives 3 check relu_attn.attn missing.attn relu_attn.attn --shape=Sq=40
holds '[ "$(grep -c "^good" out)" = 2 ]'
gives 2 run relu_attn.attn --device=abacus
gives 0 run two.attn --entry=soft --in cap=2.5 --out lse=lse.npy --out o=o.npy
holds '[ -s lse.npy ] && [ -s o.npy ]'
gives 2 run two.attn --entry=soft
gives 2 run two.attn --entry=soft --in cap=big
gives 2 run two.attn --entry=plain
gives 0 run two.attn --entry=plain --shape=N=4 --in flag=true
gives 0 run decay.attn --shape=S=20,H=2 --out o=o.npy --out state=state.npy
gives 0 run decay.attn --shape=H=2 --in state0=state.npy
gives 0 run decay.attn --shape=H=2,S=0 --in state0=state.npy --out state=same.npy
holds 'cmp -s state.npy same.npy'
gives 0 decay.attn -o decay.o
gives 0 run decay.o --shape=S=20,H=2 --out o=o2.npy --out state=state2.npy
holds 'cmp -s o.npy o2.npy && cmp -s state.npy state2.npy'
gives 1 run decay.attn --shape=H=4,Hk=3
gives 0 decay.attn --target=sm_90a -o decay.ptx
gives 0 decay.attn --target=gfx90a -o decay.hsaco
head -c 900 relu.ptx >cut.ptx
gives 1 run cut.ptx --device=cuda
sed 's/add/sub/' relu.ptx >changed.ptx
gives 1 run changed.ptx --device=cuda
gives 1 run relu.ptx --device=cpu
[ -e /dev/nvidiactl ] || gives 3 run relu_attn.attn --device=cuda
if [ ! -e /dev/kfd ]; then
    gives 3 run relu_attn.attn --device=hip
    says err 'there is no AMD'
    gives 3 check relu_attn.attn --device=hip:1 --target=gfx90a
    gives 2 check relu_attn.attn --device=hip --target=sm_80
    gives 0 relu_attn.attn -o relu.hsaco
    gives 3 run relu.hsaco --device=hip
    gives 1 run relu.hsaco --device=cpu
fi

cat >outside.attn <<'ATTN'
attention outside {
    dim D = 16;
    input t: f32[N];
    score(q, k) = dot(q, k);
    modify(s, b, h, q_idx, kv_idx) = kv_idx < LIMIT ? s + t[kv_idx] : s;
    normalize(s) = s;
}
ATTN
sed 's/LIMIT/5/' outside.attn >inside.attn
sed -i 's/LIMIT/7/' outside.attn
gives 0 run -g inside.attn --shape=N=5,Sq=8
holds '! grep -q warning err'
gives 0 run -g outside.attn --shape=N=5,Sq=8
says err "outside.attn:5:55: warning: index 0 of 't' is 5"
says err 'kv_idx = 5'
gives 0 check -g outside.attn --shape=N=5,Sq=8
says err 'warning'
gives 2 run -g relu.o
gives 2 run -O3 relu.o

# ---- the other verbs
gives 0 check relu_attn.attn --shape=B=2,H=4,Hkv=2,Sq=33,Sk=65
says out 'relative error'
gives 0 check relu_attn.attn --dtype=bf16
gives 0 check relu_attn.attn --dtype=f16 -O0
gives 0 check decay.attn --shape=B=2,H=4,Hk=1,S=77
says out 'state'
for dtype in f32 bf16 f16; do # v in k
    gives 0 check "$top/tests/run/share.attn" --dtype=$dtype --shape=B=2,H=4,Hkv=2,Sq=70,Sk=130
    gives 0 check "$top/tests/run/share.attn" --dtype=$dtype -DDv=64 --shape=Sq=1,Sk=300
done
gives 0 check "$top/tests/run/share.attn" --phase=bwd
for name in mla row_inputs; do # rows beside q and k
    for dtype in f32 bf16 f16; do gives 0 check "$top/tests/run/$name.attn" --dtype=$dtype --shape=B=2,H=4,Hkv=2,Sq=7,Sk=130; done
done
gives 0 check "$top/tests/run/row_inputs.attn" --shape=H=4,Hkv=2 --phase=bwd
gives 1 check "$top/tests/run/row_inputs.attn" --shape=H=4,Hkv=2 --parts=2
says err 'no parts in this version; q and k that hold its channels behind their own have parts'
sed 's/share v = k;//' "$top/tests/run/row_inputs.attn" >rows.attn
changes() { # changes CLAUSE SCORE: an attention with the clause
    echo "attention changes { dim D = 8; input g: f32[D, Sk]; $1 score(q, k) = $2; normalize(s) = s; output(o) = o * sqnorm(o); }" >changes.attn
    gives 1 check changes.attn
}
changes 'query(q) = q + 1;' 'dot(q, k)'
says err "what 'query' gives is a multiple of the element: products and quotients of it; what is added to it is added before the call"
changes 'key(k, b, h, j, d) = k * g[d, j];' 'dot(q, k)'
says err "a factor of 'key' that depends on position and channel together has no kernel yet: multiply before the call"
changes 'value(v) = v * sqnorm(v);' 'dot(q, k)'
says err "'value' has no sqnorm"
changes 'value(v, b, h, j, d) = v * (d + 1);' 'dot(q, k)'
says err 'sqnorm(o) of values whose channels have factors of their own'
changes 'query(q, b, h, i, d) = q * (d + 1);' 'dot(q, k) + sqnorm(q)'
says err "sqnorm in 'score' of a row whose channels have factors of their own"
gives 0 check "$top/tests/regress/far_remainder.attn" --phase=fwd,bwd --shape=H=4,Hkv=2,Sq=200 -DD=256 -DDv=256
says out 'dq NOTHING COMPARED (rounding in f32 may be' # its divisor has a reciprocal below the least normal number
gives 0 check "$top/tests/run/row_norms.attn" --dtype=bf16 --shape=B=2,H=4,Hkv=2,Sq=7,Sk=130
gives 0 check "$top/tests/regress/clauses.attn" --phase=bwd --shape=Sq=20,Sk=30
says out 'dq_gain '
gives 0 check rows.attn --phase=bwd --shape=Sq=20,Sk=30
gives 0 explain "$top/stdlib/softcap.attn"
says out "m~' = max(m~, max s~ * 72.13475)"
gives 0 explain "$top/stdlib/softcap.attn" --dtype=bf16
says out "l' = l + sum exp2(s~ * 72.13475)"
gives 0 explain "$top/tests/regress/clauses.attn"
says out 'q~ = q_gain[d] * k_gain[h * Hkv / H, d] * q'
says out 'the gradient of q_gain[d] grows by q * dq~ * k_gain[h * Hkv / H, d] by each element of the query'
gives 1 check "$top/tests/regress/norms_by_sweep.attn" --phase=bwd
says err 'it goes to the keys that attain an extremum of scores with sqnorm'
sed 's/Sq, 48\];/Sq, 48] grad;/' "$top/tests/run/row_inputs.attn" >learned_rows.attn
gives 0 check learned_rows.attn --phase=bwd --shape=H=4,Hkv=2,Sq=20,Sk=30
says out 'da '
gives 0 check learned_rows.attn --phase=bwd --deterministic --shape=H=4,Hkv=2,Sq=20,Sk=30
cat >wide_input.attn <<'END'
attention wide_input {
    dim D = 8;
    input x: f32[H, 2, 2, 2, 2, 2, 2, 2] grad;
    score(q, k) = dot(q, k);
    modify(s, b, h, i, j) = s * x[h, 0, 0, 0, 0, 0, 0, 1];
    normalize(s) = s / 8.0;
}
END
gives 0 check wide_input.attn --phase=bwd --shape=Sq=9
gives 1 check wide_input.attn --phase=bwd --shape=Sq=9 --deterministic
says err 'an input with a gradient has at most 7 dimensions'
gives 0 explain rows.attn
says out '(dot(q[0:40], k[24:64]) + dot(a, c))'
gives 1 rows.attn --dtype=f16 -o rows.ptx --target=sm_80
says err "'a' is bf16, and on sm_80 q and k are f16 here: products are of one type, so declare it f16"
sed 's/B, 1, Sk/B, 3, Sk/' "$top/tests/run/mla.attn" >heads.attn
gives 0 check heads.attn --shape=H=6,Hkv=2,Sq=5,Sk=70 # heads of k_pe that no group has alone
gives 1 check heads.attn --shape=H=4,Hkv=2,Sq=5
says err 'k_pe: 3 heads do not divide H = 4'
gives 1 check heads.attn --layout=paged --shape=B=2,H=6,Hkv=2,page=16,table=2
says err 'k_pe: 3 heads do not divide Hkv = 2'
gives 0 check decay.attn --dtype=bf16
# what f32 does not hold is not compared, and f16 holds less
echo 'recurrence grows { dim D = 8; decay(b, h, t) = 2.0; }' >grows.attn
gives 0 check grows.attn --shape=S=300
says out 'the state leaves f32, which other inputs prevent: not compared, 236 of 300 positions'
echo 'recurrence below { dim D = 8; input a: f32[B, H, S]; decay(b, h, t) = a[b, h, t]; }' >below.attn
gives 1 check below.attn --shape=S=40 --in a=-0.9..0.9
says out 'a decay is below 0 at 23 positions: what follows one is unspecified'
gives 0 check grows.attn --shape=S=300 --phase=bwd # its gradients go through such states
says out 'no gradient is compared'
gives 0 check decay.attn --shape=B=2,H=4,Hk=1,S=77 --phase=bwd
says out 'dstate0'
gives 0 run decay.attn --shape=S=9 --in do=-1..1 --out dq=dq.npy --out dstate0=dstate0.npy
gives 0 decay.attn --phase=bwd --target=sm_80 -o decay.ptx
gives 1 decay.attn --phase=bwd --target=gfx942 -o decay.hsaco
says err 'the backward of recurrences has kernels for the CPU and NVIDIA devices only'
gives 0 check grows.attn --shape=S=30 --dtype=f16
says out 'elements beyond f16'
gives 0 check relu_attn.attn "$top/stdlib/causal.attn" --shape=Sq=33 --shape=H=2,Sq=5,Sk=70
holds '[ "$(grep -c "^good: " out)" -eq 4 ]'
gives 1 check broken.attn relu_attn.attn --shape=Sq=40 # one that fails keeps no other from its turn
holds '[ "$(grep -c "^good: relu_attn" out)" -eq 1 ]'
gives 2 check relu_attn.attn --target=sm_80
says err '--target=sm_80 does not run on --device=cpu: it is for --device=cuda'
gives 2 bench relu_attn.attn --device=cuda --target=host
gives 0 check relu_attn.attn --target=host
holds '! grep -q "no pair" out'
cat >none.attn <<'ATTN'
attention none { dim D = 8; input n: i32[B]; score(q, k) = dot(q, k); mask(b, h, i, j) = j < n[b]; normalize(s) = s; }
attention never { dim D = 8; score(q, k) = dot(q, k); mask(i, j) = j < 0; normalize(s) = s; }
ATTN
gives 0 check none.attn --entry=none --shape=Sq=5
says out '; no pair took part; n: all zeros, `--in n=0..3` draws others'
gives 0 check none.attn --entry=never --shape=Sq=5
holds 'grep -q "no pair took part$" out'
gives 0 run none.attn --entry=none --shape=Sq=5
says err 'note: n: all zeros, `--in n=0..3` draws others'
# numbers for tensors: drawn, both ends included, by seed and name; or written out
cat >tables.attn <<'ATTN'
attention tables {
    dim D = 8;
    input doc: i32[B, Sk];
    input keep: bool[B, Sk];
    input length: i32[B];
    input slope: f32[H];
    score(q, k) = dot(q, k);
    mask(b, h, i, j) = keep[b, j] && j < length[b];
    normalize(s, b, h, i) {
        emit low = f32(doc[b, i - q_offset]); emit kept = rowsum(1.0); emit steep = slope[h]; emit most = rowmax(s);
        return s;
    }
}
ATTN
gives 0 check tables.attn --shape=H=2,Sq=300 --in doc=-1..3 --in keep=0.25 --in length=300 --in slope=1,-2.5 --in q=-3..3 --in k=-2..2
holds '! grep -qE "zeros|no pair" out && [ "$(cut -d: -f1 out)" = good ]'
gives 0 run tables.attn --shape=Sq=300 --in doc=-1..3 --in keep=1 --in length=200 --in slope=1 --in q=-3..3 --in k=-2..2 --out low=low.npy --out kept=kept.npy --out most=most.npy
holds '[ "$(tail -c 1200 low.npy | od -An -v -tf4 -w4 | sort -n | uniq | tr -d " \n")" = "-10123" ]'
holds '[ "$(tail -c 1200 kept.npy | od -An -v -tf4 -w4 | sort -u | tr -d " \n")" = 200 ]'
holds '! tail -c 1200 most.npy | od -An -v -tf4 -w4 | grep -q "[.]"' # sums of products of whole numbers
gives 0 run tables.attn --shape=Sq=300 --in doc=0..1 --in keep=1 --in length=200 --in slope=0.5..0.75 --out steep=steep.npy
holds 'tail -c 1200 steep.npy | od -An -v -tf4 -w4 | awk "{ if (\$1 < 0.5 || \$1 > 0.75 || \$1 == 0.5) exit 1 }"'
gives 2 run tables.attn --in doc=0.0..1.0
says err '--in doc=0.0..1.0: doc is i32 and takes whole numbers'
gives 2 run tables.attn --in slope=0..1e10
says err '--in slope=0..1e10: an end is no i32; with a point, as in 0.0..1.0, real numbers are drawn'
gives 2 run tables.attn --in doc=0 --in keep=0.4 --in length=3 --in slope=1
says err '--in doc=0: doc has 2 dimensions, and numbers are a vector'
gives 1 run tables.attn --shape=B=2 --in length=1,2,3 --in slope=1
says err 'B is 3 (from length) and 2 (from --shape)'
gives 2 run tables.attn --in length=1.5
says err '--in length=1.5: 1.5 is no i32'
for table in length doc; do
    gives 2 run tables.attn --in $table=0.4
    says err "; a probability is for bool, and '0..3' draws whole numbers"
done
cat >bytes.attn <<'ATTN'
attention bytes {
    dim D = 16;
    input n: i8;
    input open: bool;
    input t: i8[H];
    input e: e4m3;
    score(q, k) = dot(q, k) * e;
    mask(b, h, i, j) = open && i - j < n + t[h];
    normalize(s) = s;
}
ATTN
gives 0 run bytes.attn --in n=127 --in open=1 --in t=-128..127 --in e=460
gives 2 run bytes.attn --in n=300 --in open=1 --in e=1
says err '--in n=300: n is i8 and takes a whole number from -128 to 127'
gives 2 run bytes.attn --in n=1 --in open=2 --in e=1
says err '--in open=2: open is bool and takes 0 or 1'
gives 2 run bytes.attn --in n=1 --in open=1 --in e=500
says err '--in e=500: e is e4m3, which holds no number as large'
for wrong in 128 0..128; do
    gives 2 run bytes.attn --in n=1 --in open=1 --in e=1 --in t=$wrong
    says err "--in t=$wrong: 128 is no i8"
done
gives 2 run tables.attn --in doc=3..1
says err '--in doc=3..1: the range is empty'
gives 2 run tables.attn --in keep=1.5
says err 'a probability is from 0 to 1'
gives 2 run tables.attn --in keep=0..1
says err 'keep is bool and takes the probability of true, from 0 to 1'
gives 0 run tables.attn --seed=5 --in doc=0..9 --in keep=0.5 --in length=256 --in slope=1 --out low=low1.npy --out kept=kept1.npy
gives 0 run tables.attn --seed=8 --in doc=0..9 --in keep=0.5 --in length=256 --in slope=1 --out low=low2.npy --out kept=kept2.npy
holds '! cmp -s low1.npy low2.npy && ! cmp -s kept1.npy kept2.npy'
# what decides is decided in f32, and what lies within rounding is not compared
cat >decide.attn <<'ATTN'
attention multiple { dim D = 8; input y: f32; score(q, k) = dot(q, k); mask(i, j, k, l) = f32(l) % y == 0.0; normalize(s) { emit n = rowsum(1.0); return s; } }
attention steps { dim D = 8; score(q, k) = dot(q, k); normalize(s) { emit n = rowsum((floor(s * 1e6) % 2 == 0 ? 1.0 : 0.0)); return s; } }
ATTN
gives 0 check decide.attn --entry=multiple --in y=0.3 --shape=Sk=512
holds '! grep -q "not compared" out'
gives 1 check decide.attn --entry=steps --shape=Sq=5
says out 'within rounding of a dot product or function: not compared, in 5 of 5 rows; small whole numbers make dot products exact (--in q=-3..3 --in k=-3..3)'
says out 'o nothing compared, n nothing compared'
gives 0 check decide.attn --entry=steps --shape=Sq=5 --in q=-3..3 --in k=-3..3
holds '! grep -q "not compared" out'
echo 'fn soft(x) = max(x, 0) + log(1 + exp(-abs(x))); attention far { dim D = 32; score(q, k) = dot(q, k) * rsqrt(D); modify(s) = soft(s - 30); normalize(s) = s / rowsum(s); }' >far.attn
gives 1 check far.attn # every score is 0 in f32, and 0 / 0 no number
says out 'NOTHING COMPARED: '
says out 'relative error o nothing compared; bound 1e-05; the formula as written leaves f32: not compared, 256 rows'
echo 'attention n { dim D = 8; value(v, b, h, j) = v * rsqrt(sqnorm(v)); score(q, k) = dot(q, k); normalize(s) = s; }' >norms.attn
gives 1 check norms.attn
says err 'v is normalized before the call'
gives 2 check norms.attn --shap=Sq=4
says err "unknown option '--shap=Sq=4'; did you mean '--shape'?"
# what rounding alone may turn over shows nothing, and neither does what is made of numbers near the end of f32
cat >blind.attn <<'ATTN'
import std.normalization;
attention steep { dim D = 64; score(q, k) = dot(q, k) * rsqrt(D); mask(b, h, i, j) = j <= i; normalize(s) { let n = rowsum(1.0); let m = rowsum(s) / n; let v = rowsum((s - m) * (s - m)) / n; return softmax((s - m) * rsqrt(v + 1e-2)); } }
recurrence delta { dim D = 32, Dv = 32; input beta: f32[B, H, S] grad; key(k, b, h, t) = k * beta[b, h, t]; erase(k) = k; write(k, b, h, t) = -beta[b, h, t] * k; }
ATTN
gives 0 check blind.attn --entry=steep --shape=H=2,Sq=70 --phase=fwd,bwd --deviation=10000 --seed=1
says out 'good in part: steep'
says out 'dq NOTHING COMPARED (rounding in f32 may be'
gives 0 check blind.attn --entry=steep --shape=H=2,Sq=70 --phase=fwd,bwd
says out 'good: steep'
gives 0 check blind.attn --entry=delta --shape=B=2,H=4,S=70 --phase=fwd,bwd --in=k=-1.7..1.7
says out 'good in part: delta'
says out 'no gradient is compared; keys of unit length keep a state small'
gives 0 check blind.attn --entry=delta --shape=B=2,H=4,S=70 --phase=fwd,bwd # which are drawn
says out 'good: delta'
gives 0 check "$top/stdlib/rwkv7.attn" --shape=S=150
says out 'good: rwkv7'
gives 0 check decide.attn --entry=steps --shape=Sq=5 --in q=-3..3 --in k=-3..3
holds '! grep -q "not compared" out'
gives 1 check relu_attn.attn --schedule=rows=1024,keys=4096 --shape=Sq=2000
says err 'of the schedule rows=1024,keys=4096'
gives 2 run relu.o --target=host
says err 'for sources'
cat >terms.attn <<'ATTN'
attention terms { dim D = 8; score(q, k) = dot(q, k); normalize(s) = s - rowsum(s < 1 ? s : 0) * rowsum(s * s); }
ATTN
gives 0 explain terms.attn
says out ' + sum (s < 1.0 ? s : 0.0)'
says out ' + sum s * s'
gives 0 explain --format=mathml terms.attn
says out '<p class="equation"><math display="block" data-range="0:'
gives 0 explain --format=tex terms.attn
says out '\sum_j'
gives 0 explain --format=json terms.attn
says out '"variant":"terms"'
gives 2 explain --format=word terms.attn
gives 0 explain "$top/stdlib/softmax.attn"
holds '[ -s out ]'
gives 0 mask "$top/stdlib/causal.attn" --shape=Sq=300,Sk=300 -o causal.svg
says out "causal, the CPU's tiles of "
says causal.svg '</svg>'
says out 'partial'
gives 2 mask "$top/stdlib/causal.attn"
cat >heads.attn <<'ATTN'
attention heads {
    dim D = 16;
    score(q, k)               = dot(q, k);
    mask(b, h, q_idx, kv_idx) = q_idx - kv_idx < 64 * h;
    normalize(s)              = s;
}
ATTN
gives 0 mask heads.attn --shape=H=3,B=100000,Sq=200000,Sk=256 -o heads.svg # no room for q, k and v is taken
gives 0 mask heads.attn --shape=H=3,q_offset=0 -o heads.svg --at=0,2
says out 'head 2'
cp out two
gives 0 mask heads.attn --shape=H=3 -o heads.svg --at=0,1
holds '! cmp -s out two'
gives 2 mask heads.attn --shape=H=3 -o heads.svg --at=0,3
# whose tiles, what the mask does not read, and which terms tell nothing of a tile
cat >reads.attn <<'ATTN'
attention reads {
    dim D = 16;
    input cap: f32;
    input last: i32;
    score(q, k)    = dot(q, k) / cap;
    mask(b, h, i, j) = j <= last && sin(f32(i - j)) < 0.5;
    normalize(s)   = s;
}
ATTN
gives 0 mask reads.attn --in last=70 -o reads.svg
says out "the CPU's tiles"
says out 'nothing is known over a tile'
says out '    sin(f32(q_idx - kv_idx)) < 0.5'
holds '! grep -q "kv_idx <= last" out'
gives 0 mask reads.attn --in last=70 --target=sm_90a -o reads.svg
says out "sm_90a's tiles"
says reads.svg "sm_90a's tiles"
gives 2 mask reads.attn -o reads.svg
says err 'last is a scalar input'
gives 0 explain reads.attn
says out '    sin(f32(q_idx - kv_idx)) < 0.5'
gives 0 explain "$top/stdlib/natten_2d.attn"
holds '! grep -q "nothing is known" out'
gives 2 mask heads.attn --shape=H=3 -o heads.svg --at=first
"$attnc" check - <heads.attn >out 2>err
holds '[ $? -eq 0 ]'
sed 's/dot/dit/' heads.attn | "$attnc" check - >out 2>err
says err '<stdin>:3:'
# a scalar is what its type holds; NaN in v is named
cat >narrow.attn <<'ATTN'
attention narrow {
    dim D = 16;
    input g: bf16;
    input f: f16;
    score(q, k)  = dot(q, k);
    normalize(s) = s * (g - 0.10009765625) + s * (f - 0.0999755859375);
}
ATTN
gives 0 run narrow.attn --in g=0.1 --in f=0.1
says out 'from 0 to 0'
gives 2 run narrow.attn --in g=0.1 --in f=70000
gives 2 run narrow.attn --in g=1e400 --in f=1
echo 'attention nan { dim D = 16; score(q, k) = 0; normalize(s) = s; output(o, b, h, i) = i == 63 ? sqrt(-1.0) : 1; }' >nan.attn
gives 0 run nan.attn --shape=Sq=64 --out o=v.npy
gives 1 check heads.attn --in v=v.npy --shape=H=1
says err 'elements of v are not finite'
# ---- what the language page tells: functions of the library with their parameters, which tiles the host skips, small numbers, long rows
holds '[ "$(grep -hcE "^(fn|normalization) " "$top"/stdlib/mask.attn)" -ge 8 ]'
sed -nE 's/^(fn|normalization) ([a-z0-9_]+\([^)]*\)).*/\2/p' "$top/stdlib/mask.attn" "$top/stdlib/math.attn" "$top/stdlib/modify.attn" "$top/stdlib/normalization.attn" >functions
while read -r function; do holds 'grep -qF "  $function" "$top/docs/language.md"'; done <functions
cat >lengths.attn <<'ATTN'
attention entries { dim D = 8; input n: i32[B]; score(q, k) = dot(q, k); mask(b, h, i, j) = j < n[b]; normalize(s) = s; }
attention rows { dim D = 8; input n: i32[B, Sq]; score(q, k) = dot(q, k); mask(b, h, i, j) = j < n[b, i - q_offset]; normalize(s) = s; }
attention small { dim D = 8; input y: f32; score(q, k) = dot(q, k); normalize(s) { emit t = rowmax(0 * s + y * y); return s; } }
ATTN
gives 0 mask lengths.attn --entry=entries --in n=0..0 --shape=Sq=2048 -o lengths.svg
says out ' 0 partial, 0 full'
gives 0 mask lengths.attn --entry=rows --in n=0..0 --shape=Sq=2048 -o lengths.svg
says out ' 0 partial, 0 full'
gives 0 run lengths.attn --entry=small --in y=1e-20
says out 't [1, 1, 256]: mean 0, deviation 0, from 0 to 0'
gives 0 "$top/stdlib/softmax.attn" -DD=5376 -o long.o
gives 1 "$top/stdlib/softmax.attn" -DD=5632 -o long.o
says err 'bytes of scratch memory for a tile'
gives 1 bench broken.attn
holds '[ ! -s out ]'
gives 0 bench relu_attn.attn --shape=Sq=64 --shape=Sq=128 --repeat=3
says out 'Sq=128'
gives 0 bench relu_attn.attn --shape=Sq=64 --shape=Sq=128 --repeat=3 --json=bench.json
holds '[ "$(grep -c "\"variant\": \"relu_attn\", \"dtype\": \"f32\"" bench.json)" -eq 2 ]'
holds '"$("$top/tests/tools.sh" python3)" -m json.tool <bench.json >out'
gives 0 bench --dry --target=sm_90a relu_attn.attn --shape=H=8,Sq=4096
says out 'instructions in the loop over full tiles'
says out 'Sq=4096'
holds '! grep -q spills out'
gives 0 bench --dry --target=gfx942 "$top/stdlib/causal.attn"
says out ' 0 spills'
gives 2 bench --dry relu_attn.attn
gives 2 bench --dry --target=host relu_attn.attn
gives 3 bench relu_attn.attn --shape=Sq=64 --repeat=3 --json=no/such/folder/bench.json
gives 2 run relu_attn.attn --json=bench.json

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
