#!/usr/bin/env python3
"""Trains small stacks of recurrences on the CPU, Mamba-2 and Gated DeltaNet, to recall what stood behind a token.

    python3 python/examples/recurrent.py [--steps=150] [--device=cpu]

A sequence is pairs of a name and a value, then names again: the model is to say their values. The layers are those of the papers: a short
convolution, the recurrence (forward and derived backward, by attn.Recurrence), a projection. Beside it the first steps are trained once more with the
recurrences written in plain PyTorch, position by position. The losses are the same.
"""

import argparse
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import attn  # noqa: E402

NAMES, VALUES, PAIRS, BATCH = 16, 16, 6, 32
WIDTH, LAYERS, HEADS, D = 32, 2, 2, 16

MAMBA2 = """
recurrence mamba2 {
    dim D = 16, Dv = D;
    input dt: f32[B, H, S] grad;
    input A: f32[H] grad;
    key(k, b, h, t) = k * dt[b, h, t];
    decay(b, h, t)  = exp(dt[b, h, t] * A[h]);
}"""
GATED_DELTANET = """
recurrence gated_deltanet {
    dim D = 16, Dv = D;
    input log_decay: f32[B, H, S] grad;
    input beta: f32[B, H, S] grad;
    query(q)          = q * rsqrt(D) * rsqrt(sqnorm(q) + 1e-6);
    key(k, b, h, t)   = k * rsqrt(sqnorm(k) + 1e-6) * beta[b, h, t];
    decay(b, h, t)    = exp(log_decay[b, h, t]);
    erase(k, b, h, t) = k * rsqrt(sqnorm(k) + 1e-6) * exp(log_decay[b, h, t]);
    write(k, b, h, t) = -k * rsqrt(sqnorm(k) + 1e-6) * beta[b, h, t];
}"""


def mamba2_steps(q, k, v, dt, A):
    """The same in plain PyTorch. B and C are of all heads."""
    state, o = 0, []
    for t in range(q.shape[2]):
        decay = torch.exp(dt[:, :, t] * A)[..., None, None]
        state = decay * state + (k[:, :, t] * dt[:, :, t, None])[..., None] * v[:, :, t, None]
        o.append(torch.einsum("bhd,bhde->bhe", q[:, :, t].expand(-1, state.shape[1], -1), state))
    return torch.stack(o, 2)


def gated_deltanet_steps(q, k, v, log_decay, beta):
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    state, o = q.new_zeros(*q.shape[:2], D, D), []
    for t in range(q.shape[2]):
        state = torch.exp(log_decay[:, :, t])[..., None, None] * state
        found = torch.einsum("bhd,bhde->bhe", k[:, :, t], state)
        state = state + k[:, :, t, :, None] * (beta[:, :, t, None] * (v[:, :, t] - found))[:, :, None]
        o.append(torch.einsum("bhd,bhde->bhe", q[:, :, t] * D**-0.5, state))
    return torch.stack(o, 2)


class Mixer(nn.Module):
    def __init__(self, kind, recurrence):
        super().__init__()
        self.kind, self.recurrence = kind, recurrence
        self.keys = 1 if kind == "mamba2" else HEADS  # Mamba-2's B and C are of all heads
        self.heads = [self.keys, self.keys, HEADS]
        self.project = nn.Linear(WIDTH, sum(self.heads) * D + 2 * HEADS)
        self.shift = nn.Conv1d(sum(self.heads) * D, sum(self.heads) * D, 4, groups=sum(self.heads) * D, padding=3)
        self.A = nn.Parameter(torch.zeros(HEADS))
        self.out = nn.Linear(HEADS * D, WIDTH)

    def forward(self, x):
        rows, gates = self.project(x).split([sum(self.heads) * D, 2 * HEADS], -1)
        rows = F.silu(self.shift(rows.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        q, k, v = (y.unflatten(-1, (-1, D)).transpose(1, 2) for y in rows.split([h * D for h in self.heads], -1))
        first, second = (g.transpose(1, 2).contiguous() for g in gates.split(HEADS, -1))
        if self.kind == "mamba2":
            given = F.softplus(first - 3), -torch.exp(self.A)
        else:
            given = -torch.exp(self.A)[:, None] * F.softplus(first - 3), torch.sigmoid(second)
        return self.out(self.recurrence(q, k, v, *given).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, kind, recurrence):
        super().__init__()
        self.embed = nn.Embedding(NAMES + VALUES, WIDTH)
        self.mixers = nn.ModuleList(Mixer(kind, recurrence) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS + 1))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VALUES)

    def forward(self, tokens):
        x = self.embed(tokens)
        for i in range(LAYERS):
            x = x + self.mixers[i](self.norms[2 * i](x))
            x = x + self.mlps[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


def batch(generator):
    """Tokens [BATCH, 3 * PAIRS], and the values of the last PAIRS."""
    names = torch.rand(BATCH, NAMES, generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(VALUES, (BATCH, PAIRS), generator=generator)
    order = torch.rand(BATCH, PAIRS, generator=generator).argsort(1)
    pairs = torch.stack((names, NAMES + values), 2).flatten(1)
    return torch.cat((pairs, names.gather(1, order)), 1), values.gather(1, order)


def train(kind, recurrence, steps, device):
    """Losses, and how many of the last steps' values were right."""
    torch.manual_seed(0)
    model = Model(kind, recurrence).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    generator, losses, right = torch.Generator().manual_seed(1), [], []
    for _ in range(steps):
        tokens, wanted = (x.to(device) for x in batch(generator))
        logits = model(tokens)[:, -PAIRS:]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        right.append((logits.argmax(-1) == wanted).float().mean().item())
    return losses, sum(right[-10:]) / len(right[-10:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--device", default="cpu")
    o = parser.parse_args()
    good = True
    for kind, source, plain in (("mamba2", MAMBA2, mamba2_steps), ("gated_deltanet", GATED_DELTANET, gated_deltanet_steps)):
        ours, right = train(kind, attn.Recurrence(source), o.steps, o.device)
        theirs, _ = train(kind, plain, min(o.steps, 4), o.device)
        apart = max(abs(a - b) for a, b in zip(ours, theirs))
        good = good and apart < 1e-3
        print(f"{kind}: loss {ours[0]:.3f} to {ours[-1]:.3f}, {100 * right:.0f}% of the values right; from plain PyTorch {apart:.1e} apart")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
