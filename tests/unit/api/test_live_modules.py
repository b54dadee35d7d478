"""`pw.run` of a live module: the same study, in this process."""

import pytest
import torch

import peakward as pw


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
        ("no_module", torch.zeros(2, 16).long(), "expected a case or a module, got 3"),
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
