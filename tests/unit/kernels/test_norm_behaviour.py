"""Norms of any class, found by what they compute and put into Peakward's kernels; in Triton's interpreter."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.kernels.ops.norm_modules.api import replace_norms
from peakward.kernels.ops.norm_modules.behaviour import norm_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
WIDTH = 24


class Rms(nn.Module):
    """Written by hand, with names of its own."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.gain, self.tiny = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x):
        return self.gain * self.normed(x)

    def normed(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.tiny)


class OnePlus(Rms):
    def forward(self, x):
        return (self.normed(x.float()) * (1 + self.gain.float())).type_as(x)


class Upcast(Rms):
    """As transformers' Llama and T5."""

    def forward(self, hidden):
        return self.gain * self.normed(hidden.float()).to(hidden.dtype)


class NoBias(nn.Module):
    """As nanoGPT's."""

    def __init__(self, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class Centred(nn.Module):
    """The bias is registered before the weight."""

    def __init__(self):
        super().__init__()
        self.beta, self.gamma = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.gamma * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-12)) + self.beta


class InFp32(nn.LayerNorm):
    """A class of torch's with a forward pass of its own."""

    def __init__(self):
        super().__init__(WIDTH, bias=False)

    def forward(self, x):
        return super().forward(x.float()).type_as(x)


NORMS = {
    "of torch's class": (InFp32, (1e-5, True, 0.0)),
    "rms": (Rms, (1e-5, False, 0.0)),
    "another epsilon": (lambda: Rms(3e-4), (3e-4, False, 0.0)),
    "no epsilon": (lambda: Rms(0.0), (0.0, False, 0.0)),
    "one plus": (OnePlus, (1e-5, False, 1.0)),
    "upcast": (Upcast, (1e-5, False, 0.0)),
    "layer": (lambda: NoBias(bias=True), (1e-5, True, 0.0)),
    "no bias": (NoBias, (1e-5, True, 0.0)),
    "centred": (Centred, (1e-12, True, 0.0)),
}


def with_values(module):
    generator = torch.Generator().manual_seed(3)
    for each in module.parameters():
        each.data = torch.randn(each.shape, generator=generator).to(each.dtype)
    return module


def results(module, x):
    """The result and every gradient."""
    x = x.clone().requires_grad_()
    y = module(x)
    module.zero_grad()
    (y.float() * torch.linspace(-1, 1, WIDTH)).sum().backward()
    return [y.detach(), x.grad, *(each.grad for each in module.parameters())]


@pytest.mark.parametrize(("make", "expected"), NORMS.values(), ids=NORMS)
def test_what_it_computes_is_found_whatever_its_values(make, expected):
    for module in (make(), with_values(make())):
        found = norm_of(module)
        assert (found.eps, found.is_centred, found.offset) == expected


@pytest.mark.parametrize(("make", "_expected"), NORMS.values(), ids=NORMS)
def test_values_gradients_and_types_are_those_of_before(make, _expected):
    module, x = with_values(make()), torch.randn(3, 5, WIDTH)
    before = results(module, x)
    replaced = replace_norms(module)
    found = results(module, x)
    assert replaced.n == 1
    assert not all(map(torch.equal, found, before)), "computed by a kernel of another order"
    for one, other in zip(found, before, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
    replaced.undo()
    assert all(map(torch.equal, results(module, x), before))


@pytest.mark.parametrize("make", [OnePlus, Upcast, NoBias], ids=["one plus", "upcast", "no bias"])
@pytest.mark.parametrize("own", [torch.float32, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.float16])
@pytest.mark.parametrize("cast", [False, True])
def test_the_type_of_the_result_is_the_modules_own(make, own, given, cast):
    module, x = with_values(make()).to(own), torch.randn(3, WIDTH).to(given)

    def called():
        with torch.autocast("cpu", torch.float16, enabled=cast):
            try:
                return module(x)
            except RuntimeError:  # torch's layer_norm takes no two types.
                return None

    expected = called()
    replace_norms(module)
    found = called()
    assert (found is None) == (expected is None)
    if found is not None:
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.float(), expected.float(), rtol=4e-3, atol=4e-3)


def test_torchs_own_are_turned_by_their_class():
    model = nn.Sequential(nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH), nn.LayerNorm((2, WIDTH)))
    first, second = replace_norms(model), replace_norms(model)
    assert (first.n, second.n) == (2, 0), "turned already"
    first.undo()
    assert [type(each) for each in model] == [nn.LayerNorm, nn.RMSNorm, nn.LayerNorm]


class OfAll(Rms):
    def normed(self, x):
        return x * torch.rsqrt(x.pow(2).mean() + self.tiny)


class OfAnother(Rms):
    def normed(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + self.tiny)


class Detached(Rms):
    def normed(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.tiny).detach()


class FrozenGain(Rms):
    def forward(self, x):
        return self.gain.detach() * self.normed(x)


class OutsideRoot(Rms):
    def normed(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.tiny)


class Unbiased(Centred):
    def forward(self, x):
        return self.gamma * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


class Noisy(Rms):
    def normed(self, x):
        return super().normed(x) + (0.01 * torch.randn_like(x) if self.training else 0)


class Limited(Rms):
    def normed(self, x):
        return super().normed(x.clamp(-1000, 1000))


class Counting(Rms):
    """Is another norm from its third call on."""

    calls = 0

    def normed(self, x):
        self.calls += 1
        return super().normed(x) * (1 if self.calls < 3 else 2)


class WithBuffer(Rms):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))


class Gated(Rms):
    def forward(self, x, gate=None):
        return super().forward(x) * (1 if gate is None else gate.sigmoid())


class WithOther(Rms):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    "make",
    [
        *(OfAll, OfAnother, Detached, FrozenGain, OutsideRoot, Unbiased, Noisy, Limited, Counting),
        *(WithBuffer, Gated, WithOther),
        lambda: nn.BatchNorm1d(WIDTH),
        lambda: nn.PReLU(WIDTH),
        lambda: nn.GroupNorm(4, WIDTH),
    ],
)
def test_what_only_looks_like_a_norm_stays_as_it_is(make):
    module, state = make(), torch.get_rng_state()
    assert norm_of(module) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert replace_norms(module).n == 0


class ClampedInHalf(Rms):
    """Like T5's layers, but where it matters."""

    def normed(self, x):
        if x.dtype == torch.float16:
            x = x.clamp(-100, 100)
        return super().normed(x.float()).to(x.dtype)


def test_types_in_which_it_does_something_else_keep_its_own_code():
    module = ClampedInHalf()
    x = torch.tensor([1000.0] + [1.0] * (WIDTH - 1))
    expected, of_half = module(x), module(x.half())
    replaced = replace_norms(module)
    assert replaced.n == 1
    torch.testing.assert_close(module(x), expected)
    assert torch.equal(module(x.half()), of_half)


class Model(nn.Module):
    """One norm is called twice, and one parameter is that of two norms."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.last = Rms(), Rms()
        self.last.gain = self.norm.gain

    def forward(self, x):
        for each in self.layers:
            x = x + each(self.norm(x))
        return self.last(x)


def trained(model, x, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach().clone() for each in model.parameters()]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def test_names_hooks_tied_parameters_and_frozen_copies_stay(model):
    x, frozen = torch.randn(2, 4, WIDTH), copy.deepcopy(model)
    averaged = copy.copy(model.norm)  # Another module with the same parameter.
    names, calls = list(model.state_dict()), []
    model.norm.register_forward_hook(lambda *_: calls.append("before"))
    before, parameters = model(x), list(model.parameters())
    calls.clear()
    replaced = replace_norms(model)
    model.norm.register_forward_pre_hook(lambda *_: calls.append("after"))
    torch.testing.assert_close(model(x), before)
    assert calls == ["after", "before"] * 3
    assert list(model.state_dict()) == names
    assert all(map(lambda one, other: one is other, model.parameters(), parameters))
    assert model.last.gain is model.norm.gain is averaged.gain
    assert type(averaged) is type(frozen.norm) is Rms
    assert isinstance(model.norm, Rms)
    replaced.undo()
    assert type(model.norm) is Rms


def test_copies_and_saved_ones_are_of_the_class_before(model):
    x = torch.randn(2, 4, WIDTH)
    before = model(x)
    replace_norms(model)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(made.norm) is Rms
        assert torch.equal(made(x), before)


def test_it_may_be_done_twice_and_taken_back_in_any_order(model):
    x = torch.randn(2, 4, WIDTH)
    before = model(x)
    first, second = replace_norms(model), replace_norms(model)
    assert (first.n, second.n) == (2, 2)
    first.undo()
    assert not torch.equal(model(x), before)
    second.undo()
    assert torch.equal(model(x), before)
    assert type(model.norm) is Rms


def test_training_goes_on_and_undo_keeps_it(model):
    x, other = torch.randn(2, 4, WIDTH), copy.deepcopy(model)
    replaced = replace_norms(model)
    found, expected = trained(model, x), trained(other, x)
    for one, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(one, plain, rtol=1e-5, atol=1e-6)
    replaced.undo()
    assert all(map(torch.equal, found, model.parameters()))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))


def test_it_can_be_compiled_after_that(model):
    x = torch.randn(2, 4, WIDTH)
    expected = model(x)
    replace_norms(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)


def test_what_was_compiled_before_sees_the_change_and_its_undo(model):
    x = torch.randn(2, 4, WIDTH)
    compiled = torch.compile(model, backend="eager")
    expected = compiled(x)
    replaced = replace_norms(model)
    torch.testing.assert_close(compiled(x), expected)
    assert not torch.equal(compiled(x), expected)
    replaced.undo()
    assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize(
    ("place", "name", "offset"),
    [
        ("llama", "LlamaRMSNorm", 0.0),
        ("qwen2", "Qwen2RMSNorm", 0.0),
        ("phi3", "Phi3RMSNorm", 0.0),
        ("gemma", "GemmaRMSNorm", 1.0),
        ("gemma2", "Gemma2RMSNorm", 1.0),
        ("t5", "T5LayerNorm", 0.0),
        ("olmo2", "Olmo2RMSNorm", 0.0),
    ],
)
def test_norms_of_transformers(place, name, offset):
    kind = getattr(pytest.importorskip(f"transformers.models.{place}.modeling_{place}"), name)
    module, x = with_values(kind(WIDTH, eps=1e-6)), torch.randn(3, WIDTH)
    assert norm_of(module).offset == offset
    before = [module(each) for each in (x, x.half())]
    assert replace_norms(module).n == 1
    for one, other in zip([module(each) for each in (x, x.half())], before, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=4e-3, atol=4e-3)


class Normalized(Rms):
    """Rows of zeros stay zeros, as those of an embedding's padding."""

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.gain * WIDTH**0.5


class Clamped(Rms):
    def forward(self, x):
        return self.gain * x / x.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-8)


class Mended(Rms):
    def forward(self, x):
        return super().forward(torch.nan_to_num(x))


@pytest.mark.parametrize("kind", [Normalized, Clamped, Mended])
def test_what_guards_against_nan_is_no_norm(kind):
    assert norm_of(kind(0.0 if kind is not Mended else 1e-5)) is None


def test_a_bias_of_another_type_leaves_the_call_as_it_is():
    norm = Centred()
    assert replace_norms(norm).n == 1
    norm.gamma.data = norm.gamma.data.bfloat16()
    x = torch.randn(3, WIDTH, dtype=torch.bfloat16)
    found, expected = norm(x), Centred.forward(norm, x)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_a_norm_that_has_another_class_since_hinders_no_undo():
    model = nn.Sequential(nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH))
    replaced = replace_norms(model)
    model[0].__class__ = type("Other", (type(model[0]),), {})
    with pytest.warns(UserWarning, match="a norm stays fused: its class was made Other since"):
        replaced.undo()
    assert type(model[1]) is nn.LayerNorm
