"""A live step on a GPU: levers around its call run, their numbers hold, and nothing stays."""

import pytest
import torch
from torch.utils.data import DataLoader

import peakward as pw
from peakward.lab.measure.live_step import StepWorkers, live_case
from peakward.levers.catalogue import AROUND_A_CALL, lever, numerics_class, pull
from peakward.records.lever import Claim
from peakward.records.measurement import Protocol

pytestmark = pytest.mark.gpu
QUICK = Protocol(warmup_steps=2, min_steps=3, max_steps=3, phases=False)
IN_16_BITS = ("sdpa-cudnn", "sdpa-flash")


OF_A_LOADER = {each.name for each in AROUND_A_CALL if each.sets[0][0] == "loader"}


@pytest.mark.parametrize("name", sorted({each.name for each in AROUND_A_CALL} - OF_A_LOADER))
def test_a_lever_around_the_call_holds(name, make_step):
    """cuDNN's and torch's flash kernels take 16 bits alone: under autocast they run, in fp32 they refuse."""
    given = make_step(device="cuda")
    plain = given.step

    def mixed():
        with torch.autocast("cuda", torch.bfloat16):
            return plain()

    sixteen = name in IN_16_BITS
    if sixteen:
        given = make_step(device="cuda", step=mixed, model=given.model, optimizer=given.optimizer)
    before = {key: each.clone() for key, each in given.model.state_dict().items()}
    settings = torch.get_float32_matmul_precision(), torch.backends.cuda.math_sdp_enabled()
    case = live_case(given, name="step", tokens_per_step=32)
    candidate = pull(lever(name), case)
    with StepWorkers(given) as workers:
        assert workers.check_step().attention.n == 2
        turns = workers.turns((case, candidate), QUICK)
        (verdict,) = workers.numerics(
            [Claim(base=case, candidate=candidate, declared=numerics_class(lever(name), candidate))]
        )
    assert (turns.status, turns.reason) == ("ok", None)
    assert verdict.verdict == "holds", verdict
    assert all(torch.equal(before[key], x) for key, x in given.model.state_dict().items())
    assert settings == (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.math_sdp_enabled(),
    )


def test_tf32_is_seen_in_the_numbers(make_step):
    given = make_step(device="cuda")
    case = live_case(given, name="step", tokens_per_step=None)
    with StepWorkers(given) as workers:
        (verdict,) = workers.numerics(
            [Claim(base=case, candidate=pull(lever("tf32"), case), declared="approximate")]
        )
    assert max(each.candidate_error for each in verdict.errors) > 2.0**-20


def test_a_kernel_that_refuses_is_a_status(make_step):
    given = make_step(device="cuda")
    case = live_case(given, name="step", tokens_per_step=None)
    with StepWorkers(given) as workers:
        turns = workers.turns((case, pull(lever("sdpa-flash"), case)), QUICK)
    assert (turns.status, turns.failed) == ("crashed", 1)


@pytest.mark.parametrize("levers", [("bf16-mixed",), ("checkpointing",)])
def test_a_module_is_foretold_in_a_run(levers, make_module_case, in_tmp):
    """What was foretold stands in the study, and in the same worker the module is then measured."""
    case = make_module_case(
        "py:tiny_gpt:build", device="cuda", workload={"batch_size": 8, "seq_len": 64}
    )
    study = pw.run(case, levers=levers, budget_s=60.0)
    assert study.measurements[0].status == "ok"
    if not study.forecasts:
        assert any("is not in the catalogue of devices" in note for note in study.notes)
        return
    assert study.forecasts[0].case == case
    assert study.forecasts[0].step_s is not None
    assert "Predicted and measured" in pw.markdown(study)
    assert all(each.foretold.time_ratio is not None for each in study.trials if each.foretold)


def test_a_module_has_findings_by_its_profile(make_module_case, in_tmp):
    """Small as it is, the host is what it waits for."""
    case = make_module_case("py:tiny_gpt:build", device="cuda")
    study = pw.run(case, levers=("bf16-mixed",), budget_s=90.0)
    told = study.diagnoses[0]
    assert (told.case, told.basis) == (case, "measured step")
    assert "HOST" in "".join(each.code for each in told.findings)
    assert study.profiles[0].case == case


def test_the_whole_of_it(make_step, in_tmp):
    """Levers that are sure to gain go before a profile: of a minute they left none (a call of the host at 12
    µs, an H200)."""
    ids = torch.randint(50, (8, 16))
    given = make_step(fed=True, device="cuda")
    study = pw.investigate(
        given.step,
        model=given.model,
        optimizer=given.optimizer,
        loader=DataLoader(ids, batch_size=2, pin_memory=True),
        tokens_per_step=32,
        budget_s=150.0,
    )
    measured = study.measurements[0]
    assert measured.status == "ok"
    assert len(measured.loader.idle_s) == len(measured.loader.wait_s)
    assert study.profiles, study.notes
    assert study.profiles[0].profile.breakdown.together.busy_ns > 0
    assert "HOST" in "".join(each.code for each in study.diagnoses[0].findings)
    assert {"tf32", "sdpa-efficient"} <= {
        each.lever for each in study.trials if each.stage != "refused"
    }
    assert "of a step waited for its batch" in pw.markdown(study)
