"""`pw.run` of a live module: the same study, in this process."""

import pytest
import torch

import peakward as pw
from peakward.lab.measure import probe
from peakward.records.calibration import Calibration, MatmulRate


@pytest.fixture
def calibrated(at_user_modules):
    """A database that knows this machine's ceilings, so that no worker is started for them."""
    known = Calibration(
        environment=probe.environment("cpu"),
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        matmul=(MatmulRate(compute_type="fp32", size=512, flops_per_s=1e12),),
        copy_bytes_per_s=1e11,
        copy_size_bytes=2**30,
    )
    with pw.Store.open(at_user_modules / "peakward.db") as store:
        store.add_calibration(known)
    return at_user_modules


def test_a_live_module_is_investigated(tiny_gpt, calibrated):
    module = tiny_gpt.build()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    study = pw.run(
        module,
        torch.zeros(2, 16).long(),
        loss=tiny_gpt.scored,
        levers=("bf16",),
        budget_s=600.0,  # More than it takes, however busy the machine is: then what it tries is settled.
    )
    assert study.name == "run"
    assert study.measurements[0].status == "ok"
    assert study.measurements[0].case.source == "live:GPT"
    assert [each.lever for each in study.trials] == ["bf16"]
    assert study.predictions == ()
    report = pw.markdown(study)
    assert "live:GPT 2 × 16 train\\_step" in report or "live:GPT 2 × 16 train_step" in report
    assert "pw.run of a live GPT" in report
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())


@pytest.mark.parametrize(
    ("factory", "batch", "line"),
    [
        ("compiled", torch.zeros(2, 16).long(), "got OptimizedModule"),
        ("no_module", torch.zeros(2, 16).long(), "expected a torch.nn.Module, got int"),
        ("build", None, "expected a case, or a module and a batch, got GPT alone"),
        ("build", torch.full((2, 16), 999), "got IndexError"),
    ],
)
def test_bad_input_is_one_line(factory, batch, line, tiny_gpt, calibrated):
    with pytest.raises(pw.PeakwardError, match=line):
        pw.run(getattr(tiny_gpt, factory)(), batch, loss=tiny_gpt.scored)


def test_a_loss_that_is_no_scalar(tiny_gpt, calibrated):
    module, batch, loss = tiny_gpt.no_scalar()
    with pytest.raises(pw.PeakwardError, match="expected a loss of one element"):
        pw.run(module, batch, loss=loss)


def test_a_case_has_its_batch(calibrated):
    case = pw.case("tiny", batch_size=1, seq_len=8, device="cpu")
    with pytest.raises(pw.PeakwardError, match="expected no batch or loss beside a case"):
        pw.run(case, torch.zeros(1, 8))
