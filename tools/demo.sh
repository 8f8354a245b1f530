#!/bin/sh
# demo.sh [BUILD]: `make demo`. Installs what is missing, builds, compiles ReLU attention to PTX, makes three arrays, runs the
# variant on them on the CPU, and prints the error against the float64 reference. Everything it makes stays in BUILD/demo.
set -e
cd "$(dirname "$0")/.."
build=${1:-build}
tests/deps.sh build
${MAKE:-make} -s -j"$(nproc 2>/dev/null || echo 2)" BUILD="$build" all
mkdir -p "$build/demo"
PATH=$(realpath "$build"):$PATH
cd "$build/demo"

cat >relu_attn.attn <<'ATTN'
// relu_attn.attn: ReLU attention, no normalization
attention relu_attn {
    dim D = 64, Dv = D;
    score(q, k)                    = dot(q, k) / sqrt(D);
    modify(s, b, h, q_idx, kv_idx) = max(s, 0);
    normalize(s)                   = s;
}
ATTN

# Arrays to run on, made by the compiler itself: an `output` that looks only at its position. q and k are the sinusoidal codes of
# Vaswani et al., "Attention Is All You Need" (2017), of positions two apart; v is a wave for each column.
cat >arrays.attn <<'ATTN'
fn code(pos, d) = d % 2 == 0 ? sin(pos * pow(10000.0, -d / 64.0)) : cos(pos * pow(10000.0, (1 - d) / 64.0));
attention queries { dim D = 64; score(q, k) = 0; normalize(s) = 0; output(o, b, h, pos, d) = code(pos + 2 * h, d); }
attention keys    { dim D = 64; score(q, k) = 0; normalize(s) = 0; output(o, b, h, pos, d) = code(pos, d); }
attention values  { dim D = 64; score(q, k) = 0; normalize(s) = 0; output(o, b, h, pos, d) = sin(0.01 * pos * (d + 1)); }
ATTN

show() { # show COMMAND...: prints it, then runs it
    echo
    echo "\$ $*"
    "$@" 2>&1
}

echo
sed 's/^/    /' relu_attn.attn
show attnc -O3 relu_attn.attn -o relu.ptx
ls -l relu.ptx | awk '{ print $5 " bytes of PTX" }'
grep -m 3 -E '^\.(version|target|visible)' relu.ptx
show attnc run arrays.attn --entry=queries --shape=H=8,Sq=1000 --out o=q.npy
show attnc run arrays.attn --entry=keys --shape=H=8,Sq=1000 --out o=k.npy
show attnc run arrays.attn --entry=values --shape=H=8,Sq=1000 --out o=v.npy
show attnc run relu_attn.attn --in q=q.npy --in k=k.npy --in v=v.npy --out o=o.npy
ls -l o.npy | awk '{ print $5 " bytes in o.npy" }'
show attnc check relu_attn.attn --in q=q.npy --in k=k.npy --in v=v.npy
