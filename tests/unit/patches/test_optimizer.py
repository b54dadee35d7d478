"""Optimizers where a file makes them."""

import pytest
import torch

from peakward.levers.optimizer import OWN
from peakward.patches.optimizer import _STATES, in_optimizers
from peakward.patches.source import Source

MADE = {
    "import torch\nopt = torch.optim.AdamW(p, lr=1e-3)  # x\n": "lr=1e-3, fused=True)  # x",
    "from torch import optim\nopt = optim.SGD(\n    p,\n    lr=(0.1),  # (a)\n)\n": "(0.1), fused=True,  # (",
    "from torch.optim import Adam as A\nopt = A(p)\n": "A(p, fused=True)",
    "import torch.optim as o\nopt = o.AdamW(params=p, fused=False)\n": "params=p, fused=True",
    "import torch\nopt = torch.optim.AdamW([x for x in (p)], foreach=True)\n": "foreach=None, fused=True",
}
LEFT = {
    "import torch\nopt = torch.optim.AdamW(p, **extra)\n": "not written out",
    "import torch\nopt = torch.optim.RMSprop(p)\n": "no argument fused",
}


def changed(text, wanted="adamw-fused"):
    source = Source("m.py", text.encode())
    edits, left = in_optimizers(source, wanted)
    return source.edited(edits).decode(), left


@pytest.mark.parametrize("text", MADE)
def test_an_optimizer_of_torch_is_fused(text):
    after, left = changed(text)
    assert MADE[text] in after
    assert not left
    space = {"p": [torch.nn.Parameter(torch.ones(2))]}
    exec(after, space)
    assert space["opt"].defaults["fused"] is True


@pytest.mark.parametrize("text", LEFT)
def test_what_cannot_be_shown_is_left(text):
    after, left = changed(text)
    assert after == text
    assert LEFT[text] in left[0]


@pytest.mark.parametrize("text", ["opt = AdamW(p)\n", "import mine\nopt = mine.optim.AdamW(p)\n"])
def test_other_optimizers_are_none_of_torch(text):
    assert changed(text) == (text, ())


def test_our_own_takes_the_place_of_a_plain_one():
    after, left = changed("import torch\nopt = torch.optim.AdamW(p, lr=1e-3)\n", "adamw-triton")
    assert after == (
        "import torch\nfrom peakward.kernels import TritonAdamW\nopt = TritonAdamW(p, lr=1e-3)\n"
    )
    assert not left


def test_our_own_with_moments_in_fewer_bits():
    after, left = changed(
        "import torch\nopt = torch.optim.AdamW(p, lr=1e-3)\n", "adamw-8bit-states"
    )
    assert after == (
        "import torch\nfrom peakward.kernels import TritonAdamW\n"
        'opt = TritonAdamW(p, lr=1e-3, states="8bit")\n'
    )
    assert not left


def test_values_of_our_own_are_those_of_the_axis():
    assert _STATES.keys() == OWN.keys()
    assert {each or "as parameters" for each in _STATES.values()} == set(OWN.values())


def test_our_own_takes_no_other_arguments():
    text = "import torch\nopt = torch.optim.AdamW(p, amsgrad=True)\n"
    after, left = changed(text, "adamw-triton")
    assert after == text
    assert "TritonAdamW" in left[0]
