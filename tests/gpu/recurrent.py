"""The rows of bench.py --recurrences: forward, backward, and one step of decoding with its state, of recurrences of the library.

The peer is fla (flash-linear-attention) where it can be imported; what it is given in another form is computed before. TFLOP/s counts
4 D Dv for each row and head, 6 where something is erased, and 2.5 times that in the backward. TB/s counts q, k, v, o, the decays and the state once.
Before that, the first rows of one head of o, or of dq, are compared with the formula in float64, position by position."""

import importlib.util
import math
import os

# name: D, Dv, heads; whether it erases
SIZES = {"gated_deltanet": (128, 128, 32), "kda": (128, 128, 32), "gla": (64, 128, 32), "mamba2": (128, 64, 80), "retnet": (128, 128, 32)}
ERASES = {"gated_deltanet", "kda"}
BATCH, LENGTH, SEQUENCES, LONG = 8, 4096, 128, 65536
# name, phase, (B, H, S, D, Dv)
ROWS = [
    *[(n, phase, (BATCH, H, LENGTH, D, Dv)) for n, (D, Dv, H) in SIZES.items() for phase in ("fwd", "bwd")],
    ("retnet", "fwd", (BATCH, 16, LENGTH, 256, 512)),
    *[(n, phase, (1, 16, LONG, 128, 128)) for n in ("gated_deltanet", "kda") for phase in ("fwd", "bwd")],
    *[(n, "step", (SEQUENCES, H, 1, D, Dv)) for n, (D, Dv, H) in SIZES.items()],
]
CHECKED = 256


def file_of(folder, name, D, Dv):
    return os.path.join(folder, f"recurrence_{name}_{D}_{Dv}")


def compiled(stdlib):
    """What the rows need: the file, where its source is, and the options of each kernel."""
    for name, D, Dv in sorted({(name, *size[3:]) for name, _, size in ROWS}):
        back = any(row[:2] == (name, "bwd") and row[2][3:] == (D, Dv) for row in ROWS)
        yield file_of("", name, D, Dv), os.path.join(stdlib, name + ".attn"), [f"-DD={D}", f"-DDv={Dv}", "--phase=fwd" + ",bwd" * back]


class Case:
    """Inputs as ours has them: [B, H, S, D]."""

    def __init__(self, torch, name, phase, size):
        self.torch, self.name, self.phase = torch, name, phase
        self.B, self.H, self.S, self.D, self.Dv = size
        self.q, self.k, self.v, self.do = (self.randn(d) for d in (self.D, self.D, self.Dv, self.Dv))
        rows = self.B, self.H, self.S
        short, channels = torch.rand(rows, device="cuda"), (self.D,) if name in ("kda", "gla") else ()
        self.given = {}
        if name == "mamba2":
            self.given = {"dt": short * 0.1, "A": -1 - torch.rand(self.H, device="cuda")}
        elif name != "retnet":
            self.given = {"log_decay": -0.1 * torch.rand(*rows, *channels, device="cuda")}
        if name in ERASES:
            self.given["beta"] = short
        if phase == "step":
            self.state = torch.randn(self.B, self.H, self.D, self.Dv, device="cuda")

    def randn(self, columns):
        """Rows that lie [B, S, H, columns], as projections leave them."""
        return self.torch.randn(self.B, self.S, self.H, columns, device="cuda", dtype=self.torch.bfloat16).transpose(1, 2)

    def decay(self):
        """Its logarithm for each row and, where it has them, channel."""
        if self.name == "mamba2":
            return self.given["dt"] * self.given["A"][:, None]
        if self.name == "retnet":
            rate = self.torch.log1p(-self.torch.exp2(-5.0 - self.torch.arange(self.H, device="cuda", dtype=self.torch.float64)))
            return rate.float()[:, None].expand(self.B, self.H, self.S)
        return self.given["log_decay"]

    def ours(self, kernel):
        said = {"q": self.q, "k": self.k, "v": self.v, **self.given}
        out = self.torch.full_like(self.v, math.nan)
        if self.phase != "bwd":
            extra = {"state0": self.state} if self.phase == "step" else {}
            place = {"o": out, "state": self.state} if extra else {"o": out}

            def forward():
                kernel(**said, **extra, out=place)
                return out

            return forward
        back = kernel.backward
        kept = ["o", *[n for n in back.inputs if n in kernel.outputs and n not in ("o", "state")]]
        made = kernel(**said, emit=kept[1:])
        said.update(zip(kept, made if isinstance(made, tuple) else (made,)), do=self.do)
        said = {n: said[n] for n in back.inputs if n in said}
        place = {n: self.torch.full_like(said[n[1:]], math.nan) for n in back.outputs if n[1:] in said}

        def backward():
            back(**said, out=place, emit=list(place))
            return place["dq"]

        return backward

    def fla(self):
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
        from fla.ops.gla import chunk_gla, fused_recurrent_gla
        from fla.ops.kda import chunk_kda, fused_recurrent_kda
        from fla.ops.retention import chunk_retention, fused_recurrent_retention
        from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

        step = self.phase == "step"
        q, k, v, do = (x.transpose(1, 2) for x in (self.q, self.k, self.v, self.do))
        decay = self.decay().transpose(1, 2).contiguous()
        named = {"scale": self.D**-0.5}
        if self.name in ERASES:
            call = {"gated_deltanet": (chunk_gated_delta_rule, fused_recurrent_gated_delta_rule), "kda": (chunk_kda, fused_recurrent_kda)}[self.name][step]
            named.update(g=decay, beta=self.given["beta"].transpose(1, 2).contiguous(), use_qk_l2norm_in_kernel=True)
        elif self.name == "gla":
            call = (chunk_gla, fused_recurrent_gla)[step]
            named["gk" if step else "g"] = decay
        elif self.name == "retnet":
            call = (chunk_retention, fused_recurrent_retention)[step]
        else:
            call = (chunk_simple_gla, fused_recurrent_simple_gla)[step]
            named.update(g=decay, scale=1.0)
            k = (k * self.given["dt"].transpose(1, 2)[..., None]).bfloat16()
        if step:
            named.update(initial_state=self.state, output_final_state=True)
        if self.phase != "bwd":
            return lambda: call(q, k, v, **named)[0].transpose(1, 2)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        learned = [x.requires_grad_() for n, x in named.items() if n in ("g", "beta")]
        stream = self.torch.cuda.Stream()  # that of the forward is the backward's
        with self.torch.cuda.stream(stream):
            o = call(*leaves, **named)[0]
        self.torch.cuda.synchronize()
        self.stream = stream
        return lambda: self.torch.autograd.grad(o, leaves + learned, do, retain_graph=True)[0].transpose(1, 2)

    def peers(self):
        return ["fla"] * (importlib.util.find_spec("fla") is not None)

    # ---- what is expected and counted

    def wanted(self, head):
        """The first rows of a head: o, or dq."""
        torch, n = self.torch, min(CHECKED, self.S)
        q, k, v, do = (x[0, head, :n].double() for x in (self.q, self.k, self.v, self.do))
        a = self.decay()[0, head, :n].double().exp()
        a = a if a.dim() == 2 else a[:, None].expand(n, self.D)
        scale, b = self.D**-0.5, None
        if self.name in ERASES:
            k, b = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt(), self.given["beta"][0, head, :n].double()
        if self.name == "mamba2":
            scale, k = 1.0, k * self.given["dt"][0, head, :n, None].double()
        q.requires_grad_()
        read = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() * scale if b is not None else q * scale
        state = self.state[0, head].double() if self.phase == "step" else torch.zeros(self.D, self.Dv, device="cuda", dtype=torch.float64)
        rows = []
        for t in range(n):
            state = a[t, :, None] * state
            new = v[t] if b is None else b[t] * (v[t] - k[t] @ state)
            state = state + k[t, :, None] * new
            rows.append(read[t] @ state)
        o = torch.stack(rows)
        return torch.autograd.grad(o, q, do)[0] if self.phase == "bwd" else o.detach()

    def flop(self):
        each = 6 if self.name in ERASES else 4
        return each * self.B * self.H * self.S * self.D * self.Dv * (2.5 if self.phase == "bwd" else 1)

    def bytes(self):
        rows = sum(2 * x.numel() for x in (self.q, self.k, self.v, self.do)) + sum(4 * x.numel() for x in self.given.values())
        return (2 * rows if self.phase == "bwd" else rows) + (8 * self.state.numel() if self.phase == "step" else 0)


def measure(torch, row, _, folder, options, bench):
    """A row, as bench.measure has it; None where the target has no kernel of it."""
    import attn

    name, phase, size = row
    path = file_of(folder, name, *size[3:]) + ".ptx"
    if not os.path.exists(path):
        return None
    case, head = Case(torch, name, phase, size), 1
    want = case.wanted(head)
    state = case.state.clone() if phase == "step" else None
    kernel, errors = attn.load(path).kernels[0], {}

    def checked(n, make):
        if state is not None:
            case.state.copy_(state)
        f = make()
        errors[n] = float((f()[0, head, : len(want)].double() - want).norm() / want.norm())
        return f

    makers = {"ours": lambda: case.ours(kernel), **{n: getattr(case, n) for n in case.peers()}}
    runs, failed = bench.running({n: lambda n=n, make=make: checked(n, make) for n, make in makers.items()})
    t = bench.medians(torch, runs, streams={"fla": getattr(case, "stream", None)})
    times = {n: {"ms": t[n], "tflops": case.flop() / t[n] * 1e-9, "tbps": case.bytes() / t[n] * 1e-9, "error": errors[n]} for n in t}
    failed.update((n, "no graph holds it") for n in runs if n not in t)
    sizes = dict(zip(("B", "H", "Hkv", "Sq", "Sk", "D", "Dv"), (size[0], size[1], size[1], size[2], size[2], *size[3:])))
    return {"source": name, "phase": phase, "sizes": sizes, "times": times, "failed": failed}
