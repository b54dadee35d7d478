"""The whole loop over a device whose step times are known, and what its report then says."""

from peakward.lab.measure.messages import Failed
from peakward.report import markdown
from peakward.report.run import page
from peakward.report.run.investigation import read
from peakward.tune.investigation import Aim

from .known_device import Device, run


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


def test_where_nothing_is_kept_the_baseline_is_the_best(studies):
    study = run(Device(studies, lambda case: 1.0), "bf16", "sdpa")
    assert study.steps == ()
    assert read(study).best is None
    assert "no gain confirmed among 2 levers tried" in page.document(study).headline


def test_ctrl_c_at_a_check_of_numbers_is_an_interruption(studies):
    def step_s(case):
        return 0.5 if case.configuration.precision == "bf16" else 1.0

    class Stopped(Device):
        def numerics(self, claims):
            raise KeyboardInterrupt

    study = run(Stopped(studies, step_s), "bf16")
    assert study.interrupted
    assert not study.complete


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


def faster_in_16_bits(case):
    return 0.5 if case.configuration.precision == "bf16" else 1.0


def test_the_baseline_is_profiled_before_any_lever_is_tried(studies):
    """For the bounds of levers are of its profile."""
    device = Device(studies, faster_in_16_bits)
    run(device, "bf16")
    assert device.done[:3] == ["measure", "profile", "measure"]
    assert device.done.index("profile") < device.done.index("turns")
    assert device.done.count("profile") == 2, "the baseline and the best, once each"


def test_where_a_profiler_would_stay_attached_it_comes_after_all_that_is_timed_in_turn(studies):
    class OneProcess(Device):
        profiles_apart = False

    device = OneProcess(studies, faster_in_16_bits)
    run(device, "bf16")
    assert device.done.index("profile") > device.done.index("turns")


def test_a_profile_that_would_take_too_much_of_the_budget_waits(studies):
    device = Device(studies, faster_in_16_bits)
    run(device, "bf16", budget_s=20.0)
    assert "profile" not in device.done[:3]


def test_ctrl_c_in_the_first_profile_ends_the_run(studies):
    class Stopped(Device):
        def profile(self, case, *where, n_steps=None, timeout_s=None):
            if n_steps is None:
                return None
            return Failed(status="crashed", reason="interrupted by Ctrl-C", ended_by="user")

    device = Stopped(studies, faster_in_16_bits)
    study = run(device, "bf16")
    assert study.interrupted
    assert study.trials == ()
    assert device.done == ["measure"]


def test_a_gain_beyond_amdahls_bound_is_repeated_kept_by_nobody_and_called_our_error(studies):
    """By the baseline's profile forward and backward take 0.9 of the step; the fused optimiser is said to
    leave 0.2 of it."""
    golden = studies.run_study()
    (profile,) = (each for each in golden.profiles if each.case == studies.BASELINE)

    class Profiled(Device):
        def profile(self, case, *where, n_steps=None, timeout_s=None):
            if case == studies.BASELINE:
                return profile
            return super().profile(case, *where, n_steps=n_steps, timeout_s=timeout_s)

    device = Profiled(studies, lambda case: 1.0 if case == studies.BASELINE else 0.2)
    study = run(device, "fused-optimizer")
    (trial,) = (each for each in study.trials if each.stage == "confirmed")
    assert device.n_processes == 5, "three, and two to repeat it"
    assert trial.bound.basis == "profile"
    assert trial.bound.least_time_ratio > 0.5
    assert trial.bound.broken
    assert (trial.verdict, study.steps) == ("inconclusive", ())
    assert "an error of ours" in markdown.render(page.document(study))
