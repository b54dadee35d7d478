"""Study `roofline`: its grid, its tables and sentences on profiles that take a multiple of the least time."""

from types import SimpleNamespace

import msgspec
import pytest

from peakward.hardware import devices
from peakward.report.charts import draw
from peakward.report.plots import height, places, roofs
from peakward.studies.engine import view
from peakward.studies.readings import Readings
from peakward.studies.roofline import STUDY
from peakward.studies.roofline.steps import LEAST_SHARE, largest, placed, points, stated
from peakward.studies.scope import Scope, micro

ROOFS, STEPS = 0, 1
"""The first tables; then one of operators a step, then of batches and of fusion."""


@pytest.fixture
def told_by(parts):
    """Makes the sentences that begin so."""
    return lambda start, *args, **options: [
        each for each in parts(*args, **options).conclusions if each.text.startswith(start)
    ]


def seen(cells, here, **changes):
    """The cells as the study's tables and claims see them."""
    changed = tuple(msgspec.structs.replace(each, **changes) for each in cells)
    return msgspec.structs.replace(view((), Readings(), here), rows=changed)


def axes(setting):
    found = points(setting)
    return (
        sorted({each.precision for each in found}),
        sorted({each.fusion for each in found}),
        sorted({each.batch_size for each in found}),
    )


def test_the_corners_are_two_precisions_three_fusions_and_three_batches(setting):
    here = setting()
    assert axes(here) == (
        ["bf16-mixed", "fp32"],
        ["compiled", "eager", "fused attention"],
        [1, 4, 16],
    )
    assert {case.workload.pass_ for case, _ in STUDY.plan(here)} == {"train_step"}
    assert {case.model.name for case, _ in STUDY.plan(here)} == {"small"}
    assert {case.model.name for case, _ in STUDY.plan(setting("full"))} == {"small", "2.7B"}


def test_a_cpu_compiles_nothing_and_says_why(setting, parts):
    here = setting("small", "cpu")
    assert axes(here)[1] == ["eager", "fused attention"]
    assert any("Not run: compiled steps" in each for each in parts(here).notes)
    assert not any("Not run" in each for each in parts().notes)


def test_what_the_user_asks_for_prevails(setting):
    scope = Scope("corners", models=(micro(),), batch_size=3, precisions=("tf32",), seq_lens=(64,))
    here = setting(scope)
    assert axes(here) == (["tf32"], ["compiled", "eager", "fused attention"], [3])
    assert {case.workload.seq_len for case, _ in STUDY.plan(here)} == {64}


def test_what_has_no_closed_form_is_run_and_said_to_have_no_places(setting, gathered):
    experts = msgspec.structs.replace(micro(), name="experts", n_experts=4, n_active_experts=2)
    here = setting(Scope("small", models=(experts,)), "cpu")
    assert len(STUDY.plan(here)) == 8
    notes = STUDY.parts(gathered(STUDY, here), here).notes
    assert notes[-1].startswith("Without places: expected a dense model")
    volta = msgspec.structs.replace(setting().environment, compute_capability="7.0")
    old = msgspec.structs.replace(setting(), environment=volta)
    assert "expected a compute capability" in stated(points(setting())[0].case, old)


def test_a_gpu_is_calibrated_in_full_and_a_cpu_for_its_ceilings(setting):
    for device, expected in (("cuda", "calibrate"), ("cpu", "ceilings")):
        asked = []

        class Lab:
            measure_all = profile = staticmethod(lambda plan: None)
            calibrate = staticmethod(lambda subjects, asked=asked: asked.append("calibrate"))
            ceilings = staticmethod(lambda asked=asked: asked.append("ceilings"))

        STUDY.gather(Lab(), setting("small", device))
        assert asked == [expected]


def test_a_roof_a_precision(parts, rows):
    found = rows(parts().tables[ROOFS])
    assert [row["precision"] for row in found] == ["fp32", "bf16-mixed"]
    assert [row["ridge (operations/byte)"] for row in found] == pytest.approx([50, 800])


def test_every_step_has_a_row_and_a_failed_one_its_status(parts, rows):
    found = rows(parts().tables[STEPS])
    assert len(found) == 18
    for row in found:
        assert row["of it placed"] == pytest.approx(1, rel=1e-3)
        assert 1 / 4 < row["share of the roof"] < 1 / 2
        assert 0 <= row["right of the ridge"] < 1
    failed = rows(parts(overrule=lambda case: "oom").tables[STEPS])
    assert {(row["status"], row["in operators"], row["share of the roof"]) for row in failed} == {
        ("oom", None, None)
    }


def test_the_operators_of_a_step_share_its_time(parts, rows):
    made = [each for each in parts().tables if each.title.endswith(": its operators")]
    assert made[0].title == "micro, fp32, eager, batch 16: its operators"
    assert len(made) == 6
    for table in made:
        told = rows(table)
        assert sum(row["share of time"] for row in told) == pytest.approx(1, rel=1e-3)
        times = [row["measured"] for row in told]
        assert times == sorted(times, reverse=True)
        assert {row["predicted"] for row in told} == {None}


def test_the_largest_batch_is_that_which_was_profiled(parts):
    made = parts(overrule=lambda case: "oom" if case.workload.batch_size == 16 else None)
    titles = [each.title for each in made.tables if each.title.endswith(": its operators")]
    assert len(titles) == 6
    assert all("batch 4" in each for each in titles)


def test_a_larger_batch_raises_the_intensity_of_layers_alone(parts, rows):
    by_kind = {}
    for row in rows(parts().tables[-2]):
        if (row["precision"], row["fusion"]) == ("fp32", "eager"):
            by_kind.setdefault(row["operators"], []).append(row["operations/byte"])
    assert by_kind["up"] == sorted(by_kind["up"])
    assert by_kind["up"][-1] > 1.5 * by_kind["up"][0]
    assert by_kind["softmax"] == pytest.approx([0.45] * 3, rel=0.01)
    assert by_kind["optimiser"] == pytest.approx([by_kind["optimiser"][0]] * 3)


def test_one_batch_makes_no_table_and_no_sentence_of_batches(parts, setting):
    made = parts(setting(Scope("corners", models=(micro(),), batch_size=4, seq_lens=(128,))))
    assert made.tables[-2].rows == ()
    assert not any(each.text.startswith("From batch") for each in made.conclusions)


def test_fusion_moves_less_beside_the_linear_layers(parts, rows, cells):
    found = {
        row["fusion"]: row
        for row in rows(parts().tables[-1])
        if (row["precision"], row["batch"]) == ("fp32", 16)
    }
    eager, attention, compiled = (found[each] for each in ("eager", "fused attention", "compiled"))
    assert compiled["bytes"] < attention["bytes"] < eager["bytes"]
    layers = {row["bytes"] - row["bytes but of linear layers"] for row in found.values()}
    assert layers == {sum(each.bytes for each in cells[2].places if each.is_layer)}


def test_places_need_a_calibration_or_a_datasheet_and_predictions_a_catalogued_gpu(
    setting, told, small
):
    here = setting(small)
    readings = told(here)
    readings.calibration = None
    bare = tuple(placed(view(points(here), readings, here)))
    assert {(each.on, each.places, each.ridge) for each in bare} == {(None, (), None)}
    h200 = msgspec.structs.replace(
        here.environment, device_name="NVIDIA H200", device_memory_bytes=150754820096
    )
    there = msgspec.structs.replace(here, environment=h200)
    first, *_ = placed(view(points(there), readings, there))
    assert first.on.source == "datasheet"
    assert all(each.predicted_s for each in first.places)
    cpu = setting(small, "cpu")
    first, *_ = placed(view(points(cpu), told(cpu), cpu))
    assert {each.predicted_s for each in first.places} == {None}


def test_what_is_bound_by_what(told_by, figures, cells, roofed):
    first, *others = told_by("In micro, fp32, eager, batch 16, ")
    assert others == []
    assert figures(first)["ridge"] == pytest.approx(50)
    assert 1 / 4 < figures(first)["share of the roof"] < 1 / 2
    ids = {name for each in first.evidence for name in each.from_ids}
    assert ids == {cells[2].profile.id, roofed().id}


def test_what_loses_most_is_farthest_from_its_roof_by_time(told_by, cells, figures):
    first, *_ = told_by("Most is lost in micro, fp32, eager, batch 16")
    lost = {each.kind: each.measured_s - each.floor_s for each in cells[2].places}
    kind = max(lost, key=lost.get)
    assert f"by {kind}:" in first.text
    assert figures(first)[f"time of {kind} above the roof"] == pytest.approx(lost[kind])


def test_precision_moves_ridge_and_layer(told_by, figures):
    eager, *others = told_by("From fp32")
    assert len(others) == 2
    assert "From fp32 to bf16-mixed (micro, eager, batch 16)" in eager.text
    assert figures(eager)["ridge (operations/byte), before"] == pytest.approx(50)
    assert figures(eager)["ridge (operations/byte)"] == pytest.approx(800)
    assert "the ridge passes" in eager.text
    assert "(compute to memory)" in eager.text


def test_batch_moves_layers_and_leaves_what_is_elementwise(told_by, figures):
    first, *others = told_by("From batch")
    assert len(others) == 5
    assert "From batch 1 to 16 (micro, fp32, eager): operations/byte of " in first.text
    found = figures(first)
    layers = [found[name] for name in found if name.startswith("operations/byte of ")][:2]
    assert layers[1] > 1.5 * layers[0]
    before, after = (found[name] for name in found if "elementwise" in name)
    assert after == pytest.approx(before, rel=0.1)


def test_fusion_saves_bytes(parts, figures):
    found = [each for each in parts().conclusions if "against eager" in each.text]
    assert len(found) == 4
    for each in found:
        known = figures(each)
        assert known["bytes"] < known["eager's bytes"]
        assert known["bytes but of linear layers, over eager's"] < 1
        assert "fused attention" in each.text or "compiled" in each.text


def test_predictions_are_judged_over_all_places(cells, figures, setting, told_by):
    assert told_by("Over") == []
    foretold = [
        tuple(
            msgspec.structs.replace(each, predicted_s=each.measured_s / 1.25)
            for each in cell.places
        )
        for cell in cells
    ]
    changed = [
        msgspec.structs.replace(cell, places=found)
        for cell, found in zip(cells, foretold, strict=True)
    ]
    (found,) = STUDY.claims[-1](seen(changed, setting()))
    assert figures(found)["measured over predicted"] == pytest.approx(1.25)
    assert figures(found)["places with a prediction"] == sum(map(len, foretold))


def test_nothing_is_told_of_what_was_not_profiled_or_has_no_ridge(parts, cells, setting):
    assert parts(overrule=lambda case: "oom").conclusions == ()
    unknown = seen(cells, setting(), on=cells[0].on._replace(matmul_flops_per_s=None))
    sides, *_ = STUDY.claims
    (rooflines,) = STUDY.plots
    assert list(sides(unknown)) == list(rooflines(unknown)) == []


def test_a_plot_each_at_the_largest_batch_with_marks_under_the_roof(parts, cells, setting):
    found = parts().plots
    assert len(found) == 6
    assert found[0].title == "Roofline: micro, fp32, eager, batch 16"
    (roof,) = roofs(found[0])
    marks = {each.name: each.points[0] for each in places(found[0])}
    for name, over in (("softmax", 4), ("optimiser", 4), ("up", 2)):
        assert height(roof, marks[name].x) / marks[name].y == pytest.approx(over, rel=1e-2)
    for plot, cell in zip(found, largest(seen(cells, setting())), strict=True):
        assert plot.title in draw(plot, 1040)
        names, whole_s = {each.name for each in places(plot)}, cell.placed_s
        assert "embedding" not in names, "it computes nothing"
        small = {each.kind for each in cell.places if each.measured_s < LEAST_SHARE * whole_s}
        assert names.isdisjoint(small)


@pytest.fixture
def over_roof(cells, setting, monkeypatch):
    """Makes the notes on places of these kinds that take half of their least time."""

    def make(l2_bytes, **bounds):
        found = tuple(
            msgspec.structs.replace(each, measured_s=each.floor_s / 2, bound=bounds[each.kind])
            if each.kind in bounds
            else each
            for each in cells[0].places
        )
        figure = None if l2_bytes is None else SimpleNamespace(value=l2_bytes)
        device = SimpleNamespace(l2_bytes=figure)
        monkeypatch.setattr(devices, "match", lambda name, memory_bytes: device)
        notes = STUDY.notes(seen(cells[:1], setting(), places=found))
        return [each for each in notes if each.startswith("A share over 100%")]

    return make


def test_a_cause_is_named_only_where_it_can_be(over_roof):
    assert over_roof(2**30) == []
    (held,) = over_roof(2**30, loss="memory", softmax="memory")
    assert "loss" in held and "softmax" in held
    assert "fits into the L2 of 1.00 GiB" in held
    assert over_roof(2, loss="memory") == [
        "A share over 100% (loss): what a call moves is more than the L2 holds; the cause is not "
        "known."
    ]
    (unknown,) = over_roof(None, loss="memory")
    assert "whose size is not known" in unknown


def test_products_over_the_roof_have_a_cause_of_their_own(over_roof):
    found = over_roof(2**30, up="compute", loss="memory")
    assert (
        "A share over 100% (up): products ran faster than the square one of the calibration."
        in found
    )
    assert len(found) == 2
