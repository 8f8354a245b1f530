#!/usr/bin/env python3
"""Trains a small random Llama on one process, or with its sequences spread over several; the loss curve is the same.

    python3 python/examples/train.py
    torchrun --nproc_per_node=4 python/examples/train.py --sequence=2 [--device=cuda] [--fsdp[=batch]] [--method=heads]

Of four processes with --sequence=2 two have the batch, and two the positions of each sequence. Each process computes its rows and positions; the
keys come to it (attn.Spread); the gradients are added up over all of them, by hand, or with --fsdp by FSDP2 (PyTorch 2.6). It shards the parameters
over all processes, or with --fsdp=batch over the other dimension: those that have the same positions of other parts of the batch.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import attn  # noqa: E402

VOCABULARY, LAYERS, HEADS, KV_HEADS, D, BATCH, LENGTH = 61, 2, 4, 2, 16, 4, 96
WIDTH = HEADS * D

SOURCE = """
import std.mask;
import std.normalization;
attention causal {
    dim D = 16;
    score(q, k) = dot(q, k) * rsqrt(D);
    mask(b, h, q_idx, kv_idx) = causal(q_idx, kv_idx);
    normalize(s) = softmax(s);
}"""


def normed(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def turned(x, positions):
    """Rotary positions. x: [B, H, rows, D]."""
    angle = positions[:, None] * 10000.0 ** (-torch.arange(0, D, 2, device=x.device) / D)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * D, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.gate = (torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.attention = attn.Attention(SOURCE)

    def forward(self, x, positions, **spread):
        heads = self.into(normed(x)).unflatten(-1, (-1, D)).transpose(1, 2)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
        o = self.attention(turned(q, positions), turned(k, positions), v, **spread)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        y = normed(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, positions, **spread):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, positions, **spread)
        return self.head(normed(x))


def batches(steps):
    """Sequences in which a token tells the next one."""
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        text = [torch.randint(0, VOCABULARY, (BATCH,), generator=random)]
        for _ in range(LENGTH):
            text.append((7 * text[-1] + 3) % VOCABULARY)
        yield torch.stack(text[:-1], 1), torch.stack(text[1:], 1)


def by_hand(ranks, sequence):
    """The group that shares this process's sequences, and which part of the batch it has."""
    rows = [dist.new_group(range(r, r + sequence)) for r in range(0, ranks, sequence)]
    part = dist.get_rank() // sequence
    return rows[part], part


def by_fsdp(model, device, ranks, sequence, over):
    """Likewise. FSDP2 takes the mean of the gradients of the processes that it shards parameters over."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    kind = torch.device(device).type
    mesh = init_device_mesh(kind, (ranks // sequence, sequence), mesh_dim_names=("dp", "cp"))
    fully_shard(model, mesh=mesh["dp"] if over == "batch" else init_device_mesh(kind, (ranks,)))  # of a large model each layer before
    return mesh["cp"], mesh.get_local_rank("dp")


def add_up(model, rows, fsdp):
    """The gradients, over the processes that FSDP2 has not added up."""
    if fsdp != "all":
        for p in model.parameters():
            dist.all_reduce(p.grad.to_local() if fsdp else p.grad, group=rows.get_group() if fsdp else None)


def train(steps, device, sequence=1, fsdp=None, **method):
    """The loss of each step, of all processes."""
    torch.manual_seed(0)
    model = Llama().to(device)
    spread, positions, group = {}, torch.arange(LENGTH, device=device), 0
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks > 1:
        rows, group = by_fsdp(model, device, ranks, sequence, fsdp) if fsdp else by_hand(ranks, sequence)
        sp = attn.Spread(rows, LENGTH, order="zigzag")
        spread, positions = {"spread": sp, **method}, sp.positions.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for tokens, wanted in batches(steps):
        tokens, wanted = (x.chunk(ranks // sequence)[group].to(device) for x in (tokens, wanted))
        if spread:
            tokens, wanted = (spread["spread"].shard(x) for x in (tokens, wanted))
        # a share of the mean over all, so that losses and gradients add up
        loss = torch.nn.functional.cross_entropy(model(tokens, positions, **spread).flatten(0, 1), wanted.flatten(), reduction="sum") / (BATCH * LENGTH)
        optimizer.zero_grad()
        (loss * {"all": ranks, "batch": ranks // sequence}.get(fsdp, 1)).backward()  # of which FSDP2 takes the mean
        total = loss.detach()
        if ranks > 1:
            add_up(model, rows, fsdp)
            dist.all_reduce(total)
        optimizer.step()
        losses.append(float(total))
    return losses


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu")
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--sequence", type=int, default=1, help="processes that share the positions of a sequence")
    options.add_argument("--method", choices=("keys", "heads"), help="default: what takes less time")
    options.add_argument("--fsdp", nargs="?", const="all", choices=("all", "batch"), help="FSDP2 shards the parameters over these processes")
    given = options.parse_args()
    device, rank = given.device, int(os.environ.get("RANK", 0))
    if "RANK" in os.environ:  # started by torchrun
        if device == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    torch.set_num_threads(1)
    for step, loss in enumerate(train(given.steps, device, given.sequence, given.fsdp, method=given.method)):
        if rank == 0:
            print(f"step {step}: loss {loss:.5f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
