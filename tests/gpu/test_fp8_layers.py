"""Linear layers of a user's module in fp8, on the GPU: their numbers, their times, and back."""

import copy
import math

import msgspec
import pytest
import torch

from peakward.kernels.ops.fp8_linear.api import LEAST_CAPABILITY
from peakward.lab.levers import fp8_layers
from peakward.lab.levers.fp8_layers import Shape, Times, choice_in, timed
from peakward.lab.levers.in_place import Applied, Live
from peakward.lab.levers.prepare import prepare
from peakward.lab.numerics.judge import UNIT_ROUNDOFF
from peakward.lab.numerics.verify import verify
from peakward.levers.catalogue import lever, pull
from peakward.levers.in_code import in_module
from peakward.records.case import AS_WRITTEN

pytestmark = pytest.mark.gpu
N_LAYERS = 2
BOUND = UNIT_ROUNDOFF["fp8"] * math.sqrt(16 * N_LAYERS + 2)


@pytest.fixture(autouse=True)
def _has_e4m3():
    if torch.cuda.get_device_capability() < LEAST_CAPABILITY:
        pytest.skip("no e4m3 before compute capability 8.9")


@pytest.fixture
def every_layer_wins(monkeypatch):
    won = Times(plain_s=2e-3, fp8_s=1e-3)
    monkeypatch.setattr(fp8_layers, "timed", lambda _shape, _place: won)


def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1024,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).cuda()


IDS = torch.arange(4 * 128).view(4, 128) * 37 % 1024


def results(model):
    model.zero_grad()
    ids = IDS.cuda()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters()}
    return {"loss": loss.detach()} | gradients


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"compile": "default"},
        {"checkpointing": "every-block"},
        {"attention": "sdpa-flash", "compile": "default"},
        {"loss": "chunked"},
    ],
    ids=str,
)
def test_loss_and_gradients_are_within_the_bound_and_all_comes_back(
    changes, every_layer_wins, error
):
    model = llama()
    oracle = results(copy.deepcopy(model).double())
    before, classes = results(model), [type(each) for each in model.modules()]
    applied = Applied(
        Live(model=model), msgspec.structs.replace(AS_WRITTEN, precision="fp8", **changes)
    )
    found = results(model)
    n_taken = sum(each.n_taken for each in choice_in(model).layers)
    assert n_taken == 7 * N_LAYERS + ("loss" not in changes)
    assert abs(found["loss"] - oracle["loss"]) <= UNIT_ROUNDOFF["fp8"] * oracle["loss"]
    names = [name for name in oracle if name != "loss"]
    apart = error([found[name] for name in names], [oracle[name] for name in names])
    assert UNIT_ROUNDOFF["bf16"] < apart <= BOUND
    assert applied.undo() == ()
    assert [type(each) for each in model.modules()] == classes
    again = results(model)
    assert all(torch.equal(again[name], each) for name, each in before.items())


@pytest.mark.parametrize(
    "changes",
    [{}, {"checkpointing": "every-block"}, {"compile": "default"}],
    ids=str,
)
def test_a_patched_model_takes_the_same_step(changes, every_layer_wins, error):
    model, patched = llama().cpu(), llama().cpu()  # As a factory builds it.
    best = msgspec.structs.replace(AS_WRITTEN, precision="fp8", **changes)
    applied = Applied(Live(model=model.cuda()), best)
    theirs = results(model)
    lines = in_module(
        best,
        AS_WRITTEN,
        "cuda",
        "model.model.layers",
        keeps_buffers=True,
        linear=choice_in(model),
    )
    exec("\n".join((*lines.imports, *lines.body)), {"model": patched})
    mine = results(patched.cuda())
    applied.undo()
    apart = error([mine[name] for name in theirs], [theirs[name] for name in theirs])
    assert apart <= UNIT_ROUNDOFF["bf16"]  # Sums of attention's gradients have no fixed order.


@pytest.mark.parametrize("source", ["py:tiny_gpt:build", "hf:llama"])
def test_numbers_hold(source, make_module_case):
    if source.startswith("hf:"):
        pytest.importorskip("transformers")
    base = make_module_case(source, device="cuda", workload={"seq_len": 32})
    found = verify(base, pull(lever("fp8"), base), "approximate")
    assert (found.verdict, found.reason) == ("holds", None)


def test_a_captured_step_is_the_eager_one(make_module_case, every_layer_wins):
    losses = []
    for captured in (False, True):
        case = make_module_case(
            "py:tiny_gpt:with_batch",
            pass_="forward_backward",
            device="cuda",
            precision="fp8",
            cuda_graphs=captured,
        )
        with prepare(case) as step:
            step.model.eval()  # Dropout would draw others.
            step.step()
            assert sum(each.n_taken for each in step.linear_choice.layers) == 8
            losses.append(step.loss())
    assert losses[0] == pytest.approx(losses[1], rel=UNIT_ROUNDOFF["fp8"])


@pytest.mark.parametrize(("of_x", "of_weight"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_shape_is_timed_once(of_x, of_weight, bias):
    shape = Shape(512, 256, 384, bias, torch.bfloat16, torch.float32, of_x, of_weight)
    place = torch.device("cuda", torch.cuda.current_device())
    found = timed(shape, place)
    assert 0 < found.plain_s < 1
    assert 0 < found.fp8_s < 1
    assert timed(shape, place) is found
