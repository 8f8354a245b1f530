"""attn.Spread over the GPUs of this machine, by NCCL: results and gradients against one GPU, then rates.

    PYTHONPATH=python python3 tests/gpu/ranks.py

Prints a line for each case, then `N passed, N failed`. A rate is that of all ranks; "of one" is the share of a GPU's own rate that each reaches, where
one GPU does the whole sequence alone (calls one after the other, medians)."""

import datetime
import os
import statistics
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import attn

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def library(name):
    return os.path.join(ROOT, "stdlib", name + ".attn")


def drawn(device, *shapes):
    r = torch.Generator(device).manual_seed(1)
    return [torch.randn(*s, generator=r, device=device, dtype=torch.float32) for s in shapes]


def step(module, tensors, do, inputs, **spread):
    found = module(*tensors, **inputs, **spread)
    return found, torch.autograd.grad(found, tensors, do)


def compare(device, source, inputs, S, D, order, method, dtype, bound):
    """The largest relative error of o, dq, dk, dv, beside one GPU in float32."""
    q, k, v, do = drawn(device, (2, 8, S, D), (2, 2, S, D), (2, 2, S, D), (2, 8, S, D))
    module = attn.Attention(source)
    leaves = [x.clone().requires_grad_() for x in (q.to(dtype).float(), k.to(dtype).float(), v.to(dtype).float())]
    o, gradients = step(module, leaves, do.to(dtype).float(), inputs)
    sp = attn.Spread(None, S, order)
    own = [sp.shard(x.to(dtype), 2).requires_grad_() for x in (q, k, v)]
    found, own_gradients = step(module, own, sp.shard(do.to(dtype), 2), inputs, spread=sp, method=method)
    worst = 0.0
    for x, wanted in zip((found, *own_gradients), (o, *gradients)):
        worst = max(worst, float((sp.unshard(x.detach(), 2).double() - wanted.double()).norm() / wanted.double().norm()))
    name = os.path.basename(source)
    good = worst < bound
    return f"{'ok  ' if good else 'FAIL'} {name} {dtype} S {S} D {D} {order} {method}: relative error {worst:.1e}, bound {bound:.1e}", good


def median_ms(run, times=7):
    """Of the slowest rank."""
    run()
    run()
    taken = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor(begin.elapsed_time(end), device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        taken.append(float(slowest))
    return statistics.median(taken)


def rate(device, rank, ranks, source, S, order, method):
    q, k, v = (x.to(torch.bfloat16) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128)))
    module = attn.Attention(source, defines={"D": 128, "Dv": 128})
    sp = attn.Spread(None, S, order)
    own, how = [sp.shard(x, 2) for x in (q, k, v)], {"spread": sp, "method": method}

    def backward(tensors, **spread):
        leaves = [x.detach().requires_grad_() for x in tensors]
        o = module(*leaves, **spread)
        do = torch.randn_like(o)
        return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)

    with torch.no_grad():
        alone, spread = median_ms(lambda: module(q, k, v)), median_ms(lambda: module(*own, **how))
    line = f"{os.path.basename(source)} S {S} {order} {method}: forward {alone:.2f} ms alone, {spread:.2f} over {ranks}: {alone / spread / ranks:.3f} of one"
    alone, spread = median_ms(backward((q, k, v))), median_ms(backward(own, **how))
    return line + f"; backward {alone:.2f}, {spread:.2f}: {alone / spread / ranks:.3f} of one"


def process(rank, ranks, store, told):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    failed = passed = 0
    cases = [("causal", {}), ("softmax", {}), ("sliding_window", {}), ("alibi", {}), ("softcap", {}), ("attention_sink", {"sink": torch.zeros(8, device=device)})]
    for order, method in (("contiguous", "keys"), ("zigzag", "keys"), ("zigzag", "heads")):
        for name, inputs in cases:
            if name == "alibi" and method == "heads":  # which reads h
                continue
            for dtype, bound in ((torch.float32, 2e-5), (torch.bfloat16, 1.2e-2)):
                line, good = compare(device, library(name), inputs, 1000, 64, order, method, dtype, bound)
                passed, failed = passed + good, failed + (not good)
                if rank == 0:
                    print(line, flush=True)
    rates = ("causal", 65536, "zigzag"), ("causal", 65536, "contiguous"), ("softmax", 32768, "contiguous"), ("sliding_window", 65536, "contiguous")
    for (source, S, order), method in [(case, method) for case in rates for method in ("keys", "heads")]:
        line = rate(device, rank, ranks, library(source), S, order, method)
        if rank == 0:
            print(line, flush=True)
    if rank == 0:
        told.put((passed, failed))
    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.cuda.device_count()
    if not count:
        print("SKIPPED: PyTorch sees no GPU\n0 passed, 0 failed")
        sys.exit(0)
    told = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, (count, os.path.join(folder, "store"), told), nprocs=count)
    passed, failed = told.get()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)
