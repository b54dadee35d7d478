"""What a search on a real GPU seeks, and what its trials then hold."""

import pytest
import torch

import peakward as pw
from peakward.tune.lever_ledger import Tried, lever_ledger

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def case(batch_size=4):
    return pw.case("small", batch_size=batch_size, seq_len=256, device="cuda")


@pytest.fixture
def db(tmp_path):
    return str(tmp_path / "peakward.db")


def run(db, **sought):
    return pw.run(case(), levers=("bf16",), budget_s=180.0, db=db, **sought)


def test_trials_hold_what_was_foretold_and_their_bounds(db):
    study = run(db)
    (trial,) = [each for each in study.trials if each.lever == "bf16"]
    assert trial.stage == "confirmed"
    assert trial.foretold is not None, "tests run on catalogued devices"
    assert trial.bound is not None
    assert not trial.bound.broken
    ledger = lever_ledger((Tried(trial, study.environment.device_name),), ())
    assert ledger.entries[0].memory.p90 < 0.05


def test_a_first_run_bounds_gains_by_its_own_profile(db):
    """Which is taken before any lever is tried: the optimiser's leave forward and backward alone."""
    study = pw.run(case(), levers=("fused-optimizer",), budget_s=180.0, db=db)
    (trial,) = [each for each in study.trials if each.lever == "fused-optimizer"]
    assert trial.stage == "confirmed"
    assert trial.bound.basis == "profile"
    assert not trial.bound.broken


def test_energy_is_counted_on_both_sides_of_each_pair(db):
    study = run(db, objective="energy")
    (trial,) = [each for each in study.trials if each.lever == "bf16"]
    assert trial.judged_by == "energy"
    assert all(pair.base_j > 0 and pair.candidate_j > 0 for pair in trial.pairs)
    assert trial.verdict == "kept", "half the bytes and tensor cores"


def test_less_memory_is_kept(db):
    study = run(db, objective="memory")
    (trial,) = [each for each in study.trials if each.lever == "bf16"]
    assert (trial.judged_by, trial.verdict) == ("memory", "kept")


def test_the_largest_batch_within_a_limit_runs_within_it(db):
    limit = 16 * 2**30
    study = run(db, objective="throughput", max_memory_bytes=limit)
    larger = [each for each in study.measurements if each.case.workload.batch_size > 4]
    assert larger
    assert all(each.memory.peak_allocated_bytes <= limit for each in larger if each.memory)
    assert any(each.status == "ok" for each in larger)
    assert len(study.conclusions) == 1
