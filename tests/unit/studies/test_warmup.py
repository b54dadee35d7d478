"""What `warmup` plans, tables and concludes from known figures."""

import msgspec
import pytest

from peakward.records.measurement import FirstStep, Interval
from peakward.studies import warmup
from peakward.studies.cases import model_case, place
from peakward.studies.engine import Point, Row, View, view
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope, micro
from peakward.studies.setting import Setting
from peakward.studies.warmup import N_TIMED, WARMUPS, explained, over_steady, points, warmup_steps


@pytest.fixture
def said(setting, gathered):
    def make(**options):
        here = setting()
        return warmup.STUDY.parts(gathered(warmup.STUDY, here, **options), here).conclusions

    return make


def test_the_offsets_without_warm_up(said, figures):
    first, mean, median, *_ = map(figures, said())
    assert first["cases"] == 8
    assert first["first timed step, median"] == pytest.approx(91)
    assert mean["mean, median"] == pytest.approx(10)
    assert (median["median, least"], median["median, most"]) == pytest.approx((1, 1))


def test_the_worst_to_either_side_are_named(setting, gathered, measure):
    here = setting()
    readings = gathered(warmup.STUDY, here)
    cold, *others = [each for each in readings if each.protocol.warmup_steps == 1]
    for serial, each in enumerate((cold, *others)):
        factor = 0.25 if each is cold else 1.5
        again = measure(each.case, each.protocol, here.environment, "ok", serial, factor)
        readings.add(again)
    said = [each.text for each in warmup.STUDY.parts(readings, here).conclusions]
    for name in ("mean", "median"):
        (told,) = [each for each in said if f"1 warm-up step the {name} of" in each]
        assert f"is from 0.250× ({place(cold.case)}) to 1.50× (" in told


def test_cases_that_failed_are_not_counted(said, figures):
    told = figures(said(overrule=lambda case: "oom" if case.model.name == "2.7B" else None)[0])
    assert told["cases"] == 4


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()


@pytest.fixture
def cost(measure, setting):
    """Of a case whose first step takes 91 s and whose steady ones take 1, on a device, with a profile."""

    def make(device="cuda", **told):
        case = model_case(micro(), 2, 64, "forward_backward", device)
        here = setting(device=device)
        cold = measure(case, here.protocol(warmup_steps=0), here.environment)
        steady = measure(case, here.protocol(warmup_steps=5), here.environment)
        times = {"estimate": 1.0, "low": 0.99, "high": 1.01}
        summary = msgspec.structs.replace(steady.summary, median_s=Interval(**times))
        run = msgspec.structs.replace(cold.runs[0], steps_s=(91.0, *(1.0,) * 9))
        first = FirstStep(profiled_s=120.0, **told)
        point = Point(case=case, protocol=cold.protocol, also="first step")
        return Row(
            point=point,
            measurement=msgspec.structs.replace(cold, runs=(run,), first_step=first),
            base=msgspec.structs.replace(steady, summary=summary),
        )

    return make


def explain(row):
    """The sentences on the first step of a row."""
    here = Setting(
        scope=Scope("small"),
        environment=row.measurement.environment,
        has_compiler=True,
    )
    return tuple(explained(View(rows=(row,), readings=Readings(), setting=here)))


def test_the_parts_of_a_first_step_sum_to_what_it_took_longer(cost, figures):
    parts = {"module_load_s": 45.0, "allocation_s": 9.0, "products_s": 18.0, "autotune_s": 0.0}
    (said,) = explain(cost(**parts, compile_s=0.0))
    assert said.text == (
        "The first step of micro 2 × 64 forward_backward: in all 91.0 s, beyond a steady one 90.0 s, module "
        "loading 45.0 s, memory allocation 9.00 s, cuBLAS's set-up and heuristics 18.0 s, autotuning 0 s, "
        "compilation 0 s, everything else 18.0 s, its share 20.0%."
    )
    told = figures(said)
    assert sum(list(told.values())[2:-1]) == pytest.approx(told["beyond a steady one"])


def test_autotuning_and_compilation_are_parts_where_they_happened(cost):
    (said,) = explain(cost(autotune_s=60.0, compile_s=9.0, module_load_s=0.0))
    assert "autotuning 60.0 s, compilation 9.00 s, everything else 21.0 s" in said.text
    assert "module loading 0 s" in said.text


def test_what_a_record_does_not_tell_is_named(cost):
    (said,) = explain(cost(module_load_s=9.0))
    assert said.text.endswith("everything else 81.0 s, its share 90.0%.")
    assert (
        "(not measured in this record: memory allocation, cuBLAS's set-up and heuristics, autotuning, "
        "compilation)"
    ) in said.text


def test_parts_may_come_to_more_than_the_excess(cost):
    (said,) = explain(cost(module_load_s=99.0))
    assert "everything else −9.00 s, its share −10.0%" in said.text


def test_a_cpu_tells_page_faults_and_what_it_did_not_do(cost):
    (said,) = explain(cost("cpu", n_page_faults=1234, autotune_s=0.0, compile_s=0.0))
    assert said.text == (
        "The first step of micro 2 × 64 forward_backward: in all 91.0 s, beyond a steady one 90.0 s, "
        "autotuning 0 s, compilation 0 s, page faults 1,234."
    )


def test_without_a_steady_time_or_an_excess_nothing_is_explained(cost):
    whole = cost(module_load_s=9.0)
    assert explain(msgspec.structs.replace(whole, base=None)) == ()
    assert explain(msgspec.structs.replace(whole, base=slow(whole.base))) == ()


def slow(steady):
    """Steady steps that take longer than the first one did."""
    interval = Interval(estimate=95.0, low=94.0, high=96.0)
    summary = msgspec.structs.replace(steady.summary, median_s=interval)
    return msgspec.structs.replace(steady, summary=summary)


def test_every_case_is_measured_after_each_number_of_warmup_steps_in_a_fresh_process(setting):
    planned = warmup.STUDY.plan(setting())
    assert len(planned) == 2 * 2 * 2 * len(WARMUPS)
    for _, protocol in planned:
        assert protocol.fresh_process
        assert (protocol.min_steps, protocol.max_steps) == (N_TIMED, N_TIMED)
    assert {protocol.warmup_steps for _, protocol in planned} == set(WARMUPS)


def test_one_first_step_a_size_is_explained_and_it_is_of_the_grid(setting):
    here = setting()
    found = [each for each in points(here) if each.also == "first step"]
    assert [each.case.model.name for each in found] == ["small", "2.7B"]
    assert {each.case.workload.seq_len for each in found} == {1024}
    assert {each.protocol.warmup_steps for each in found} == {0}


def test_a_first_step_of_91_times_makes_the_mean_of_ten_tenfold(setting, gathered):
    here = setting()
    rows = view(points(here), gathered(warmup.STUDY, here), here).rows
    cold = [row for row in rows if warmup_steps(row) == 0]
    assert cold
    for row in cold:
        assert over_steady(row, "first") == pytest.approx(91)
        assert over_steady(row, "mean") == pytest.approx(10)
        assert over_steady(row, "median") == pytest.approx(1)


def test_without_the_steady_case_nothing_is_off(setting, gathered):
    here = setting()
    readings = gathered(warmup.STUDY, here)
    only_cold = Readings(each for each in readings if each.protocol.warmup_steps == 0)
    for row in view(points(here), only_cold, here).rows:
        assert over_steady(row, "mean") is None


@pytest.fixture
def tables(setting, gathered, rows):
    def make(**options):
        here = setting()
        made = warmup.STUDY.parts(gathered(warmup.STUDY, here, **options), here).tables
        return {table.title: rows(table) for table in made}

    return make


def test_totals_hold_warm_up_and_timed_steps(tables):
    found = tables()["Steps after 0, 1 and 5 warm-up steps"]
    warm = [row for row in found if row["warm-up steps"] == 5]
    assert len(found) == 24
    for row in warm:
        assert row["total"] == pytest.approx(15 * row["median"])
        assert row["warm-up"] == pytest.approx(5 * row["median"])


def test_out_of_memory_keeps_its_row(tables):
    found = tables(overrule=lambda case: "oom" if case.model.name == "2.7B" else None)
    out = [row for row in found["Steps after 0, 1 and 5 warm-up steps"] if row["model"] == "2.7B"]
    assert len(out) == 12
    assert {(row["status"], row["total"], row["mean"]) for row in out} == {("oom", None, None)}


def test_what_the_first_step_took_longer_for_sums_to_it(tables):
    (small, large) = tables()["What the first step of a fresh process took beyond a steady one"]
    assert (small["model"], large["model"]) == ("small", "2.7B")
    assert small["beyond a steady one"] == pytest.approx(small["first step"] * 90 / 91)
    assert (small["module loading"], small["first step, profiled"]) == (1.5, 2.0)
    assert small["everything else"] == pytest.approx(small["beyond a steady one"] - 1.5)
    assert small["share of everything else"] == pytest.approx(
        small["everything else"] / small["beyond a steady one"]
    )
    assert small["autotuning"] is small["memory allocation"] is None, "not in the record"
    assert small["page faults"] == 1234


def test_the_plot_shows_the_steps_of_the_longest_sequence(setting, gathered):
    here = setting()
    (plot,) = warmup.STUDY.parts(gathered(warmup.STUDY, here), here).plots
    assert [series.name for series in plot.series] == ["small", "2.7B"]
    first, second = plot.series[0].points[:2]
    assert first.y == pytest.approx(91 * second.y)
