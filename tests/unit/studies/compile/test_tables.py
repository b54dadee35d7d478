"""The tables and the plot of `compile`."""

import pytest

from peakward.studies import compile as compile_study


@pytest.fixture
def parts(setting, gathered):
    def make(device="cuda", **options):
        here = setting("corners" if device == "cuda" else "small", device)
        return compile_study.parts(gathered(compile_study, here, **options), here)

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
    from peakward.studies.readings import Readings

    here = setting()
    readings = gathered(compile_study, here)
    slowed = Readings(
        measure(each.case, each.protocol, each.environment, serial=i, factor=3.0)
        if mode_of(each.case) == "default"
        else each
        for i, each in enumerate(readings)
    )
    parts = compile_study.parts(slowed, here)
    default = [row for row in rows(parts.tables[0]) if row["mode"] == "compile default"]
    assert {row["pays back after steps"] for row in default} == {"never"}
    texts = [each.text for each in parts.conclusions]
    assert any(text.startswith("compile default pays back") and "never" in text for text in texts)
    assert any("compile default is slower than fp32 eager in 6 of 6" in text for text in texts)


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
