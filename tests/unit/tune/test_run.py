"""The whole loop over a device whose step times are known, and what its report then says."""

import importlib.util
from pathlib import Path

import msgspec
import pytest

from peakward.catalogue.levers import lever
from peakward.lab.measure.messages import Turn, TurnsTimed
from peakward.records.errors import PeakwardError
from peakward.records.trial import NumericsVerdict
from peakward.report.run import page
from peakward.report.run.investigation import read
from peakward.tune.aim import Aim
from peakward.tune.run import Investigation, investigate


@pytest.fixture(scope="module")
def studies():
    """The hand-made records of the golden reports."""
    path = Path(__file__).parents[2] / "golden" / "studies.py"
    spec = importlib.util.spec_from_file_location("studies", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Device:
    """Sweep, workers and store in one."""

    rounds = "processes"

    def __init__(self, studies, step_s):
        self.studies, self.step_s = studies, step_s
        self.environment, self.workers, self.store = studies.H200, self, self
        self.measured, self.n_processes, self.recorded = {}, 0, {}

    def turn_s(self, case):
        return self.step_s(case)

    def measure(self, case, protocol):
        made = self.studies.measurement(
            case, self.step_s(case), peak_gib=10, wall_s=1.0, protocol=protocol
        )
        self.measured[case, protocol] = made
        return made

    def measurement(self, case, protocol, key):
        return self.measured.get((case, protocol))

    def memory(self, case, key):
        return self.recorded.get((case, key))

    def turns(self, cases, protocol):
        self.n_processes += 1
        turns = (Turn(median_s=self.turn_s(case), peak_bytes=9) for case in cases)
        return TurnsTimed(turns=tuple(turns))

    def numerics(self, base, candidate, declared):
        return NumericsVerdict(declared=declared, verdict="holds")

    def capture(self, case):
        raise PeakwardError("no module here")

    def profile(self, case, *where, n_steps=None, timeout_s=None):
        if n_steps is None:
            return
        raise PeakwardError("no profiler here")

    def calibration(self, key):
        return self.studies.CALIBRATION

    def trial(self, *key):
        return None

    def add_trial(self, trial): ...

    def add_study(self, study): ...

    def close(self): ...

    def raise_if_stopping(self): ...


def run(device, *names, aim=Aim()):  # noqa: B008
    asked = Investigation(
        case=device.studies.BASELINE,
        levers=tuple(lever(name) for name in names),
        budget_s=1e6,
        command="peakward run",
        obstacle=lambda pulled, case: None,
        to_command=lambda case: "+".join(map(str, msgspec.structs.astuple(case.configuration))),
        aim=aim,
    )
    return investigate(
        asked,
        device,
        device,
        on_stage=lambda stage: None,
        on_prediction=lambda floor, forecast, fitting: None,
    )


def test_a_report_names_the_levers_of_the_ladder_that_was_held(studies):
    """While no graph hides the host, sdpa's launches cost what its kernel saves."""

    def step_s(case):
        settings = case.configuration
        step_s = 0.4 if settings.precision == "bf16" else 1.0
        return step_s - 0.1 * (settings.attention == "sdpa") - 0.08 * settings.cuda_graphs

    class HostBound(Device):
        def turn_s(self, case):
            settings = case.configuration
            return step_s(case) + 0.1 * (settings.attention == "sdpa" and not settings.cuda_graphs)

    study = run(HostBound(studies, step_s), "bf16", "sdpa", "cuda-graphs")
    assert [step.lever for step in read(study).steps] == ["bf16", "cuda-graphs", "sdpa"]
    assert page.document(study).headline.endswith("with bf16 + cuda-graphs + sdpa")


def test_where_no_rung_holds_the_best_lever_alone_is_the_best(studies):
    """bf16 looks faster and cannot be settled; sdpa gains alone, and nothing on top of it."""

    def step_s(case):
        settings = case.configuration
        return 0.5 if settings.precision == "bf16" else 0.8 if settings.attention == "sdpa" else 1.0

    class Noisy(Device):
        def turn_s(self, case):
            noise = (0.4, 3.0, 1.0, 2.5, 0.6)[self.n_processes % 5]
            return step_s(case) * (noise if case.configuration.precision == "bf16" else 1.0)

    study = run(Noisy(studies, step_s), "bf16", "sdpa")
    found = read(study)
    assert [step.lever for step in found.steps] == ["sdpa"]
    assert found.best.measurement is not None
    assert "sdpa" in study.best_command


def test_what_was_recorded_of_its_cases_is_in_the_study(studies):
    device = Device(studies, lambda case: 0.5 if case.configuration.precision == "bf16" else 1.0)
    stored = studies.recorded()
    baseline = run(device, "bf16").measurements[0].case
    device.recorded[baseline, studies.H200.key] = stored
    device.measured.clear()
    assert run(device, "bf16").memory == (stored,)
    device.recorded = {(baseline, "elsewhere"): stored}
    assert run(device, "bf16").memory == ()


def test_each_measured_case_is_diagnosed(studies):
    device = Device(studies, lambda case: 0.5 if case.configuration.precision == "bf16" else 1.0)
    study = run(device, "bf16")
    assert [each.case for each in study.diagnoses] == [each.case for each in study.measurements]
    for each in study.diagnoses:
        assert each.findings or each.clean


def test_where_nothing_is_kept_the_baseline_is_the_best(studies):
    study = run(Device(studies, lambda case: 1.0), "bf16", "sdpa")
    assert study.steps == ()
    assert read(study).best is None
    assert "no gain confirmed among 2 levers tried" in page.document(study).headline


def test_ctrl_c_at_a_check_of_numbers_is_an_interruption(studies):
    def step_s(case):
        return 0.5 if case.configuration.precision == "bf16" else 1.0

    class Stopped(Device):
        def numerics(self, base, candidate, declared):
            raise KeyboardInterrupt

    study = run(Stopped(studies, step_s), "bf16")
    assert study.interrupted
    assert not study.complete


def test_what_is_predicted_before_is_told_and_kept(studies):
    """The baseline's floor and forecast come before its measurement; the study holds both cases'."""
    device, heard = Device(studies, lambda case: 0.1), []
    asked = Investigation(
        case=studies.BASELINE,
        levers=(),
        budget_s=1e6,
        command="peakward run",
        obstacle=lambda pulled, case: None,
        to_command=lambda case: "",
    )
    study = investigate(
        asked,
        device,
        device,
        on_stage=lambda stage: None,
        on_prediction=lambda floor, forecast, fitting: heard.append(
            (floor, forecast, len(device.measured))
        ),
    )
    ((floor, forecast, n_measured),) = heard
    assert n_measured == 0
    assert floor.floor_s < forecast.step_s.estimate
    assert study.forecasts == (forecast,)
    assert study.predictions == (floor,)


class WithModules(Device):
    """Whose module's operators can be had."""

    def capture(self, case):
        from peakward.lab.levers.module_prediction import capture_case

        return capture_case(case)


def of_module(device, case, *names):
    asked = Investigation(
        case=case,
        levers=tuple(lever(name) for name in names),
        budget_s=1e6,
        command="peakward run",
        obstacle=lambda pulled, base: None,
        to_command=lambda case: None,
    )
    heard = []
    study = investigate(
        asked,
        device,
        device,
        on_stage=lambda stage: None,
        on_prediction=lambda *said: heard.append((*said, len(device.measured))),
    )
    return study, heard


def test_a_module_is_foretold_by_its_operators_before_it_is_measured(studies, make_module_case):
    large = {"batch_size": 64, "seq_len": 64}  # Or cuBLAS's workspace would be all of the peak.
    case = make_module_case("py:tiny_gpt:build", device="cuda", workload=large)
    device = WithModules(studies, lambda each: 0.1 if each == case else 0.08)
    study, ((floor, told, fitting, n_measured),) = of_module(
        device, case, "bf16-mixed", "checkpointing", "fused-optimizer"
    )
    assert (floor, fitting, n_measured) == (None, (), 0)
    assert told.case == case
    assert told.step_s.low < told.step_s.estimate < told.step_s.high
    assert study.forecasts[0] == told
    by_lever = {each.lever: each.foretold for each in study.trials if each.base == case}
    assert by_lever["bf16-mixed"].time_ratio is not None
    assert by_lever["bf16-mixed"].memory_ratio is not None
    assert by_lever["checkpointing"].time_ratio.estimate >= 1
    assert by_lever["checkpointing"].memory_ratio < 1
    gaps = by_lever["fused-optimizer"].absent
    assert {each.figure for each in gaps} == {"time", "memory"}
    assert "steps with AdamW over lists" in gaps[0].reason
    assert "Predicted and measured" in [each.title for each in page.document(study).sections]
    assert not any("Prediction of the baseline" in note for note in study.notes)
    assert any(note.startswith("Floor and MFU: not computed") for note in study.notes)


def test_why_a_module_has_no_forecast_is_said(studies, make_module_case):
    case = make_module_case("py:tiny_gpt:build", device="cuda")
    study, ((_, told, _, _),) = of_module(Device(studies, lambda each: 0.1), case, "bf16-mixed")
    assert told is None
    assert study.forecasts == ()
    (trial,) = study.trials
    assert {each.reason for each in trial.foretold.absent} == {"no module here"}
    assert "Prediction of the baseline: not computed: no module here." in study.notes


def test_levers_beyond_the_class_are_refused_and_the_report_says_so(studies):
    study = run(Device(studies, lambda case: 0.1), "bf16", "sdpa", aim=Aim(numerics="reordered"))
    (refused,) = [trial for trial in study.trials if trial.stage == "refused"]
    assert (refused.lever, refused.reason) == (
        "bf16",
        "is approximate, and --numerics reordered was asked for",
    )
    assert any("class reordered" in note for note in study.notes)


def test_where_throughput_is_sought_larger_batches_follow_and_the_fastest_is_the_command(studies):
    """Twice the batch in less than twice the time."""

    def step_s(case):
        return 1.0 + 0.2 * case.workload.batch_size

    study = run(Device(studies, step_s), aim=Aim(objective="throughput"))
    grown = [m.case for m in study.measurements if m.case.workload.batch_size > 4]
    assert grown
    (table,) = study.tables
    assert [row[0] for row in table.rows] == [4, *(each.workload.batch_size for each in grown)]
    (said,) = study.conclusions
    assert f"at a batch size of {grown[-1].workload.batch_size}" in said.text
    assert {id_ for each in said.evidence for id_ in each.from_ids} <= {
        m.id for m in study.measurements
    }
    shown = [section.title for section in page.document(study).sections]
    assert "Larger batches" in shown
    assert read(study).best is None, "levers are judged at the batch that was asked for"


def test_by_default_no_batch_but_the_asked_one_is_measured(studies):
    study = run(Device(studies, lambda case: 0.1))
    assert {m.case.workload.batch_size for m in study.measurements} == {4}
    assert study.tables == ()
