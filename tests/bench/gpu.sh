#!/bin/sh
# gpu.sh BUILD: `make bench` where there is a GPU: kernels for it beside their peers; BUILD/bench/bench.json, backward.json, serving.json, recurrences.json and bench.svg hold the figures.
build=$(realpath "$1")
probe=$("$build/attnc" run stdlib/softmax.attn --device=cuda --shape=Sq=64 2>&1) || case $probe in
    *'there is no NVIDIA'*) echo "no GPU on this machine: its part of the benchmark was left out"; exit 0 ;;
    *) echo "$probe"; exit 1 ;;
esac
python=$(tests/tools.sh python3 torch) && "$python" -c 'import torch; assert torch.cuda.is_available()' || { echo "no python3 has a torch that sees the GPU: no peers to compare with; attnc's own figures:"
    exec "$build/attnc" bench -O3 stdlib/softmax.attn stdlib/causal.attn --device=cuda --shape=B=2,H=16,Sq=8192 -DD=128; }
"$build/attnc" stdlib/softmax.attn -o "$build/bench-probe.ptx" # for the GPU of this machine
target=$(sed -n 's/^\.target \(sm_[0-9a-z]*\).*/\1/p' "$build/bench-probe.ptx")
rm -f "$build/bench-probe.ptx"
export PYTHONPATH=python ATTNRT_LIBRARY="$build/libattnrt.so"
"$python" tests/gpu/bench.py --compile "$build/attnc" "$build/bench" "$target" || exit 1
for phase in '' --backward --serving --recurrences; do
    "$python" tests/gpu/bench.py $phase $BENCH_OPTIONS "$build/bench" || exit 1
done
