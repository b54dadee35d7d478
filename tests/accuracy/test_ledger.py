"""The trials of every stored run, predicted again as a run would, and held to what the ledger says."""

import msgspec
import pytest

from accuracy.measured import is_of_former_kernels
from peakward.levers.catalogue import LEVERS, obstacle
from peakward.prediction.time.errors_seen import LEVEL
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.study import Study
from peakward.tune.forecasts import Expectations, Forecasts
from peakward.tune.lever_ledger import Tried, lever_ledger
from peakward.tune.trials import held_to
from stored_results import index

pytestmark = pytest.mark.full  # They predict every stored measurement again.


def read(kind, record):
    return [codec.from_json(each.read(), record) for each in index().of(kind)]


def issued_as_then(here, study):
    """The device under the run's own host, where the record has what its calls took."""
    known = [each.time for each in study.forecasts if each.time is not None]
    if not known or known[0].host_call_s is None:
        return here
    call_s, backward_s = known[0].host_call_s, known[0].host_backward_call_s
    model = here.model._replace(call_s=call_s, backward_call_s=backward_s, host_is_known=True)
    return here._replace(model=model)


def refused_now(trial):
    """Whether a run would not try the lever any more, because another setting computes what it changes."""
    levers = [each for each in LEVERS if each.name == trial.lever]
    machine = {"compute_capability": (9, 0), "has_compiler": True}
    return any(
        "does nothing beside" in (obstacle(each, trial.base, **machine) or "") for each in levers
    )


@pytest.fixture(scope="module")
def tried():
    newest = {each.environment.device_name: each for each in read("calibration", Calibration)}
    found = []
    for study in read("run", Study):
        device = study.environment.device_name
        forecasts = Forecasts(study.environment, newest[device], capture=lambda case: None)
        forecasts.here = issued_as_then(forecasts.here, study)
        here = Expectations(forecasts, lambda case: None)
        for trial in study.trials:
            cases = (trial.base, trial.candidate)
            former = any(is_of_former_kernels(each, study.started_at) for each in cases)
            if trial.stage == "refused" or former or refused_now(trial):
                continue
            told = here.foretold(trial.base, trial.candidate)
            predicted = msgspec.structs.replace(trial, foretold=told)
            if trial.stage == "confirmed" and trial.pairs:
                bound = here.bound(trial.base, trial.candidate, trial.pairs[0].base_s)
                predicted = held_to(predicted, bound)
            found.append(Tried(predicted, device))
    return found


def timed(ledger):
    return [each for each in ledger.entries if each.time is not None]


def test_nine_in_ten_predicted_effects_hold(tried):
    found = timed(lever_ledger(tried, ("results",)))
    n = sum(each.time.n for each in found)
    assert n >= 60
    assert sum(each.n_within for each in found) / n >= LEVEL


def test_what_matters_is_predicted_on_the_right_side(tried):
    found = timed(lever_ledger(tried, ("results",)))
    n_decided = sum(each.n_decided for each in found)
    assert n_decided >= 50
    assert sum(each.n_sign_right for each in found) / n_decided >= 0.95


def test_memory_is_predicted_within_a_hundredth(tried):
    found = lever_ledger(tried, ("results",))
    assert all(each.memory.p90 < 0.01 for each in found.entries if each.memory is not None)


def test_no_stored_gain_is_beyond_its_bound(tried):
    confirmed = [each for each in tried if each.trial.bound is not None]
    assert len(confirmed) >= 20
    assert lever_ledger(tried, ("results",)).impossible == ()
