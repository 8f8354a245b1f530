"""attn.Spread over the GPUs of this machine, by NCCL: results and gradients against formulas in float64, then rates.

    PYTHONPATH=python python3 tests/gpu/ranks.py [--small | --once | --compile] [SECTION[:NAME,NAME...]...]

Sections: check, packed, recur, rates, decode, paged, compile, timeline, peers, ring, flex, gather; NAMEs are the variants of one. --once: each is timed once. --small: so are
short sequences, without a GPU over gloo, to see that this script runs. --compile: only fills the cache for H100, without a GPU. Prints a line for each case, then `N passed, N failed`. A rate is that of all ranks; "of one" is the share of a GPU's own rate that
each reaches, where one GPU does the whole sequence alone (medians of a few calls one after the other, as layers are). "chunks" is the method keys with no room for the
whole length, "narrow" is keys whose gradients travel in bf16. Beside them PyTorch's own context parallelism, where it has what the case needs."""

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

SMALL = "--small" in sys.argv
ONCE = SMALL or "--once" in sys.argv
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def library(name):
    return os.path.join(ROOT, "stdlib", name + ".attn")


def drawn(device, *shapes):
    r = torch.Generator(device).manual_seed(1)
    return [torch.randn(*s, generator=r, device=device, dtype=torch.float32) for s in shapes]


def farthest(pairs):
    """The largest relative error; NaN where one is."""
    return float(torch.stack([((x.double() - y.double()).norm() / y.double().norm()).cpu() for x, y in pairs]).max())


def of_size(S):
    return 256 if SMALL else S


def elements(device):
    """Of operands: the host's kernels have one type."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def how(order, method, S, module=None, inputs=None):
    """What a call takes to go over ranks."""
    sp = module.balance(S, **inputs) if order == "balanced" else attn.Spread(None, S, order)
    sp.buffer, sp.reduce_dtype = 0 if method == "chunks" else None, torch.bfloat16 if method == "narrow" else None
    return {"spread": sp, "method": "heads" if method == "heads" else "keys", **({"plan": attn.Plan()} if "doc" in (inputs or {}) else {})}


def of_rank(sp, inputs):
    """Documents are spread as keys are; a rank has all of the rest."""
    return {n: sp.shard(x) if n == "doc" else x for n, x in inputs.items()}


NARROW, WIDE = 200, 4096  # windows, of checks and of rates


def defines(name):
    return {"WINDOW": NARROW} if name in ("sliding_window", "attention_sink") else {}


def long_defines(name):
    return {"D": 128, "Dv": 128, **({"WINDOW": WIDE} if name == "sliding_window" else {})}


def expected(name, q, k, v, do, inputs):
    """o, dq, dk, dv, and the gradient of a sink, in float64, by the formulas of the variant in PyTorch."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)] + [x.double().requires_grad_() for n, x in inputs.items() if n == "sink"]
    (H, S, D), group = q.shape[1:], q.shape[1] // k.shape[1]
    i, j = torch.arange(S, device=q.device)[:, None], torch.arange(S, device=q.device)[None]
    s = leaves[0] @ leaves[1].repeat_interleave(group, 1).transpose(2, 3) * D**-0.5
    if name == "softcap":
        s = 50 * torch.tanh(s / 50)
    if name == "alibi":
        s = s + 2.0 ** (-8.0 * torch.arange(1, H + 1, device=q.device).double() / H)[:, None, None] * (j - i)
    if name == "softmax":
        seen = (j >= 0)[None, None]
    elif name in ("sliding_window", "attention_sink"):
        seen = ((j <= i) & (i - j < NARROW))[None, None]
    elif name == "document":
        seen = ((j <= i) & (inputs["doc"][:, :, None] == inputs["doc"][:, None]))[:, None]
    else:
        seen = (j <= i)[None, None]
    s = s.masked_fill(~seen, float("-inf"))
    if name == "attention_sink":
        s = torch.cat([s, leaves[3][None, :, None, None].expand(*s.shape[:3], 1)], 3)
    o = torch.softmax(s, 3)[..., :S] @ leaves[2].repeat_interleave(group, 1)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.double())]


def compare(device, name, inputs, S, D, order, method, dtype, bound):
    """The largest relative error of o and of the gradients."""
    q, k, v, do = (x.to(dtype) for x in drawn(device, (2, 8, S, D), (2, 2, S, D), (2, 2, S, D), (2, 8, S, D)))
    module = attn.Attention(library(name), defines=defines(name))
    wanted = expected(name, q, k, v, do, inputs)
    over = how(order, method, S, module, inputs)
    sp = over["spread"]
    own, given = [sp.shard(x, 2).requires_grad_() for x in (q, k, v)], of_rank(sp, inputs)
    own += [x.requires_grad_() for n, x in given.items() if n == "sink"]
    o = module(*own[:3], **given, **over)
    found = [o.detach(), *torch.autograd.grad(o, own, sp.shard(do, 2))]
    for x in found[4:]:  # a rank's share
        dist.all_reduce(x)
    found[:4] = [sp.unshard(x, 2) for x in found[:4]]
    errors = {n: farthest([pair]) for n, *pair in zip(("o", "dq", "dk", "dv", "dsink"), found, wanted)}
    good = all(x < bound for x in errors.values())
    told = ", ".join(f"{n} {x:.1e}" for n, x in errors.items())
    return f"{'ok  ' if good else 'FAIL'} {name} {dtype} S {S} D {D} {order} {method}: relative errors {told}, bound {bound:.1e}", good


def ended(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def taken_ms(run, calls, device):
    """Of one of `calls` calls, one after the other."""
    if device.type == "cpu":
        begun = time.monotonic()
        for _ in range(calls):
            run()
        return (time.monotonic() - begun) * 1e3 / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


def median_ms(run, calls=1, times=3):
    """Of the slowest rank."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    begun, warm = time.monotonic(), torch.zeros(1, device=device)
    while warm < 1:  # all ranks as often: clocks that have rested are slow
        run()
        ended(device)
        warm.fill_(float(ONCE or time.monotonic() - begun > WARM))
        dist.all_reduce(warm, dist.ReduceOp.MIN)
    taken = []
    for _ in range(1 if ONCE else times):
        dist.barrier()
        ended(device)
        slowest = torch.tensor(taken_ms(run, 1 if ONCE else calls, device), device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        taken.append(float(slowest))
    return statistics.median(taken)


LAYERS = 8  # of a model, in a graph: ranks wait for each other once a layer, and begin together only once a graph


def in_graph_us(run):
    """Of a layer."""
    if not torch.cuda.is_available():
        return median_ms(run) * 1e3
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
    cuda = tensors[0].is_cuda
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    leaves = [x.detach().requires_grad_() for x in tensors]  # as in training: what the backward wants is made
    forward = median_ms(lambda: call(*leaves), calls)
    most = torch.cuda.max_memory_allocated() - before if cuda else 0
    return forward, median_ms(backward(call, tensors), calls), most


def rates(device, ranks, name, S, orders, inputs):
    """Lines, of each order and method."""
    S = of_size(S)
    tensors = [x.to(elements(device)) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128))]
    module = attn.Attention(library(name), defines=long_defines(name))
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
    S, B = of_size(S), min(B, 4) if SMALL else B
    q, k, v = (x.to(elements(device)) for x in drawn(device, (B, 32, 1, 128), (B, 8, S, 128), (B, 8, S, 128)))
    defines = {"D": 128, "Dv": 128}
    module = attn.Attention(library("softmax"), defines=defines)
    rows, keys = attn.Spread(None, 1, "replicated"), attn.Spread(None, S)
    own = [keys.shard(x, 2) for x in (k, v)]
    runs = {"alone": lambda: module(q, k, v), "spread": lambda: module(q, *own, spread=rows, kv_spread=keys)}
    kernel = attn.compile(library("softmax"), defines=defines, target=_torch._target(device), dtype=elements(device), phase="part")
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
REPLAYS = 5 if ONCE else 1000


def paged(device, ranks, B, S, block):
    """The same of caches in pages, whose sequences have lengths of their own."""
    S, B = max(of_size(S), block * ranks), min(B, 4) if SMALL else B
    rank = dist.get_rank()
    kernel = attn.compile(library("causal"), defines={"D": 128, "Dv": 128}, target=_torch._target(device), dtype=elements(device), layout=f"paged:{PAGE}", phase="fwd,part")
    q, k, v = (x.to(elements(device)) for x in drawn(device, (B, 32, 128), (B * S // PAGE, PAGE, 8, 128), (B * S // PAGE, PAGE, 8, 128)))
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
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = pages(kernel, q, k, v, page_table=own, kv_len=lens)
        again = graph.replay
    else:
        found = torch.empty_like(q)
        again = lambda: pages(kernel, q, k, v, page_table=own, kv_len=lens, out=found)  # noqa: E731
    lens -= 5  # lengths may change between replays
    for _ in range(REPLAYS):
        again()
    expected = runs["alone"]().float()
    error = (found.float() - expected).norm() / expected.norm()
    return f"{line} {error:.1e} apart", bool(error < 1e-2)


def compiled(device):
    """torch.compile in one graph, forward and backward, beside calls."""
    module, S = attn.Attention(library("causal")), of_size(1000)
    q, k, v, do = (x.to(elements(device)) for x in drawn(device, (2, 8, S, 64), (2, 2, S, 64), (2, 2, S, 64), (2, 8, S, 64)))
    pairs = []
    for method in "keys", "heads":
        sp = attn.Spread(None, S, "zigzag")
        own, weigh = [sp.shard(x, 2).requires_grad_() for x in (q, k, v)], sp.shard(do, 2)
        call = torch.compile(lambda *x: module(*[y * 1 for y in x], spread=sp, method=method) + 0, fullgraph=True)  # noqa: B023
        found, expected = ((o, *torch.autograd.grad(o, own, weigh)) for o in (call(*own), module(*own, spread=sp, method=method)))
        pairs += zip(found, expected)
    worst = farthest(pairs)
    return f"torch.compile: {worst:.1e} apart", worst < 1e-2


def told(name, alone, over, ranks, error):
    return (f"{name}: alone forward {alone[0]:.2f} ms, backward {alone[1]:.2f}; over {ranks} forward {over[0]:.2f}: {alone[0] / over[0] / ranks:.3f} of one, "
            f"backward {over[1]:.2f}: {alone[1] / over[1] / ranks:.3f}; forward's memory {over[2] >> 20} MB; {error:.1e} apart")  # fmt: skip


def peer(device, ranks, S, rotate, backend, causal=True):
    """PyTorch's ring, with its own balance, by either way for keys to travel."""
    import torch.nn.functional as F
    S = of_size(S)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention, context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(*tensors):  # the context puts its own in the place of this function
        return F.scaled_dot_product_attention(*tensors, is_causal=causal)

    q, k, v = (x.to(elements(device)) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128)))
    whole = [q, *[x.repeat_interleave(4, 1) for x in (k, v)]]  # its ring takes as many heads of keys
    mesh = init_device_mesh(device.type, (ranks,))
    _attention.set_rotate_method(rotate)
    _attention._cp_options.enable_load_balance = causal
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


def ring(device, ranks, S, by):
    """As ring-flash-attention does it, by FlashAttention-3 or PyTorch's FlashAttention-2: causal, in zigzag order; keys pass from rank to rank, o is merged in f32."""
    if by == "fa3":
        import flash_attn_interface as fa

        def attend(q, k, v, causal):
            return fa._flash_attn_forward(q, k, v, softmax_scale=scale, causal=causal)[:2]

        def differentiate(do, q, k, v, o, lse, causal):
            new = [torch.empty_like(x) for x in (q, k, v)]
            fa._flash_attn_backward(do, q, k, v, o, lse, dq=new[0], dk=new[1], dv=new[2], softmax_scale=scale, is_causal=causal)
            return new
    else:
        none = torch.zeros(2, dtype=torch.uint64, device=device), torch.zeros((), dtype=torch.uint64, device=device)

        def attend(q, k, v, causal):
            return torch.ops.aten._flash_attention_forward(q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, scale=scale)[:2]

        def differentiate(do, q, k, v, o, lse, causal):
            return torch.ops.aten._flash_attention_backward(do, q, k, v, o, lse, None, None, q.shape[1], k.shape[1], 0.0, causal, *none, scale=scale)

    rank, scale = dist.get_rank(), 128**-0.5
    to, source = (rank + 1) % ranks, (rank - 1) % ranks

    def passed(xs):
        come = [torch.empty_like(x) for x in xs]
        asked = [dist.P2POp(dist.isend, x.contiguous(), to) for x in xs] + [dist.P2POp(dist.irecv, x, source) for x in come]
        return come, dist.batch_isend_irecv(asked)

    def steps(q, k, v):
        """Rows and keys that meet in each step, whether by a causal mask, and a wait for the keys after it."""
        half, works = q.shape[1] // 2, []
        for step in range(ranks):
            for w in works:
                w.wait()
            coming, works = passed([k, v]) if step + 1 < ranks else ([k, v], [])
            rows = slice(half, None) if step > rank else slice(None)
            keys = slice(0, half) if 0 < step <= rank else slice(None)
            yield step, rows, keys, k, v
            k, v = coming

    def forward(q, k, v):
        o = lse = None
        for step, rows, keys, k, v in steps(q, k, v):
            found, l = attend(q[:, rows], k[:, keys], v[:, keys], step == 0)
            l = l.transpose(1, 2)[..., None]
            if o is None:
                o, lse = found.float(), l.clone()
            else:
                o[:, rows] -= torch.sigmoid(l - lse[:, rows]) * (o[:, rows] - found)
                lse[:, rows] -= torch.nn.functional.logsigmoid(lse[:, rows] - l)
        return o.to(q.dtype), lse[..., 0].transpose(1, 2).contiguous()

    def backward(q, k, v, o, lse, do):
        dq, sums, works = torch.zeros_like(q, dtype=torch.float32), [torch.zeros_like(x, dtype=torch.float32) for x in (k, v)], []
        for step, rows, keys, k, v in steps(q, k, v):
            given = [x[:, rows].contiguous() for x in (do, q)], [x[:, keys].contiguous() for x in (k, v)], o[:, rows].contiguous(), lse[..., rows].contiguous()
            new = differentiate(*given[0], *given[1], *given[2:], step == 0)
            dq[:, rows] += new[0]
            for w in works:
                w.wait()
            for x, y in zip(sums, new[1:]):
                x[:, keys] += y
            sums, works = passed(sums)
        for w in works:
            w.wait()
        return [dq.to(q.dtype), *[x.to(q.dtype) for x in sums]]

    S = of_size(S)
    whole = [x.to(torch.bfloat16) for x in drawn(device, (1, S, 32, 128), (1, S, 8, 128), (1, S, 8, 128), (1, S, 32, 128))]
    leaves = [x.requires_grad_() for x in whole[:3]]
    with torch.no_grad():
        one = attend(*leaves, True)
        wanted = [one[0], *differentiate(whole[3], *leaves, *one, True)]
        alone = median_ms(lambda: attend(*leaves, True), 2), median_ms(lambda: differentiate(whole[3], *leaves, *one, True), 2)
    sp = attn.Spread(None, S, "zigzag")
    with torch.no_grad():
        q, k, v, do = (sp.shard(x.detach()) for x in whole)
        o, lse = forward(q, k, v)
        found = [o, *backward(q, k, v, o, lse, do)]
        error = farthest((x, sp.shard(y)) for x, y in zip(found, wanted))
        over = median_ms(lambda: forward(q, k, v), 4), median_ms(lambda: backward(q, k, v, o, lse, do), 4), 0
    return told(f"a ring of {by}, causal S {S}", alone, over, ranks, error)


class _Gathered(torch.autograd.Function):
    """k and v of all ranks, one after the other; their gradients go home by a reduction."""

    @staticmethod
    def forward(ctx, x):
        ctx.own = x.shape
        come = x.new_empty((dist.get_world_size() * len(x), *x.shape[1:]))
        dist.all_gather_into_tensor(come, x)
        return come.unflatten(0, (-1, len(x))).movedim(0, -3).flatten(-3, -2)

    @staticmethod
    def backward(ctx, d):
        home, d = d.new_empty(ctx.own), d.unflatten(-2, (-1, ctx.own[-2])).movedim(-3, 0).flatten(0, 1)
        dist.reduce_scatter_tensor(home, d)
        return home


def gathered(device, ranks, name, S, inputs):
    """FlexAttention on a rank's rows and all keys, which are gathered, as one writes it by hand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    S, doc = of_size(S), inputs["doc"][0] if inputs else None
    q, k, v = (x.to(elements(device)) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128)))
    sp = attn.Spread(None, S, "contiguous" if name in ("softmax", "sliding_window") else "zigzag")
    rows = sp.positions.to(device).long()
    keys = torch.empty(ranks * len(rows), dtype=rows.dtype, device=device)
    dist.all_gather_into_tensor(keys, rows)
    seen = {"causal": lambda i, j: i >= j, "softmax": lambda i, j: i >= 0, "sliding_window": lambda i, j: (i >= j) & (i - j < WIDE),
            "document": lambda i, j: (doc[i] == doc[j]) & (i >= j), "softcap": lambda i, j: i >= j}[name]  # fmt: skip
    score = (lambda s, b, h, i, j: 50 * torch.tanh(s / 50)) if name == "softcap" else None
    whole = create_block_mask(lambda b, h, i, j: seen(i, j), 1, None, S, S, device=device, _compile=True)
    own_mask = create_block_mask(lambda b, h, i, j: seen(rows[i], keys[j]), 1, None, len(rows), S, device=device, _compile=True)
    compiled = torch.compile(flex_attention)
    call = lambda q, k, v: compiled(q, k, v, score_mod=score, block_mask=whole, enable_gqa=True)  # noqa: E731
    over_all = lambda q, k, v: compiled(q, *_Gathered.apply(torch.stack([k, v])), score_mod=score, block_mask=own_mask, enable_gqa=True)  # noqa: E731
    own = [sp.shard(x, 2) for x in (q, k, v)]
    with torch.no_grad():
        error = farthest([(over_all(*own), sp.shard(call(q, k, v), 2))])
    return told(f"FlexAttention over gathered keys, {name} S {S}", measured(call, [q, k, v], 3), measured(over_all, own, 3), ranks, error)


def flex(device, ranks, name, S, inputs):
    """FlexAttention by PyTorch's context parallelism, which gathers all keys: its own balance, or none where that is as good."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention as cp
    from torch.distributed.tensor.parallel import parallelize_module
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (x.to(elements(device)) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128)))
    mesh = init_device_mesh(device.type, (ranks,))
    doc = inputs.get("doc")
    masks = {"sliding_window": lambda b, h, i, j: (i >= j) & (i - j < 4096), "document": lambda b, h, i, j: (doc[b, i] == doc[b, j]) & (i >= j),
             "softcap": lambda b, h, i, j: i >= j}  # fmt: skip
    score = (lambda s, b, h, i, j: 50 * torch.tanh(s / 50)) if name == "softcap" else None
    mask = create_block_mask(masks[name], 1, None, S, S, device=device, _compile=True)
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
    S = of_size(S)
    tensors = [x.to(elements(device)) for x in drawn(device, (1, 32, S, 128), (1, 8, S, 128), (1, 8, S, 128))]
    module = attn.Attention(library(name), defines=long_defines(name))
    over = how(order, "keys", S, module, inputs)
    own, given = [over["spread"].shard(x, 2) for x in tensors], of_rank(over["spread"], inputs)
    runs = {"forward": lambda: module(*own, **given, **over)}
    runs["backward"] = backward(lambda *t: module(*t, **given, **over), own)
    for phase, run in runs.items():
        run()
        ended(device)
        dist.barrier()
        cuda = [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
        with torch.profiler.profile(activities=[*cuda, torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(4):
                run()
            ended(device)
        if os.environ.get("OUT"):
            profile.export_chrome_trace(os.path.join(os.environ["OUT"], f"{name}_{order}_{phase}_{dist.get_rank()}.json.gz"))
        found = sorted(((getattr(e, "device_time_total", 0) / 4, e.key, e.count // 4) for e in profile.key_averages()), reverse=True)
        yield f"{name} {order} {phase}: " + "; ".join(f"{key[:48]} x{count} {us:.0f}" for us, key, count in found[:8])


def of_recurrence(device, S, D, H, dtype):
    q, k, v, decay, beta = drawn(device, (1, H, S, D), (1, H, S, D), (1, H, S, D), (1, H, S), (1, H, S))
    k = k / k.norm(dim=-1, keepdim=True)
    return {**{n: x.to(dtype) for n, x in (("q", q * D**-0.5), ("k", k), ("v", v))}, "log_decay": -0.1 * decay.abs(), "beta": beta.sigmoid()}


def passed_on(device, name, D, dtype, bound, S=8192, H=8):
    """Each way for a state to pass from rank to rank, beside one GPU."""
    from attn import _recur_ranks

    def run(given, do, **spread):
        leaves = [x.clone().requires_grad_() for x in given.values()]
        o = module(**dict(zip(given, leaves)), **spread)
        return [o, *torch.autograd.grad(o, leaves, do)]

    S = of_size(S)
    module, given = attn.Recurrence(library(name), defines={"D": D, "Dv": D}), of_recurrence(device, S, D, H, dtype)
    given["log_decay"], given["beta"] = given["log_decay"] * 1e-3, given["beta"] * 0.02  # so that what a piece leaves is seen in all others
    do = drawn(device, (1, H, S, D))[0].to(dtype)
    wanted = run(given, do)
    for order in "contiguous", "zigzag":
        sp = attn.Spread(None, S, order)
        for way, _recur_ranks.TURNS in (("turns", True), ("maps", False)):
            found = run({n: sp.shard(x, 2) for n, x in given.items()}, sp.shard(do, 2), spread=sp)
            worst = farthest((sp.unshard(x.detach(), 2), y) for x, y in zip(found, wanted))
            yield f"{'ok  ' if worst < bound else 'FAIL'} {name} {dtype} S {S} D {D} {order} by {way}: relative error {worst:.1e}, bound {bound:.1e}", worst < bound
    _recur_ranks.TURNS = None


def packed(device, ranks, names):
    """Documents one behind the other, over ranks and on one; and gradients of queries that go to keys."""
    T, D = of_size(4000), 64
    starts = torch.cat([documents(device, T, T // 9)[0].cpu().bincount().cumsum(0)]).to(torch.int32)
    starts = torch.cat([starts.new_zeros(1), starts]).to(device)
    for dtype, bound in ((torch.float32, 2e-5), (torch.bfloat16, 1.2e-2)) if device.type == "cuda" else ((torch.float32, 2e-5),):
        q, k, v, do = (x.to(dtype) for x in drawn(device, (T, 8, D), (T, 2, D), (T, 2, D), (T, 8, D)))
        module = attn.Attention(library("causal"))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        o = module(*leaves, q_start=starts)
        wanted = [o.detach(), *torch.autograd.grad(o, leaves, do)]
        for order in "contiguous", "zigzag":
            sp, plan = attn.Spread(None, T, order), attn.Plan()
            own = [sp.shard(x.detach(), 0).requires_grad_() for x in leaves]
            o = module(*own, q_start=starts, spread=sp, plan=plan)
            found = [o.detach(), *torch.autograd.grad(o, own, sp.shard(do, 0))]
            worst = farthest((sp.unshard(x, 0), y) for x, y in zip(found, wanted))
            yield f"{'ok  ' if worst < bound else 'FAIL'} {len(starts) - 1} documents one behind the other, {dtype} {order}: relative error {worst:.1e}, bound {bound:.1e}", worst < bound
        S, rows = of_size(2000), 40
        q, k, v, do = (x.to(dtype) for x in drawn(device, (2, 8, rows, D), (2, 2, S, D), (2, 2, S, D), (2, 8, rows, D)))
        module, lies = attn.Attention(library("softmax")), (attn.Spread(None, rows, "replicated"), attn.Spread(None, S), attn.Spread(None, S))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        o = module(*leaves)
        wanted = [o.detach(), *torch.autograd.grad(o, leaves, do)]
        own = [sp.shard(x.detach(), 2).requires_grad_() for sp, x in zip(lies, leaves)]
        o = module(*own, spread=lies[0], kv_spread=lies[1])
        found = [o.detach(), *torch.autograd.grad(o, own, do)]
        worst = farthest((sp.unshard(x, 2), y) for sp, x, y in zip((lies[0], *lies), found, wanted))
        yield f"{'ok  ' if worst < bound else 'FAIL'} gradients of queries that go to keys, {dtype}: relative error {worst:.1e}, bound {bound:.1e}", worst < bound


def recurrent(device, ranks, name, S, D=128, H=16):
    """A recurrence of `ranks` times as many positions, beside one GPU that has S; each way."""
    from attn import _recur_ranks

    one, S = of_recurrence(device, of_size(S), D, H, elements(device)), of_size(S) * ranks
    module = attn.Recurrence(library(name), defines={"D": D, "Dv": D})
    call = lambda *x, **spread: module(**dict(zip(one, x)), **spread)  # noqa: E731
    alone = measured(call, list(one.values()))
    whole, sp = of_recurrence(device, S, D, H, elements(device)), attn.Spread(None, S)
    own = [sp.shard(x, 2) for x in whole.values()]
    yield f"{name} S {S}: alone {S // ranks} forward {alone[0]:.2f} ms, backward {alone[1]:.2f}", None
    groups, least, _recur_ranks.LEAST = _recur_ranks.GROUPS, _recur_ranks.LEAST, 1
    for _recur_ranks.GROUPS, _recur_ranks.TURNS, way in ((2, True, "turns of 2 groups"), (groups, False, "maps")):
        f, b, _ = measured(lambda *x: call(*x, spread=sp), own)
        yield f"    over {ranks}, {way}: forward {f:.2f} ms: {alone[0] / f:.3f} of one; backward {b:.2f}: {alone[1] / b:.3f}", None
    _recur_ranks.GROUPS, _recur_ranks.LEAST, _recur_ranks.TURNS = groups, least, None


def documents(device, S, of=4096):
    r = torch.Generator().manual_seed(3)
    ends = torch.sort(torch.randint(0, S, (S // of,), generator=r)).values
    return torch.searchsorted(ends, torch.arange(S), right=True).to(torch.int32)[None].to(device)


CASES = "causal", "softmax", "sliding_window", "alibi", "softcap", "attention_sink", "document"
METHODS = {"causal": ("keys", "heads", "chunks", "narrow"), "alibi": ("keys", "chunks"), "document": ("keys", "heads", "chunks")}  # alibi reads h
RATES = {
    "causal": (65536, (("zigzag", "keys heads"),)),
    "softmax": (32768, (("contiguous", "keys"),)),
    "sliding_window": (65536, (("contiguous", "keys"),)),
    "document": (65536, (("zigzag", "keys"), ("balanced", "keys"))),
    "softcap": (32768, (("zigzag", "keys"),)),
}


def compile_all(sections, target):
    """At once, by the processors of this machine: the ranks find them in the cache."""
    wanted = []
    for section, names in sections:
        for name in names or CASES if section == "check" else ():
            of_methods = {"keys": "piece,bwd", "heads": "fwd,bwd", "chunks": "part,bwd", "narrow": "piece,bwd"}
            wanted += [(name, defines(name), 64, e, of_methods[m]) for m in METHODS.get(name, ("keys", "heads")) for e in ("f32", "bf16")]
        for name in names or RATES if section in ("rates", "timeline") else ():
            wanted += [(name, long_defines(name), 128, "bf16", p) for p in ("fwd,bwd", "piece,bwd")]
        for D, e in ((128, "bf16"), (16, "f32")) if section == "recur" else ():
            wanted += [("gated_deltanet", {"D": D, "Dv": D}, D, e, p) for p in ("fwd", "fwd,bwd", "part,bwd")]
        if section == "packed":
            wanted += [(n, {}, 64, e, p) for e in ("f32", "bf16") for n, p in (("softmax", "part,bwd"), ("softmax", "fwd,bwd"), ("causal", "fwd,bwd ragged"))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        kinds = ["recurrence" if n == "gated_deltanet" else "attention" for n, *_ in wanted]
        emits = [[(), ("state",)] if kind == "recurrence" else [()] for kind in kinds]
        made = [
            pool.submit(_torch._kernel, _torch._specify(library(n), None, d, (), emit, 3, None, kind), D, d.get("Dv", D), e, target, *p.split())
            for (n, d, D, e, p), kind, each in zip(wanted, kinds, emits)
            for emit in each
        ]
        for x in made:
            x.result()


def checks(device, names):
    S = of_size(1000)
    given = {"attention_sink": {"sink": drawn(device, (8,))[0]}, "document": {"doc": documents(device, S, S // 8).expand(2, S).contiguous()}}
    types = ((torch.float32, 2e-5), (torch.bfloat16, 1.2e-2)) if device.type == "cuda" else ((torch.float32, 2e-5),)
    for name in names or CASES:
        orders = "contiguous", "zigzag", *(["balanced"] if name == "document" else [])
        for method in METHODS.get(name, ("keys", "heads")):
            for order in orders if method == "keys" else orders[-1:]:
                for dtype, bound in types[method == "narrow" :]:
                    yield compare(device, name, given.get(name, {}), S, 64, order, method, dtype, bound)


def inputs_of(device, name):
    return {"doc": documents(device, of_size(RATES[name][0]))} if name == "document" else {}


def all_rates(device, ranks, names):
    for name in names or RATES:
        yield from ((line, None) for line in rates(device, ranks, name, *RATES[name], inputs_of(device, name)))


def attempt(what, call, *given):
    """Where PyTorch has not what the case needs."""
    try:
        return call(*given), None
    except Exception as e:  # noqa: BLE001
        return f"{what}: {type(e).__name__}: {str(e)[:300]}", None


def peers(device, ranks, names):
    for name in names or ("flash.allgather", "flash.alltoall", "cudnn.allgather", "cudnn.alltoall", "flash.allgather.full", "cudnn.allgather.full"):
        backend, rotate, *full = name.split(".")
        yield attempt(f"PyTorch's, {name}", peer, device, ranks, 32768 if full else 65536, rotate, backend, not full)


def rings(device, ranks, names):
    for by in names or ("fa3", "flash"):
        yield attempt(f"a ring of {by}", ring, device, ranks, 65536, by)


def all_gathered(device, ranks, names):
    for name in names or RATES:
        yield attempt(f"FlexAttention over gathered keys, {name}", gathered, device, ranks, name, RATES[name][0], inputs_of(device, name))


def of_flex(device, ranks, names):
    for name in names or list(RATES)[2:]:
        yield attempt(f"FlexAttention's {name}", flex, device, ranks, name, RATES[name][0], inputs_of(device, name))


def timelines(device, ranks, names):
    for name in names or ("causal", "sliding_window", "document"):
        yield from ((line, None) for line in timeline(device, ranks, name, RATES[name][0], RATES[name][1][-1][0], inputs_of(device, name)))


def recurrences(device, ranks, names):
    if not names or "check" in names:
        yield from passed_on(device, "gated_deltanet", 16, torch.float32, 1e-4)
        if device.type == "cuda":
            yield from passed_on(device, "gated_deltanet", 128, torch.bfloat16, 3e-2)
    if not names or "rates" in names:
        yield from recurrent(device, ranks, "gated_deltanet", 65536)


SECTIONS = {
    "check": lambda device, ranks, names: checks(device, names),
    "recur": recurrences,
    "rates": all_rates,
    "decode": lambda device, ranks, names: (decoding(device, ranks, B, S) for B, S in ((64, 8192), (1, 131072))),
    "paged": lambda device, ranks, names: (paged(device, ranks, *case) for case in ((64, 8192, 16), (1, 131072, 16), (1, 131072, 512))),
    "compile": lambda device, ranks, names: (compiled(device) for _ in range(1)),
    "timeline": timelines,
    "peers": peers,
    "ring": rings,
    "packed": packed,
    "flex": of_flex,
    "gather": all_gathered,
}


def process(rank, ranks, store, told, sections):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", init_method="file://" + store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    failed = passed = 0
    for section, names in sections:
        for line, good in SECTIONS[section](device, ranks, names):
            wrong = torch.tensor(float(good is False), device=device)
            dist.all_reduce(wrong)  # of any rank
            passed, failed = passed + (good is True and not wrong), failed + bool(wrong)
            if rank == 0:
                print(line + "; wrong on another rank" * bool(good and wrong), flush=True)
    if rank == 0:
        told.put((passed, failed))
    dist.destroy_process_group()


def main(arguments):
    listed = [a.partition(":") for a in arguments if not a.startswith("--")]
    sections = [(section, [n for n in names.split(",") if n]) for section, _, names in listed] or [(section, []) for section in SECTIONS]
    if "--compile" in arguments:
        compile_all(sections, "sm_90a")
        return 0
    count = torch.cuda.device_count() or (2 if SMALL else 0)
    if not count:
        print("SKIPPED: PyTorch sees no GPU\n0 passed, 0 failed")
        return 0
    if torch.cuda.is_available():
        compile_all(sections, _torch._target(torch.device("cuda")))
    told = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, (count, os.path.join(folder, "store"), told, sections), nprocs=count)
    passed, failed = told.get()
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
