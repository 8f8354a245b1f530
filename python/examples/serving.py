#!/usr/bin/env python3
"""A tiny serving engine: continuous batching of a small random Llama or DeepSeek over a pool of pages, with one attnc kernel for prompts and decoding.

    python3 python/examples/serving.py [--model=deepseek] [--device=cuda] [--dtype=bf16] [--requests=12]

Each step takes some tokens of every running sequence: a piece of the prompt, or the token made last. They go through the model as one ragged
batch. What the model caches of a token is written into pages that the sequences own, and go back to the pool when a sequence ends. Beside it plain PyTorch computes
each sequence by itself. In f32 the tokens are the same; in bf16 the logits are within a bound.
"""

import argparse
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import attn  # noqa: E402

VOCABULARY, LAYERS, WIDTH, HEADS = 97, 2, 128, 8
PAGES, PAGE, TABLE = 24, 4, 12  # keys of a sequence: at most TABLE * PAGE
RUNNING, CHUNK = 5, 6  # sequences at a time, tokens of a prompt in a step


def rotate(x, positions):
    """x [T, heads, columns]; positions [T]."""
    columns = x.shape[-1]
    angle = positions[:, None, None] * 10000.0 ** (-torch.arange(0, columns, 2, device=x.device) / columns)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2)


def norm(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def plain(q, k, v):
    """Causal attention by PyTorch: q, k [T, H, D], v [T, H, Dv]."""
    s = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    s = s.masked_fill(torch.ones(s.shape[1:], dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    return torch.einsum("hij,jhd->ihd", s.softmax(-1), v)


class Model:
    """A stack of layers. A subclass has the attention: its source, the rows of the cache (name: (heads, columns)), and
    attention(w, x [T, WIDTH], positions [T], attend) -> [T, columns of w["o"]], where attend(q=, k=, ...) -> [T, HEADS, Dv] is the kernel over
    the cache, or None: the rows are a whole sequence, and PyTorch attends."""

    def __init__(self, device):
        g = torch.Generator().manual_seed(0)
        made = lambda *shape: (torch.randn(*shape, generator=g) * shape[-2] ** -0.5).to(device)  # noqa: E731
        self.embedding = made(VOCABULARY, WIDTH) * VOCABULARY**0.5
        self.head = made(WIDTH, VOCABULARY)
        mlp = {"up": (WIDTH, 4 * WIDTH), "gate": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
        self.layers = [{name: made(*shape) for name, shape in {**self.weights, **mlp}.items()} for _ in range(LAYERS)]

    def __call__(self, tokens, positions, attend=None):
        x = self.embedding[tokens]
        for i, w in enumerate(self.layers):
            here = attend and (lambda i=i, **rows: attend(i, **rows))
            x = x + self.attention(w, norm(x), positions, here) @ w["o"]
            y = norm(x)
            x = x + (torch.nn.functional.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return norm(x) @ self.head


class Llama(Model):
    """Grouped queries: two heads of keys."""

    GROUPS, D = 2, 16
    weights = {"qkv": (WIDTH, (HEADS + 2 * GROUPS) * D), "o": (HEADS * D, WIDTH)}
    cache = {"k": (GROUPS, D), "v": (GROUPS, D)}
    source = """
import std.mask;
import std.normalization;
attention causal {
    dim D = 16;
    score(q, k) = dot(q, k) * rsqrt(D);
    mask(b, h, q_idx, kv_idx) = causal(q_idx, kv_idx);
    normalize(s) = softmax(s);
}"""

    def attention(self, w, x, positions, attend):
        q, k, v = (x @ w["qkv"]).view(len(x), -1, self.D).split((HEADS, self.GROUPS, self.GROUPS), 1)
        q, k = rotate(q, positions), rotate(k, positions)
        group = HEADS // self.GROUPS
        o = attend(q=q, k=k, v=v) if attend else plain(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        return o.flatten(1)


class DeepSeek(Model):
    """Multi-head latent attention, as DeepSeek-V2 (arXiv:2405.04434) has it: the cache holds a latent of all heads and one rotated key. PyTorch
    makes the keys and values of every head of it. The kernel attends to the latent itself: the projections are absorbed by q and o."""

    NOPE, ROPE, LATENT, DV = 16, 8, 32, 16
    weights = {"q": (WIDTH, HEADS * (NOPE + ROPE)), "down_kv": (WIDTH, LATENT + ROPE), "k": (HEADS, LATENT, NOPE), "v": (HEADS, LATENT, DV),
               "o": (HEADS * DV, WIDTH)}  # fmt: skip
    cache = {"k": (1, LATENT), "k_pe": (1, ROPE)}
    source = """
import std.mask;
import std.normalization;
attention mla {
    dim D = 32;
    input q_pe: TYPE[B, H, Sq, 8];
    input k_pe: TYPE[B, 1, Sk, 8];
    share v = k;
    score(q, k) = (dot(q, k) + dot(q_pe, k_pe)) * rsqrt(24);
    mask(b, h, q_idx, kv_idx) = causal(q_idx, kv_idx);
    normalize(s) = softmax(s);
}"""

    def attention(self, w, x, positions, attend):
        q, q_pe = (x @ w["q"]).view(len(x), HEADS, -1).split((self.NOPE, self.ROPE), 2)
        latent, k_pe = (x @ w["down_kv"]).split((self.LATENT, self.ROPE), 1)
        latent, q_pe, k_pe = norm(latent), rotate(q_pe, positions), rotate(k_pe[:, None], positions)
        if attend:
            q = torch.einsum("thd,hrd->thr", q, w["k"])
            o = torch.einsum("thr,hrd->thd", attend(q=q, k=latent[:, None], q_pe=q_pe, k_pe=k_pe), w["v"])
        else:
            k, v = (torch.einsum("tr,hrd->thd", latent, w[name]) for name in ("k", "v"))
            o = plain(torch.cat((q, q_pe), 2), torch.cat((k, k_pe.expand(-1, HEADS, -1)), 2), v)
        return o.flatten(1)


class Sequence:
    def __init__(self, prompt, wanted):
        self.tokens, self.prompt, self.wanted = list(prompt), len(prompt), wanted
        self.cached, self.pages, self.logits = 0, [], []


class Engine:
    def __init__(self, model, device, dtype):
        target = "sm_90a" if device == "cuda" and torch.cuda.get_device_capability()[0] == 9 else "sm_80" if device == "cuda" else "host"
        self.kernel = attn.compile(model.source.replace("TYPE", dtype), target=target, dtype=dtype, layout="paged")
        self.model, self.device, self.dtype = model, device, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        # What no sequence wrote may be anything.
        self.pools = {name: torch.full((LAYERS, PAGES, PAGE, *row), float("nan"), dtype=self.dtype, device=device) for name, row in model.cache.items()}
        self.free, self.running = list(range(PAGES)), []

    def admit(self, waiting):
        """As many as there are places and pages for."""
        while waiting and len(self.running) < RUNNING:
            s = waiting[0]
            need = -(-(s.prompt + s.wanted) // PAGE)
            if need > len(self.free):
                break
            s.pages = [self.free.pop() for _ in range(need)]
            self.running.append(waiting.pop(0))

    def step(self):
        ints = lambda x: torch.tensor(x, dtype=torch.int32, device=self.device)  # noqa: E731
        news = [s.tokens[s.cached : s.cached + CHUNK] for s in self.running]
        places = [range(s.cached, s.cached + len(n)) for s, n in zip(self.running, news)]
        slots = torch.tensor([s.pages[i // PAGE] * PAGE + i % PAGE for s, p in zip(self.running, places) for i in p], device=self.device)
        lengths = [p[-1] + 1 for p in places]
        ends = torch.tensor([0] + [len(n) for n in news]).cumsum(0)
        given = {
            "page_table": ints([s.pages + [-1] * (TABLE - len(s.pages)) for s in self.running]),  # -1: nobody looks there
            "kv_len": ints(lengths),
            "q_start": ends.to(self.device, torch.int32),
            "max_q": max(len(n) for n in news),
        }

        def attend(layer, **rows):
            rows = {name: x.to(self.dtype) for name, x in rows.items()}
            for name, pool in self.pools.items():
                pool[layer, slots // PAGE, slots % PAGE] = rows[name]
                rows[name] = pool[layer]  # [pages, page, heads, columns], no copies
            return self.kernel(**rows, **given).float()

        tokens = torch.tensor([t for n in news for t in n], device=self.device)
        logits = self.model(tokens, torch.tensor([i for p in places for i in p], device=self.device), attend)
        for s, length, row in zip(self.running, lengths, logits[ends[1:] - 1]):
            s.cached = length
            if length == len(s.tokens):  # else more of the prompt comes
                s.logits.append(row)
                s.tokens.append(int(row.argmax()))
        for s in [s for s in self.running if len(s.tokens) == s.prompt + s.wanted]:
            self.free += s.pages
            self.running.remove(s)
        return len(tokens)


def beside(model, s, device):
    """PyTorch alone over the tokens of a sequence: whether it makes the same, and the relative error of the logits."""
    tokens = torch.tensor(s.tokens[:-1], device=device)
    wanted = model(tokens, torch.arange(len(tokens), device=device))[s.prompt - 1 :]
    error = (torch.stack(s.logits) - wanted).norm() / wanted.norm()
    return wanted.argmax(-1).tolist() == s.tokens[s.prompt :], float(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="llama", choices=("llama", "deepseek"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="f32", choices=("f32", "bf16"), help="of the cache and of the kernel")
    parser.add_argument("--requests", type=int, default=12)
    given = parser.parse_args()
    g = torch.Generator().manual_seed(1)
    one = lambda low, high: int(torch.randint(low, high, (1,), generator=g))  # noqa: E731
    requests = [(torch.randint(VOCABULARY, (one(1, 30),), generator=g).tolist(), one(1, 16)) for _ in range(given.requests)]
    with torch.no_grad():
        model = {"llama": Llama, "deepseek": DeepSeek}[given.model](given.device)
        engine = Engine(model, given.device, given.dtype)
        sequences = [Sequence(*r) for r in requests]
        waiting, steps, tokens, begin = list(sequences), 0, 0, time.time()
        while waiting or engine.running:
            engine.admit(waiting)
            tokens += engine.step()
            steps += 1
        print(f"{len(sequences)} sequences, {tokens} tokens in {steps} steps, {time.time() - begin:.2f} s; free pages at the end: {len(engine.free)}")
        found = [beside(model, s, given.device) for s in sequences]
    other, error = sum(not same for same, _ in found), max(error for _, error in found)
    bound = {"f32": 1e-5, "bf16": 1e-2}[given.dtype]
    print(f"sequences with other tokens than PyTorch's: {other or 'none'}; relative error of logits {error:.1e}, bound {bound:.0e}")
    return 1 if error > bound or (other and given.dtype == "f32") else 0


if __name__ == "__main__":
    sys.exit(main())
