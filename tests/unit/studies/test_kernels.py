"""What `kernels` plans, tables and concludes from known profiles, and from one recorded on a GPU."""

from pathlib import Path

import msgspec
import pytest

from peakward.studies.engine import view
from peakward.studies.kernels import STUDY, matmul_share, top
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope, micro
from peakward.traces.trace import Trace

RECORDED = Path(__file__).parents[2] / "data" / "traces" / "h200_decoder_compiled.json.gz"


@pytest.fixture
def made(setting, gathered):
    def make(device="cuda", scope="corners", **options):
        here = setting(scope, device)
        return STUDY.parts(gathered(STUDY, here, **options), here)

    return make


@pytest.fixture
def named(made):
    """The tables by title."""
    return lambda *arguments, **options: {
        each.title: each for each in made(*arguments, **options).tables
    }


def lengths(setting):
    return sorted({case.workload.seq_len for case, _ in STUDY.plan(setting)})


def test_every_size_and_length_is_run_in_inference_and_in_training(setting):
    cases = [case for case, _ in STUDY.plan(setting("small", "cpu"))]
    assert {case.workload.pass_ for case in cases} == {"forward", "train_step"}
    assert len(cases) == len(set(cases)) == 8
    assert {case.configuration.precision for case in cases} == {"fp32"}


def test_the_corners_have_a_length_between_unless_lengths_are_asked_for(setting):
    assert lengths(setting("corners")) == [128, 512, 1024]
    assert lengths(setting("full")) == [128, 256, 512, 1024]
    assert lengths(setting(Scope("corners", seq_lens=(64,)))) == [64]


def test_the_profiled_step_stands_beside_the_plain_one(named, rows):
    found = rows(named()["Under the profiler, and by the plain timer"])
    assert len(found) == 12
    for row in found:
        assert row["over the plain"] == pytest.approx(1.25)
        assert row["profiled step"] == pytest.approx(1.25 * row["plain step"])
    # Without 50 ns of a copy by the driver in each phase.
    assert found[0]["work in a step"] == pytest.approx(1000e-9)
    assert found[1]["work in a step"] == pytest.approx(4000e-9)


def test_matmuls_in_inference_and_in_more_and_more_of_a_step(named, rows):
    found = rows(named()["Share of matmuls"])
    assert len(found) == 6
    for row in found:
        names = ("inference", "forward", "forward + backward", "whole step")
        assert [row[name] for name in names] == pytest.approx([0.5, 0.5, 1900 / 3000, 0.475])


def test_categories_of_a_case_add_up(named, rows):
    found = rows(named()["Time by category and phase"])
    training = [row for row in found if row["workload"] == "4 × 128 train_step"][:3]
    assert [row["category"] for row in training] == ["matmul", "elementwise", "softmax"]
    assert sum(row["share"] for row in training) == pytest.approx(1)
    assert training[0]["backward"] == pytest.approx(1400e-9)
    assert training[2]["backward"] is None


def test_on_a_cpu_operators_are_spoken_of(made, named):
    titles = " ".join(named("cpu", "small"))
    assert "operators of each phase" in titles and "kernel" not in titles
    assert all("kernel time" not in each.text for each in made("cpu", "small").conclusions)


def test_bars_by_category_and_a_line_of_the_matmuls_share(made):
    _, training, curve = made().plots
    assert [each.name for each in training.series] == ["small", "2.7B"]
    labels = {point.label: point.y for point in training.series[0].points}
    assert labels == pytest.approx({"matmul": 0.475, "elementwise": 0.45, "softmax": 0.075})
    assert [each.name for each in curve.series[:2]] == ["small, inference", "small, training step"]
    assert [point.x for point in curve.series[0].points] == [128, 512, 1024]


@pytest.fixture
def recorded(setting, profile):
    """A view of one case with a profile of an H200."""
    here = setting(Scope("corners", models=(micro(),), seq_lens=(512,)))
    _, (case, _) = STUDY.plan(here)
    readings = Readings()
    found = msgspec.structs.replace(profile(case, 1), profile=Trace.open(RECORDED).profile())
    readings.add_profile(found)
    return view(STUDY.points(here), readings, here)


def test_the_longest_of_each_phase_first(recorded, rows):
    by_time, by_instances, others = top(recorded)
    assert by_time.title.startswith("micro 4 × 512 train_step: the 5 kernels of each phase that ")
    found = rows(by_time)
    for phase in ("forward", "backward", "optimizer"):
        of = [row for row in found if row["phase"] == phase]
        assert 0 < len(of) <= 5
        assert [row["total"] for row in of] == sorted((row["total"] for row in of), reverse=True)
        assert 0 < sum(row["share of the phase"] for row in of) <= 1
        counts = [row["n"] for row in rows(by_instances) if row["phase"] == phase]
        assert counts == sorted(counts, reverse=True)
    for row in found:
        assert row["min"] <= row["median"] <= row["max"]
        assert row["mean"] * row["n"] == pytest.approx(row["total"])
    assert "matmul" in {row["category"] for row in found}
    assert not {"matmul", "memory"} & {row["category"] for row in rows(others)}


def test_copies_by_the_driver_are_no_kernels(named):
    listed = [
        row for title, found in named().items() if "the 5 kernels" in title for row in found.rows
    ]
    assert listed and not any("memory" in row for row in listed)


def test_no_share_of_nothing(recorded):
    row = recorded.rows[1]
    assert matmul_share(row, ("other",)) is None
    assert matmul_share(recorded.rows[0]) is None


def test_what_it_says(made):
    said = [each.text for each in made().conclusions]
    assert said[0] == (
        "Share of matmuls in the kernel time of small 4 × 1024: inference 50.0%, forward 50.0%, forward + "
        "backward 63.3%, whole step 47.5%."
    )
    assert said[2] == (
        "Matmuls take from 47.5% (small 4 × 128 train_step) to 50.0% (small 4 × 128 forward) of kernel time, "
        "48.8% in the median of 12 cases."
    )
    assert said[3].startswith(
        "Under the profiler a step takes 1.25× of its time by the plain timer in each"
    )
    assert (
        "Beside matmuls small 4 × 1024 train_step goes most to: elementwise kernels 45.0%, "
        "elementwise_kernel in the phase optimizer 25.0%, its instances 6, profiled steps 3."
    ) in said


def test_what_failed_keeps_its_row_and_the_next_shorter_is_told(made, rows):
    found = made(
        overrule=lambda case: (
            "oom" if case.model.name == "2.7B" and case.workload.seq_len == 1024 else None
        )
    )
    assert [row["status"] for row in rows(found.tables[0])].count("oom") == 2
    assert {row["profiled step"] for row in rows(found.tables[0]) if row["status"] == "oom"} == {
        None
    }
    assert found.conclusions[1].text.startswith(
        "Share of matmuls in the kernel time of 2.7B 4 × 512:"
    )


def test_without_training_no_passes_are_compared_and_of_nothing_nothing_is_said(made):
    found = made(overrule=lambda case: "oom" if case.workload.trains else None)
    assert not any("training" in each.text for each in found.conclusions)
    nothing = made(overrule=lambda case: "oom")
    assert nothing.conclusions == () and not any(each.series for each in nothing.plots)
