#!/usr/bin/env python3
"""A tiny serving engine: continuous batching of a small random Llama over a pool of pages, with one attnc kernel for prompts and decoding.

    python3 python/examples/serving.py [--device=cuda] [--requests=12]

Each step takes some tokens of every running sequence: a piece of the prompt, or the token made last. They go through the model as one ragged
batch. Keys and values are written into pages that the sequences own, and go back to the pool when a sequence ends. Beside it plain PyTorch computes
each sequence by itself, from the start for every token. The tokens are the same.
"""

import argparse
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import attn  # noqa: E402

VOCABULARY, LAYERS, HEADS, KV_HEADS, D = 97, 2, 8, 2, 16
WIDTH = HEADS * D
PAGES, PAGE, TABLE = 24, 4, 12  # keys of a sequence: at most TABLE * PAGE
RUNNING, CHUNK = 5, 6  # sequences at a time, tokens of a prompt in a step

SOURCE = """
import std.mask;
import std.normalization;
attention causal {
    dim D = 16;
    score(q, k) = dot(q, k) * rsqrt(D);
    mask(b, h, q_idx, kv_idx) = causal(q_idx, kv_idx);
    normalize(s) = softmax(s);
}"""


class Llama:
    """The model but for its attention: attend(layer, q [T, H, D], k, v [T, Hkv, D]) -> [T, H, D]."""

    def __init__(self, device):
        g = torch.Generator().manual_seed(0)
        made = lambda *shape: (torch.randn(*shape, generator=g) * shape[0] ** -0.5).to(device)  # noqa: E731
        self.embedding = made(VOCABULARY, WIDTH) * VOCABULARY**0.5
        self.head = made(WIDTH, VOCABULARY)
        self.layers = [
            {"qkv": made(WIDTH, (HEADS + 2 * KV_HEADS) * D), "o": made(WIDTH, WIDTH), "up": made(WIDTH, 4 * WIDTH), "gate": made(WIDTH, 4 * WIDTH),
             "down": made(4 * WIDTH, WIDTH)} for _ in range(LAYERS)
        ]  # fmt: skip

    @staticmethod
    def norm(x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    @staticmethod
    def rotate(x, positions):
        angle = positions[:, None, None] * 10000.0 ** (-torch.arange(0, D, 2, device=x.device) / D)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2)

    def __call__(self, tokens, positions, attend):
        x = self.embedding[tokens]
        for i, w in enumerate(self.layers):
            q, k, v = (self.norm(x) @ w["qkv"]).view(len(x), -1, D).split((HEADS, KV_HEADS, KV_HEADS), 1)
            o = attend(i, self.rotate(q, positions), self.rotate(k, positions), v)
            x = x + o.reshape(len(x), WIDTH) @ w["o"]
            y = self.norm(x)
            x = x + (torch.nn.functional.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return self.norm(x) @ self.head


class Sequence:
    def __init__(self, prompt, wanted):
        self.tokens, self.prompt, self.wanted = list(prompt), len(prompt), wanted
        self.cached, self.pages = 0, []


class Engine:
    def __init__(self, model, device):
        target = "sm_90a" if device == "cuda" and torch.cuda.get_device_capability()[0] == 9 else "sm_80" if device == "cuda" else "host"
        self.kernel = attn.compile(SOURCE, target=target, dtype="f32", layout="paged")
        self.model, self.device = model, device
        # Keys and values of a page lie side by side, all layers in one tensor. What no sequence wrote may be anything.
        self.pool = torch.full((LAYERS, PAGES, 2, PAGE, KV_HEADS, D), float("nan"), device=device)
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

        def attend(layer, q, k, v):
            k_pages, v_pages = self.pool[layer].unbind(1)  # [pages, page, Hkv, D], no copies
            at = slots // PAGE, slots % PAGE
            k_pages[at], v_pages[at] = k, v
            return self.kernel(q, k_pages, v_pages, **given)

        tokens = torch.tensor([t for n in news for t in n], device=self.device)
        logits = self.model(tokens, torch.tensor([i for p in places for i in p], device=self.device), attend)
        best = logits[ends[1:] - 1].argmax(-1).tolist()
        for s, length, token in zip(self.running, lengths, best):
            s.cached = length
            if length == len(s.tokens):  # else more of the prompt comes
                s.tokens.append(token)
        for s in [s for s in self.running if len(s.tokens) == s.prompt + s.wanted]:
            self.free += s.pages
            self.running.remove(s)
        return len(tokens)


def eager(model, prompt, wanted, device):
    """The same tokens, by PyTorch alone."""
    tokens = list(prompt)

    def attend(layer, q, k, v):
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        s = torch.einsum("ihd,jhd->hij", q, k) * D**-0.5
        s = s.masked_fill(torch.ones(s.shape[1:], dtype=torch.bool, device=device).triu(1), float("-inf"))
        return torch.einsum("hij,jhd->ihd", s.softmax(-1), v)

    for _ in range(wanted):
        x = torch.tensor(tokens, device=device)
        tokens.append(int(model(x, torch.arange(len(tokens), device=device), attend)[-1].argmax()))
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--requests", type=int, default=12)
    given = parser.parse_args()
    g = torch.Generator().manual_seed(1)
    one = lambda low, high: int(torch.randint(low, high, (1,), generator=g))  # noqa: E731
    requests = [(torch.randint(VOCABULARY, (one(1, 30),), generator=g).tolist(), one(1, 16)) for _ in range(given.requests)]
    with torch.no_grad():
        model = Llama(given.device)
        engine = Engine(model, given.device)
        sequences = [Sequence(*r) for r in requests]
        waiting, steps, tokens, begin = list(sequences), 0, 0, time.time()
        while waiting or engine.running:
            engine.admit(waiting)
            tokens += engine.step()
            steps += 1
        print(f"{len(sequences)} sequences, {tokens} tokens in {steps} steps, {time.time() - begin:.2f} s; free pages at the end: {len(engine.free)}")
        wrong = [i for i, (s, r) in enumerate(zip(sequences, requests)) if s.tokens != eager(model, *r, given.device)]
    print("sequences with other tokens than PyTorch's:", wrong or "none")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
