"""A configuration applied to a model and an optimizer that live here, and taken back."""

import copy
import io
from dataclasses import dataclass

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from peakward.lab.levers.in_place import Applied, Live, obstacle
from peakward.records.case import AS_WRITTEN
from peakward.records.errors import PeakwardError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attend, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.attend(self.norm(x)).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Tied(nn.Module):
    """Its head is its embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for each in self.blocks:
            x = each(x)
        return self.head(x)


IDS = torch.arange(24).view(2, 12) % 32


def settings(**changes):
    return msgspec.structs.replace(AS_WRITTEN, **changes)


def stepped(model, optimizer):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.fixture
def live():
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stepped(model, optimizer)  # So that there are moments and gradients.
    return Live(model=model, optimizer=optimizer)


def state(live):
    """Everything that an undo gives back: what is no tensor, and what is."""
    model, optimizer = live.model, live.optimizer
    plain = (
        [(type(each), sorted(vars(each))) for each in model.modules()],
        dict(optimizer.defaults),
        [{**each, "params": len(each["params"])} for each in optimizer.param_groups],
        vars(optimizer).get("_step_supports_amp_scaling"),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.flash_sdp_enabled(),
    )
    return plain, (
        {name: each.clone() for name, each in model.state_dict().items()},
        [each.grad.clone() for each in model.parameters()],
        copy.deepcopy(optimizer.state_dict()["state"]),
        model(IDS).detach(),
    )


def assert_same(now, before):
    assert now[0] == before[0]
    torch.testing.assert_close(now[1], before[1], rtol=0, atol=0)


CONFIGURATIONS = {
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16": {"precision": "bf16"},
    "checkpointing": {"checkpointing": "every-block"},
    "selective": {"checkpointing": "selective"},
    "fused": {"optimizer": "adamw-fused"},
    "loop": {"optimizer": "adamw-loop"},
    "backend": {"attention": "sdpa-math"},
    "together": {
        "precision": "bf16-mixed",
        "checkpointing": "every-block",
        "optimizer": "adamw-fused",
        "attention": "sdpa-math",
    },
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_undone_at_once_all_is_as_before_bit_for_bit(live, name):
    before = state(live)
    names = list(live.model.state_dict())
    applied = Applied(live, settings(**CONFIGURATIONS[name]))
    assert list(live.model.state_dict()) == names
    live.model(IDS)
    assert applied.undo() == ()
    assert_same(state(live), before)
    assert live.model.head.weight is live.model.embed.weight


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_steps_go_on_and_what_was_trained_stays(live, name):
    expected = copy.deepcopy(live)
    applied = Applied(live, settings(**CONFIGURATIONS[name]))
    theirs = [stepped(expected.model, expected.optimizer) for _ in range(2)]
    mine = [stepped(live.model, live.optimizer) for _ in range(2)]
    torch.testing.assert_close(mine, theirs, rtol=2**-6, atol=0, check_dtype=False)
    trained = live.model.head.weight.detach().float()
    lost = applied.undo()
    assert bool(lost) == (name == "bf16")
    assert torch.equal(live.model.head.weight, trained)
    stepped(live.model, live.optimizer)


def test_autocast_computes_in_its_type_and_results_stay_in_the_callers(live):
    Applied(live, settings(precision="bf16-mixed"))
    kinds = []
    live.model.head.register_forward_hook(lambda _module, _args, result: kinds.append(result.dtype))
    assert live.model(IDS).dtype == torch.float32
    assert kinds == [torch.bfloat16]


@dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    layers: list[torch.Tensor]
    n: int = 3


class Told(nn.Module):
    """Its output is a dataclass, and it puts another tensor in a buffer's place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, given):
        y = self.linear(given.logits)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return Output(y, [y])


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16"])
def test_tensors_in_dataclasses_stay_in_the_callers_type(precision):
    model, x = Told(), Output(torch.ones(2, 4), [])
    kinds = []
    model.linear.register_forward_hook(lambda _module, _args, y: kinds.append(y.dtype))
    applied = Applied(Live(model=model), settings(precision=precision))
    found = model(x)
    assert kinds == [torch.bfloat16]
    assert (type(found), found.n) == (Output, 3)
    assert found.logits.dtype == found.layers[0].dtype == x.logits.dtype == torch.float32
    applied.undo()


def test_a_buffer_that_was_put_in_another_ones_place_is_fp32_again():
    model = Told()
    applied = Applied(Live(model=model), settings(precision="bf16"))
    model(Output(torch.ones(2, 4), []))
    assert model.mean.dtype == torch.bfloat16
    (lost,) = applied.undo()
    assert "1 of 3 tensors were trained in bfloat16" in lost
    assert model.mean.dtype == torch.float32


class Triangle(nn.Module):
    """Its causal mask is a view, in two buffers: written like minGPT's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("bias", torch.tril(torch.ones(4, 4)).view(1, 1, 4, 4))
        self.register_buffer("again", self.bias)

    def forward(self, x):
        return self.linear(x) @ self.bias[0, 0]


def test_a_buffer_that_is_a_view_can_be_traced_in_16_bits():
    model = Triangle()
    mask = model.bias
    live = Live(model=model)
    applied = Applied(live, settings(precision="bf16"))
    with FakeTensorMode(allow_non_fake_inputs=True) as traced:
        assert traced.from_tensor(model.bias).dtype == torch.bfloat16
    assert model.again is model.bias
    assert model(torch.ones(2, 4)).dtype == torch.float32
    assert applied.undo() == ()
    assert model.bias is model.again is mask
    assert torch.equal(mask[0, 0], torch.ones(4, 4).tril())
    written = Applied(live, settings(precision="bf16"))
    model.bias.zero_()
    assert len(written.undo()) == 1
    assert model.bias is mask
    assert not mask.any()


def test_a_copy_computes_with_its_own_parameters_and_is_plain(live):
    plain = copy.deepcopy(live.model)
    Applied(live, settings(precision="bf16-mixed", checkpointing="every-block"))
    twin = copy.deepcopy(live.model)
    nn.init.zeros_(live.model.head.weight)
    assert torch.equal(twin(IDS), plain(IDS))
    saved = io.BytesIO()
    torch.save(live.model, saved)
    saved.seek(0)
    assert type(torch.load(saved, weights_only=False)) is Tied


def test_flags_outlast_a_loaded_state(live):
    held = copy.deepcopy(live.optimizer.state_dict())
    applied = Applied(live, settings(optimizer="adamw-fused"))
    live.optimizer.load_state_dict(held)
    assert live.optimizer.param_groups[0]["fused"]
    live.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert live.optimizer.param_groups[1]["fused"]
    applied.undo()
    assert not live.optimizer.param_groups[0]["fused"]


def test_a_forward_pass_of_an_instance_is_wrapped_and_given_back(live):
    block = live.model.blocks[0]
    calls, inner = [], block.forward

    def own(x):
        calls.append(1)
        return inner(x)

    block.forward = own
    applied = Applied(live, settings(checkpointing="every-block"))
    live.model(IDS)
    assert calls == [1]
    applied.undo()
    assert vars(block)["forward"] is own


def test_hooks_are_called_once_a_pass_and_stay(live):
    seen = []
    block = live.model.blocks[0]
    block.register_forward_hook(lambda *_: seen.append("forward"))
    block.register_full_backward_hook(lambda *_: seen.append("backward"))
    live.model.register_forward_pre_hook(lambda *_: seen.append("pre"))
    applied = Applied(live, settings(precision="bf16-mixed", checkpointing="every-block"))
    stepped(live.model, live.optimizer)
    assert sorted(seen) == ["backward", "forward", "pre"]
    applied.undo()
    stepped(live.model, live.optimizer)
    assert len(seen) == 6


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_gradients_accumulate(live, name):
    applied = Applied(live, settings(**CONFIGURATIONS[name]))

    def gradient(n):
        live.optimizer.zero_grad()
        for _ in range(n):
            F.cross_entropy(live.model(IDS).flatten(0, 1), IDS.flatten()).backward()
        return live.model.embed.weight.grad.clone()

    torch.testing.assert_close(gradient(2), 2 * gradient(1), rtol=0, atol=0)
    applied.undo()


class Holds(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = held


def test_parameters_that_others_hold_are_not_cast(live):
    weight = live.model.embed.weight
    bf16 = settings(precision="bf16")
    averaged = copy.deepcopy(live.model)
    assert obstacle(live, bf16, AS_WRITTEN) is None
    outside = Holds(nn.Parameter(weight.detach(), requires_grad=False))
    with pytest.raises(PeakwardError, match=r"embed\.weight is shared with a Holds outside"):
        Applied(live, bf16)
    assert "take bf16-mixed" in obstacle(live, bf16, AS_WRITTEN)
    assert weight.dtype == outside.held.dtype == torch.float32
    del outside
    live.optimizer.add_param_group({"params": [nn.Parameter(weight.detach()[:2])]})
    assert "the optimizer holds another tensor" in obstacle(live, bf16, AS_WRITTEN)
    assert torch.equal(averaged.embed.weight, weight)


def test_two_tensors_of_one_memory_are_not_cast_apart(live):
    live.model.again = nn.Parameter(live.model.embed.weight.data)
    assert "embed.weight has the memory of again" in obstacle(
        live, settings(precision="bf16"), AS_WRITTEN
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_moments_in_fewer_bits_are_not_cast(live, dtype):
    parameter = next(live.model.parameters())
    live.optimizer.state[parameter]["exp_avg"] = torch.zeros_like(parameter, dtype=dtype)
    before = state(live)
    with pytest.raises(
        PeakwardError, match=rf"moments in the parameters' type .* got {str(dtype)[6:]}"
    ):
        Applied(live, settings(precision="bf16"))
    assert_same(state(live), before)


def test_a_part_of_a_larger_tensor_is_not_cast():
    flat = torch.zeros(64)
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(flat[:16].view(4, 4))
    with pytest.raises(PeakwardError, match="weight is a part of a larger tensor"):
        Applied(Live(model=model), settings(precision="bf16"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "fp16-mixed"}, "got fp16-mixed, which scales the loss"),
        ({"cuda_graphs": True}, "one of the whole step"),
        (
            {"precision": "bf16-mixed", "optimizer": "adamw-triton"},
            r"take in place \(adamw-loop.*got adamw-triton: it is another",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_changed(live, changes, said):
    before = state(live)
    with pytest.raises(PeakwardError, match=said):
        Applied(live, settings(**changes))
    assert_same(state(live), before)


@pytest.mark.full
def test_compiled_blocks_are_taken_back(live):
    before = state(live)
    applied = Applied(live, settings(compile="default", precision="bf16-mixed"))
    stepped(copy.deepcopy(live.model), torch.optim.SGD([nn.Parameter(torch.zeros(1))]))
    live.model(IDS)
    assert applied.undo() == ()
    assert_same(state(live), before)
