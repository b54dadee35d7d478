"""Functions that turn heads by RoPE, found by what they compute; in Triton's interpreter."""

import copy
import pickle

import pytest
import torch
from torch import nn

from peakward.kernels.ops.rotation_functions import api
from peakward.kernels.ops.rotation_functions.api import fuse_rope, replace_rope
from peakward.kernels.ops.rotation_functions.behaviour import rotation_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
CPU = torch.device("cpu")
WIDTH, HEADS = 32, 4


def rotate_half(x):
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def both(q, k, cos, sin, unsqueeze_dim=1):
    """As transformers'."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def one(x, cos, sin):
    """As nanochat's: positions before heads, half as wide, the other way round."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos + high * sin, high * cos - low * sin), dim=-1).to(x.dtype)


def in_fp32(q, k, cos, sin):
    made = both(q.float(), k.float(), cos.float(), sin.float())
    return tuple(each.type_as(q) for each in made)


def neighbours(x, cos, sin):
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def crossed(x, cos, sin):
    """Neighbours are turned, but put into halves."""
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat((even * cos - odd * sin, even * sin + odd * cos), dim=-1)


def scaled(q, k, cos, sin):
    q, k = both(q, k, cos, sin)
    return 1.01 * q, k


def queries_alone(q, k, cos, sin):
    return both(q, k, cos, sin)[0], k


def noisy(q, k, cos, sin):
    return both(q + 0.01 * torch.randn_like(q), k, cos, sin)


def detached(q, k, cos, sin):
    return both(q, k.detach(), cos, sin)


def other_names(q, k, a, b):
    return both(q, k, a, b)


@pytest.mark.parametrize("function", [both, one, in_fp32, neighbours])
def test_a_rotation_is_found(function):
    found = rotation_of(function, CPU)
    assert found.n_turned == (1 if function in (one, neighbours) else 2)
    assert {each.neighbours for each in found.shapes} == {function is neighbours}


@pytest.mark.parametrize(
    "function", [crossed, scaled, queries_alone, noisy, detached, other_names, rotate_half, None]
)
def test_another_one_is_left_alone(function):
    state = torch.get_rng_state()
    assert rotation_of(function, CPU) is None
    assert torch.equal(torch.get_rng_state(), state)


class Attention(nn.Module):
    """Turns queries and more keys than one, by transformers' function."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2)

    def forward(self, x, cos, sin):
        q, k = (
            each(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (self.q, self.k)
        )
        q, k = both(q, k, cos, sin)
        return q.flatten(), k.flatten()


class ByOne(Attention):
    def forward(self, x, cos, sin):
        q, k = (each(x).unflatten(-1, (-1, WIDTH // HEADS)) for each in (self.q, self.k))
        cos, sin = (each[:1, :, None, : each.shape[-1] // 2] for each in (cos, sin))
        return tuple(one(each, cos, sin).flatten() for each in (q, k))


class ByNeighbours(Attention):
    def forward(self, x, cos, sin):
        cos, sin = (each[0, :, : each.shape[-1] // 2] for each in (cos, sin))
        return tuple(
            neighbours(
                each(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2), cos, sin
            ).flatten()
            for each in (self.q, self.k)
        )


class ByName(Attention):
    def forward(self, x, cos, sin):
        q, k = (
            each(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (self.q, self.k)
        )
        q, k = both(q, k, cos=cos, sin=sin)
        return q.flatten(), k.flatten()


class Inner(Attention):
    """Calls it in a function of its own, and its parent's forward pass beside it."""

    def forward(self, x, cos, sin):
        heads = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        turn = lambda each: both(each, each, cos, sin)[0]  # noqa: E731  A function in the function.
        return turn(heads).flatten(), super().forward(x, cos, sin)[1]


def angles(seq_len, batch=1):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, seq_len, WIDTH // HEADS, generator=generator) for _ in range(2)]


def results(module, x, cos, sin):
    x = x.clone().requires_grad_()
    q, k = module(x, cos, sin)
    module.zero_grad()
    (q.float().sin().sum() + k.float().cos().sum()).backward()
    return [q.detach(), k.detach(), x.grad, *(each.grad for each in module.parameters())]


@pytest.fixture
def turned(monkeypatch):
    """The shapes that the kernel turned."""
    shapes = []
    real = api.rope
    monkeypatch.setattr(
        api,
        "rope",
        lambda x, *rest, **how: (shapes.append(tuple(x.shape)), real(x, *rest, **how))[1],
    )
    return shapes


@pytest.mark.parametrize("make", [Attention, ByOne, ByNeighbours, Inner])
@pytest.mark.parametrize("batch", [1, 2])
def test_values_gradients_and_types_stay(make, batch, turned):
    torch.manual_seed(0)
    module, x = make(), torch.randn(2, 5, WIDTH)
    cos, sin = angles(5, batch)
    before = results(module, x, cos, sin)
    replaced = replace_rope(module)
    assert replaced.n == 1
    for found, expected in zip(results(module, x, cos, sin), before, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert turned
    turned.clear()
    replaced.undo()
    assert all(map(torch.equal, results(module, x, cos, sin), before))
    assert turned == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of_angles", [torch.float32, None])
@pytest.mark.parametrize("function", [both, in_fp32])
def test_the_type_of_the_result_is_the_functions_own(dtype, of_angles, function):
    rotation = dict(rotation_of(function, CPU).results.types)
    q, (cos, sin) = torch.randn(1, 2, 5, 8, dtype=dtype), angles(5)
    cos, sin = cos.to(of_angles or dtype), sin.to(of_angles or dtype)
    expected = function(q, q, cos, sin)[0].dtype
    assert rotation[dtype, cos.dtype, None] == expected


def test_calls_of_other_forms_and_shapes_are_the_functions_own(turned):
    module, x = ByName(), torch.randn(2, 5, WIDTH)
    expected = module(x, *angles(5))
    assert fuse_rope(module) == 1
    assert all(map(torch.equal, module(x, *angles(5)), expected)), "called by names"
    module, (cos, sin) = Attention(), angles(5)
    fuse_rope(module)
    leaf = cos.requires_grad_()
    q, _ = module(x, leaf, sin)
    assert torch.autograd.grad(q.sum(), leaf)[0].any(), "angles that are trained"
    double = copy.deepcopy(module).double()
    fuse_rope(double)
    assert double(x.double(), cos.detach().double(), sin.double())[0].dtype == torch.float64
    assert turned == []


def test_names_of_the_file_and_other_modules_stay(turned):
    names, before = globals(), dict(globals())
    model = nn.ModuleList((Attention(), Attention()))
    frozen, x = copy.deepcopy(model[0]), torch.randn(2, 5, WIDTH)
    expected = model[0](x, *angles(5))
    first, second = replace_rope(model), replace_rope(model)
    turned.clear()  # By the probes of the second.
    assert (first.n, second.n) == (2, 2)
    assert type(model[0]) is type(model[1])
    assert names == before
    assert all(map(torch.equal, frozen(x, *angles(5)), expected))
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(made[0]) is Attention
        assert all(map(torch.equal, made[0](x, *angles(5)), expected))
    assert turned == []
    model[0](x, *angles(5))
    assert len(turned) == 2
    first.undo()
    second.undo()
    assert type(model[0]) is Attention
    assert all(map(torch.equal, model[0](x, *angles(5)), expected))


SEEN = 0


class Counts(Attention):
    def forward(self, x, cos, sin):
        global SEEN  # noqa: PLW0603  It is what the test is about.
        SEEN += 1
        return both(x[:, None], x[:, None], cos, sin)


def test_a_forward_pass_that_changes_its_files_names_is_left_alone():
    assert fuse_rope(Counts()) == 0


def test_it_can_be_compiled_after_that():
    module, x = Attention(), torch.randn(2, 5, WIDTH)
    expected = module(x, *angles(5))
    fuse_rope(module)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for found, right in zip(compiled(x, *angles(5)), expected, strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma", "phi3", "gpt_neox", "cohere", "gpt2"])
def test_attention_of_transformers(kind, turned):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 50,
        "pad_token_id": 0,
        "rotary_pct": 1.0,
    }
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(50, (2, 7))
    expected = model(ids).logits
    n = 0 if kind == "gpt2" else 2
    assert fuse_rope(model) == n
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)
    assert len(turned) == 2 * n


COUNT = 0


class Counted(nn.Module):
    """Writes its file's names in a function of its own."""

    def forward(self, x, cos, sin):
        def count():
            global COUNT  # noqa: PLW0603
            COUNT += 1

        count()
        return one(x, cos, sin)


def test_a_forward_pass_that_writes_names_in_an_inner_function_is_left():
    assert fuse_rope(Counted()) == 0
