#!/bin/sh
# cpu.sh ATTNC: `make bench`: a few variants on the CPU, against its own measured roofline.
exec "$1" bench -O3 stdlib/softmax.attn stdlib/causal.attn stdlib/sliding_window.attn stdlib/relu.attn stdlib/softcap.attn stdlib/retention.attn \
    --shape=B=1,H=8,Sq=1024,Sk=1024 --shape=B=1,H=8,Hkv=2,Sq=1,Sk=16384
