"""The linear layers of a user's module that compute in fp8: which, how, and back."""

import copy
import io
import pickle

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peakward.kernels.ops.forwards import STATE
from peakward.kernels.ops.fp8_linear import reference
from peakward.kernels.ops.fp8_linear.api import fp8_linear
from peakward.kernels.ops.fp8_modules import api as fp8_modules
from peakward.lab.levers import fp8_layers
from peakward.lab.levers.fp8_layers import Shape, Times, calls, choice_in, choose, survey, winners
from peakward.lab.levers.in_place import Applied, Live
from peakward.lab.levers.module_levers import compile_in_place
from peakward.lab.models.snapshot import restored
from peakward.records.case import AS_WRITTEN
from peakward.records.errors import PeakwardError

FP8 = msgspec.structs.replace(AS_WRITTEN, precision="fp8")
WIN, LOSE = Times(plain_s=2e-3, fp8_s=1e-3), Times(plain_s=1e-3, fp8_s=2e-3)
IDS = torch.arange(64).view(4, 16) % 48


def all_win(_shape, _place):
    return WIN


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """Hand-written, with a layer whose weight its owner calls for, and sides that do not divide."""

    def __init__(self, width=32, *, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(48, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.owned, self.odd = nn.Linear(width, width), nn.Linear(width, 10)
        self.head = nn.Linear(width, 48, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        x = x + F.linear(x, self.owned.weight, self.owned.bias)
        return self.head(x * (1 + self.odd(x).mean(-1, keepdim=True)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def in_bf16():
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)


def put_in(model, clock=all_win, **changes):
    with in_bf16():
        return choose(model, lambda: model(IDS), clock=clock, **changes)


def taken(model):
    return {
        name
        for name, each in model.named_modules()
        if type(each).forward.__code__.co_filename == fp8_modules.__file__
    }


BLOCKS = {f"blocks.{i}.{name}" for i in range(2) for name in ("up", "down")}


def test_layers_that_are_called_and_divide_are_taken(model):
    undo = put_in(model)
    assert taken(model) == BLOCKS | {"head"}
    choice = choice_in(model)
    assert choice.left == (
        "odd has sides that are no multiples of 16",
        "owned is not called itself",
    )
    told = {(each.inputs, each.outputs, each.bias): each for each in choice.layers}
    assert told.keys() == {(32, 64, True), (64, 32, True), (32, 48, False)}
    up = told[32, 64, True]
    assert (up.tokens, up.n_layers, up.n_taken, up.plain_s, up.fp8_s) == (64, 2, 2, *WIN)
    undo()
    assert not taken(model)
    assert choice_in(model) is None


def test_each_shape_is_timed_once_and_the_winners_are_taken(model):
    asked = []

    def clock(shape, place):
        asked.append(shape)
        assert place == torch.device("cpu")
        return WIN if shape.outputs == 64 else LOSE

    put_in(model, clock)
    assert taken(model) == {"blocks.0.up", "blocks.1.up"}
    assert len(asked) == len(set(asked)) == 3
    up = next(each for each in asked if each.outputs == 64)
    assert up == Shape(
        tokens=64,
        inputs=32,
        outputs=64,
        bias=True,
        dtype=torch.bfloat16,
        stored=torch.float32,
        of_x=True,
        of_weight=True,
    )


def test_without_a_winner_it_is_refused_with_the_times(model):
    with pytest.raises(PeakwardError) as refusal:
        put_in(model, lambda *_: LOSE)
    said = str(refusal.value)
    assert "64 × 32 → 64 with bias takes 1 ms in bf16, 2 ms in fp8" in said
    assert "owned is not called itself" in said
    assert said.endswith("Take bf16-mixed")
    assert not taken(model)


def shape(outputs):
    return Shape(64, 32, outputs, False, torch.bfloat16, torch.float32, True, True)


def test_a_layer_must_win_at_each_of_its_shapes():
    seen = {"both": {shape(16), shape(32)}, "one": {shape(16)}, "untimed": {shape(48)}}
    assert winners(seen, {shape(16): WIN, shape(32): LOSE}) == {"one"}
    even = Times(plain_s=1e-3, fp8_s=1e-3)
    assert winners({"even": {shape(16)}}, {shape(16): even}) == set()


def test_a_tied_head_stays():
    model = Model(tied=True)
    put_in(model)
    assert taken(model) == BLOCKS
    assert "head shares its weight with embedding.weight" in choice_in(model).left


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_weights_are_told_apart_on_the_meta_device_too(device):
    with torch.device(device):
        found = survey(Model(tied=True))
    assert found.layers.keys() == {*BLOCKS, "owned"}


def test_a_view_of_anothers_weight_stays():
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(32, 32))
    model[1].weight = nn.Parameter(model[0].weight.detach()[:32])
    assert not survey(model).layers


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Named(nn.Linear):
    """Says more, and computes as its parent."""


def test_a_subclass_is_taken_where_it_computes_as_a_linear_layer():
    model = nn.Sequential(Scaled(32, 32), Named(32, 32), nn.Linear(32, 32).double())
    model.append(nn.Linear(32, 32))
    model[3].forward = lambda x: x
    found = survey(model)
    assert found.layers.keys() == {"1"}
    assert found.left["0"] == "is a Scaled with a forward pass of its own"
    assert found.left["2"].endswith("of float64")


def test_tokens_that_do_not_divide_stay_as_they_are(model):
    with in_bf16(), pytest.raises(PeakwardError, match=r"tokens that are no multiple of 16 \(15\)"):
        choose(model, lambda: model(IDS[:1, :15]), clock=all_win)
    undo = put_in(model)
    with in_bf16():
        mine = model(IDS[:1, :15])
        undo()
        assert torch.equal(mine, model(IDS[:1, :15]))


def test_a_loss_with_the_output_layer_keeps_that(model):
    model.odd = nn.Linear(32, 16)

    def forward():
        model(IDS)
        return model.head(model.embedding(IDS))

    with in_bf16():
        choose(model, forward, loss="chunked", clock=all_win)
    assert "head" not in taken(model)
    assert "odd" in taken(model)
    assert any(each.startswith("head is left to the loss") for each in choice_in(model).left)


def test_a_loss_with_a_tied_output_layer_keeps_no_other(model):
    model = Model(tied=True)
    put_in(model, loss="chunked")
    assert taken(model) == BLOCKS


def test_layers_of_other_names_stay(model):
    put_in(model, clock=None, names=("blocks.*.up", "head"))
    assert taken(model) == {"blocks.0.up", "blocks.1.up", "head"}
    assert choice_in(model).taken == ("blocks.*.up", "head")


def results(model):
    model.zero_grad()
    with in_bf16():
        logits = model(IDS)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), IDS.flatten())
    loss.backward()
    gradients = {
        name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None
    }
    return loss.detach(), gradients


def relative(mine, theirs):
    return float((mine - theirs).norm() / theirs.norm())


def test_it_computes_in_fp8_and_undone_all_is_as_before_bit_for_bit(model):
    parameters, keys = dict(model.named_parameters()), list(model.state_dict())
    classes = [type(each) for each in model.modules()]
    loss, gradients = results(model)
    undo = put_in(model)
    assert list(model.state_dict()) == keys
    assert all(each is parameters[name] for name, each in model.named_parameters())
    fp8_loss, fp8_gradients = results(model)
    assert 0 < relative(fp8_loss, loss) < 2.0**-4
    apart = [relative(fp8_gradients[name], each) for name, each in gradients.items()]
    assert 2.0**-8 < max(apart) < 2.0**-2
    undo()
    assert [type(each) for each in model.modules()] == classes
    again, back = results(model)
    assert torch.equal(again, loss)
    assert all(torch.equal(back[name], each) for name, each in gradients.items())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_what_torchs_operators_give_of_rounded_numbers(bias, dtype):
    torch.manual_seed(0)
    layer, x, upstream = nn.Linear(64, 48, bias=bias), torch.randn(32, 64), torch.randn(32, 48)

    def run(linear):
        given = x.to(dtype).requires_grad_()
        wanted = (given, *layer.parameters())
        y = linear(given, layer.weight.to(dtype), layer.bias)
        return y.detach(), *torch.autograd.grad(y, wanted, upstream.to(dtype))

    for mine, theirs in zip(run(fp8_linear), run(reference.linear), strict=True):
        assert mine.dtype == theirs.dtype
        assert relative(mine.float(), theirs.float()) < 2.0**-8


def test_a_second_choice_is_the_same_again(model):
    put_in(model)()
    first = results(model)
    undo = put_in(model)
    once = results(model)
    undo()
    put_in(model)
    assert torch.equal(once[0], results(model)[0])
    assert not torch.equal(once[0], first[0])


def test_choosing_leaves_random_numbers_buffers_and_modes(model):
    model.drop, model.norm = nn.Dropout(0.5), nn.BatchNorm1d(16)
    before = torch.get_rng_state(), model.norm.running_mean.clone()

    def drawing(_shape, _place):
        torch.randn(3)
        return WIN

    with in_bf16():
        choose(model, lambda: model.drop(model.norm(model(IDS))), clock=drawing)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(model.norm.running_mean, before[1])
    assert model.training


def test_copies_and_saved_models_are_plain(model):
    put_in(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not taken(other)
        assert type(other.head) is nn.Linear
        assert not histories(other) and not list(other.buffers())
        assert torch.equal(other.head.weight, model.head.weight)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    Model().load_state_dict(torch.load(io.BytesIO(file.getvalue())))


def histories(model):
    return {
        (name, key): each.clone()
        for name, module in model.named_modules()
        for key, each in vars(module).items()
        if key.startswith(STATE)
    }


def test_layers_remember_what_they_saw_for_as_long_as_they_are_in_fp8(model):
    assert not histories(model)
    undo = put_in(model)
    assert len(histories(model)) == 3 * len(taken(model))
    assert not any(each.any() for each in histories(model).values())
    results(model)
    once = histories(model)
    assert all(each.any() for each in once.values())
    with torch.no_grad(), in_bf16():
        model(IDS)
    assert all(torch.equal(each, once[name]) for name, each in histories(model).items())
    results(model)
    assert not any(torch.equal(each, once[name]) for name, each in histories(model).items())
    undo()
    assert not histories(model)


def test_a_copy_can_be_put_in_fp8_again_and_remembers_by_itself(model):
    put_in(model)
    results(model)
    before, other = histories(model), copy.deepcopy(model)
    put_in(other)
    results(other)
    assert all(torch.equal(each, before[name]) for name, each in histories(model).items())


def test_averages_of_a_model_go_on_before_while_and_after(model, on_cpu):
    def averaged():
        return torch.optim.swa_utils.AveragedModel(model)

    model.norm = nn.BatchNorm1d(16)  # Buffers are paired by position.
    before = averaged()
    applied = Applied(Live(model=model), FP8)
    results(model)
    meanwhile = averaged()
    before.update_parameters(model)
    applied.undo()
    for each in (before, meanwhile):
        each.update_parameters(model)
    assert not histories(meanwhile)


def test_two_models_may_share_a_layer(on_cpu):
    shared, x = nn.Linear(32, 64), torch.randn(16, 32)
    one, other = (nn.Sequential(shared, nn.GELU(), nn.Linear(64, n)) for n in (32, 48))
    first, second = (Applied(Live(model=each), FP8) for each in (one, other))
    for each in (one, other):
        each(x).sum().backward()
    assert second.undo() == ()
    assert taken(one) == {"0", "2"}
    for each in (one, other):
        each(x).sum().backward()
    first.undo()
    assert not histories(one) and not taken(one)


def test_a_part_may_have_a_choice_of_its_own(model, on_cpu):
    part, whole = (Applied(Live(model=each), FP8) for each in (model.blocks[0], model))
    model(IDS)
    assert taken(model) == BLOCKS | {"head"}
    whole.undo()
    assert taken(model) == {"blocks.0.up", "blocks.0.down"}
    results(model)
    part.undo()
    assert not taken(model) and not histories(model)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_scales_follow_a_layer_to_another_device(model, is_compiled):
    put_in(model)
    results(model)
    model.to("meta", torch.bfloat16)
    called = torch.compile(model, backend="aot_eager") if is_compiled else model
    for _ in range(2):
        called(IDS.to("meta")).sum().backward()
    assert {each.device.type for each in histories(model).values()} == {"meta"}
    model.float().to_empty(device="cpu")
    for each in model.parameters():
        nn.init.normal_(each, std=0.1)
    results(model)
    assert {each.device.type for each in histories(model).values()} == {"cpu"}


class Router(nn.Module):
    """One layer that its owner keeps out of autocast, as routers of experts and heads are."""

    def __init__(self):
        super().__init__()
        self.first, self.router = nn.Linear(32, 32), nn.Linear(32, 16)

    def forward(self, x):
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            return self.router(x.float())


def test_a_layer_that_is_kept_out_of_autocast_stays(model):
    router, x = Router(), torch.randn(64, 32)
    with in_bf16():
        choose(router, lambda: router(x), clock=all_win)
    assert taken(router) == {"first"}
    assert choice_in(router).left == ("router is called with float32",)
    # Or is called so once it has been taken.
    layer = nn.Sequential(nn.Linear(32, 32))
    with in_bf16():
        choose(layer, lambda: layer(x), clock=all_win)
    assert torch.equal(layer(x), F.linear(x, layer[0].weight, layer[0].bias))


def test_hooks_of_layers_are_called(model):
    seen = []
    model.blocks[0].up.register_forward_hook(lambda _m, _a, y: seen.append(y.dtype))
    put_in(model)
    seen.clear()
    results(model)
    assert seen == [torch.bfloat16]


def test_compiled_blocks_share_one_graph(model):
    put_in(model)
    eager = results(model)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    undo = compile_in_place(model, "default", "block")
    loss, gradients = results(model)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    undo()
    assert relative(loss, eager[0]) < 2.0**-6
    for name, each in gradients.items():
        assert relative(each, eager[1][name]) < 2.0**-3, name


# Where it lives: the choice is made by the first call.


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(fp8_layers, "timed", all_win)


def test_in_place_the_first_call_chooses(model, on_cpu):
    before = results(model)
    wide = model(IDS)
    applied = Applied(Live(model=model), FP8)
    assert not taken(model)
    assert model(IDS).dtype == torch.float32
    assert taken(model) == BLOCKS | {"head"}
    assert not torch.equal(model(IDS), wide)
    assert applied.undo() == ()
    assert type(model) is Model
    assert not taken(model)
    assert torch.equal(model(IDS), wide)
    assert torch.equal(results(model)[0], before[0])


def test_in_place_a_first_call_that_is_put_back_leaves_empty_scales(model, on_cpu):
    applied = Applied(Live(model=model), FP8)
    with restored(model, None):
        first = results(model)
        assert any(each.any() for each in histories(model).values())
    assert not any(each.any() for each in histories(model).values())
    assert torch.equal(results(model)[0], first[0])
    applied.undo()
    assert not histories(model)


def test_in_place_it_is_taken_back_before_any_call(model, on_cpu):
    applied = Applied(Live(model=model), FP8)
    plain = copy.deepcopy(model)
    assert type(plain) is Model
    applied.undo()
    assert type(model) is Model
    assert not taken(model)


def test_in_place_the_choice_sees_layers_of_compiled_blocks(model, on_cpu):
    blocks = msgspec.structs.replace(FP8, compile="default")
    applied = Applied(Live(model=model), blocks)
    loss = model(IDS).float().square().mean()
    loss.backward()
    assert taken(model) == BLOCKS | {"head"}
    applied.undo()
    assert type(model) is Model


def test_in_place_the_model_compiled_whole_chooses_too(model, on_cpu):
    whole = msgspec.structs.replace(FP8, compile="default", compile_scope="model")
    applied = Applied(Live(model=model), whole)
    model(IDS)
    assert taken(model) == BLOCKS | {"head"}
    applied.undo()


def test_what_the_caller_compiles_before_the_first_call_chooses_too(model, on_cpu):
    applied = Applied(Live(model=model), FP8)
    compiled = torch.compile(model)
    first = compiled(IDS)
    assert taken(model) == BLOCKS | {"head"}
    assert torch.allclose(first, compiled(IDS), atol=2e-2)
    applied.undo()
    assert type(model) is Model
    assert not taken(model)


def test_a_refused_choice_leaves_the_model_to_be_taken_back(model, monkeypatch):
    monkeypatch.setattr(fp8_layers, "timed", lambda *_: LOSE)
    before = model(IDS)
    applied = Applied(Live(model=model), FP8)
    with pytest.raises(PeakwardError, match="none"):
        model(IDS)
    assert applied.undo() == ()
    assert torch.equal(model(IDS), before)


def test_the_steps_own_autocast_is_left_to_it(model, on_cpu):
    base = msgspec.structs.replace(AS_WRITTEN, precision="bf16-mixed")
    applied = Applied(Live(model=model), FP8, base)
    with in_bf16():
        assert model(IDS).dtype == torch.bfloat16
    assert taken(model) == BLOCKS | {"head"}
    applied.undo()


def test_on_a_cpu_it_is_refused(model):
    applied = Applied(Live(model=model), FP8)
    with pytest.raises(PeakwardError, match="expected a GPU of compute capability"):
        model(IDS)
    applied.undo()
    assert type(model) is Model


# Models of transformers.


def transformer(kind, **changes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, **changes)
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        **changes,
    )
    return transformers.LlamaForCausalLM(config)


def test_a_llama_is_taken_whole_with_its_own_head():
    model = transformer("llama", tie_word_embeddings=False)
    with in_bf16():
        undo = choose(model, lambda: model(input_ids=IDS, labels=IDS), clock=all_win)
    assert len(taken(model)) == 2 * 7 + 1
    assert choice_in(model).left == ()
    # Keys and values are of one shape, gate and up of another.
    told = {(each.inputs, each.outputs): each.n_layers for each in choice_in(model).layers}
    assert told == {(32, 32): 4, (32, 16): 4, (32, 48): 4, (48, 32): 2, (32, 64): 1}
    with in_bf16():
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        undo()
        assert relative(loss.detach(), model(input_ids=IDS, labels=IDS).loss.detach()) < 2.0**-4


def test_of_a_gpt2_nothing_is_left_to_take():
    """Its layers are Conv1D, and its head is tied."""
    model = transformer("gpt2")
    with in_bf16(), pytest.raises(PeakwardError) as refusal:
        choose(model, lambda: model(input_ids=IDS), clock=all_win)
    assert "transformer.h.*.attn.c_attn is a Conv1D, no nn.Linear (2 layers)" in str(refusal.value)
    assert "lm_head shares its weight with transformer.wte.weight" in str(refusal.value)


def test_frozen_layers_are_timed_without_their_gradient(model):
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    with in_bf16():
        seen = calls(survey(model).layers, lambda: model(IDS))
    (up,), (head,) = seen["blocks.0.up"], seen["head"]
    assert (up.of_x, up.of_weight) == (False, False)
    assert (head.of_x, head.of_weight) == (False, True)
    with torch.no_grad():
        seen = calls(survey(model).layers, lambda: model(IDS))
    (head,) = seen["head"]
    assert (head.of_weight, head.dtype) == (False, torch.float32)


def by_torch(layer, x):
    return F.linear(x, layer.weight, layer.bias)


def test_a_call_without_gradients_does_not_choose_for_training(monkeypatch):
    """As a loop that evaluates before its first step: only the forward pass would be timed."""
    timed = []

    def clock(shape, _place):
        timed.append(shape)
        return WIN

    monkeypatch.setattr(fp8_layers, "timed", clock)
    module = nn.Sequential(nn.Linear(32, 32))
    undo = fp8_layers.choose_at_first_call(module, trains=True, linear=by_torch)
    with torch.no_grad():
        module(torch.randn(16, 32))
    assert not timed
    with in_bf16():
        module(torch.randn(16, 32))
    assert timed and all(each.of_weight for each in timed)
    undo()


class Filling(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x, cache):
        cache.append(self.layer(x))
        return cache[-1]


def test_the_call_that_chooses_fills_no_cache_twice(monkeypatch):
    monkeypatch.setattr(fp8_layers, "timed", all_win)
    module, cache = Filling(), []
    undo = fp8_layers.choose_at_first_call(module, trains=False, linear=by_torch)
    x = torch.randn(16, 32, requires_grad=True) * 2  # In the middle of a graph.
    with in_bf16():
        module(x, cache)
    assert len(cache) == 1 and choice_in(module) is not None
    undo()


def test_a_call_in_fp64_is_told_by_its_type():
    module = nn.Sequential(nn.Linear(32, 32).double())
    module[0].weight.data = module[0].weight.data.float()
    with pytest.raises(PeakwardError, match="is called with float64"):
        choose(module, lambda: reading(module[0]), clock=all_win)


def reading(layer):
    """A call whose product is not taken."""
    with pytest.raises(RuntimeError):
        layer(torch.randn(16, 32, dtype=torch.float64))
