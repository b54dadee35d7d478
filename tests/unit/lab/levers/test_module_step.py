"""A pass of a user's module, with levers."""

from types import SimpleNamespace

import pytest
import torch

from peakward.lab.levers import fp8_layers
from peakward.lab.levers.module_check import check
from peakward.lab.levers.module_levers import SdpaCalls
from peakward.lab.levers.module_step import (
    GivenBatch,
    ModuleStep,
    main_tensor,
    place,
    prepared_module,
    scalar,
)
from peakward.lab.levers.prepare import prepare
from peakward.lab.models.given_module import GivenModule
from peakward.lab.rewriting import rewriting
from peakward.records.case import Workload
from peakward.records.errors import PeakwardError

SOURCES = ["py:tiny_gpt:build", "py:tiny_gpt:with_batch", "hf:llama", "hf:gpt2"]


@pytest.fixture(params=SOURCES)
def source(request):
    if request.param.startswith("hf:"):
        pytest.importorskip("transformers")
    return request.param


@pytest.mark.parametrize("pass_", ["forward", "forward_backward", "train_step"])
def test_every_source_runs_every_pass(source, pass_, make_module_case):
    with prepare(make_module_case(source, pass_=pass_)) as step:
        assert isinstance(step, ModuleStep)
        phases = []
        before = [each.detach().clone() for each in step.model.parameters()]
        step.step(phases.append)
        trains, steps = pass_ != "forward", pass_ == "train_step"
        assert phases == [
            "forward",
            *(["backward"] if trains else []),
            *(["optimizer"] if steps else []),
            None,
        ]
        assert (step.loss() is not None) == trains
        assert bool(step.gradients()) == trains
        moved = any(
            not torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True)
        )
        assert moved == steps
        assert step.model.training == trains


@pytest.mark.parametrize(
    ("settings", "dtype"), [({}, torch.float32), ({"precision": "bf16"}, torch.bfloat16)]
)
def test_parameters_are_of_the_precision(settings, dtype, source, make_module_case):
    with prepare(make_module_case(source, **settings)) as step:
        step.step()
        assert {each.dtype for each in step.model.parameters()} == {dtype}


def test_transformers_computes_its_angles_from_fp32(make_module_case):
    pytest.importorskip("transformers")
    with prepare(make_module_case("hf:llama", precision="bf16")) as step:
        assert {each.dtype for each in step.model.buffers()} == {torch.float32}


@pytest.mark.parametrize(
    ("dtype", "of_complex"),
    [
        (torch.float64, torch.complex128),
        (torch.float32, torch.complex64),
        (torch.bfloat16, torch.complex64),
    ],
)
def test_complex_numbers_keep_both_of_their_parts(dtype, of_complex):
    module = torch.nn.Linear(4, 4)
    turns = torch.polar(torch.ones(3), torch.tensor([0.1, 1.0, 2.0]))
    module.register_buffer("turns", turns.clone())
    module.gain = torch.nn.Parameter(turns.clone())
    place(module, "cpu", dtype, keeps_buffers=False)
    assert module.weight.dtype == dtype
    for each in (module.turns, module.gain):
        assert each.dtype == of_complex
        assert torch.equal(each.to(torch.complex64), turns)


def test_a_module_that_comes_in_bf16_is_stepped_as_it_comes(make_module_case):
    with prepare(make_module_case("py:tiny_gpt:in_bf16", precision="bf16")) as step:
        step.step()
        assert {each.dtype for each in step.model.parameters()} == {torch.bfloat16}
        assert step.model.angles.dtype == torch.float32
    assert check(make_module_case("py:tiny_gpt:in_bf16")) == (None, True)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp8"])
def test_a_module_that_comes_in_bf16_has_no_other_precision(precision, make_module_case):
    case = make_module_case("py:tiny_gpt:in_bf16", precision=precision)
    said = "expected precision=bf16 of py:tiny_gpt:in_bf16, whose parameters come in bf16, got"
    with pytest.raises(PeakwardError, match=said), prepare(case):
        pass


def test_gradients_of_micro_batches_are_averaged(make_module_case):
    """Dropout apart, n times the same micro-batch is that micro-batch."""
    found = []
    for n in (1, 3):
        case = make_module_case("py:tiny_gpt:with_batch", workload={"accumulate": n})
        with prepare(case) as step:
            step.model.eval()
            step.step()
            found.append(step.gradients())
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("factory", "settings", "line"),
    [
        ("half", {}, "expected a module with parameters in fp32, got .* in float16"),
        ("on_meta", {}, "expected parameters with values, got embedding.weight on the device meta"),
        ("build", {"attention": "sdpa"}, "it calls scaled_dot_product_attention already"),
        ("build", {"attention": "flash-decode"}, "is called by the module: call peakward.kernels"),
        ("with_batch", {"loss": "chunked"}, "torch's cross_entropy in its forward pass"),
        ("build", {"precision": "fp8"}, "expected a GPU of compute capability 8.9"),
        ("without_blocks", {"attention": "sdpa-math"}, "expected a module with attention"),
    ],
)
def test_what_cannot_be_is_refused(factory, settings, line, make_module_case):
    case = make_module_case(f"py:tiny_gpt:{factory}", **settings)
    with pytest.raises(PeakwardError, match=line), prepare(case):
        pass


@pytest.mark.parametrize("pass_", ["forward", "train_step"])
@pytest.mark.parametrize("settings", [{}, {"checkpointing": "every-block"}, {"compile": "default"}])
def test_layers_that_win_compute_in_fp8(pass_, settings, make_module_case, monkeypatch):
    if pass_ == "forward" and settings:
        pytest.skip("is of training")
    won = fp8_layers.Times(plain_s=2e-3, fp8_s=1e-3)
    monkeypatch.setattr(fp8_layers, "timed", lambda _shape, _place: won)
    case = make_module_case("py:tiny_gpt:build", pass_=pass_, precision="fp8", **settings)
    with prepare(case) as step:
        step.step()
        assert [each.n_taken for each in step.linear_choice.layers] == [2, 2, 2, 2]
        assert step.linear_choice.left == ("head has sides that are no multiples of 16",)
        assert step.loss() is None or step.loss() > 0


def test_torch_s_settings_are_as_before(make_module_case):
    before = torch.get_float32_matmul_precision()
    backends = torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()
    with prepare(make_module_case("py:tiny_gpt:build", attention="sdpa-math")) as step:
        assert not torch.backends.cuda.flash_sdp_enabled()
        step.step()
    assert torch.get_float32_matmul_precision() == before
    assert (
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
    ) == backends


def test_attention_is_looked_for_in_the_types_that_steps_run_in(make_module_case, monkeypatch):
    """cuDNN's kernel, which takes 16-bit ones alone, refuses a call in others."""
    asked = []

    def settle(_module, forward):
        with SdpaCalls() as seen:
            forward()
        asked.append(seen.dtypes)

    monkeypatch.setattr(rewriting, "settle", settle)
    with prepare(make_module_case("py:tiny_gpt:build", precision="bf16-mixed")):
        assert asked == [{torch.bfloat16}]


@pytest.mark.parametrize(
    ("factory", "settings"),
    [
        ("naive", {"attention": "sdpa"}),
        ("naive", {"attention": "sdpa-math", "checkpointing": "every-block"}),
        ("build", {"loss": "chunked"}),
    ],
    ids=["attention", "recomputed", "loss"],
)
def test_parts_are_replaced_inside_the_module(factory, settings, make_module_case):
    found = []
    for each in ({}, settings):
        case = make_module_case(f"py:tiny_gpt:{factory}", pass_="forward_backward", **each)
        with prepare(case) as step:
            step.model.eval()
            step.step()
            found.append(step.gradients())
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(*found, strict=True))


class Spoilt(torch.nn.Module):
    """A module of token ids whose logits `spoil` changes."""

    vocab_size = 11

    def __init__(self, spoil):
        super().__init__()
        self.table, self.spoil = torch.nn.Embedding(11, 11), spoil

    def forward(self, ids):
        return self.spoil(self.table(ids))


@pytest.mark.parametrize(
    ("spoil", "troubles"),
    [
        (lambda logits: logits, []),
        (torch.log, ["values are NaN or infinite"]),
        (lambda logits: logits + torch.rand(()), ["changes from call to call"]),
        (lambda logits: torch.nn.functional.dropout(logits, 0.5), ["changes from call to call"]),
        (
            lambda logits: torch.log(logits + torch.randn_like(logits)),
            ["values are NaN or infinite", "changes from call to call"],
        ),
    ],
)
def test_a_forward_pass_tells_of_outputs_that_are_not_finite_or_change(
    spoil, troubles, make_module_case
):
    case = make_module_case("py:tiny_gpt:build", pass_="forward")
    given = GivenModule(module=Spoilt(spoil), vocab_size=11)
    with prepared_module(case, given) as step:
        for _ in range(2):
            step.step()
        found = step.outputs()
        assert found.n_values == 11 * case.workload.batch_size * case.workload.seq_len
        assert len(found.troubles) == len(troubles)
        assert all(part in said for part, said in zip(troubles, found.troubles, strict=True))


def test_a_pass_with_a_loss_has_the_loss_looked_at(make_module_case):
    with prepare(make_module_case("py:tiny_gpt:build", pass_="train_step")) as step:
        step.step()
        assert step.outputs() is None


def given_batch(batch, dtype=torch.float32):
    return GivenBatch(GivenModule(module=torch.nn.Identity(), args=batch), dtype)


def test_a_batch_is_cast_where_it_is_of_floats():
    calls = given_batch((torch.zeros(2, 3).long(), torch.zeros(4)), torch.bfloat16)
    ((batch,),) = calls.batches(Workload(batch_size=2, seq_len=3), "cpu")
    assert [each.dtype for each in batch] == [torch.int64, torch.bfloat16]


def test_a_micro_batch_is_as_many_times_as_gradients_are_summed():
    work = Workload(batch_size=2, seq_len=3, accumulate=4)
    (step,) = given_batch((torch.zeros(2, 3),)).batches(work, "cpu")
    assert len(step) == 4


def test_a_batch_of_another_size_is_refused():
    with pytest.raises(
        PeakwardError, match=r"expected a batch of 2 × 16 .*, got a first tensor of \(4, 8\)"
    ):
        given_batch((torch.zeros(4, 8),)).batches(Workload(batch_size=2, seq_len=16), "cpu")


def test_the_main_tensor_of_an_output():
    logits = torch.zeros(3)
    for output in (
        logits,
        (logits, None),
        SimpleNamespace(logits=logits),
        [torch.zeros(1).int(), logits],
    ):
        assert main_tensor(output) is logits
    with pytest.raises(
        PeakwardError, match="expected a module that gives a tensor of floats, got int"
    ):
        main_tensor(3)


def test_a_loss_is_one_number_that_asks_for_a_gradient():
    loss = torch.zeros(1, requires_grad=True)
    assert scalar(SimpleNamespace(loss=loss)).shape == ()
    for output, got in ((torch.zeros(2, 3), r"a tensor of \(2, 3\)"), (None, "NoneType")):
        with pytest.raises(PeakwardError, match=f"expected a loss of one element .*, got {got}"):
            scalar(output)
    with pytest.raises(
        PeakwardError, match="expected a loss that depends on a parameter that requires"
    ):
        scalar(torch.zeros(()))
