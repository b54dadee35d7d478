"""`pw.investigate` of a live step: a study as `run` makes it, in this process."""

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

import peakward as pw
from peakward.api import live_steps
from peakward.cli.main import main
from peakward.lab.measure import probe
from peakward.levers.catalogue import lever, pull
from peakward.records.calibration import Calibration, MatmulRate
from peakward.tune.trials import trial_of


@pytest.fixture
def calibrated(at_user_modules, monkeypatch):
    """A database that knows this machine's ceilings, so that no worker is started for them; and no compiler,
    which would take a minute."""
    monkeypatch.setattr(probe, "has_compiler", lambda: False)
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


@pytest.fixture
def few_levers(monkeypatch):
    """One that is tried, so that all ends long before its budget, and some that are told."""
    names = ("tf32", "fused-loss", "compile", "fused-optimizer")
    monkeypatch.setattr(live_steps, "LEVERS", tuple(map(lever, names)))


def test_a_step_is_measured_profiled_diagnosed_and_reported(
    make_step, calibrated, few_levers, capsys
):
    given = make_step(sdpa=False)
    before = {name: each.clone() for name, each in given.model.state_dict().items()}
    study = pw.investigate(
        given.step,
        name="my step",
        model=given.model,
        optimizer=given.optimizer,
        tokens_per_step=32,
        budget_s=300.0,
    )
    assert (study.name, study.measurements[0].status) == ("run", "ok")
    assert study.measurements[0].case.name == "my step"
    (profile,) = [each for each in study.profiles if each.case == study.measurements[0].case]
    assert {group.phase for group in profile.profile.phases} >= {"forward", "backward", "optimizer"}
    assert study.diagnoses[0].case == study.measurements[0].case
    assert study.predictions == study.forecasts == ()
    told = {each.lever: each.reason for each in study.trials if each.stage == "refused"}
    assert "call peakward.kernels.cross_entropy in the place of its loss" in told["fused-loss"]
    assert told["compile"] == "needs a C++ compiler on the PATH"
    assert "fused-optimizer" not in told
    assert "fused-optimizer" in {each.lever for each in study.trials if each.stage != "refused"}
    assert told["tf32"] == "needs a CUDA GPU, got a CPU"
    assert "which the step never calls" in told["sdpa-math"]
    assert all(torch.equal(before[name], x) for name, x in given.model.state_dict().items())
    report = pw.markdown(study)
    assert "my step on" in report
    assert "pw.investigate of the live step my step" in report
    capsys.readouterr()
    assert main(["report", study.id, "--db", "peakward.db"]) == 0
    assert "my step" in capsys.readouterr().out


def test_a_step_whose_own_batches_end_is_refused_with_the_reason(make_step, calibrated):
    given = make_step()
    left = iter(range(12))

    def step():
        next(left)
        return given.step()

    with pytest.raises(
        pw.PeakwardError, match=r"as often as it is called, got StopIteration: .*loader="
    ):
        pw.investigate(step, model=given.model, optimizer=given.optimizer, budget_s=60.0)


def test_the_kernels_of_its_attention_are_tried(make_step, calibrated):
    given = make_step()
    study = pw.investigate(given.step, model=given.model, optimizer=given.optimizer, budget_s=8.0)
    tried = {each.lever for each in study.trials if each.stage != "refused"}
    not_done = " ".join(study.notes)
    assert all(each in tried or each in not_done for each in ("sdpa-math", "sdpa-flash"))


def test_the_wait_for_a_loader_is_told_apart(make_step, calibrated, monkeypatch):
    monkeypatch.setattr(live_steps, "n_cores", lambda: 4)
    loader = DataLoader(torch.randint(50, (6, 16)), batch_size=2)
    given = make_step(fed=True)
    study = pw.investigate(
        given.step, model=given.model, optimizer=given.optimizer, loader=loader, budget_s=5.0
    )
    assert len(study.measurements[0].loader.wait_s) == len(study.measurements[0].runs[0].steps_s)
    assert "of a step waited for its batch (mean)" in pw.markdown(study)
    told = " ".join((*study.notes, *(each.lever for each in study.trials)))
    assert "workers-2" in told
    assert "workers-8" not in told


def with_kept(study, name):
    """The study as if that lever had been confirmed on its baseline."""
    base = study.measurements[0]
    top = pull(lever(name), base.case)
    found = trial_of(name, base.case, top, study.environment.key, stage="confirmed", verdict="kept")
    measured = (base, msgspec.structs.replace(base, case=top))
    return msgspec.structs.replace(
        study, trials=(found,), steps=(found.id,), measurements=measured, profiles=(), diagnoses=()
    )


def test_a_study_of_a_step_is_applied_to_its_handles(make_step, calibrated, monkeypatch):
    monkeypatch.setattr(live_steps, "LEVERS", ())
    monkeypatch.setattr(live_steps, "AROUND_A_CALL", ())
    loader = DataLoader(torch.randint(50, (6, 16)), batch_size=2)
    given = make_step(fed=True)
    model, optimizer = given.model, given.optimizer
    found = pw.investigate(
        given.step, model=model, optimizer=optimizer, loader=loader, budget_s=300.0
    )
    fed = with_kept(found, "workers-2")
    report = pw.markdown(fed)
    assert "fast = pw.apply(study, model, optimizer, loader=loader)" in report
    assert "loader = rebuilt(loader, n_workers=2" in report
    fast = pw.apply(fed, model, optimizer, loader=loader)
    assert fast.levers == ("workers-2",)
    assert fast.loader.num_workers == 2
    assert fast.loader.sampler is loader.sampler
    fused = pw.apply(with_kept(found, "fused-optimizer"), model, optimizer, loader=loader)
    assert optimizer.param_groups[0]["fused"]
    assert fused.loader is loader
    fused.undo()
    assert not optimizer.param_groups[0]["fused"]
    with pytest.raises(pw.PeakwardError, match="expected the parameters that the study is of"):
        pw.apply(fed, torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"step": lambda: 1 / 0}, "got ZeroDivisionError: division by zero"),
        ({"step": torch.compile(lambda: None)}, "not compiled"),
        ({"step": print, "loader": iter(())}, "a loader that can be begun again"),
        ({"step": print, "loader": []}, "a batch for every step"),
        ({"step": torch.sum, "loader": [torch.ones(2)] * 9 + [torch.ones(1)]}, "drop_last=True"),
        ({"step": lambda: float("nan")}, "expected a finite loss, got nan"),
        ({"step": lambda: None, "budget_s": 0}, "expected budget_s from 1 to 604,800, got 0"),
        ({"step": lambda: None, "tokens_per_step": -1}, "expected tokens_per_step above 0"),
    ],
)
def test_bad_input_is_one_line(settings, line, calibrated):
    with pytest.raises(pw.PeakwardError, match=line) as caught:
        pw.investigate(settings.pop("step"), **settings)
    assert "\n" not in str(caught.value)
