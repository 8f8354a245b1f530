"""attn.Spread over the GPUs of this machine, by NCCL: results and gradients against one GPU, then rates.

    PYTHONPATH=python python3 tests/gpu/ranks.py [check] [decode] [paged] [compile] [rates] [peers] [flex] [recur] [timeline]

Prints a line for each case, then `N passed, N failed`. A rate is that of all ranks; "of one" is the share of a GPU's own rate that each reaches, where
one GPU does the whole sequence alone (medians of a few calls one after the other, as layers are). "chunks" is the method keys with no room for the whole length. Beside
them PyTorch's own context parallelism, where it has what the case needs."""

import concurrent.futures
import datetime
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import attn
from attn import _torch
from attn._spread import _Message

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def library(name):
    return os.path.join(ROOT, "stdlib", name + ".attn")


def drawn(device, *shapes):
    r = torch.Generator(device).manual_seed(1)
    return [torch.randn(*s, generator=r, device=device, dtype=torch.float32) for s in shapes]


def how(order, method, S, module=None, inputs=None):
    """What a call takes to go over ranks."""
    sp = module.balance(S, **inputs) if order == "balanced" else attn.Spread(None, S, order)
    sp.buffer = 0 if method == "chunks" else None
    return {"spread": sp, "method": "heads" if method == "heads" else "keys", **({"plan": attn.Plan()} if "doc" in (inputs or {}) else {})}


def of_rank(sp, inputs):
    """Documents are spread as keys are; a rank has all of the rest."""
    return {n: sp.shard(x) if n == "doc" else x for n, x in inputs.items()}


def step(module, tensors, do, inputs, **spread):
    found = module(*tensors, **inputs, **spread)
    return found, torch.autograd.grad(found, tensors, do)


def compare(device, source, inputs, S, D, order, method, dtype, bound):
    """The largest relative error of o, dq, dk, dv, beside one GPU in float32."""
    q, k, v, do = drawn(device, (2, 8, S, D), (2, 2, S, D), (2, 2, S, D), (2, 8, S, D))
    module = attn.Attention(source)
    leaves = [x.clone().requires_grad_() for x in (q.to(dtype).float(), k.to(dtype).float(), v.to(dtype).float())]
    o, gradients = step(module, leaves, do.to(dtype).float(), inputs)
    over = how(order, method, S, module, inputs)
    sp = over["spread"]
    own, given = [sp.shard(x.to(dtype), 2).requires_grad_() for x in (q, k, v)], of_rank(sp, inputs)
    found, own_gradients = step(module, own, sp.shard(do.to(dtype), 2), given, **over)
    worst = 0.0
    for x, wanted in zip((found, *own_gradients), (o, *gradients)):
        worst = max(worst, float((sp.unshard(x.detach(), 2).double() - wanted.double()).norm() / wanted.double().norm()))
    name = os.path.basename(source)
    good = worst < bound
    return f"{'ok  ' if good else 'FAIL'} {name} {dtype} S {S} D {D} {order} {method}: relative error {worst:.1e}, bound {bound:.1e}", good


def median_ms(run, calls=1, times=3):
    """Of a call, of as many one after the other; of the slowest rank."""
    begun, warm = time.monotonic(), torch.zeros(1, device="cuda")
    while warm < 1:  # all ranks as often: clocks that have rested are slow
        run()
        torch.cuda.synchronize()
        warm.fill_(float(time.monotonic() - begun > WARM))
        dist.all_reduce(warm, dist.ReduceOp.MIN)
    taken = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor(begin.elapsed_time(end) / calls, device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        taken.append(float(slowest))
    return statistics.median(taken)


LAYERS = 8  # of a model, in a graph: ranks wait for each other once a layer, and begin together only once a graph


def in_graph_us(run):
    """Of a layer."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            run()
    return median_ms(graph.replay, 4) * 1e3 / LAYERS


def backward(call, tensors):
    leaves = [x.detach().requires_grad_() for x in tensors]
    o = call(*leaves)
    do = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)


WARM = 0.3  # s
CALLS = 6  # layers of a model, which the host is ahead of


def measured(call, tensors, calls=CALLS):
    """ms, forward and backward; bytes."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    leaves = [x.detach().requires_grad_() for x in tensors]  # as in training: what the backward wants is made
    forward = median_ms(lambda: call(*leaves), calls)
    most = torch.cuda.max_memory_allocated() - before
    return forward, median_ms(backward(call, tensors), calls), most


def rates(device, ranks, name, S, orders, inputs):
    """Lines, of each order and method."""
    tensors = [x.to(torch.bfloat16) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128))]
    module = attn.Attention(library(name), defines={"D": 128, "Dv": 128, **({"WINDOW": inputs.pop("WINDOW")} if "WINDOW" in inputs else {})})
    alone = measured(lambda *t: module(*t, **inputs), tensors)
    yield f"{name} S {S}: alone forward {alone[0]:.2f} ms, backward {alone[1]:.2f}"
    for order, methods in orders:
        for method in methods.split():
            over = how(order, method, S, module, inputs)
            sp = over["spread"]
            own, given = [sp.shard(x, 2) for x in tensors], of_rank(sp, inputs)
            f, b, most = measured(lambda *t: module(*t, **given, **over), own)
            yield (f"    {order:10} {method:6} forward {f:6.2f} ms: {alone[0] / f / ranks:.3f} of one; backward {b:6.2f}: {alone[1] / b / ranks:.3f}; "
                   f"forward's memory {most >> 20} MB")  # fmt: skip


def decoding(device, ranks, B, S):
    """A query for each head, and keys that are spread: us, of calls and in a CUDA graph, and of what the latter is made of."""
    q, k, v = (x.to(torch.bfloat16) for x in drawn(device, (B, 32, 1, 128), (B, 8, S, 128), (B, 8, S, 128)))
    defines = {"D": 128, "Dv": 128}
    module = attn.Attention(library("softmax"), defines=defines)
    rows, keys = attn.Spread(None, 1, "replicated"), attn.Spread(None, S)
    own = [keys.shard(x, 2) for x in (k, v)]
    runs = {"alone": lambda: module(q, k, v), "spread": lambda: module(q, *own, spread=rows, kv_spread=keys)}
    kernel = attn.compile(library("softmax"), defines=defines, target=_torch._target(device), dtype="bf16", phase="part")
    at = {"q_offset": S - 1, "Sk_all": S, "kv_first": keys.pieces[keys.rank][0][0]}
    at = {n: x for n, x in at.items() if n in kernel.part.sizes}
    message = _Message(keys.within, device)
    kernel.part(q, *own, **at, out=message.room)
    states = message.arrived()
    steps = {"part": lambda: kernel.part(q, *own, **at, out=lambda shapes: {n: x[keys.rank] for n, x in states.items()}), "message": message.arrived,
             "combination": lambda: kernel.combine(**states, Sk_all=S)}  # fmt: skip
    line, found = f"decoding b{B} keys {S}:", []
    with torch.no_grad():
        for name, run in runs.items():
            found.append(run())
            line += f" {name} {median_ms(run, 20) * 1e3:.0f} us, in a graph {in_graph_us(run):.0f};"
        line += " of which " + ", ".join(f"{name} {in_graph_us(run):.1f}" for name, run in steps.items())
    error = (found[0].float() - found[1].float()).norm() / found[0].float().norm()
    return f"{line}; {error:.1e} apart", bool(error < 1e-2)


PAGE = 16


def paged(device, ranks, B, S, block):
    """The same of caches in pages, whose sequences have lengths of their own."""
    rank = dist.get_rank()
    kernel = attn.compile(library("causal"), defines={"D": 128, "Dv": 128}, target=_torch._target(device), dtype="bf16", layout=f"paged:{PAGE}", phase="fwd,part")
    q, k, v = (x.to(torch.bfloat16) for x in drawn(device, (B, 32, 128), (B * S // PAGE, PAGE, 8, 128), (B * S // PAGE, PAGE, 8, 128)))
    table = torch.randperm(B * S // PAGE, generator=torch.Generator().manual_seed(1)).to(torch.int32).reshape(B, S // PAGE).to(device)
    lens = (S - torch.arange(B, dtype=torch.int32) % 64 * 7 % (S // 2)).to(torch.int32).to(device)
    pages = attn.SpreadPages(None, block)
    mine = torch.tensor([pages.owner(t * PAGE) == rank for t in range(S // PAGE)], device=device)
    own = table[:, mine].contiguous()
    own_len = pages.own(lens)
    runs = {"alone": lambda: kernel(q, k, v, page_table=table, kv_len=lens), "spread": lambda: pages(kernel, q, k, v, page_table=own, kv_len=lens, own_len=own_len)}
    line, found = f"paged decoding b{B} keys {S}, blocks of {block}:", []
    for name, run in runs.items():
        run()
        line += f" {name} {median_ms(run, 20) * 1e3:.0f} us, in a graph {in_graph_us(run):.0f};"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = pages(kernel, q, k, v, page_table=own, kv_len=lens)
    lens -= 5  # lengths may change between replays
    for _ in range(100):
        graph.replay()
    expected = runs["alone"]().float()
    error = (found.float() - expected).norm() / expected.norm()
    return f"{line} {error:.1e} apart", bool(error < 1e-2)


def compiled(device):
    """torch.compile in one graph, forward and backward, beside calls."""
    module, S = attn.Attention(library("causal")), 1000
    q, k, v, do = (x.to(torch.bfloat16) for x in drawn(device, (2, 8, S, 64), (2, 2, S, 64), (2, 2, S, 64), (2, 8, S, 64)))
    worst = 0.0
    for method in "keys", "heads":
        sp = attn.Spread(None, S, "zigzag")
        own, weigh = [sp.shard(x, 2).requires_grad_() for x in (q, k, v)], sp.shard(do, 2)
        call = torch.compile(lambda *x: module(*[y * 1 for y in x], spread=sp, method=method) + 0, fullgraph=True)  # noqa: B023
        found, expected = ((o, *torch.autograd.grad(o, own, weigh)) for o in (call(*own), module(*own, spread=sp, method=method)))
        worst = max(worst, *(float((x.float() - y.float()).norm() / y.float().norm()) for x, y in zip(found, expected)))
    return f"torch.compile: {worst:.1e} apart", worst < 1e-2


def told(name, alone, over, ranks, error):
    return (f"{name}: alone forward {alone[0]:.2f} ms, backward {alone[1]:.2f}; over {ranks} forward {over[0]:.2f}: {alone[0] / over[0] / ranks:.3f} of one, "
            f"backward {over[1]:.2f}: {alone[1] / over[1] / ranks:.3f}; forward's memory {over[2] >> 20} MB; {error:.1e} apart")  # fmt: skip


def peer(device, ranks, S, rotate, backend, causal=True):
    """PyTorch's ring, with its own balance, by either way for keys to travel."""
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention, context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(*tensors):  # the context puts its own in the place of this function
        return F.scaled_dot_product_attention(*tensors, is_causal=causal)

    q, k, v = (x.to(torch.bfloat16) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128)))
    whole = [q, *[x.repeat_interleave(4, 1) for x in (k, v)]]  # its ring takes as many heads of keys
    mesh = init_device_mesh("cuda", (ranks,))
    _attention.set_rotate_method(rotate)
    by = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    with sdpa_kernel(by):
        alone = measured(call, whole, 2)
        with torch.no_grad():
            expected = call(*whole)
        with context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 3):
            with torch.no_grad():
                found = call(*whole)
            over = measured(call, whole, 2)
    (found,) = context_parallel_unshard(mesh, [found], [2])
    error = float((found.float() - expected.float()).norm() / expected.float().norm())
    return told(f"PyTorch's {'causal' if causal else 'full'} S {S}, {backend}, {rotate}", alone, over, ranks, error)


def flex(device, ranks, name, S, inputs):
    """FlexAttention by PyTorch's context parallelism, which gathers all keys: its own balance, or none where that is as good."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention as cp
    from torch.distributed.tensor.parallel import parallelize_module
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (x.to(torch.bfloat16) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128)))
    mesh = init_device_mesh("cuda", (ranks,))
    doc = inputs.get("doc")
    masks = {"sliding_window": lambda b, h, i, j: (i >= j) & (i - j < 4096), "document": lambda b, h, i, j: (doc[b, i] == doc[b, j]) & (i >= j),
             "softcap": lambda b, h, i, j: i >= j}  # fmt: skip
    score = (lambda s, b, h, i, j: 50 * torch.tanh(s / 50)) if name == "softcap" else None
    mask = create_block_mask(masks[name], 1, None, S, S, device=device)
    compiled = torch.compile(flex_attention)

    class Module(torch.nn.Module):
        def forward(self, q, k, v, score_mod=None, block_mask=None):
            return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=True)

    whole, module = Module(), Module()
    alone = measured(lambda *t: whole(*t, score, mask), [q, k, v], 3)
    with torch.no_grad():
        expected = whole(q, k, v, score, mask)
    balancer = None
    if name == "document":
        balancer = cp._PTRRLoadBalancer(mask, ranks)
    elif name == "softcap":
        balancer = cp._HeadTailLoadBalancer(S, ranks, device)
    parallelize_module(module, mesh, cp._ContextParallel(seq_dim=2, attention_type=cp._ContextParallel.AttentionType.FLEX))
    *own, own_mask = cp._context_parallel_shard(mesh, [q, k, v, mask], [2] * 4, load_balancer=balancer)
    own = [x.contiguous() for x in own]
    over = measured(lambda *t: module(*t, score, own_mask), own, 3)
    with torch.no_grad():
        found = module(*own, score, own_mask)
    (found,) = cp.context_parallel_unshard(mesh, [found], [2], balancer)
    error = float((found.float() - expected.float()).norm() / expected.float().norm())
    return told(f"FlexAttention's {name} S {S}", alone, over, ranks, error)


def timeline(device, ranks, name, S, order, inputs):
    """Of what a layer's time is made: kernels of one kind, in us of a layer; and a trace of PyTorch's profiler in $OUT."""
    tensors = [x.to(torch.bfloat16) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128))]
    module = attn.Attention(library(name), defines={"D": 128, "Dv": 128, **({"WINDOW": inputs.pop("WINDOW")} if "WINDOW" in inputs else {})})
    over = how(order, "keys", S, module, inputs)
    own, given = [over["spread"].shard(x, 2) for x in tensors], of_rank(over["spread"], inputs)
    runs = {"forward": lambda: module(*own, **given, **over)}
    runs["backward"] = backward(lambda *t: module(*t, **given, **over), own)
    for phase, run in runs.items():
        run()
        torch.cuda.synchronize()
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(4):
                run()
            torch.cuda.synchronize()
        if os.environ.get("OUT"):
            profile.export_chrome_trace(os.path.join(os.environ["OUT"], f"{name}_{order}_{phase}_{dist.get_rank()}.json.gz"))
        found = sorted(((e.device_time_total / 4, e.key, e.count // 4) for e in profile.key_averages() if e.device_time_total), reverse=True)
        yield f"{name} {order} {phase}: " + "; ".join(f"{key[:48]} x{count} {us:.0f}" for us, key, count in found[:8])


def recurrent(device, ranks, name, S, D=128, H=16):
    """A recurrence of `ranks` times as many positions, beside one GPU that has S; and each way to pass the state beside one GPU."""
    from attn import _recur_ranks

    def operands(S, D, H):
        q, k, v, decay, beta = drawn(device, (1, H, S, D), (1, H, S, D), (1, H, S, D), (1, H, S), (1, H, S))
        k = k / k.norm(dim=-1, keepdim=True)
        return {**{n: x.to(torch.bfloat16) for n, x in (("q", q * D**-0.5), ("k", k), ("v", v))}, "log_decay": -0.1 * decay.abs(), "beta": beta.sigmoid()}

    def run(module, given, do, **spread):
        leaves = [x.clone().requires_grad_() for x in given.values()]
        o = module(**dict(zip(given, leaves)), **spread)
        return [o, *torch.autograd.grad(o, leaves, do)]

    module, few = attn.Recurrence(library(name), defines={"D": D, "Dv": D}), operands(8192, D, H)
    do = drawn(device, (1, H, 8192, D))[0].to(torch.bfloat16)
    expected, sp, maps = run(module, few, do), attn.Spread(None, 8192, "zigzag"), _recur_ranks.MAPS
    for way, _recur_ranks.MAPS in (("turns", maps), ("maps", 0)):
        found = run(module, {n: sp.shard(x, 2) for n, x in few.items()}, sp.shard(do, 2), spread=sp)
        worst = max(float((sp.unshard(x.detach(), 2).float() - y.float()).norm() / y.float().norm()) for x, y in zip(found, expected))
        yield f"{name} by {way}: relative error {worst:.1e}", worst < 3e-2
    _recur_ranks.MAPS = maps
    one, S = operands(S, D, H), S * ranks
    call = lambda *x, **spread: module(**dict(zip(one, x)), **spread)  # noqa: E731
    alone = measured(call, list(one.values()))
    whole, sp = operands(S, D, H), attn.Spread(None, S)
    own = [sp.shard(x, 2) for x in whole.values()]
    for groups in 4, 8, 16:
        _recur_ranks.GROUPS = groups
        f, b, _ = measured(lambda *x: call(*x, spread=sp), own)
        yield (f"{name} S {S}, {groups} groups: alone {S // ranks} forward {alone[0]:.2f} ms, backward {alone[1]:.2f}; over {ranks} {f:.2f}: {alone[0] / f:.3f} of one; "
               f"{b:.2f}: {alone[1] / b:.3f}"), None  # fmt: skip


def documents(device, S, of=4096):
    r = torch.Generator().manual_seed(3)
    ends = torch.sort(torch.randint(0, S, (S // of,), generator=r)).values
    return torch.searchsorted(ends, torch.arange(S), right=True).to(torch.int32)[None].to(device)


CASES = "causal", "softmax", "sliding_window", "alibi", "softcap", "attention_sink", "document"
RATES = ("causal", 65536, (("zigzag", "keys heads"),), {}), ("softmax", 32768, (("contiguous", "keys"),), {}), \
    ("sliding_window", 65536, (("contiguous", "keys heads"),), {"WINDOW": 4096}), \
    ("document", 65536, (("zigzag", "keys"), ("balanced", "keys")), {"doc": documents}), ("softcap", 32768, (("zigzag", "keys"),), {})  # fmt: skip


def compile_all(names):
    """At once, by the processors of this machine: the ranks find them in the cache."""
    wanted = [(name, {}, 64, e, p) for name in names for e in ("f32", "bf16") for p in ("fwd,bwd", "piece,bwd", "part,bwd")]
    for name, _, _, inputs in RATES:
        defines = {"D": 128, "Dv": 128, **({"WINDOW": inputs["WINDOW"]} if "WINDOW" in inputs else {})}
        wanted += [(name, defines, 128, "bf16", p) for p in ("fwd,bwd", "piece,bwd")]
    target = _torch._target(torch.device("cuda"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = [pool.submit(_torch._kernel, _torch._specify(library(n), None, d, (), (), 3, None), D, D, e, target, p) for n, d, D, e, p in wanted]
        for x in made:
            x.result()


def checks(device):
    S = 1000
    given = {"attention_sink": {"sink": torch.zeros(8, device=device)}, "document": {"doc": documents(device, S, 100).expand(2, S).contiguous()}}
    cases = [(order, method, name) for order in ("contiguous", "zigzag") for method in ("keys", "chunks") for name in CASES]
    cases += [("zigzag", "heads", name) for name in CASES if name != "alibi"]  # which reads h
    for order, method, name in [*cases, *[("balanced", method, "document") for method in ("keys", "chunks", "heads")]]:
        for dtype, bound in ((torch.float32, 2e-5), (torch.bfloat16, 1.2e-2)):
            yield compare(device, library(name), given.get(name, {}), S, 64, order, method, dtype, bound)


def all_rates(device, ranks):
    for name, S, orders, inputs in RATES:
        given = {n: x(device, S) if callable(x) else x for n, x in inputs.items()}
        yield from ((line, None) for line in rates(device, ranks, name, S, orders, given))


def attempt(what, call, *given):
    """Where PyTorch has not what the case needs."""
    try:
        return call(*given), None
    except Exception as e:  # noqa: BLE001
        return f"{what}: {type(e).__name__}: {str(e)[:300]}", None


def peers(device, ranks):
    for backend, rotate in ("flash", "allgather"), ("flash", "alltoall"), ("cudnn", "allgather"), ("cudnn", "alltoall"):
        yield attempt(f"PyTorch's, {backend}, {rotate}", peer, device, ranks, 65536, rotate, backend)
    yield attempt("PyTorch's full, cudnn", peer, device, ranks, 32768, "allgather", "cudnn", False)


def of_flex(device, ranks):
    for name, S, _, inputs in RATES[2:]:
        given = {n: x(device, S) for n, x in inputs.items() if callable(x)}
        yield attempt(f"FlexAttention's {name}", flex, device, ranks, name, S, given)


def timelines(device, ranks):
    for name, S, orders, inputs in RATES[:1] + RATES[2:4]:
        given = {n: x(device, S) if callable(x) else x for n, x in inputs.items()}
        yield from ((line, None) for line in timeline(device, ranks, name, S, orders[-1][0], given))


SECTIONS = {
    "check": lambda device, ranks: checks(device),
    "decode": lambda device, ranks: (decoding(device, ranks, B, S) for B, S in ((64, 8192), (1, 131072))),
    "paged": lambda device, ranks: (paged(device, ranks, *case) for case in ((64, 8192, 16), (1, 131072, 16), (1, 131072, 512))),
    "compile": lambda device, ranks: (compiled(device) for _ in range(1)),
    "rates": all_rates,
    "peers": peers,
    "flex": of_flex,
    "recur": lambda device, ranks: recurrent(device, ranks, "gated_deltanet", 65536),
    "timeline": timelines,
}  # fmt: skip


def process(rank, ranks, store, told, sections):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    failed = passed = 0
    for section in sections:
        for line, good in SECTIONS[section](device, ranks):
            passed, failed = passed + (good is True), failed + (good is False)
            if rank == 0:
                print(line, flush=True)
    if rank == 0:
        told.put((passed, failed))
    dist.destroy_process_group()


def main(sections):
    count = torch.cuda.device_count()
    if not count:
        print("SKIPPED: PyTorch sees no GPU\n0 passed, 0 failed")
        return 0
    if {"check", "rates", "timeline"} & set(sections):
        compile_all(CASES if "check" in sections else ())
    told = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, (count, os.path.join(folder, "store"), told, sections), nprocs=count)
    passed, failed = told.get()
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(SECTIONS)))
