"""A captured step of a live model on a GPU: the same numbers, batches and rates of the caller's own."""

import copy

import pytest
import torch
import torch.nn.functional as F

from peakward.lab.levers.in_place import Live
from peakward.lab.levers.whole_step import WholeStep

pytestmark = pytest.mark.gpu


def scored(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


@pytest.mark.parametrize("flags", [{"foreach": True}, {"fused": True}])
def test_a_captured_step_trains_as_an_eager_one(flags, tiny_gpt):
    torch.manual_seed(0)
    model = tiny_gpt.GPT().cuda().eval()
    twin = copy.deepcopy(model)
    pairs = []
    for each, captured in ((model, True), (twin, False)):
        # With a large eps: keys' biases have no gradient but its rounding, whose sign AdamW would follow.
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-3, eps=1e-2, **flags)
        rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        step = WholeStep(Live(model=each, optimizer=optimizer), scored, captured=captured)
        pairs.append((step, rates, optimizer))
    for seed in range(3):
        torch.manual_seed(seed)
        ids = torch.randint(tiny_gpt.VOCAB_SIZE, (2, 16 if seed < 2 else 12), device="cuda")
        losses = []
        for step, rates, _ in pairs:
            losses.append(step(ids))
            rates.step()
        torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()))
    step, _, optimizer = pairs[0]
    step.release()
    (group,) = optimizer.param_groups
    assert group["capturable"] is False
    assert type(group["lr"]) is float
