"""Losses of rounded weights, on a CPU with a decoder of bytes trained for a second."""

import copy

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.kernels.ops.quantized_matmul import reference
from peakward.lab.models import torchao_weights
from peakward.lab.models.decoder import build as build_decoder
from peakward.lab.quality import caches, positions, subjects, weights
from peakward.records.case import QualityCase, Source
from peakward.records.errors import PeakwardError


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}. " for n in range(600)))
    return Source(str(path))


def case(text, way, sizes=(4, 64, 16, 2)):
    return QualityCase(subject="weights", way=way, sizes=sizes, text=text, device="cpu")


def model(dtype=torch.float32):
    made = build_decoder(
        positions.shape_of("rope", 2, 64, 64),
        attention=implementation("sdpa"),
        device="cpu",
        dtype=dtype,
        seed=0,
    )
    return made.requires_grad_(False).eval()


def seen(rows=8, length=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, length + 1), generator=generator)


def off(changed, exact, ids):
    return float((changed(ids) - exact).norm() / exact.norm())


def test_every_way_reads_one_text_with_one_model(text, monkeypatch):
    monkeypatch.setitem(caches.TRAINED, "cpu", (1, 64, 4, 30))
    found = {way: subjects.build(case(text, way)).run(lambda _n: None) for way in weights.WAYS}
    losses = {way: each.quality.losses[0].losses for way, each in found.items()}
    assert {len(each) for each in losses.values()} == {8}
    assert len({losses[way] for way in losses}) == len(losses)
    assert losses["int8"] == pytest.approx(losses["dense"], abs=0.02)
    assert all(each == pytest.approx(losses["dense"], abs=0.5) for each in losses.values())
    kept = {way: each.quality.weight_bytes for way, each in found.items()}
    # One layer of width 64: qkv, out, up and down in 4 bits, with a scale of two bytes for 64 inputs.
    in_blocks = 64 * (192 + 64 + 2 * 192 + 192)
    assert kept["dense"] - kept["int4"] == in_blocks * 2 - in_blocks // 2 - in_blocks // 64 * 2
    assert kept["int4"] == kept["int4, calibrated"] == kept["int4, fine-tuned"]
    assert kept["dense"] > kept["int8"] == kept["int8 activations"] > kept["int4"]


def test_calibrated_int4_errs_less_on_text_like_that_it_saw():
    plain, ids = model(), seen()[:, :-1]
    exact = plain(ids)
    nearest, calibrated = copy.deepcopy(plain), copy.deepcopy(plain)
    given = weights.Given(seen(), 0)
    weights.to_int4(nearest, given)
    weights.calibrate(calibrated, given)
    assert off(calibrated, exact, ids) < 0.9 * off(nearest, exact, ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchaos_numbers_of_4_bits_are_16_a_group(dtype):
    """HQQ gives up some of the error's square for fewer large errors: it errs less than steps that are
    symmetric about 0, where a group has one sign."""
    pytest.importorskip("torchao")
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(0)).abs().to(dtype)
    found = torchao_weights.int4_rounded(weight, group=64)
    assert found.dtype == dtype
    assert all(len(each.unique()) <= 16 for each in found.view(-1, 64))
    ours = reference.int4_rounded(weight, group=64)
    assert (found - weight).norm() < 0.7 * (ours - weight).norm()


def test_smoothing_a_whole_model_changes_nothing():
    plain, ids = model(torch.float64), seen()
    with torch.no_grad():
        for block in plain.blocks:
            block.attention_norm.weight[[3, 17]] *= 50
            block.ff_norm.weight[[5, 40]] *= 50
    smoothed, exact = copy.deepcopy(plain), plain(ids)
    weights.smooth(smoothed, weights.Given(ids, 0))
    norms = [each.blocks[0].attention_norm.weight for each in (plain, smoothed)]
    assert float(norms[1].max()) < 0.5 * float(norms[0].max())
    assert not torch.equal(plain.blocks[0].ff.down.weight, smoothed.blocks[0].ff.down.weight)
    # The factors are of fp32, and taken back as they were given.
    assert off(smoothed, exact, ids) < 1e-13
    for each in (plain, smoothed):
        weights.to_int8_activations(each, weights.Given(ids, 0))
    assert off(smoothed, exact, ids) < 0.7 * off(plain, exact, ids)


def test_fine_tuning_sees_the_rounded_weights_and_keeps_them_so():
    tuned, given = model(), weights.Given(seen(), 3)
    before = [each.weight.clone() for each in weights.linears(tuned.blocks)]
    embedding = tuned.embedding.weight.clone()
    weights.fine_tune_int4(tuned, given)
    for old, each in zip(before, weights.linears(tuned.blocks), strict=True):
        assert type(each) is torch.nn.Linear
        group = weights.READ_GROUP
        _, scale = reference.int4_weight(each.weight.data, group=group)
        again = reference.int4_rounded(each.weight.data, group=group)
        assert torch.allclose(again, each.weight, atol=float(scale.max()) * 0.02)
        assert not torch.equal(each.weight, weights.int4_rounded(old, group=group))
    assert torch.equal(tuned.embedding.weight, embedding)


def test_the_gradient_passes_straight_through():
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rounded = weights.StraightThrough()(weight)
    assert torch.allclose(rounded, weights.int4_rounded(weight.detach(), group=64), atol=1e-6)
    (rounded * torch.arange(64.0)).sum().backward()
    assert torch.equal(weight.grad, torch.arange(64.0).expand(4, 64))


def test_a_model_that_computes_nan_has_no_loss():
    broken = model()
    broken.blocks[1].ff.down.weight.data[0] = float("nan")
    work = weights.read_by(broken, seen(4, 64), 1)
    with pytest.raises(PeakwardError, match="expected finite losses, got 256 of 256"):
        work.run(lambda _n: None)


def test_a_row_through_an_int8_cache_is_read_whole():
    plain, ids = model(), seen(1, 40)[:, :-1]
    reader = weights.through_cache(plain, torch.int8, "cpu", 40)
    with torch.inference_mode():
        found, exact = reader(ids), plain(ids)
        assert torch.equal(found, reader(ids))
    assert found.shape == exact.shape
    error = float((found - exact).norm() / exact.norm())
    assert 0 < error < 0.02


@pytest.mark.parametrize(
    ("way", "sizes", "said"),
    [
        ("int3", (4, 64, 8, 2), "expected a way of weights"),
        ("int4", (4, 64), "expected 4 positive sizes"),
        ("int4", (4, 64, 4000, 2), "name a longer one"),
    ],
)
def test_what_cannot_be_rounded_is_refused(text, monkeypatch, way, sizes, said):
    monkeypatch.setitem(caches.TRAINED, "cpu", (1, 64, 4, 1))
    with pytest.raises(PeakwardError, match=said):
        subjects.build(case(text, way, sizes))
