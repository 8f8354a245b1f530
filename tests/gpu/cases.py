"""What the GPU tests run: variants as sources, and their meaning in float64, written without regard to how they are compiled.

python3 tests/gpu/cases.py ATTNC OUT TARGET    compiles all of them to OUT/<name>.ptx (needs no GPU and no torch)
"""

import os
import subprocess
import sys

HEAD = "import std.mask; import std.modify; import std.normalization;\n"
DOT = "score(q, k) = dot(q, k) * rsqrt(D); "
SOFTMAX = "normalize(s) = softmax(s);"


def body(text):
    return HEAD + "attention t { dim D = 128, Dv = D; " + text + " }\n"


CAUSAL = "mask(b, h, q_idx, kv_idx) = causal(q_idx, kv_idx); "
SOURCES = {
    "softmax": body(DOT + SOFTMAX),
    "causal": body(DOT + CAUSAL + SOFTMAX),
    "window": body(DOT + "mask(b, h, q_idx, kv_idx) = window(q_idx, kv_idx, 100); " + SOFTMAX),
    "softcap": body(DOT + "modify(s) = tanh_cap(s, 20.0); " + CAUSAL + SOFTMAX),
    "alibi": body(DOT + "modify(s, b, h, q_idx, kv_idx) = s + alibi_bias(h, H, q_idx, kv_idx); " + CAUSAL + SOFTMAX),
    "bias": body("input bias: f32[H, Sq, Sk]; " + DOT + "modify(s, b, h, q_idx, kv_idx) = s + bias[h, q_idx - q_offset, kv_idx]; " + SOFTMAX),
    "prefix": body("input length: i32[B]; " + DOT + "mask(b, h, q_idx, kv_idx) = prefix(q_idx, kv_idx, length[b]); " + SOFTMAX),
    "document": body(
        "input doc: i32[B, Sk]; " + DOT + "mask(b, h, q_idx, kv_idx) = causal(q_idx, kv_idx) && doc[b, q_idx] == doc[b, kv_idx]; " + SOFTMAX
    ),
    "blocks": body(
        "input keep: bool[H, 14, 9]; " + DOT + "mask(b, h, q_idx, kv_idx) = keep[h, q_idx / 48, kv_idx / 80] && kv_idx >= h; " + SOFTMAX
    ),
    "lengths": body("input long: i32[B, 700]; input ok: bool[Sk]; " + DOT + "mask(b, h, q_idx, kv_idx) = kv_idx < long[b, q_idx] && ok[kv_idx]; " + SOFTMAX),
    "sink": body("input sink: f32[H]; " + DOT + CAUSAL + "normalize(s, b, h) = softmax_with_sink(s, sink[h]);"),
    "cosine": body(
        "input tau: f32[H]; score(q, k) = dot(q, k) * rsqrt(max(sqnorm(q) * sqnorm(k), 1e-12)); "
        "modify(s, b, h) = s / max(tau[h], 0.01); " + SOFTMAX
    ),
    "gaussian": body("score(q, k) = (2 * dot(q, k) - sqnorm(q) - sqnorm(k)) * (0.5 * rsqrt(D)); " + SOFTMAX),
    "relu": body(DOT + "modify(s) = max(s, 0) / Sk; normalize(s) = s;"),
    "sigmoid": body(DOT + "modify(s) = sigmoid(s - log(Sk)); " + CAUSAL + "normalize(s) = s;"),
    "retention": body(
        DOT + "modify(s, b, h, q_idx, kv_idx) = s * exp2((q_idx - kv_idx) * retention_log2_decay(h)); " + CAUSAL + "normalize(s) = retention(s);"
    ),
    "zscore": body(
        DOT + "normalize(s) { let n = rowsum(1.0); let mu = rowsum(s) / n; let c = s - mu; "
        "return exp(0.5 * c * rsqrt(rowsum(c * c) / n + 0.01)) / n; }"
    ),
    "rms_out": body(DOT + SOFTMAX + " output(o, b, h, q_idx, d) = o * rsqrt(sqnorm(o) / Dv + 1e-6) * (1 + d);"),
    "table": body(
        "input table: f32[H, SPAN]; " + DOT + "modify(s, b, h, q_idx, kv_idx) = s + table[h, q_idx - kv_idx + 300]; " + CAUSAL + SOFTMAX
    ),
    "vectors": body(
        "input key: f32[B, Sk]; input query: f32[B, Sq]; input kind: i32[Sk]; "
        + DOT
        + "modify(s, b, h, q_idx, kv_idx) = s * key[b, kv_idx] + query[b, q_idx - q_offset]; "
        "mask(b, h, q_idx, kv_idx) = kind[kv_idx] != 1 && kv_idx % 7 != 3; " + SOFTMAX
    ),
    "every3": body(DOT + "mask(b, h, q_idx, kv_idx) = (q_idx - kv_idx) % 3 == 0; " + SOFTMAX),
}

# name, source, D, Dv, dtype
CASES = [(s, s, 128, 128, "bf16") for s in SOURCES]
CASES += [(f"softmax_{d}_{e}", "softmax", d, e, "bf16") for d, e in ((64, 64), (72, 40), (16, 16), (256, 256), (96, 128))]
CASES += [(f"causal_{d}_{e}", "causal", d, e, "bf16") for d, e in ((64, 64), (192, 128), (80, 80), (248, 256))]
CASES += [(f"{s}_{d}_{e}", s, d, e, "bf16") for s, d, e in (("retention", 256, 512), ("causal", 128, 512), ("softmax", 64, 264), ("causal", 576, 512))]
CASES += [(f"causal_{d}_{e}", "causal", d, e, "bf16") for d, e in ((32, 32), (96, 96), (192, 192), (40, 300), (20, 36), (128, 320))]
CASES += [("table_64_64", "table", 64, 64, "bf16"), ("table_256_256", "table", 256, 256, "bf16"), ("vectors_f32", "vectors", 64, 64, "f32")]
CASES += [("softmax_f32_64_300", "softmax", 64, 300, "f32")]
CASES += [("softmax_f16", "softmax", 128, 128, "f16"), ("causal_f16", "causal", 64, 64, "f16")]
CASES += [(f"{s}_f32", s, 64, 64, "f32") for s in ("softmax", "causal", "cosine", "softcap", "sigmoid", "rms_out", "zscore")]
CASES += [("softmax_f32_256", "softmax", 256, 256, "f32"), ("causal_f32_20", "causal", 20, 36, "f32")]


def compile_all(attnc, out, target):
    os.makedirs(out, exist_ok=True)
    for name, source, d, e, dtype in CASES:
        path = os.path.join(out, name + ".attn")
        with open(path, "w", encoding="utf-8") as f:
            f.write(SOURCES[source])
        flags = [f"-DD={d}", f"-DDv={e}", f"--dtype={dtype}", f"--target={target}", "-O3"]
        subprocess.run([attnc, path, *flags, "-o", os.path.join(out, name + ".ptx")], check=True)


def reference(source, torch, q, k, v, given, q_offset):
    """In float64: o, or (o, lse) where the source emits it."""
    B, H, Sq, D = q.shape
    Hkv, Sk = k.shape[1], k.shape[2]
    q, k, v = q.double(), k.double().repeat_interleave(H // Hkv, 1), v.double().repeat_interleave(H // Hkv, 1)
    i = torch.arange(Sq, device=q.device)[:, None] + q_offset
    j = torch.arange(Sk, device=q.device)[None, :]
    h = torch.arange(H, device=q.device).double()[None, :, None, None]
    dot = q @ k.transpose(-1, -2)
    s = dot * D**-0.5
    causal, all_keys = j <= i, torch.ones(Sq, Sk, dtype=torch.bool, device=q.device)
    qq, kk = (q * q).sum(-1)[..., None], (k * k).sum(-1)[..., None, :]
    masks = {
        "window": causal & (i - j < 100),
        "prefix": (j < given["length"][:, None, None, None]) | causal if "length" in given else None,
        "every3": (i - j) % 3 == 0,
    }
    if source == "document":
        doc = given["doc"]
        at = doc[:, (i[:, 0]).clamp(0, Sk - 1)]
        masks["document"] = (causal & (at[:, :, None] == doc[:, None, :]))[:, None]
    if source == "blocks":
        masks["blocks"] = given["keep"][:, (i // 48).clamp(max=13), (j // 80).clamp(max=8)][None] & (j >= h)
    if source == "lengths":
        masks["lengths"] = (j < given["long"][:, i[:, 0].clamp(max=699)][:, :, None])[:, None] & given["ok"]
    if source == "vectors":
        masks["vectors"] = (given["kind"] != 1)[None, :] & (j % 7 != 3)
    masks.update({n: causal for n in ("causal", "table", "softcap", "alibi", "sink", "sigmoid", "retention")})
    mask = masks.get(source, all_keys)
    if source == "softcap":
        s = 20 * torch.tanh(s / 20)
    elif source == "alibi":
        s = s + torch.exp2(-8 * (h + 1) / H) * (j - i)
    elif source == "table":
        s = s + given["table"].double()[:, (i - j + 300).clamp(0, given["table"].shape[1] - 1)][None]
    elif source == "vectors":
        s = s * given["key"].double()[:, None, None, :] + given["query"].double()[:, None, :, None]
    elif source == "bias":
        s = s + given["bias"].double()[None]
    elif source == "cosine":
        s = dot / (qq * kk).clamp(min=1e-12).sqrt() / given["tau"].double().clamp(min=0.01)[None, :, None, None]
    elif source == "gaussian":
        s = (2 * dot - qq - kk) * (0.5 * D**-0.5)
    elif source == "relu":
        return s.clamp(min=0) / Sk @ v
    elif source == "sigmoid":
        return torch.where(mask, torch.sigmoid(s - torch.log(torch.tensor(float(Sk)))), 0.0) @ v
    elif source == "retention":
        s = torch.where(mask, s * torch.exp2((i - j) * torch.log2(1 - torch.exp2(-5 - h))), 0.0)
        return s / s.abs().sum(-1, keepdim=True).clamp(min=1) @ v
    elif source == "zscore":
        c = s - s.mean(-1, keepdim=True)
        return torch.exp(0.5 * c * torch.rsqrt((c * c).mean(-1, keepdim=True) + 0.01)) / Sk @ v
    s = s.masked_fill(~mask, float("-inf"))
    if source == "sink":
        extra = given["sink"].double()[None, :, None, None].expand(B, H, Sq, 1)
        return torch.softmax(torch.cat((s, extra), -1), -1)[..., :-1] @ v
    o = torch.nan_to_num(torch.softmax(s, -1)) @ v
    if source == "rms_out":
        o = o * torch.rsqrt((o * o).mean(-1, keepdim=True) + 1e-6) * (1 + torch.arange(v.shape[-1], device=q.device))
    return o, torch.logsumexp(s, -1)


if __name__ == "__main__":
    compile_all(*sys.argv[1:4])
