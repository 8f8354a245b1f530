"""attn.huggingface with models of transformers that are small and random, on the CPU or on ATTN_DEVICE, against their eager attention.

    ATTNRT_LIBRARY=build/libattnrt.so ATTNC=build/attnc python3 -m unittest tests/python/test_huggingface.py
"""

import copy
import os
import sys
import tempfile
import unittest

import torch

try:
    import transformers
    from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM
except ImportError:
    transformers = None

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

DEVICE = os.environ.get("ATTN_DEVICE", "cpu")
SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def llama(**more):
    return LlamaForCausalLM, LlamaConfig(**SIZES, **more)


def gemma2(**more):
    return Gemma2ForCausalLM, Gemma2Config(**SIZES, sliding_window=8, attn_logit_softcapping=20.0, query_pre_attn_scalar=20, **more)


def gpt_oss(**more):
    return GptOssForCausalLM, GptOssConfig(**SIZES, sliding_window=8, num_local_experts=2, num_experts_per_tok=2, **more)


MODELS = llama, gemma2, gpt_oss


def pair(make, **more):
    """The same model with eager attention, and with ours."""
    kind, config = make(**more)
    torch.manual_seed(5)
    with torch.device("cpu"):
        config._attn_implementation = "eager"
        eager = kind(config)
        for name, p in eager.named_parameters():  # larger scores, so that caps and sinks matter
            if "q_proj" in name or "k_proj" in name or "sinks" in name:
                torch.nn.init.normal_(p, std=0.5)
        config = copy.deepcopy(config)
        config._attn_implementation = "attn"
        ours = kind(config)
    ours.load_state_dict(eager.state_dict())
    return eager.to(DEVICE).eval(), ours.to(DEVICE).eval()


def tokens(b=2, s=24):
    return torch.randint(3, 97, (b, s), generator=torch.Generator().manual_seed(9)).to(DEVICE)


def padding(side, s=24):
    mask = torch.ones(2, s, dtype=torch.long, device=DEVICE)
    mask[1, slice(0, 7) if side == "left" else slice(s - 7, s)] = 0
    return mask


@unittest.skipUnless(transformers, "needs transformers")
class HuggingFace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        os.environ["ATTN_CACHE"] = cls.folder.name
        import attn.huggingface

        attn.huggingface.register()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def close(self, x, y, tolerance=2e-4):
        self.assertLess(((x - y).norm() / y.norm()).item(), tolerance)

    def test_logits(self):
        ids = tokens()
        for make in MODELS:
            eager, ours = pair(make)
            with torch.no_grad(), self.subTest(make.__name__):
                want = eager(ids).logits
                self.close(ours(ids).logits, want)
                for side in "left", "right":
                    mask = padding(side)
                    x, y = (m(ids, attention_mask=mask).logits[mask.bool()] for m in (ours, eager))
                    self.close(x, y)
                    self.assertGreater((y - want[mask.bool()]).norm() if side == "left" else 1, 1e-2)  # padding matters

    def test_packed(self):
        ids = tokens(1)
        positions = torch.cat([torch.arange(n) for n in (5, 11, 1, 7)])[None].to(DEVICE)
        for make in MODELS:
            eager, ours = pair(make)
            with torch.no_grad(), self.subTest(make.__name__):
                given = {"position_ids": positions, "use_cache": False}
                want = eager(ids, **given).logits
                self.close(ours(ids, **given).logits, want)
                if make is not gpt_oss:  # which does not tell its masks of positions, in transformers 5.17
                    self.close(want[:, 5:16], eager(ids[:, 5:16]).logits, 1e-3)  # a sequence is as if it were alone

    def test_loss_curve(self):
        # small steps: with larger ones eager attention itself, begun from weights that are 1e-7 apart, goes 6e-3 apart in six
        for make in MODELS:
            curves = []
            for model in pair(make):
                model.train()
                optimizer, curve = torch.optim.AdamW(model.parameters(), lr=5e-4), []
                for step in range(6):
                    ids, mask = tokens(), padding("right" if step % 2 else "left")
                    predicted = mask * torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1)  # not by a query that sees no key
                    loss = model(ids, attention_mask=mask, labels=ids.masked_fill(predicted == 0, -100), use_cache=False).loss
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    curve.append(loss.detach())
                curves.append(torch.stack(curve))
            with self.subTest(make.__name__):
                self.close(curves[1], curves[0], 1e-4)
                self.assertLess(curves[1][-1].item(), curves[1][0].item() - 0.3)

    def test_gradients(self):
        ids = tokens()
        for make in MODELS:
            found = []
            for model in pair(make):
                model(ids, labels=ids, use_cache=False).loss.backward()
                found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
            with self.subTest(make.__name__):
                self.assertEqual(found[0].keys(), found[1].keys())
                for name, x in found[0].items():
                    if x.norm() > 1e-6:
                        self.close(found[1][name], x, 2e-3)

    def test_checkpoints(self):
        _, ours = pair(llama)
        ids, found = tokens(), []
        for on in False, True:
            ours.train()
            if on:
                ours.gradient_checkpointing_enable({"use_reentrant": False})
            ours.zero_grad()
            ours(ids, labels=ids, use_cache=False).loss.backward()
            found.append(ours.model.layers[0].self_attn.q_proj.weight.grad.clone())
        self.close(found[1], found[0])

    def test_generates(self):
        ids, mask = tokens(), padding("left")
        for make in MODELS:
            eager, ours = pair(make)
            with self.subTest(make.__name__):
                given = {"attention_mask": mask, "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
                self.assertEqual(ours.generate(ids, **given).tolist(), eager.generate(ids, **given).tolist())

    def test_compiles(self):
        eager, ours = pair(llama)
        try:
            torch.compile(eager, fullgraph=True, backend="aot_eager")(tokens(), use_cache=False)
        except torch._dynamo.exc.Unsupported as e:  # PyTorch 2.6 with transformers 5.17
            self.skipTest(f"transformers' own model does not compile here: {e}")
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            for given in {}, {"attention_mask": padding("left")}:
                self.close(compiled(tokens(), use_cache=False, **given).logits, ours(tokens(), use_cache=False, **given).logits)

    def test_refuses(self):
        ids = tokens()
        _, ours = pair(llama, attention_dropout=0.1)
        ours(ids)  # which drops nothing
        with self.assertRaisesRegex(NotImplementedError, "dropout: .* asks for 0.1"):
            ours.train()(ids)
        _, ours = pair(llama)
        with self.assertRaisesRegex(NotImplementedError, "attention_mask: .* not one of four dimensions"):
            ours(ids, attention_mask=torch.zeros(2, 1, 24, 24, device=DEVICE))
        with self.assertRaisesRegex(NotImplementedError, "static"):
            ours.generate(ids, max_new_tokens=2, cache_implementation="static")


if __name__ == "__main__":
    unittest.main()
