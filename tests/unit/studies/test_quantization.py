"""What `quantization` plans and concludes from known figures."""

import msgspec
import pytest
from msgspec.structs import replace

from peakward.lab.quality import weights
from peakward.records.case import MicroCase, ModelCase, QualityCase
from peakward.records.measurement import Losses, Quality
from peakward.studies import quantization
from peakward.studies.engine import view
from peakward.studies.quantization import STUDY, rounding
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope

from .conftest import SLOWNESS

LOST = {
    "int4": 0.4,
    "int4, calibrated": 0.1,
    "int4, calibrated, int8 cache": 0.12,
    "int8 activations": 0.05,
    "int8 activations, smoothed": 0.05,
    "dense, fine-tuned": -0.2,
    "int4, fine-tuned": 0.1,
}


def quality(case):
    lost = LOST.get(case.way, 0.0)
    each = tuple(at + lost * near for at, near in ((2.0, 0.99), (2.5, 1.0), (3.0, 1.01)))
    bits = weights.WAYS[case.way].bits
    return Quality(losses=(Losses(where="here", losses=each),), weight_bytes=1000 * bits)


def scored(readings):
    return Readings(
        msgspec.structs.replace(each, quality=quality(each.case))
        if isinstance(each.case, QualityCase) and each.status == "ok"
        else each
        for each in readings
    )


@pytest.fixture
def said(setting, gathered):
    def make(name="small", device="cpu"):
        here = setting(name, device)
        found = STUDY.parts(scored(gathered(STUDY, here)), here)
        return [each.text for each in found.conclusions]

    return make


def test_the_ways_are_those_that_can_be_read():
    assert tuple(weights.WAYS) == rounding.WAYS


def test_a_cpu_times_dense_weights_and_int8_and_says_why(setting):
    here = setting("small", "cpu")
    seen = view(quantization.points(here), Readings(), here)
    steps = [(row.name, quantization.batch_of(row)) for row in quantization.steps(seen)]
    assert steps == [(name, batch) for batch in (1, 4, 16, 64) for name in ("dense", "int8")]
    assert {row.case.configuration.precision for row in quantization.steps(seen)} == {"bf16"}
    assert [row.name for row in rounding.readings(seen)] == list(rounding.WAYS)
    assert any(each.startswith("Not run here: ") for each in quantization.notes(seen))


def test_a_gpu_times_every_kind_at_every_batch(setting):
    here = setting()
    cases = [each.case for each in quantization.points(here) if isinstance(each.case, ModelCase)]
    fused = [each for each in cases if each.configuration.more]
    kinds = {(each.configuration.weights, each.configuration.kv_cache) for each in cases}
    assert kinds == {
        ("dense", "static"),
        ("int8", "static"),
        ("int4:128", "static"),
        ("int4:128", "int8"),
    }
    n_models = len(here.grid.models)
    assert len(cases) == n_models * 4 * 4 + len(fused)
    of_fused = {(c.configuration.weights, c.workload.batch_size) for c in fused}
    assert of_fused == {("dense", 1), ("dense", 4), ("int4:128", 1)}
    assert any(
        "needs a batch of at most 1" in each
        for each in quantization.notes(view((), Readings(), here))
    )
    assert all(each.configuration.cuda_graphs for each in cases)


def test_bytes_are_those_of_the_parts(setting):
    here = setting()
    seen = view(quantization.points(here), Readings(), here)
    shares = {row.name: quantization.share_of_dense(row) for row in quantization.steps(seen)[:4]}
    # The blocks of `small` are 85 of its 100 million parameters, in 8 or 4 of 16 bits.
    assert shares["dense"] == 1
    assert 0.5 < shares["int8"] < 0.65
    assert 0.25 < shares["int4"] < 0.42
    assert shares["int4, int8 cache"] == shares["int4"]


def test_a_loss_is_told_beside_what_is_stored(said):
    found = said()
    (int4,) = [each for each in found if each.startswith("int4: ")]
    assert "0.400 more than dense (0.390 to 0.410), in 25.0% of the bytes." in int4
    (tuned,) = [each for each in found if each.startswith("int4, fine-tuned: ")]
    assert "0.300 more than dense, fine-tuned" in tuned
    (alike,) = [each for each in found if each.startswith("dense, fine-tuned: ")]
    assert "0.200 less than dense (0.195 to 0.205)" in alike
    (back,) = [each for each in found if each.startswith("int4, calibrated has ")]
    assert back.startswith(
        "int4, calibrated has 0.300 (0.293 to 0.307) nats a token less than int4,"
    )
    assert back.endswith("which has 0.400 more than dense.")
    assert any(
        each.startswith("int8 activations, smoothed and int8 activations are not told apart")
        for each in found
    )
    (both,) = [each for each in found if each.startswith("Fine-tuned with its weights rounded")]
    assert "int4 has 0.300 (" in both
    assert "rounded without it, 0.400 (" in both
    assert both.endswith(
        "Beside the model as it was before both it has 0.100 (0.0975 to 0.102) nats a token more."
    )


def test_a_way_that_should_lose_less_and_loses_more_is_told_so(said, monkeypatch):
    monkeypatch.setitem(LOST, "int8 activations, smoothed", 0.15)
    (told,) = [each for each in said() if each.startswith("int8 activations, smoothed has ")]
    assert "nats a token more than int8 activations, which has 0.0500 more than dense." in told


def test_a_recipe_that_loses_nothing_is_told_to_have_less(said, monkeypatch):
    monkeypatch.setitem(LOST, "int4, calibrated, int8 cache", -0.1)
    first = said("corners", "cuda")[0]
    assert "the loss of SmolLM2-135M is 0.100 (0.0975 to 0.102) nats a token less." in first


def test_a_loss_that_is_not_told_apart_is_said_so(said, monkeypatch):
    monkeypatch.setitem(LOST, "int4, calibrated, int8 cache", 0.0)
    first = said("corners", "cuda")[0]
    assert "the loss of SmolLM2-135M is 0 (0 to 0: not told apart) nats a token more." in first


def test_a_recipe_of_one_batch_tells_each_figure_once(setting, gathered):
    here = setting(Scope("corners", batch_size=4))
    found = STUDY.parts(scored(gathered(STUDY, here)), here).conclusions
    told = [each.text for each in found if each.text.startswith("int4 weights and an int8")]
    assert told
    assert all("of its speed at a batch of 4. With them" in each for each in told)


def test_a_gpu_tells_the_recipe_by_batch(said):
    found = said("corners", "cuda")
    assert any(
        each.startswith(
            "2.7B at 1,024 positions, batch 1: in the fused step int4 weights and an int8 cache run at 1.00×"
        )
        for each in found
    )
    assert any(each.startswith("int4 weights and an int8 cache take") for each in found)
    (by_batch,) = [
        each for each in found if each.startswith("2.7B at 1,024 positions, int4: by batch")
    ]
    assert all(f" at {n}" in by_batch for n in (1, 4, 16, 64))
    assert any("of its speed at a batch of 1 and at" in each for each in found)


def reasons(here):
    """Of each product that cannot be timed."""
    of_products = (each for each in quantization.points(here) if isinstance(each.case, MicroCase))
    return {each.name: each.absent for each in of_products if each.absent is not None}


def test_one_product_is_told_by_batch_and_a_kernel_of_a_gpu_is_absent_on_a_cpu(
    setting, said, monkeypatch
):
    here = setting("small", "cpu")
    whole = replace(setting(), has_torchao=True)
    assert reasons(replace(here, has_torchao=True)) == dict.fromkeys(
        quantization.KERNELS, quantization.NEEDS_A_GPU
    )
    assert reasons(whole) == {}
    assert reasons(replace(whole, has_compiler=False)) == dict.fromkeys(
        rounding.OF_TORCHAO, quantization.NEEDS_A_COMPILER
    )
    assert reasons(setting()) == dict.fromkeys(rounding.OF_TORCHAO, rounding.NEEDS_TORCHAO)
    monkeypatch.setitem(SLOWNESS, "int8 activations", 0.5)
    (told,) = [
        each
        for each in said()
        if each.startswith("One product with a weight of 8,192 × 2,048, int8 activations")
    ]
    assert (
        "int8 activations: by batch, the speed of dense weights times 2.00× at 1, 2.00× at 4"
        in told
    )
    assert len([each for each in said("corners", "cuda") if each.startswith("One product")]) == 3


def test_what_failed_is_not_told(setting, gathered):
    here = setting("small", "cpu")
    failed = STUDY.parts(gathered(STUDY, here, overrule=lambda _case: "oom"), here)
    assert failed.conclusions == ()
