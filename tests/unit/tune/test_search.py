"""The lever stack that a search finds, by screenings of known outcome."""

import msgspec
import pytest
from msgspec.structs import replace

from peakward.levers import loader
from peakward.levers.catalogue import lever, pull
from peakward.records.case import AS_WRITTEN, ModelCase, StepCase, Workload
from peakward.records.lever import TOGETHER
from peakward.records.measurement import (
    Environment,
    Interval,
    LoaderWait,
    Measurement,
    Protocol,
    Summary,
    Validity,
)
from peakward.tune import outlook, trials
from peakward.tune.costs import LEAST_PROCESSES
from peakward.tune.lever_stack import LeverStack
from peakward.tune.outlook import bounds_of, bounds_of_waits, own_values
from peakward.tune.trials import promising, rescues

from .world import BASE, SHAPE, Investigated, World, configured, name_of, two_bottlenecks


def levers(*names):
    return [lever(name) for name in names]


def composed(world, *names, base=BASE, **fields):
    found = Investigated(world, **fields)
    stack = found.climb(base, levers(*names))
    return found, [each.name for each in stack.apart.levers]


def tried(found):
    """Lever and base of every trial, in their order."""
    return [(trial.lever, name_of(trial.base)) for trial in found.trials]


def test_each_lever_is_screened_on_top_of_those_that_gained():
    found, names = composed(World(two_bottlenecks), "tf32", "bf16", "cuda-graphs")
    assert names == ["bf16", "cuda-graphs"], "tf32's step changes nothing any more"
    assert tried(found)[:3] == [("tf32", "base"), ("cuda-graphs", "tf32"), ("bf16", "tf32")]


def test_what_is_predicted_to_gain_most_is_tried_first():
    def tells(base, candidate):
        precision = {"tf32": 1.0, "bf16": 0.99}.get(candidate.configuration.precision, 1.0)
        graphs = candidate.configuration.cuda_graphs and not base.configuration.cuda_graphs
        return precision * (0.3 if graphs else 1.0)

    found, names = composed(
        World(lambda case: 1.0 - 0.5 * case.configuration.cuda_graphs, tells=tells),
        *("tf32", "bf16", "cuda-graphs"),
    )
    assert names == ["cuda-graphs"]
    assert tried(found)[:3] == [("cuda-graphs", "base"), ("bf16", "True"), ("tf32", "True")]


def test_where_nothing_is_predicted_the_findings_say_what_is_tried_first():
    """A CPU's steps are not predicted."""
    found, _ = composed(
        World(lambda case: 1.0),
        *("bf16", "cuda-graphs", "sdpa"),
        base=replace(BASE, device="cpu"),
        bounds={"sdpa": 0.8, "cuda-graphs": 0.5},
    )
    assert tried(found) == [("cuda-graphs", "base"), ("sdpa", "base"), ("bf16", "base")]


def host_bound(case):
    """Attention of our own takes a host long, and the device no time; a graph takes the host away."""
    settings = case.configuration
    device_s = 1.0 - 0.2 * (settings.attention == "flash")
    return device_s if settings.cuda_graphs else 1.0 + 0.5 * (settings.attention == "flash")


def test_attention_is_tried_when_a_graph_stands_below_it_even_one_that_gains_nothing():
    found, names = composed(World(host_bound), "flash", "cuda-graphs", bounds={"flash": 0.5})
    assert names == ["cuda-graphs", "flash"]
    assert tried(found)[:2] == [("cuda-graphs", "base"), ("flash", "True")]


def test_what_was_rejected_on_a_host_bound_step_is_open_again_in_a_graph():
    found = Investigated(World(host_bound))
    found.search.compose(BASE, levers("flash"), base_runs=True)
    (rejected,) = found.trials
    assert rejected.verdict == "rejected"
    stack = found.search.go_on(
        LeverStack(base=BASE), levers("flash", "cuda-graphs"), base_runs=True
    )
    assert [each.name for each in stack.levers] == ["cuda-graphs", "flash"]


def test_a_prediction_counts_for_more_than_a_finding():
    found, _ = composed(
        World(lambda case: 1.0, tells=lambda base, candidate: 0.99),
        *("bf16", "sdpa"),
        bounds={"sdpa": 0.1},
    )
    assert tried(found)[0] == ("bf16", "base")


def test_what_cannot_gain_is_not_timed():
    world = World(
        two_bottlenecks,
        hopeless=lambda case: "too slow" if case.configuration.precision == "bf16" else None,
    )
    found, names = composed(world, "bf16", "tf32")
    assert names == ["tf32"]
    refused = [each for each in found.trials if each.lever == "bf16"]
    assert {(each.stage, each.verdict, each.reason) for each in refused} == {
        ("refused", "rejected", "too slow")
    }


def test_of_several_findings_the_largest_says_what_a_lever_may_gain(studies):
    told = studies.diagnosis()
    first = told.findings[0]
    smaller = replace(first, bound=1.1)
    unknown = replace(first, bound=None, share=None)
    named = {gain.lever for gain in first.gains}
    assert named
    assert bounds_of([replace(told, findings=(unknown, smaller, first))]) == dict.fromkeys(
        named, 1 / first.bound
    )


def test_a_finding_that_bounds_no_gain_is_expected_to_leave_the_rest(studies):
    told = studies.diagnosis()
    first = replace(told.findings[0], bound=None)
    shares = {0.9: pytest.approx(0.1), 1.0: outlook.LEAST_LEFT, None: None}
    for share, left in shares.items():
        found = bounds_of([replace(told, findings=(replace(first, share=share),))])
        assert found == ({} if left is None else {gain.lever: left for gain in first.gains})
    of_memory = replace(first, share=0.9, held_back_bytes=1 << 30)
    assert bounds_of([replace(told, findings=(of_memory,))]) == {}


def test_what_gains_in_a_graph_alone_is_tried_with_one():
    """Compiled, the host takes longer and the device less; the attention gains once the host is gone."""

    def time_s(case):
        settings = case.configuration
        compiled = settings.compile != "none"
        device_s = 1.0 - 0.1 * compiled - 0.1 * (settings.attention == "sdpa")
        return device_s if settings.cuda_graphs else max(device_s, 1.0 + 0.3 * compiled)

    found, names = composed(
        World(time_s, tells=lambda base, candidate: time_s(candidate) / time_s(base)),
        *("compile", "cuda-graphs", "sdpa"),
    )
    assert set(names) == {"compile", "cuda-graphs", "sdpa"}
    assert set(found.trials[0].lever.split(TOGETHER)) == set(names)


def test_a_loader_with_workers_leaves_what_is_no_wait(studies):
    measured = studies.measurement(BASE, 0.2, peak_gib=1)
    waits = LoaderWait(wait_s=(0.06, 0.1, 0.08), idle_s=(0.04, 9.0, 0.05), first_wait_s=1.0)
    found = bounds_of_waits(replace(measured, loader=waits))
    assert found == pytest.approx(dict.fromkeys(("ahead-8", "workers-2"), 0.75) | found)
    assert set(found) == set(loader.NAMES)
    on_cpu = replace(measured, loader=replace(waits, idle_s=None))
    assert bounds_of_waits(on_cpu)["ahead-4"] == pytest.approx(0.6)
    assert bounds_of_waits(measured) == {}


def live_script(case):
    """Seconds of a live step: 0.11 of products in fp32, 0.02 of the rest, and 0.1 for its loader."""
    settings = case.configuration.settings
    products_s = 0.11 / RATES[settings["precision"]]
    rest_s = (
        0.02 - 0.005 * (settings["compile"] != "none") - 0.001 * (settings["attention"] == "sdpa")
    )
    waits = dict(case.configuration.more).get("loader") is None
    return products_s + rest_s + 0.1 * waits


RATES = {"fp32": 1, "tf32": 8, "bf16-mixed": 16, "fp8": 27}


def test_what_answers_the_findings_of_a_live_script_is_tried_whole():
    """Products in fp32 take 0.48 of its step and the wait for its loader 0.43; the more is gained elsewhere,
    the more of the step the wait is. Its attention was seen written out, and its optimizer's loop. fp8 is of
    the layers that win, and our own attention waits for a graph, which no live step has: neither is sure."""
    names = [
        "tf32",
        "bf16-mixed",
        "fp8",
        "compile",
        "fused-optimizer",
        "ahead-8",
        "workers-8",
        "sdpa",
        "flash-hopper",
    ]
    seen = replace(AS_WRITTEN, attention="naive", optimizer="adamw-loop")
    found, kept = composed(
        World(
            live_script,
            rates=lambda base, candidate: (
                RATES[base.configuration.precision] / RATES[candidate.configuration.precision]
                if base.configuration.precision != candidate.configuration.precision
                else None
            ),
        ),
        *names,
        *("ahead-8", "workers-8"),
        base=StepCase(
            name="step",
            fingerprint="",
            device="cuda",
            handles=("loader",),
            written=seen,
            configuration=seen,
        ),
        bounds=dict.fromkeys(("tf32", "bf16-mixed"), 0.52),
        waits=dict.fromkeys(("ahead-8", "workers-8"), 0.57),
    )
    whole = {"bf16-mixed", "ahead-8", "compile", "fused-optimizer", "sdpa"}
    assert set(found.trials[0].lever.split(TOGETHER)) == whole
    assert set(kept) == whole - {"bf16-mixed"} | {"fp8"}, "then fp8 is tried in its place"


def test_attention_that_a_finding_saw_written_out_is_the_modules_own(studies):
    told = studies.diagnosis()
    written = replace(told.findings[0], code="ATTN001")
    other = replace(told.findings[0], code="BW001")
    assert own_values([replace(told, findings=(written,))], None) == {"attention": "naive"}
    assert own_values([replace(told, findings=(other,))], None) == {}


def test_what_was_seen_counts_for_more_than_what_was_predicted():
    """tf32 gained nothing when screened, whatever was foretold: in the second pass it is the last."""

    def tells(base, candidate):
        both = candidate.configuration.precision, base.configuration.precision
        return 0.1 if both == ("tf32", "fp32") else 1.0

    found, _ = composed(
        World(lambda case: 1.0 - 0.5 * case.configuration.cuda_graphs, tells=tells),
        *("tf32", "bf16", "cuda-graphs"),
    )
    assert [lever_ for lever_, _ in tried(found)[:3]] == ["tf32", "bf16", "cuda-graphs"]
    assert tried(found)[3][1] == "True"


def test_a_lever_hidden_behind_another_bottleneck_is_found_on_top():
    found, names = composed(World(two_bottlenecks), "cuda-graphs", "bf16")
    assert names == ["bf16", "cuda-graphs"]
    assert tried(found) == [("cuda-graphs", "base"), ("bf16", "base"), ("cuda-graphs", "bf16")]


def test_a_stronger_lever_on_the_same_field_replaces_another_once_it_shows():
    """Both precisions leave the launches to be waited for; tf32 was a hair ahead."""

    def time_s(case):
        settings = case.configuration
        device_s = {"fp32": 10.0, "tf32": 3.0, "bf16": 2.0}[settings.precision]
        launches_s = 0.5 if settings.cuda_graphs else 4.0
        return max(device_s, launches_s + (0.1 if settings.precision == "bf16" else 0.0))

    found, names = composed(World(time_s), "tf32", "bf16", "cuda-graphs")
    assert names == ["bf16", "cuda-graphs"], "in the place of tf32"
    assert ("bf16", "tf32 True") in tried(found)


def test_levers_are_tried_by_their_gain_for_their_time():
    """Compiling usually gains more than a fused optimiser, and takes longer than the ratio of both gains."""

    def order(compile_s):
        found, _ = composed(
            World(lambda case: 1.0),
            *("fused-optimizer", "compile"),
            base=replace(BASE, device="cpu"),
            compile_s=compile_s,
        )
        return [lever_ for lever_, _ in tried(found)]

    assert order(compile_s=1.0) == ["compile", "fused-optimizer"]
    assert order(compile_s=20.0) == ["fused-optimizer", "compile"]


def test_what_compiles_is_tried_before_what_nothing_is_known_of():
    found, _ = composed(World(lambda case: 1.0), "bf16", "compile")
    assert [lever_ for lever_, _ in tried(found)] == ["compile", "bf16"]


def test_a_rival_that_is_predicted_worse_than_what_is_kept_is_not_screened():
    """Of the 240 s for nanoGPT's model on an H200 31 went to five screenings of other precisions."""

    def time_s(case):
        return {"fp32": 10.0, "tf32": 5.0, "bf16": 2.0}[case.configuration.precision]

    world = World(time_s, tells=lambda base, candidate: time_s(candidate) / time_s(base))
    found, names = composed(world, "tf32", "bf16", "cuda-graphs")
    assert names == ["bf16"]
    assert [lever_ for lever_, _ in tried(found)] == ["bf16", "cuda-graphs"]


def test_rates_of_products_promise_no_more_than_a_finding_leaves():
    """bf16 is predicted 8.7 times faster; products in either type run 12 times faster."""

    def tells(base, candidate):
        settings = candidate.configuration
        known = base == BASE and settings.precision == "bf16" and settings.compile == "none"
        return 0.115 if known else None

    def rates(base, candidate):
        quick = {"fp32": 1.0, "fp16-mixed": 0.08, "bf16": 0.08}
        return quick[candidate.configuration.precision] / quick[base.configuration.precision]

    found, names = composed(
        World(
            lambda case: 0.11 if case.configuration.precision == "bf16" else 1.0,
            tells=tells,
            rates=lambda base, candidate: (
                None
                if base.configuration.precision == candidate.configuration.precision
                else rates(base, candidate)
            ),
        ),
        *("fp16-mixed", "bf16", "cuda-graphs"),
        bounds={"fp16-mixed": 0.17, "bf16": 0.17},
    )
    assert names == ["bf16"]
    assert [lever_ for lever_, _ in tried(found)] == ["bf16", "cuda-graphs"]


def test_a_rival_that_was_seen_to_lose_is_not_screened_again_on_another_composition():
    def time_s(case):
        settings = case.configuration
        step_s = {"fp32": 10.0, "tf32": 8.0, "bf16": 2.0}[settings.precision]
        return step_s + 0.5 * (settings.attention == "naive") + 0.4 * (settings.compile == "none")

    found, names = composed(World(time_s), "bf16", "tf32", "sdpa", "compile")
    assert set(names) == {"bf16", "sdpa", "compile"}
    assert len([lever_ for lever_, _ in tried(found) if lever_ == "tf32"]) <= 1


def test_a_lever_is_not_screened_again_on_what_took_its_place():
    found, names = composed(World(two_bottlenecks), "tf32", "bf16", "cuda-graphs")
    assert set(names) == {"bf16", "cuda-graphs"}
    assert [base for lever_, base in tried(found) if lever_ == "tf32"] == ["base"]


def test_what_is_expected_to_gain_nothing_waits_for_the_proof():
    """tf32's prediction says that it loses on the base, where the other lever gains."""
    tells = {"tf32": 1.2, "fp32": 0.5}
    found = Investigated(
        World(
            lambda case: 1.0 - 0.5 * case.configuration.cuda_graphs,
            tells=lambda base, candidate: tells[candidate.configuration.precision],
        )
    )
    stack = found.search.compose(BASE, levers("tf32", "cuda-graphs"), base_runs=True)
    assert [lever_ for lever_, _ in tried(found)] == ["cuda-graphs"]
    found.search.go_on(stack, levers("tf32", "cuda-graphs"), base_runs=True)
    assert [lever_ for lever_, _ in tried(found)] == ["cuda-graphs", "tf32"]


def test_a_lever_that_loses_is_rejected_with_its_number():
    world = World(lambda case: 3.0 if case.configuration.attention == "sdpa" else 2.0)
    found, names = composed(world, "sdpa")
    assert names == []
    (trial,) = found.trials
    assert (trial.verdict, trial.time_ratio.estimate) == ("rejected", 1.5)


def test_a_lever_with_wrong_numbers_is_given_up_and_its_rival_found():
    def numbers(case):
        return "violated" if case.configuration.precision == "bf16" else "holds"

    found, names = composed(World(two_bottlenecks, numbers=numbers), "tf32", "bf16")
    assert names == ["tf32"]
    (trial,) = [each for each in found.trials if each.numerics and each.verdict == "rejected"]
    assert trial.lever == "bf16"
    assert "not approximate as declared" in trial.reason


def test_numbers_that_could_not_be_checked_add_nothing():
    found, names = composed(World(two_bottlenecks, numbers=lambda case: "not computed"), "bf16")
    assert names == []
    (trial,) = found.trials
    assert trial.verdict == "inconclusive"
    assert "could not be checked" in trial.reason


def test_a_rescue_with_wrong_numbers_is_rejected():
    world = World(
        two_bottlenecks,
        runs=lambda case: case.configuration.precision == "bf16",
        numbers=lambda case: "violated",
    )
    found, names = composed(world, "bf16")
    assert names == []
    assert found.trials[0].verdict == "rejected"


def test_what_runs_where_the_base_does_not_is_the_first_rung_even_if_it_saves_only_memory():
    world = World(two_bottlenecks, runs=lambda case: case.configuration.checkpointing != "none")
    _, names = composed(world, "bf16", "checkpointing")
    assert names == ["checkpointing", "bf16"]


def test_a_memory_lever_stays_off_a_ladder_that_runs_without_it():
    _, names = composed(World(lambda case: 1.0), "checkpointing")
    assert names == []
    world = World(two_bottlenecks, runs=lambda case: case.configuration.precision == "bf16")
    _, names = composed(world, "bf16", "checkpointing")
    assert names == ["bf16"]


def needs_16_bits(pulled, case):
    blocked = pulled.name == "sdpa-cudnn" and case.configuration.precision == "fp32"
    return "needs 16 bits" if blocked else None


def test_a_lever_that_cannot_apply_is_tried_once_it_can():
    def time_s(case):
        quick = 0.5 if case.configuration.attention == "sdpa-cudnn" else 1.0
        return two_bottlenecks(case) + quick

    names = ("sdpa-cudnn", "bf16")
    found, held = composed(World(time_s), *names, obstacle=needs_16_bits)
    assert held == ["bf16", "sdpa-cudnn"]
    found.search.alone(BASE, levers(*names))
    assert all(trial.stage != "refused" for trial in found.trials)


def test_what_was_left_out_is_screened_alone_and_what_cannot_apply_refused():
    found, _ = composed(World(two_bottlenecks), "bf16")
    found.search.alone(BASE, levers("bf16", "tf32", "sdpa-cudnn"))
    assert tried(found) == [("bf16", "base"), ("tf32", "base"), ("sdpa-cudnn", "base")]
    found = Investigated(World(two_bottlenecks), obstacle=needs_16_bits)
    found.search.alone(BASE, levers("sdpa-cudnn"))
    assert [(trial.stage, trial.reason) for trial in found.trials] == [("refused", "needs 16 bits")]


def test_a_lever_that_the_base_already_has_is_not_tried():
    found, names = composed(World(two_bottlenecks), "bf16", base=configured(precision="bf16"))
    found.search.alone(configured(precision="bf16"), levers("bf16"))
    assert (found.trials, names) == ([], [])


def test_what_it_screens_leaves_the_time_to_check_and_to_prove_the_ladder():
    """Screening takes 1.5 s, a check 4 s, during which a process starts in 1 s, and the proof of all that
    gained as one step 9 s in three processes."""
    enough_s = 1.5 + 3.0 + 9.0
    found, names = composed(World(two_bottlenecks), "bf16", "cuda-graphs", total_s=enough_s - 1)
    assert (found.trials, names) == ([], [])
    assert found.skipped == ["screening bf16, cuda-graphs"]
    _, names = composed(World(two_bottlenecks), "bf16", "cuda-graphs", total_s=enough_s)
    assert names == ["bf16", "cuda-graphs"]


def test_with_time_for_the_fewest_processes_alone_what_gains_first_is_proved():
    found = Investigated(World(two_bottlenecks))
    stack = found.search.compose(
        BASE, levers("bf16", "cuda-graphs"), base_runs=True, n_processes=LEAST_PROCESSES
    )
    assert [each.name for each in stack.levers] == ["bf16"]


SCREENED_BASE = ModelCase(model=SHAPE, workload=Workload(batch_size=2, seq_len=16), device="cpu")
SDPA = lever("sdpa")
HERE = Environment(
    device_type="cpu",
    device_name="x",
    device_memory_bytes=1,
    n_cores=2,
    python="3",
    system="Linux",
    peakward="0",
)


def measured(case, median_s, half_width_s, status="ok"):
    summary = Summary(
        median_s=Interval(
            estimate=median_s, low=median_s - half_width_s, high=median_s + half_width_s
        ),
        mean_s=median_s,
        sd_s=0.0,
        min_s=median_s,
        n=5,
    )
    return Measurement(
        id="m",
        case=case,
        protocol=Protocol(),
        environment=HERE,
        started_at="",
        wall_s=1.0,
        status=status,
        reason=None if status == "ok" else "needed 9 GiB",
        summary=summary if status == "ok" else None,
        validity=Validity(verdict="stable") if status == "ok" else None,
    )


def screened(base, candidate):
    return trials.screened("sdpa", base, candidate, wall_s=1.0)


def test_a_screened_ratio_is_as_wide_as_both_medians_allow():
    trial = screened(
        measured(SCREENED_BASE, 1.0, 0.1), measured(pull(SDPA, SCREENED_BASE), 0.5, 0.05)
    )
    assert trial.time_ratio.estimate == 0.5
    assert trial.time_ratio.low == pytest.approx(0.45 / 1.1)
    assert trial.time_ratio.high == pytest.approx(0.55 / 0.9)
    assert trial.verdict == "inconclusive", "screening keeps nothing"
    assert promising(trial)


def test_a_slower_candidate_is_rejected_and_not_promising():
    trial = screened(
        measured(SCREENED_BASE, 1.0, 0.01), measured(pull(SDPA, SCREENED_BASE), 1.2, 0.01)
    )
    assert trial.verdict == "rejected"
    assert not promising(trial)


def test_what_is_slower_is_rejected_whatever_the_verdict_on_its_times():
    unsteady = msgspec.structs.replace(
        measured(pull(SDPA, SCREENED_BASE), 3.0, 0.01), validity=Validity(verdict="unstable")
    )
    trial = screened(measured(SCREENED_BASE, 1.0, 0.01), unsteady)
    assert trial.verdict == "rejected"
    assert trial.reason == "slower in the whole interval when screened; unstable times"


def test_what_may_be_no_gain_is_not_called_faster():
    """1.02× (0.951–1.09×) of the default run on two cores."""
    trial = screened(
        measured(SCREENED_BASE, 1.0, 0.035), measured(pull(SDPA, SCREENED_BASE), 0.98, 0.034)
    )
    assert trial.time_ratio.high > 1
    assert trial.reason == "the interval holds both a gain of 1% and none when screened"
    assert promising(trial), "worth confirming all the same"


def test_a_candidate_that_does_not_run_keeps_its_status_and_reason():
    trial = screened(
        measured(SCREENED_BASE, 1.0, 0.1), measured(pull(SDPA, SCREENED_BASE), 1.0, 0, status="oom")
    )
    assert (trial.status, trial.verdict, trial.reason) == ("oom", "rejected", "needed 9 GiB")


@pytest.mark.parametrize("ended_by", ["user", "outside"])
@pytest.mark.parametrize("arm", ["base", "candidate"])
def test_what_no_case_ended_says_nothing_of_the_lever(arm, ended_by):
    stopped = msgspec.structs.replace(
        measured(SCREENED_BASE, 1.0, 0, status="crashed"), reason="taken away", ended_by=ended_by
    )
    whole = measured(SCREENED_BASE, 1.0, 0.1)
    base, candidate = (stopped, whole) if arm == "base" else (whole, stopped)
    trial = screened(base, msgspec.structs.replace(candidate, case=pull(SDPA, SCREENED_BASE)))
    assert trial.verdict == "inconclusive"
    assert trial.ended_by == ended_by
    assert not rescues(trial)
    assert not promising(trial)


def test_only_a_base_without_memory_is_rescued():
    candidate = measured(pull(SDPA, SCREENED_BASE), 1.0, 0.1)
    assert rescues(screened(measured(SCREENED_BASE, 1.0, 0, status="oom"), candidate))
    assert not rescues(screened(measured(SCREENED_BASE, 1.0, 0, status="timeout"), candidate))
