"""What `compile` plans, tables and concludes from known figures."""

import math

import msgspec
import pytest

from peakward.records.measurement import Run
from peakward.studies import compile as compile_study
from peakward.studies.compile import EIGHTHS, cells, changing, modes, payback_steps, points
from peakward.studies.engine import view
from peakward.studies.readings import Readings, compile_report, start_s


@pytest.fixture
def said(setting, gathered):
    def make(**options):
        here = setting()
        return compile_study.STUDY.parts(
            gathered(compile_study.STUDY, here, **options), here
        ).conclusions

    return make


def test_each_mode_is_held_against_its_base(said):
    texts = [each.text for each in said() if " the speed of " in each.text]
    assert texts[0].startswith("compile default, attention, runs at 2.00× the speed of eager")
    assert any(text.startswith("tf32 eager, ") and "4.00×" in text for text in texts)
    assert any("tf32 compile default, " in text and "of tf32 eager" in text for text in texts)
    assert len([text for text in texts if ", padded," not in text]) == 5 * 3


def test_the_payback_by_size(said, figures):
    told = next(each for each in said() if each.text.startswith("compile default makes up"))
    assert figures(told)["start, small train_step, fixed lengths,"] == 30.0
    steps = [
        figures(told)[f"steps, {size} train_step, fixed lengths,"] for size in ("2.7B", "small")
    ]
    assert steps[0] < steps[1]


def test_breaks_and_recompilations_are_counted(said, figures):
    told = next(each for each in said() if "compiled cases of fixed lengths" in each.text)
    assert figures(told) == {
        "compiled cases": 15,
        "graphs": 30,
        "graph breaks": 15,
        "recompilations": 0,
        "from disk cache": 0,
    }


def test_padding_against_changing_lengths_for_each_engine(said, figures):
    told = [each for each in said() if ", padded, runs" in each.text]
    assert [each.text.split(",")[0] for each in told] == ["eager", "compile default", "cuda-graphs"]
    first = figures(told[0])
    assert first["speed-up"] == pytest.approx(1.0)
    assert first["speed-up, low end"] <= 1.0 <= first["speed-up, high end"]


def test_what_each_way_takes_to_start_stands_beside_its_rate(setting, gathered, figures):
    here = setting()
    readings = gathered(compile_study.STUDY, here)
    for each in tuple(readings):
        work = getattr(each.case, "workload", None)
        if each.compile is None or work is None or not work.varying_seq_lens:
            continue
        padded = work.padding != "none"
        # As on an H200: 20 s and 4 graphs with changing lengths, 10 s and 2 with padding.
        step_s, start_s = (0.044, 10.0) if padded else (0.027, 20.0)
        n_warmup, n_steps = each.protocol.warmup_steps, each.protocol.min_steps
        run = Run(
            warmup_s=(start_s + step_s, *(step_s,) * (n_warmup - 1)), steps_s=(step_s,) * n_steps
        )
        counts = {"n_graphs": 2} if padded else {"n_graphs": 4, "n_recompiles": 2}
        readings.add(
            msgspec.structs.replace(
                each,
                runs=(run,),
                summary=msgspec.structs.replace(each.summary, mean_s=step_s),
                compile=msgspec.structs.replace(each.compile, **counts),
            )
        )
    said = compile_study.STUDY.parts(readings, here).conclusions
    texts = [each.text for each in said]
    assert (
        "compile default makes up for its start beside padded lengths: small train_step, changing lengths, "
        "after 589 steps (20.0 s to start)."
    ) in texts
    (paid,) = [
        text
        for text in texts
        if text.startswith("compile default makes up for its start beside eager")
    ]
    assert "small train_step, padded lengths, " in paid and "10.0 s to start" in paid
    assert (
        "Over 1 compiled cases of changing lengths: graphs 4, graph breaks 1, recompilations 2, from disk "
        "cache 0."
    ) in texts
    assert not any(text.startswith("eager makes up") for text in texts), "eager compiles nothing"


def test_graphs_from_the_disk_cache_are_said_to_be(setting, gathered):
    here = setting()
    readings = gathered(compile_study.STUDY, here)
    for each in tuple(readings):
        if each.compile is not None:
            cached = msgspec.structs.replace(each.compile, n_cached_graphs=1)
            readings.add(msgspec.structs.replace(each, compile=cached))
    said = compile_study.STUDY.parts(readings, here).conclusions
    assert any("from disk cache 15." in each.text for each in said)


def test_where_one_way_failed_the_other_is_still_held_against_eager(said):
    def no_padding(case):
        work = getattr(case, "workload", None)
        return "timeout" if work is not None and work.padding != "none" else None

    texts = [each.text for each in said(overrule=no_padding)]
    assert not any("padded" in text for text in texts)
    (told,) = [text for text in texts if text.startswith("compile default makes up")]
    assert "changing lengths" in told


def test_without_eager_no_gain_and_no_payback(said):
    def no_eager(case):
        return "oom" if getattr(case, "configuration", case).compile == "none" else None

    texts = [each.text for each in said(overrule=no_eager)]
    assert not any(" the speed of eager" in text or "beside eager" in text for text in texts)
    assert any("graph breaks" in text for text in texts)


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()


def test_a_gpu_runs_every_mode_and_a_cpu_the_default(setting):
    assert len(modes(setting())) == 6
    assert modes(setting(device="cpu")) == ("eager", "compile default")


def test_without_a_compiler_only_eager_runs_and_the_study_says_why(setting):
    bare = msgspec.structs.replace(setting(device="cpu"), has_compiler=False)
    assert modes(bare) == ("eager",)
    assert any("compiler" in each for each in compile_study.STUDY.parts(Readings(), bare).notes)


def test_compiled_cases_begin_in_a_fresh_process(setting):
    for case, protocol in compile_study.STUDY.plan(setting()):
        if getattr(getattr(case, "workload", None), "varying_seq_lens", ()):
            continue
        compiled = getattr(case, "configuration", case).compile != "none"
        assert protocol.fresh_process == compiled


def test_the_corners_autotune_the_first_size_alone(setting):
    def autotuned(scope):
        return {
            case.model.name
            for case, _ in compile_study.STUDY.plan(setting(scope))
            if hasattr(case, "model") and case.configuration.compile == "max-autotune"
        }

    assert autotuned("corners") == {"small"}
    assert len(autotuned("full")) == 5


def test_what_autotunes_comes_last(setting):
    planned = compile_study.STUDY.plan(setting())
    autotunes = [
        getattr(case, "configuration", case).compile == "max-autotune" for case, _ in planned
    ]
    assert len(set(planned)) == len(planned)
    assert autotunes == sorted(autotunes)
    assert any(autotunes)


def test_compiled_is_held_against_eager_of_its_own_precision(setting, gathered):
    here = setting()
    seen = view(points(here), gathered(compile_study.STUDY, here), here)
    found = {(cell.point.shape.name, cell.point.subject, cell.name): cell for cell in cells(seen)}
    tf32 = found["small", "train_step", "tf32 compile default"]
    assert tf32.speed.estimate == pytest.approx(2.0)
    assert seen.find(tf32.point.in_fp32).summary.median_s.estimate == pytest.approx(
        8.0 * tf32.measurement.summary.median_s.estimate
    )


@pytest.fixture
def cell(setting, gathered):
    here = setting()
    return next(
        each
        for each in cells(view(points(here), gathered(compile_study.STUDY, here), here))
        if each.point.subject == "train_step" and each.name == "compile default"
    )


def test_the_payback_is_compile_time_over_time_saved(cell):
    saved_s = cell.base.summary.median_s.estimate - cell.measurement.summary.median_s.estimate
    assert payback_steps(cell) == pytest.approx(30.0 / saved_s)


def test_what_is_not_faster_never_pays(cell):
    assert math.isinf(payback_steps(msgspec.structs.replace(cell, base=cell.measurement)))


def test_a_gain_within_the_intervals_never_pays(cell):
    summary = cell.measurement.summary
    median = msgspec.structs.replace(summary.median_s, estimate=summary.median_s.estimate * 1.005)
    near = msgspec.structs.replace(
        cell.measurement, summary=msgspec.structs.replace(summary, median_s=median)
    )
    assert math.isinf(payback_steps(msgspec.structs.replace(cell, base=near)))


def test_no_payback_of_a_case_that_failed(cell):
    assert payback_steps(msgspec.structs.replace(cell, measurement=None)) is None
    assert payback_steps(msgspec.structs.replace(cell, base=None)) is None


def varied(setting):
    return [each for each in points(setting) if each.lengths != "fixed lengths"]


def test_three_engines_on_a_gpu_and_two_on_a_cpu(setting):
    def engines(device):
        return {each.name for each in varied(setting(device=device))}

    assert engines("cuda") == {"eager", "compile default", "cuda-graphs"}
    assert engines("cpu") == {"eager", "compile default"}


def test_each_engine_runs_over_changing_and_over_padded_lengths(setting):
    found = [(each.name, each.lengths) for each in varied(setting())]
    assert len(found) == len(set(found)) == 6
    for case in (each.case for each in varied(setting())):
        assert len(case.workload.varying_seq_lens) == len(EIGHTHS)
        assert max(case.workload.varying_seq_lens) == case.workload.seq_len


def test_whole_cycles_are_timed(setting):
    for protocol in (each.protocol for each in varied(setting())):
        assert protocol.min_steps == protocol.max_steps
        assert protocol.max_steps % len(EIGHTHS) == 0
        assert protocol.warmup_steps % len(EIGHTHS) == 0


@pytest.fixture
def way(setting, gathered):
    """One way under compile, of a mean step and with so many seconds of warm-up beyond the steady ones."""
    here = setting()
    found = changing(view(points(here), gathered(compile_study.STUDY, here), here))[2]

    def make(mean_s, start_s):
        made = found.measurement
        # Lengths within a cycle differ, from an eighth of 16/9 of the mean to all of it.
        steps = tuple(mean_s * eighths / 4.5 for eighths in EIGHTHS)
        warmup = (steps[0] + start_s, *steps[1:])
        summary = msgspec.structs.replace(made.summary, mean_s=mean_s)
        run = Run(warmup_s=warmup + steps, steps_s=steps * 4)
        return msgspec.structs.replace(
            found, measurement=msgspec.structs.replace(made, runs=(run,), summary=summary)
        )

    return make


def test_the_start_is_the_warm_up_beyond_steady_cycles(way):
    assert start_s(way(0.030, 20.0).measurement) == pytest.approx(20.0)
    assert start_s(way(0.030, -1.0).measurement) == 0.0, "noise is no start"


def test_a_longer_start_is_paid_by_the_time_that_it_saves(way):
    slow, quick = way(0.040, 10.0), way(0.030, 20.0)
    assert payback_steps(quick.against(slow)) == pytest.approx(1000)
    assert payback_steps(slow.against(quick)) == math.inf, "its step is longer"
    sooner = way(0.030, 5.0).against(slow)
    assert payback_steps(sooner) == 0, "it does not even take longer to start"
    same = way(0.030, 20.0).against(way(0.030, 10.0))
    assert payback_steps(same) == math.inf, "it saves nothing"


def test_of_a_way_that_failed_nothing_is_told(way):
    failed = msgspec.structs.replace(way(0.03, 1.0), measurement=None)
    assert start_s(None) is failed.time is compile_report(None) is None
    assert payback_steps(failed.against(way(0.03, 1.0))) is None


@pytest.fixture
def parts(setting, gathered):
    def make(device="cuda", **options):
        here = setting("corners" if device == "cuda" else "small", device)
        return compile_study.STUDY.parts(gathered(compile_study.STUDY, here, **options), here)

    return make


def mode_of(case):
    return getattr(case, "configuration", case).compile


def test_payback_is_a_whole_number_of_steps_for_compiled_modes_only(parts, rows):
    speeds = rows(parts().tables[0])
    eager = [row for row in speeds if row["mode"] == "eager"]
    compiled = [row for row in speeds if row["mode"] == "compile default"]
    assert {row["pays back after steps"] for row in eager} == {None}
    assert all(row["pays back after steps"] >= 1 for row in compiled)
    assert {row["compile time"] for row in compiled} == {30.0}


def test_a_mode_that_is_not_faster_never_pays(setting, gathered, measure, rows):
    here = setting()
    readings = gathered(compile_study.STUDY, here)
    slowed = Readings(
        measure(each.case, each.protocol, each.environment, serial=i, factor=3.0)
        if mode_of(each.case) == "default"
        else each
        for i, each in enumerate(readings)
    )
    parts = compile_study.STUDY.parts(slowed, here)
    default = [row for row in rows(parts.tables[0]) if row["mode"] == "compile default"]
    assert {row["pays back after steps"] for row in default} == {"never"}
    texts = [each.text for each in parts.conclusions]
    assert any(text.startswith("compile default makes up") and "never" in text for text in texts)
    assert any("compile default is slower than eager in 6 of 6" in text for text in texts)


def test_graph_breaks_come_with_their_reasons(parts, rows):
    graphs = rows(parts().tables[1])
    assert len(graphs) == 15, "one a compiled case"
    assert {(row["graphs"], row["graph breaks"], row["reasons"]) for row in graphs} == {
        (2, 1, "a print")
    }


def test_out_of_memory_keeps_its_row(parts, rows):
    made = parts(overrule=lambda case: "oom" if mode_of(case) == "max-autotune" else None)
    tuned = [row for row in rows(made.tables[0]) if row["mode"] == "compile max-autotune"]
    assert len(tuned) == 3
    assert {(row["status"], row["median"], row["compile time"]) for row in tuned} == {
        ("oom", None, None)
    }


def test_changing_shapes_have_a_row_for_each_engine_and_way(parts, rows):
    changing = rows(parts("cpu").tables[2])
    assert [(row["engine"], row["lengths"]) for row in changing] == [
        ("eager", "changing"),
        ("eager", "padded"),
        ("compile default", "changing"),
        ("compile default", "padded"),
    ]
    assert all(row["throughput"] > 0 for row in changing)


def test_the_plot_has_a_line_for_each_subject_and_compiled_mode(parts):
    (plot,) = parts().plots
    assert len(plot.series) == 3 * 4
    assert {point.y for series in plot.series for point in series.points} == {2.0}
