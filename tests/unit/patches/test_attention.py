"""Attention that a file writes out, rewritten where every part of it can be shown."""

import pytest
import torch

from peakward.patches.attention import in_attention
from peakward.patches.source import Source

FILE = """\
import math

import torch
import torch.nn as nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, n=8, p=0.0):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.drop = nn.Dropout(p)
        self.scale = 0.5
        self.register_buffer("mask", torch.tril(torch.ones(n, n)).view(1, 1, n, n))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, dim=1)
        T = x.size(1)
        # Attention.
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))  # scores
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        # Probabilities.
        att = F.softmax(att, dim=-1)
        att = self.drop(att)
        y = att @ v  # mixed
        return y.transpose(1, 2).flatten(2)
"""
SCORES = "att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))"
MASKED = 'att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))'
CHAIN = FILE[FILE.index("att = (q") : FILE.index("        return y")]
FUTURE = "future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)"
BUFFER = "torch.tril(torch.ones(n, n)).view(1, 1, n, n)"
LOWER = "att = att.masked_fill(~self.mask[..., :T, :T], -torch.inf)"
SHOWN = {
    "as minGPT": (),
    "divided": ((SCORES, "att = torch.matmul(q, k.mT) / k.shape[-1] ** 0.5"),),
    "scaled by a size of a tuple": (
        (SCORES, "sizes = (2, k.shape[-1])\n        att = q @ k.mT * sizes[-1] ** -0.5"),
    ),
    "scaled by itself": (
        (SCORES, "att = q @ k.transpose(-1, -2)\n        att = att * self.scale"),
    ),
    "scaled by a name": (
        (SCORES, "D = k.size(-1)\n        s = 1.0 / math.sqrt(D)\n        att = q @ k.mT * s"),
    ),
    "scaled by an attribute that is a choice": (
        ("self.scale = 0.5", "self.scale = (p or None) or float(n) ** -0.5"),
        (SCORES, "att = q @ k.mT * self.scale"),
    ),
    "with an imported dropout": (
        ("import torch\n", "import torch\nfrom torch.nn import Dropout\n"),
        ("nn.Dropout(p)", "Dropout(p)"),
    ),
    "with positions rotated": (
        (SCORES, f"k = torch.cat((-k[..., 2:], k[..., :2]), dim=-1)\n        {SCORES}"),
    ),
    "not scaled": ((SCORES, "att = q.matmul(k.transpose(-2, -1))"),),
    "an inverse": ((MASKED, LOWER), (BUFFER, "torch.tril(torch.ones(n, n)).bool()[None, None]")),
    "an upper triangle": (
        (MASKED, 'att = att.masked_fill(self.mask[:T, :T], -float("inf"))'),
        (BUFFER, "torch.triu(torch.ones(n, n), diagonal=1).bool()"),
    ),
    "no mask": ((f"        {MASKED}\n", ""),),
    "no dropout": (("        att = self.drop(att)\n", ""),),
    "other names": ((SCORES, SCORES.replace("att", "w")), (MASKED, MASKED.replace("att.", "w."))),
    "in one expression": (
        (
            CHAIN,
            """y = (
            self.drop(
                ((q @ k.mT) * (1.0 / math.sqrt(k.size(-1))))
                .masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
                .softmax(-1)
            )
            @ v
        ).contiguous()  # mixed
""",
        ),
    ),
    "a mask of the function between": (
        (MASKED, f"{FUTURE}\n        att = att.masked_fill(future, float('-inf'))"),
    ),
    "a mask of the function before": (
        (SCORES, f"{FUTURE}\n        {SCORES}"),
        (MASKED, "att = att.masked_fill(future, float('-inf'))"),
    ),
    "a lower mask of the function": (
        (SCORES, f"lower = torch.tril(torch.ones(T, T))[None]\n        {SCORES}"),
        (MASKED, "att = att.masked_fill(lower == 0, float('-inf'))"),
    ),
    "an inverted mask of the function": (
        (SCORES, f"{FUTURE}\n        past = ~future\n        {SCORES}"),
        (MASKED, "att = att.masked_fill(~past, float('-inf'))"),
    ),
    "returned": (
        ("        y = att @ v  # mixed\n", ""),
        ("return y.", "return (att @ v)."),
        (".flatten(2)", ".flatten(2)  # mixed"),
    ),
    "softmax as a method": (("F.softmax(att, dim=-1)", "att.softmax(-1)"),),
}
LEFT = {
    "an additive mask": (((MASKED, "att = att + self.mask[:, :, :T, :T]"),), "scores"),
    "probabilities that are returned": ((("flatten(2)", "flatten(2), att"),), "used elsewhere"),
    "a mask that is set": ((("self.scale = 0.5", "self.mask = None"),), "not shown to be causal"),
    "a window": (((BUFFER, "torch.tril(torch.ones(n, n), diagonal=1)"),), "not shown to be causal"),
    "a mask of the function that is set twice": (
        (
            (SCORES, f"{FUTURE}\n        future = self.other\n        {SCORES}"),
            (MASKED, "att = att.masked_fill(future, -torch.inf)"),
        ),
        "not assigned once",
    ),
    "keys that are given": (
        (
            ("forward(self, x)", "forward(self, x, k)"),
            ("q, k, v =", "q, _, v ="),
        ),
        "is given its keys",
    ),
    "a mask that is given": (
        (
            ("forward(self, x)", "forward(self, x, m=None)"),
            (MASKED, "att = att.masked_fill(m, -torch.inf)"),
        ),
        "not assigned once",
    ),
    "a mask that may be given": (
        (
            ("forward(self, x)", "forward(self, x, m=None)"),
            (
                SCORES,
                f"if m is None:\n            m = torch.ones(T, T).triu(1).bool()\n        {SCORES}",
            ),
            (MASKED, "att = att.masked_fill(m, -torch.inf)"),
        ),
        "not assigned once",
    ),
    "a mask that shows a prefix": (
        (
            (SCORES, f"{FUTURE}\n        future[:, :2] = False\n        {SCORES}"),
            (MASKED, "att = att.masked_fill(future, -torch.inf)"),
        ),
        "changed in its place",
    ),
    "a mask that a method changes": (
        (
            (SCORES, f"{FUTURE}\n        future[0].logical_or_(x[0, :, 0] > 0)\n        {SCORES}"),
            (MASKED, "att = att.masked_fill(future, -torch.inf)"),
        ),
        "changed in its place",
    ),
    "a buffer that shows a prefix": (
        (("self.scale = 0.5", "self.scale = 0.5\n        self.mask[..., :2] = 1"),),
        "changed in its place",
    ),
    "a comprehension over values": (
        (("y = att @ v", "y = torch.stack([att @ q for q in v.unbind(1)], 1)"),),
        "comprehension or a lambda",
    ),
    "a lambda of values": (
        (("y = att @ v", "f = lambda v: att @ v\n        q = q * 2\n        y = f(v)"),),
        "comprehension or a lambda",
    ),
    "a lower mask that hides the past": (
        ((MASKED, "att = att.masked_fill(torch.ones(T, T).tril().bool(), -torch.inf)"),),
        "not shown to be causal",
    ),
    "probabilities twice in a product": (
        (("y = att @ v", "y = att @ v + att.sum()"),),
        "alone",
    ),
    "no triangle": (((BUFFER, "torch.ones(1, 1, n, n)"),), "not shown to be causal"),
    "other columns": ((("[:, :, :T, :T]", "[:, :, :T, :n]"),), "first n"),
    "a finite number": ((('float("-inf")', "-1e9"),), "minus infinity"),
    "another dropout": ((("nn.Dropout(p)", "Other(p)"),), "nn.Dropout"),
    "a dropout of the file's own": (
        (
            ("class Attention", "class Dropout(nn.Identity):\n    p = 0.5\n\n\nclass Attention"),
            ("nn.Dropout(p)", "Dropout(p)"),
        ),
        "nn.Dropout",
    ),
    "a dropout that is replaced": (
        (("nn.Dropout(p)", "nn.Dropout(p)\n        self.drop: nn.Module = nn.Identity()"),),
        "nn.Dropout",
    ),
    "keys behind those of a cache": (
        ((SCORES, f"k = torch.cat((self.k, k), dim=2)\n        {SCORES}"),),
        "earlier ones",
    ),
    "a statement between": (
        (("        att = self.drop", "        print(att)\n        att = self.drop"),),
        "behind",
    ),
    "a scale of tensors": (((SCORES, "att = (q @ k.transpose(-2, -1)) * self.bias(x)"),), "scale"),
    "a scale that is learnt": (
        (
            ("self.scale = 0.5", "self.scale = nn.Parameter(torch.ones(2, 1, 1))"),
            (SCORES, "att = q @ k.mT * self.scale"),
        ),
        "the scale",
    ),
    "a scale that comes from tensors": (
        (
            ("self.scale = 0.5", "self.bias = nn.Parameter(torch.ones(2, 1, 1))"),
            (SCORES, "_, s = 0, self.bias.exp()\n        att = q @ k.mT / s"),
        ),
        "the scale",
    ),
    "one line for two": (
        (("att)\n        y =", "att); y ="),),
        "shares a line",
    ),
}


def changed(*replacements):
    text = FILE
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


def rewritten(text):
    source = Source("m.py", text.encode())
    edits, left = in_attention(source)
    return source.edited(edits).decode(), left


def computed(text, **given):
    space = {}
    exec(text, space)
    torch.manual_seed(0)
    module = space["Attention"](**given).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.manual_seed(1)
    y = module(x)
    return y, torch.autograd.grad(y.square().sum(), tuple(module.parameters()))


@pytest.mark.parametrize("form", SHOWN)
def test_a_chain_that_is_shown_becomes_one_call(form):
    text = changed(*SHOWN[form])
    after, left = rewritten(text)
    assert not left
    assert "softmax" not in after
    assert "F.scaled_dot_product_attention(" in after
    assert "# Attention.\n" in after
    assert "# mixed\n" in after
    (y, gradients), (y_, gradients_) = computed(text), computed(after)
    torch.testing.assert_close(y, y_, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, gradients_, rtol=1e-12, atol=1e-12)


def test_a_mask_goes_with_the_last_that_reads_it():
    masked = (MASKED, "att = att.masked_fill(future, -torch.inf)")
    alone, _ = rewritten(changed((SCORES, f"{FUTURE}\n        {SCORES}"), masked))
    assert "future" not in alone
    text = changed(
        (SCORES, f"{FUTURE}\n        {SCORES}"), masked, ("flatten(2)", "flatten(2), future")
    )
    assert FUTURE in rewritten(text)[0]


def test_dropout_stays_at_its_rate():
    after, _ = rewritten(FILE)
    dropped, _ = computed(after, p=0.5)
    assert not torch.allclose(dropped, computed(after)[0])


@pytest.mark.parametrize("form", LEFT)
def test_what_is_not_shown_is_left_with_its_reason(form):
    replacements, why = LEFT[form]
    text = changed(*replacements)
    after, left = rewritten(text)
    assert after == text
    assert why in left[0]


def test_a_sampler_is_no_attention():
    text = "class A:\n    def f(self, x):\n        x = x.softmax(-1)\n        return x.sum()\n"
    assert rewritten(text) == (text, ())


def test_a_file_without_the_functional_module_names_torch():
    text = changed(
        ("from torch.nn import functional as F\n", ""),
        ("F.softmax(att, dim=-1)", "att.softmax(-1)"),
    )
    assert "torch.nn.functional.scaled_dot_product_attention(" in rewritten(text)[0]


def test_a_name_that_the_function_gives_to_a_size_is_not_called():
    text = changed(
        ("F.softmax(att, dim=-1)", "att.softmax(-1)"), ("T = x.size(1)", "_, T, F = x.shape")
    )
    after, _ = rewritten(text)
    assert "torch.nn.functional.scaled_dot_product_attention(" in after
    torch.testing.assert_close(computed(text), computed(after), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "chain",
    [
        "y = (q @ k.mT).softmax(-1) @ ((k @ q.mT).softmax(-1) @ v)",
        "y = ((q @ k.mT).softmax(-1) @ v) @ k.mT\n        y = y.softmax(-1)\n        y = y @ v",
    ],
)
def test_of_two_that_are_one_in_the_other_one_is_called(chain):
    text = changed((CHAIN, f"{chain}\n"))
    after, left = rewritten(text)
    assert after.count("scaled_dot_product_attention(") == 1
    assert "a part of another" in left[0]
    torch.testing.assert_close(computed(text), computed(after), rtol=1e-12, atol=1e-12)
