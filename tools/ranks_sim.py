#!/usr/bin/env python3
"""What attention over many GPUs would take: plays the schedules of attn.Spread over links, with rates of one and two GPUs.

    tools/ranks_sim.py                    # beside what two and four H100 took, then to 4096 ranks
    tools/ranks_sim.py --svg FILE         # the chart of docs/several-gpus.md

One sequence, 32 heads of queries and 8 of keys, D 128, bf16; layers one after the other. A launch is its tiles, which multiprocessors take one after the
other. Of `keys` rows that see keys of their own piece only go first, while keys travel; then each group of heads of the keys that the others see, while the next one
travels. Of `heads` all of it travels before and after."""

import argparse
import functools
import heapq
import math

H, HKV, D, SIZE = 32, 8, 128, 2
PROCESSORS, TILE = 132, 128  # multiprocessors of a GPU; rows of a tile forward, keys of a tile backward
# Of one H100, measured: ms that a layer takes alone, forward and backward. So the rate of a mask's tiles.
ALONE = {"causal": (65536, 46.54, 147.95), "full": (32768, 23.34, 74.16), "window 4096": (65536, 6.43, 19.74)}
HOST, HOST_ALONE = 0.85e-3, 0.26e-3  # s of the host for a call over ranks, and of one GPU
MEMORY = 2.4e12  # bytes/s of copies in a GPU's memory
# Of two by NVLink, measured: bytes/s into a GPU (NCCL's send and receive of 16 to 512 MB), s of an exchange, and the share of its time that kernels beside it lose.
LINK, LATENCY, BESIDE = 345e9, 0.11e-3, 0.4
ALL_TO_ALL = 269e9
# Assumed.
CARD = 45e9  # bytes/s into a GPU, of a card's 50 GB/s between nodes
NODE = 8  # GPUs
LEAST = 64 << 20  # bytes of a group of heads

# H100, NCCL, so many: ms of a layer, forward and backward, by keys and by heads, where the slowest GPU counts. The host is ahead of all layers but the first.
MEASURED = [
    (2, "causal", 65536, "zigzag", (24.32, 77.64), (24.64, 80.87)),
    (2, "full", 32768, "contiguous", (12.41, 39.93)),
    (2, "window 4096", 65536, "contiguous", (3.25, 10.33)),
    (4, "causal", 65536, "zigzag", (12.88, 40.53), (12.92, 39.11)),
    (4, "full", 32768, "contiguous", (6.40, 19.38)),
    (4, "window 4096", 65536, "contiguous", (1.84, 5.65)),
]
LAYERS = 6  # one after the other, of all that is measured


def keys_of(mask, S, row):
    """The keys that the query at a position sees: the first, and the one behind the last."""
    if mask == "full":
        return 0, S
    return max(0, row + 1 - int(mask.split()[1])) if mask != "causal" else 0, row + 1


def pieces(S, n, r, order):
    if order == "zigzag":
        step = S // (2 * n)
        return [(r * step, (r + 1) * step), (S - (r + 1) * step, S - r * step)]
    return [(r * S // n, (r + 1) * S // n)]


def seen_by(mask, S, key):
    """The queries that see a key: the first, and the one behind the last."""
    return 0 if mask == "full" else key, min(S, key + int(mask.split()[1])) if mask.startswith("window") else S


@functools.lru_cache(maxsize=None)
def tiles(mask, S, piece, backward):
    """Pairs of each tile of one head of a launch for these rows, in the order in which they begin; and how many tiles are alike: a step."""
    a, b = piece
    first, last = (keys_of(mask, S, a)[0], keys_of(mask, S, b - 1)[1]) if backward else (a, b)
    step = max(1, (last - first) // TILE // 4096)
    found = []
    for at in range(first - first % TILE, last, TILE * step):
        if backward:
            low, high = seen_by(mask, S, at)[0], seen_by(mask, S, min(at + TILE, S) - 1)[1]
            found.append(TILE * max(0, min(high, b) - max(low, a)))
        else:
            low, high = keys_of(mask, S, max(at, a))[0], keys_of(mask, S, min(at + TILE, b) - 1)[1]
            found.append(TILE * (-(-high // TILE) * TILE - low // TILE * TILE))
    found = [x for x in found if x]
    return tuple(found if backward else reversed(found)), step


@functools.lru_cache(maxsize=None)
def span(mask, S, piece, heads, backward):
    """Pairs, of all heads, that the busiest multiprocessor computes. backward: of heads of keys, each with its group of heads of queries."""
    of_head, step = tiles(mask, S, piece, backward)
    group = H // HKV if backward else 1
    if len(of_head) * step * heads < PROCESSORS or step * heads * len(of_head) > 64 * PROCESSORS:  # blocks share the keys of few tiles; of many none waits for the last
        return sum(of_head) * step * heads * group / PROCESSORS
    taken = [0] * PROCESSORS
    for x in of_head * heads if step == 1 else [x for x in of_head for _ in range(step * heads)]:
        heapq.heapreplace(taken, taken[0] + x * group)
    return max(taken)


@functools.lru_cache(maxsize=None)
def second(mask, backward):
    """Pairs that a multiprocessor computes in a second, of one GPU's launch."""
    S, *ms = ALONE[mask]
    return span(mask, S, (0, S), HKV if backward else H, backward) / (ms[backward] * 1e-3 - HOST_ALONE / LAYERS)


def launch(mask, S, piece, heads, backward):
    """Seconds of the kernels for one piece and this many heads of queries."""
    share = heads * HKV / H if backward else heads
    return span(mask, S, piece, math.ceil(share), backward) * share / math.ceil(share) / second(mask, backward)


def received(mask, S, n, r, order):
    """Keys that come to a rank: from its node, and from others."""
    own = pieces(S, n, r, order)
    ends = [(keys_of(mask, S, a)[0], keys_of(mask, S, b - 1)[1]) for a, b in own]
    needed = max(b for _, b in ends) - min(a for a, _ in ends) if len(own) == 1 or mask in ("full", "causal") else sum(b - a for a, b in ends)
    foreign = max(0, needed - sum(b - a for a, b in own))
    near = min(foreign, S * (min(n, NODE) - 1) / n)
    return near, foreign - near


def travel(near, far, link=LINK):
    """Seconds for these bytes; both ways at once."""
    return LATENCY + max(near / link, far / CARD) if near + far else 0


def runs(mask, S, own):
    """Rows whose keys all lie in their own piece, and the others, each as pieces."""
    alone, others = [], []
    for a, b in own:
        first = next((x for x in (a, a + (int(mask.split()[1]) if mask.startswith("window") else 0)) if keys_of(mask, S, x)[0] >= a), b)
        first = b if keys_of(mask, S, b - 1)[1] > b else min(first, b)
        alone += [(first, b)] if first < b else []
        others += [(a, first)] if a < first else []
    return alone, others


def keys_method(mask, S, n, order, backward):
    """Seconds of each rank that is looked at: of the first and of the last one."""
    found = []
    foreign = max(sum(received(mask, S, n, r, order)) for r in {0, n - 1})
    groups = max(g for g in (1, 2, 4, 8) if g == 1 or foreign * HKV * 2 * D * SIZE >= g * LEAST)
    bytes_a_key = HKV // groups * 2 * D * SIZE
    for r in {0, n - 1}:
        near, far = (x * bytes_a_key for x in received(mask, S, n, r, order))
        own, others = runs(mask, S, pieces(S, n, r, order))
        gpu = sum(launch(mask, S, p, H, backward) for p in own)
        kernels = sum(launch(mask, S, p, H // groups, backward) for p in others)
        held = sum(keys_of(mask, S, b - 1)[1] - keys_of(mask, S, a)[0] for a, b in others) * bytes_a_key
        copies, home = 2 * (held + near + far) / MEMORY, 0.0  # what is held is laid out, what is sent is packed
        if backward:  # gradients travel home, and are added up: two are read, a sum in f32 is written and read
            copies += 8 * (held + near + far) / 2 / MEMORY
            home = travel(near, far)
        beside = travel(near, far) + home
        comes = travel(near, far)
        for g in range(groups):
            begin = max(gpu, comes)
            lost = BESIDE * beside if g + 1 < groups else 0
            gpu, comes = begin + copies + kernels + lost, begin + beside
        found.append(gpu + home)
    return found


def heads_method(mask, S, n, order, backward):
    if n > H:
        return None
    kernels = launch(mask, S, (0, S), H // n, backward)
    columns = H / n * 2 * D + max(HKV / n, 1) * 2 * D  # of q and o, of k and v
    whole = S * columns * SIZE  # of q, k, v and o; of do, dq, dk and dv
    moved = whole * (n - 1) / n
    inside = (min(n, NODE) - 1) / max(n - 1, 1)
    copies = 2 * (moved + whole) / MEMORY  # what is sent is packed, what comes and a rank's own are laid out
    return kernels + copies + travel(moved * inside, moved * (1 - inside), ALL_TO_ALL)


def alone(mask, S, backward):
    return launch(mask, S, (0, S), H, backward)


def share(mask, S, n, order, backward):
    """Of the rate of one GPU, that each of n reaches, by the better method."""
    both = max(keys_method(mask, S, n, order, backward)), heads_method(mask, S, n, order, backward)
    taken = min(x for x in both if x is not None)
    return alone(mask, S, backward) / n / taken, "keys" if taken == both[0] else "heads"


def against_measured():
    """Rows of (case, measured, played): ms."""
    rows = []
    for n, mask, S, order, *methods in MEASURED:
        for method, measured in zip(("keys", "heads"), methods):
            for backward, there in enumerate(measured):
                taken = max(keys_method(mask, S, n, order, backward)) if method == "keys" else heads_method(mask, S, n, order, backward)
                phase = "backward" if backward else "forward"
                rows.append((f"{n}: {mask}, {S}, {order}, {method}, {phase}", there, (taken + HOST / LAYERS) * 1e3))
    return rows


CASES = [("causal", 1 << 20, "zigzag"), ("full", 1 << 20, "contiguous"), ("causal", 1 << 17, "zigzag"), ("window 4096", 1 << 20, "contiguous")]
COUNTS = [2, 8, 32, 64, 256, 1024, 4096]


def name(mask, S):
    return f"{mask}, {S >> 10}k" if S < 1 << 20 else f"{mask}, {S >> 20}M"


def tell():
    print("| GPUs, ms | measured | played |\n| --- | --- | --- |")
    for case, measured, played in against_measured():
        print(f"| {case} | {measured:.1f} | {played:.1f} |")
    print(f"\n| GPUs | {' | '.join(name(m, S) for m, S, _ in CASES)} |\n| --- |{' --- |' * len(CASES)}")
    for n in COUNTS:
        cells = []
        for mask, S, order in CASES:
            forward, backward = (share(mask, S, n, order, phase) for phase in (False, True))
            cells.append(f"{forward[0]:.2f} {forward[1]}, {backward[0]:.2f} {backward[1]}")
        print(f"| {n} | {' | '.join(cells)} |")


def chart():
    """The shares of the forward, over the number of GPUs, as SVG."""
    left, top, width, height = 60, 30, 470, 230
    colors = "#1e88a8", "#ef8a17", "#5c6bc0", "#7cb342"
    counts = [2**i for i in range(1, 13)]

    def at(n, y):
        return f"{left + width * (counts.index(n) / (len(counts) - 1)):.1f},{top + height * (1 - y):.1f}"

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {top + height + 50}" font-family="sans-serif" font-size="13" fill="#263238">']
    out.append('<rect width="100%" height="100%" fill="white"/>')
    out.append(f'<text x="{left}" y="18">Share of one GPU\'s rate that each GPU reaches, forward (played, not measured)</text>')
    for tenth in range(0, 11, 2):
        y = top + height * (1 - tenth / 10)
        out.append(f'<path stroke="#cfd8dc" d="M{left} {y:.1f}h{width}"/><text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    for i, n in enumerate(counts):
        x = left + width * i / (len(counts) - 1)
        out.append(f'<text x="{x:.1f}" y="{top + height + 20}" text-anchor="middle">{n}</text>')
    for (mask, S, order), color, i in zip(CASES, colors, range(9)):
        line = " ".join(at(n, min(1, share(mask, S, n, order, False)[0])) for n in counts)
        out.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{line}"/>')
        out.append(f'<text x="{left + width + 14}" y="{top + 20 + 24 * i}" fill="{color}">{name(mask, S)}</text>')
    return "\n".join([*out, f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle">GPUs</text>', "</svg>", ""])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--svg", help="write the chart to this file")
    given = options.parse_args()
    if given.svg:
        with open(given.svg, "w", encoding="utf-8") as f:
            f.write(chart())
    else:
        tell()


if __name__ == "__main__":
    main()
