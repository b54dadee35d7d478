"""SwiGLU networks of any class, found by what they compute; in Triton's interpreter."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.kernels.ops.gated_modules.api import replace_swiglu
from peakward.kernels.ops.gated_modules.behaviour import gated_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
WIDTH, INNER = 16, 24


class Apart(nn.Module):
    """As Llama's reference code, whose gate is called w1 and whose way back is w2."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER)
        self.w2, self.dropout = nn.Linear(INNER, WIDTH), nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.w2(F.silu(self.w1(x)) * self.w3(x)))


class UpFirst(Apart):
    """The roles the other way round, silu written out, dropout of the product."""

    def forward(self, hidden):
        up, gate = self.w3(hidden), self.w1(hidden)
        return self.w2(self.dropout(up * (gate * torch.sigmoid(gate))))


class Packed(nn.Module):
    """As Phi-3's and GLM's."""

    def __init__(self):
        super().__init__()
        self.both, self.down = nn.Linear(WIDTH, 2 * INNER), nn.Linear(INNER, WIDTH)
        self.act = nn.SiLU()

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(up * self.act(gate))


class Geglu(Apart):
    """As Gemma's."""

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x), approximate="tanh") * self.w3(x))


FOUND = {
    "gelu": Geglu,
    "apart": Apart,
    "with dropout": lambda: Apart(0.3),
    "up first": lambda: UpFirst(0.3),
    "packed": Packed,
}


class ErfGelu(Apart):
    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)) * self.w3(x))


class PackedGelu(Packed):
    def __init__(self):
        super().__init__()
        self.act = nn.GELU(approximate="tanh")


class Noisy(Apart):
    def forward(self, x):
        gate = self.w1(x)
        gate = gate + 0.01 * torch.randn_like(gate) if self.training else gate
        return self.w2(F.silu(gate) * self.w3(x))


class Limited(Apart):
    def forward(self, x):
        return self.w2(F.silu(self.w1(x).clamp(max=100)) * self.w3(x))


class ByWeight(Apart):
    """Its projections are not called, so their hooks are not either."""

    def forward(self, x):
        return self.w2(F.silu(F.linear(x, self.w1.weight)) * self.w3(x))


class Interleaved(Packed):
    def forward(self, x):
        made = self.both(x)
        return self.down(self.act(made[..., ::2]) * made[..., 1::2])


class SecondHalf(Packed):
    def forward(self, x):
        up, gate = self.both(x).chunk(2, dim=-1)
        return self.down(up * self.act(gate))


class Residual(Apart):
    def forward(self, x):
        return x + super().forward(x)


class Detached(Apart):
    def forward(self, x):
        return self.w2(F.silu(self.w1(x)).detach() * self.w3(x))


class Scaled(Apart):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * super().forward(x)


class DropsByFunction(Apart):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.2, self.training)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


def results(module, x):
    """The result and every gradient, with the draws of one seed."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    y = module(x)
    module.zero_grad()
    (y * torch.linspace(-1, 1, WIDTH)).sum().backward()
    return [y.detach(), x.grad, *(each.grad for each in module.parameters())]


@pytest.mark.parametrize("make", FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("trains", [True, False])
def test_values_gradients_and_draws_stay(make, trains):
    torch.manual_seed(0)
    module, x = make().train(trains), torch.randn(2, 5, WIDTH)
    before, names = results(module, x), list(module.state_dict())
    replaced = replace_swiglu(module)
    assert replaced.n == 1
    for one, other in zip(results(module, x), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert list(module.state_dict()) == names
    replaced.undo()
    assert all(map(torch.equal, results(module, x), before))


@pytest.mark.parametrize(
    "make",
    [
        *(
            ErfGelu,
            PackedGelu,
            Noisy,
            Limited,
            ByWeight,
            Interleaved,
            SecondHalf,
            Residual,
            Detached,
            Scaled,
        ),
        *(DropsByFunction, Plain),
    ],
)
def test_what_computes_something_else_stays(make):
    module, state = make(), torch.get_rng_state()
    before = copy.deepcopy(module.state_dict())
    assert gated_of(module) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


@pytest.mark.parametrize("kind", [Apart, Packed])
def test_it_is_computed_by_the_kernel(kind, monkeypatch):
    from peakward.kernels.ops.gated_modules import api

    calls = []
    for name in ("swiglu", "gated_product"):
        real = getattr(api, name)
        monkeypatch.setattr(
            api,
            name,
            lambda *x, real=real, name=name, **how: (calls.append(name), real(*x, **how))[1],
        )
    module = kind()
    replace_swiglu(module)
    module(torch.randn(2, WIDTH))
    assert calls == ["gated_product" if kind is Apart else "swiglu"]


def test_hooks_of_parts_see_what_they_saw():
    module, x, seen = Packed(), torch.randn(2, WIDTH), []
    module.both.register_forward_hook(lambda _module, _args, y: seen.append(y))
    replace_swiglu(module)
    y = module(x)
    assert len(seen) == 1
    handle = module.act.register_forward_hook(lambda _module, _args, y: 0 * y)
    assert torch.equal(module(x), module.down.bias.expand(2, -1)), "what a hook changes counts"
    handle.remove()
    assert torch.equal(module(x), y)


class Model(nn.Module):
    """One network is called twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Apart(), Packed()

    def forward(self, x):
        return self.second(self.first(x) + self.first(2 * x))


def test_copies_saved_ones_and_frozen_ones_are_as_before():
    model, x = Model(), torch.randn(2, WIDTH)
    before, frozen = model(x), copy.deepcopy(model)
    first, second = replace_swiglu(model), replace_swiglu(model)
    assert (first.n, second.n) == (2, 2)
    torch.testing.assert_close(model(x), before)
    assert type(frozen.first) is Apart
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(made.first) is Apart
        assert torch.equal(made(x), before)
    first.undo()
    second.undo()
    assert type(model.second) is Packed
    assert torch.equal(model(x), before)


def test_a_projection_that_was_wrapped_later_is_called():
    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 2 * self.inner(x)

    module, x = Apart(), torch.randn(2, WIDTH)
    replace_swiglu(module)
    module.w3 = Wrapped(module.w3)
    expected = module.w2(F.silu(module.w1(x)) * module.w3(x))
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("llama", {"gate_proj", "up_proj"}),
        ("qwen2", {"gate_proj", "up_proj"}),
        ("mistral", {"gate_proj", "up_proj"}),
        ("phi3", {"gate_up_proj"}),
        ("gemma", {"gate_proj", "up_proj"}),
        ("gpt2", None),
    ],
)
def test_those_of_transformers(kind, names):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 50,
        "pad_token_id": 0,
    }
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    found = [each for each in map(gated_of, model.modules()) if each is not None]
    assert [set(each.projections) for each in found] == ([] if names is None else [names])


class Swish(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.register_buffer("beta", torch.tensor(beta))

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)


class WithBuffer(Apart):
    def __init__(self, beta=1.0):
        super().__init__()
        self.act = Swish(beta)

    def forward(self, x):
        return self.w2(self.act(self.w1(x)) * self.w3(x))


def test_an_activation_with_a_buffer_is_left():
    """Layers that are alike but for its value would all have become the first."""
    assert gated_of(WithBuffer()) is None


def test_projections_of_two_types_compute_as_before():
    network = Apart()
    network.w1.weight.data = network.w1.weight.data.double()
    x = torch.randn(3, WIDTH)
    network.w1.register_forward_pre_hook(lambda _module, args: (args[0].double(),))
    network.w1.register_forward_hook(lambda _module, _args, y: y)
    network.w2.register_forward_pre_hook(lambda _module, args: (args[0].float(),))
    expected = network(x)
    assert replace_swiglu(network).n == 1
    assert torch.equal(network(x), expected)


def test_what_a_hook_makes_wider_is_multiplied_by_torch():
    network = Apart()
    assert replace_swiglu(network).n == 1
    network.w1.register_forward_hook(lambda _module, _args, y: y.double())
    network.w2.register_forward_pre_hook(lambda _module, args: (args[0].float(),))
    x = torch.randn(3, WIDTH)
    assert torch.allclose(network(x), Apart.forward(network, x), atol=1e-6)


class Narrow(Apart):
    """Refuses calls in 16 bits, which the formula takes."""

    def forward(self, x):
        h = F.silu(self.w1(x)) * self.w3(x)
        return self.w2(h.float() if h.dtype != torch.float64 else h)


def test_a_network_that_alone_refuses_a_type_is_left():
    assert gated_of(Narrow()) is None
