"""Studies for real: cases in worker processes, a database on disk, on this machine's CPU."""

from pathlib import Path

import msgspec
import pytest

from gguf_files import small_model
from peakward.api import session
from peakward.hardware.devices import devices
from peakward.lab.measure import probe
from peakward.lab.measure.sweep import Sweep
from peakward.models.scaling_fits import HOFFMANN_UNROUNDED, SCALING_FITS
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.lever import Claim, NumericsVerdict
from peakward.records.measurement import Measurement
from peakward.records.study import Study
from peakward.report.study import of_any_study
from peakward.store.database import Store
from peakward.studies import speculative
from peakward.studies.execute import execute
from peakward.studies.registry import STUDIES
from peakward.studies.scaling.experts import shapes
from peakward.studies.scope import Scope, micro
from peakward.tune.quality import Reading

GIB = 2**30
NANO = msgspec.structs.replace(
    micro(), name="nano", vocab_size=320, n_layers=2, d_model=32, d_ff=64, head_dim=8
)
TINY_GRID = Scope("small", models=(NANO,), seq_lens=(16,), batch_size=1, max_timed_s=0.1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where tokens are kept, also by workers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(name: str, scope: Scope, path: Path) -> tuple[Study, list[Measurement]]:
    """The study, and every measurement that the sweep handed over."""
    seen: list[Measurement] = []
    with Store.open(path) as store, session.workers() as workers:
        sweep = Sweep(store, workers, probe.environment("cpu"), on_done=seen.append)
        study = execute(name, sweep, scope, command=f"peakward study {name}")
        assert store.study("last") == study
    return study, seen


def check(study: Study) -> None:
    """Everything ran or says why not, and every claim rests on what was measured here."""
    assert study.complete
    assert {each.status for each in study.measurements} <= {"ok", "oom"}
    ids = {each.id for each in (*study.measurements, *study.profiles, *study.memory)}
    ids |= {study.calibration.id} if study.calibration else set()
    ids |= {each.key for each in devices()} | {
        each.name for each in (*SCALING_FITS, HOFFMANN_UNROUNDED)
    }
    ids |= {each.name for each in shapes()}
    for conclusion in study.conclusions:
        for each in conclusion.evidence:
            assert set(each.from_ids) <= ids
    assert study.conclusions
    of_any_study(study)


@pytest.mark.usefixtures("handed_on")
def test_a_study_runs_is_stored_and_resumes(tmp_path):
    scope = msgspec.structs.replace(TINY_GRID, precisions=("fp32",), limits_bytes=(4 * GIB,))
    first, _ = run("throughput", scope, tmp_path / "a.db")
    check(first)
    assert len(first.measurements) == 3, "forward, train step, and the train step under a limit"
    assert {each.status for each in first.measurements} == {"ok"}
    again, seen = run("throughput", scope, tmp_path / "a.db")
    assert [each.id for each in again.measurements] == [each.id for each in first.measurements]
    assert len(seen) == 3, "all from the store"
    assert (again.tables, again.conclusions) == (first.tables, first.conclusions)


def test_a_study_that_measures_nothing_is_stored_like_any_other(tmp_path):
    study, seen = run("scaling", TINY_GRID, tmp_path / "a.db")
    check(study)
    assert (seen, study.measurements) == ([], ())


@pytest.mark.full
def test_steps_are_fed_by_loaders(tmp_path, cache):
    study, _ = run("data-loading", TINY_GRID, tmp_path / "a.db")
    check(study)
    assert {each.status for each in study.measurements} == {"ok"}
    fed = {each.case.workload.data: each for each in study.measurements if each.feeding}
    assert len(fed) == 6
    # Three turns of resident steps and of each loader but the ranks' two.
    assert len(study.measurements) == 3 * (1 + 4) + 2
    assert {data.n_workers for data in fed} == {0, 2}
    for each in fed.values():
        times = each.runs[0].steps_s
        assert len(each.feeding.wait_s) == len(each.feeding.copy_s) == len(times)
        assert 0 < sum(each.feeding.wait_s) < sum(times)
    assert len({each.feeding.text_digest for each in fed.values()}) == 1
    assert list((cache / "peakward" / "tokens").glob("*.ids.npy")), "made by the workers"


@pytest.mark.full
def test_the_hierarchy_is_a_calibration_that_is_kept_for_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a scratch file is read
    study, _ = run("hierarchy", TINY_GRID, tmp_path / "a.db")
    check(study)
    rates = {row[0]: row[2] for row in study.tables[0].rows}
    assert rates["memory"] > 1e8
    with Store.open_read_only(tmp_path / "a.db") as store:
        assert store.calibration(study.environment.key) == study.calibration
    again, _ = run("hierarchy", TINY_GRID, tmp_path / "a.db")
    assert (again.tables, again.calibration) == (study.tables, study.calibration)


@pytest.mark.full
def test_guesses_of_a_small_file(tmp_path, monkeypatch):
    """The study's own model is a package that is installed apart."""
    monkeypatch.setattr(speculative, "MODEL", str(small_model(tmp_path / "small.gguf")))
    monkeypatch.setattr(speculative, "DRAFTS", {"small": ("ngrams", "skip:1", "distilled:1")})
    monkeypatch.setattr(probe, "has_smollm2", lambda: True)
    study, _ = run("speculative", TINY_GRID, tmp_path / "a.db")
    check(study)
    assert [each.status for each in study.measurements] == ["ok"] * 6


@pytest.mark.full
def test_a_lever_is_held_to_the_loss_of_a_real_model(tmp_path):
    """Of random numbers in a file: no text is read well, and fewer bits lose next to nothing."""
    small = str(small_model(tmp_path / "small.gguf"))
    shape = msgspec.structs.replace(NANO, n_heads=4, n_kv_heads=2, vocab_size=260, tied_head=True)
    work = Workload(batch_size=1, seq_len=16, pass_="decode")
    base = ModelCase(model=shape, workload=work, device="cpu")
    fewer = msgspec.structs.replace(
        base, configuration=Configuration(weights="int8", kv_cache="fp8")
    )
    claim = Claim(base=base, candidate=fewer, declared="approximate")
    sound = NumericsVerdict(declared="approximate", verdict="holds")
    with Store.open(tmp_path / "a.db") as store, session.workers() as workers:
        reading = Reading(Sweep(store, workers, probe.environment("cpu")), small)
        found = reading.judged(claim, sound)
        other = msgspec.structs.replace(base, model=NANO)
        another = reading.judged(msgspec.structs.replace(claim, base=other), sound)
    assert (found.verdict, found.quality.verdict) == ("holds", "holds")
    assert found.quality.reason is None
    assert abs(found.quality.more_loss.estimate) < 0.02
    assert another.quality.verdict == "not computed"
    assert "another model" in another.quality.reason


@pytest.mark.full
@pytest.mark.parametrize(
    "name", sorted(set(STUDIES) - {"checkpointing", "hierarchy", "speculative"})
)
def test_each_study_on_its_smallest_grid(name, tmp_path):
    study, _ = run(name, TINY_GRID, tmp_path / "a.db")
    check(study)


@pytest.mark.full
def test_warm_up_explains_the_first_step(tmp_path):
    study, _ = run("warmup", TINY_GRID, tmp_path / "a.db")
    (first,) = [each.first_step for each in study.measurements if each.first_step]
    assert first.profiled_s > 0


@pytest.mark.full
def test_checkpointing_finds_what_fits_on_a_cpu(tmp_path):
    study, _ = run("checkpointing", Scope("small", max_timed_s=0.1), tmp_path / "a.db")
    check(study)
    (largest,) = [each for each in study.tables if each.title.startswith("The largest batch")]
    names = [column.name for column in largest.columns]
    rows = [dict(zip(names, row, strict=True)) for row in largest.rows]
    assert {row["search"] for row in rows} == {"complete"}
    by_mode = {row["checkpointing"]: row["fits"] for row in rows if "batch at" in row["largest"]}
    assert by_mode["every-block"] > by_mode["none"] > 0
