"""Whether the numbers of levers on a user's module hold, and what breaks them."""

import pytest
import torch
import torch.nn.functional as F

from peakward.lab.levers import fp8_layers
from peakward.lab.numerics.of_module import InDouble
from peakward.lab.numerics.verify import verify
from peakward.levers import optimizer
from peakward.levers.catalogue import lever, pull
from peakward.records.errors import PeakwardError
from tiers import rows_in_full

PY, HF = ["py:tiny_gpt:build", "py:tiny_gpt:with_batch"], ["hf:llama", "hf:gpt2"]
NAMES = ["bf16-mixed", "bf16", "fused-optimizer", "checkpointing"]
HELD = [(name, source) for name in NAMES for source in (*PY, *HF)]
QUICK = [*zip(NAMES, PY * 2, strict=True), *zip(NAMES, HF * 2, strict=True)]
"""Each lever on one module of each kind."""


@pytest.mark.parametrize(
    ("name", "source"), [*QUICK, *rows_in_full(each for each in HELD if each not in QUICK)]
)
def test_a_lever_s_numbers_hold(name, source, make_module_case):
    if source.startswith("hf:"):
        pytest.importorskip("transformers")
    base = make_module_case(source)
    found = verify(base, pull(lever(name), base), lever(name).numerics)
    assert (found.verdict, found.reason) == ("holds", None)
    quantities = {each.quantity for each in found.errors}
    assert {"loss", "gradients", "parameters"} <= quantities


def test_numbers_of_levers_hold_on_a_module_that_comes_in_bf16(make_module_case):
    base = make_module_case("py:tiny_gpt:in_bf16", precision="bf16")
    found = verify(base, pull(lever("checkpointing"), base), "exact")
    assert (found.verdict, found.reason) == ("holds", None)
    assert all(each.base_error > 2.0**-12 for each in found.errors if each.quantity == "gradients")


@pytest.mark.parametrize(
    ("source", "n_layers"),
    [
        (PY[0], 2),
        *(pytest.param(*each, marks=pytest.mark.full) for each in ((PY[1], 2), ("hf:llama", 4))),
    ],
)
def test_in_fp8_numbers_hold_with_every_layer_that_can(
    source, n_layers, make_module_case, monkeypatch
):
    """Nothing is timed: a check's sizes are others."""
    if source.startswith("hf:"):
        pytest.importorskip("transformers")
    base, computed = make_module_case(source), []
    put_in = fp8_layers.put_in

    def counted(layers, linear):
        return put_in(layers, lambda *given: computed.append(1) or linear(*given))

    monkeypatch.setattr(fp8_layers, "put_in", counted)
    found = verify(base, pull(lever("fp8"), base), "approximate")
    assert (found.verdict, found.reason) == ("holds", None)
    errors = {each.quantity: each for each in found.errors}
    assert computed
    # It is fp8 that is held to fp8's bound.
    assert errors["gradients"].candidate_error > 2.0**-8
    assert errors["gradients"].bound == 2.0**-4 * (16 * n_layers + 2) ** 0.5


def test_in_fp8_scales_of_windows_are_judged(make_module_case, wrong_by_windows):
    base = make_module_case(PY[0])
    assert verify(base, pull(lever("fp8"), base), "approximate").verdict == "violated"


@pytest.mark.parametrize("kind", HF)
def test_transformers_attentions_agree(kind, make_module_case):
    pytest.importorskip("transformers")
    base = make_module_case(kind, pass_="forward", attention="naive")
    found = verify(base, pull(lever("sdpa"), base), "reordered")
    assert found.verdict == "holds"
    assert all(each.base_error > 0 for each in found.errors)


def test_the_oracle_is_in_fp64_where_the_module_casts_to_fp32(make_module_case):
    """Llama takes norms and angles in fp32: its oracle would err as much as its base, which it does not."""
    pytest.importorskip("transformers")
    base = make_module_case("hf:llama", pass_="forward")
    (error,) = verify(base, base, "reordered").errors
    assert 0 < error.base_error < 64 * 2.0**-24
    with InDouble():
        cast = torch.ones(2, dtype=torch.float64).float()
        assert F.softmax(cast, 0, dtype=torch.float32).dtype == torch.float64
        positions = torch.arange(2)[:, None].float()
        assert (positions @ cast[None]).dtype == torch.float64, (
            "as transformers 5.17 has its angles"
        )


def test_the_oracle_is_in_fp64_where_an_operator_casts_what_it_sums():
    """As transformers' DiffLlama has it, whose gradient was then of two types."""
    weight = torch.rand(8, dtype=torch.float64, requires_grad=True)
    with InDouble():
        total = weight.sum(-1, dtype=torch.float32).exp().to(weight.dtype)
        (gradient,) = torch.autograd.grad(total, weight)
    assert total.dtype == torch.float64
    torch.testing.assert_close(gradient, weight.detach().sum().exp().expand(8), rtol=1e-12, atol=0)


@pytest.mark.parametrize("several", ["rows", "columns"])
def test_the_oracle_has_the_products_of_experts(several):
    """torch's grouped product takes no fp64; its gradients are grouped products too."""
    torch.manual_seed(0)
    rows, experts = torch.randn(12, 8).double(), torch.randn(3, 8, 16).double()
    ends = torch.tensor([2, 2, 12], dtype=torch.int32)
    rows.requires_grad_()
    experts.requires_grad_()
    parts = zip(rows.split([2, 0, 10]), experts, strict=True)
    expected = torch.cat([part @ each for part, each in parts])
    with InDouble():
        if several == "rows":
            found = F.grouped_mm(rows, experts, offs=ends)
        else:
            found = F.grouped_mm(experts.mT, rows.mT, offs=ends).mT
        given = torch.randn_like(expected)
        gradients = torch.autograd.grad(found, (rows, experts), given)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, (rows, experts), given))


def test_a_wrong_optimiser_violates_its_class(make_module_case, monkeypatch):
    real = optimizer.adamw

    def wrong(model, implementation, *, capturable):
        made = real(model, implementation, capturable=capturable)
        if implementation == "adamw-fused":
            made.param_groups[0].update(betas=(0.1, 0.2))
        return made

    monkeypatch.setattr(optimizer, "adamw", wrong)
    base = make_module_case("py:tiny_gpt:build")
    found = verify(base, pull(lever("fused-optimizer"), base), "reordered")
    assert found.verdict == "violated"


def test_other_weights_each_time_are_not_computed(make_module_case):
    base = make_module_case("py:tiny_gpt:unseeded")
    with pytest.raises(
        PeakwardError, match="expected the same weights each time that py:tiny_gpt:unseeded"
    ):
        verify(base, pull(lever("bf16"), base), "approximate")


def test_without_blocks_no_bound_is_known(make_module_case):
    base = make_module_case("py:tiny_gpt:without_blocks")
    with pytest.raises(PeakwardError, match="whose number the bound on rounding is reckoned from"):
        verify(base, pull(lever("bf16"), base), "approximate")
    assert verify(base, pull(lever("fused-optimizer"), base), "reordered").verdict == "holds"
