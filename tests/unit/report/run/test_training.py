"""What a report tells of a short training run by layer."""

import msgspec
import pytest

from peakward.records.lever import MAGNITUDES_LOG2, TrainingCourse, TrainingRun
from peakward.report import html
from peakward.report.document import Paragraph, PlotBlock, TableBlock
from peakward.report.run.page import document
from peakward.report.run.training import training_blocks

replace = msgspec.structs.replace
N_BINS = len(MAGNITUDES_LOG2) + 1


def course(*, losses=(9.0, 8.0), gradients=(1.0, 2.0, 3.0), outputs=(10.0, 20.0), at=6):
    """Two steps of two layers and others, the same in each; all elements in one bin."""
    bins = tuple(1000 * (each == at) for each in range(N_BINS))
    return TrainingCourse(
        losses=losses,
        gradient_norms=(gradients,) * 2,
        output_norms=(outputs,) * 2,
        magnitudes=((bins,) * len(outputs),),
    )


def run(**changed):
    return TrainingRun(
        layers=("layer 0", "layer 1", "others"),
        n_repeated=2,
        looks=(1,),
        candidate=course(**changed),
        base=course(),
        oracle=course(),
    )


@pytest.fixture
def told(run_study, studies):
    """The blocks of a study whose first trial was trained so."""

    def make(training):
        held = replace(studies.numerics("approximate", 0.0, 0.0), training=training)
        first, *others = (replace(each, numerics=None) for each in run_study.trials)
        return replace(run_study, trials=(replace(first, numerics=held), *others))

    return make


def plots(study):
    return [each.plot for each in training_blocks(study) if isinstance(each, PlotBlock)]


def text(study):
    (found,) = (each.text for each in training_blocks(study) if isinstance(each, Paragraph))
    return found


def table(study):
    (found,) = (each.table for each in training_blocks(study) if isinstance(each, TableBlock))
    return found


def test_nothing_is_told_where_nothing_was_trained(run_study):
    assert training_blocks(run_study) == ()


def test_losses_are_drawn_beside_fp64_s(told):
    drawn = plots(told(run(losses=(9.0, 8.8))))[0]
    assert drawn.title.endswith("which go from 9 to 8")
    assert [[point.y for point in each.points] for each in drawn.series] == [
        [0.0, 0.0],
        [0.0, pytest.approx(0.1)],
    ]


def test_the_layer_that_drifts_most_is_named_by_gradient_or_output(told):
    said = text(told(run(gradients=(1.0, 2.1, 3.0), outputs=(10.1, 20.0))))
    assert said == (
        "Over the later half of 2 steps of training layer 1 drifts most: the norm of its gradient is off "
        "fp64's by 0.0500 of it with tf32, 0 without."
    )
    assert "layer 0 drifts most: the norm of its output" in text(told(run(outputs=(12.0, 20.0))))
    assert "what is in no layer drifts most" in text(told(run(gradients=(1.0, 2.0, 3.3))))


def test_a_table_has_the_norms_and_how_far_they_are_off(told):
    found = table(told(run(gradients=(1.0, 2.1, 3.0), outputs=(10.1, 20.0))))
    assert found.rows[1] == ("layer 1", 2.0, 0.0, pytest.approx(0.05), 20.0, 0.0, 0.0)
    assert found.rows[2] == ("others", 3.0, 0.0, 0.0, None, None, None)


def test_drift_is_a_row_for_each_layer_and_arm(told):
    _, gradients, outputs, _ = plots(told(run(gradients=(1.0, 2.1, 3.0))))
    assert [each.name for each in gradients.series][:3] == [
        "layer 0, without",
        "layer 0, with",
        "layer 1, without",
    ]
    assert [point.y for point in gradients.series[3].points] == [pytest.approx(0.05)] * 2
    assert [each.name for each in outputs.series][-1] == "layer 1, with"


def test_magnitudes_are_shares_by_power_of_two(told):
    *_, drawn = plots(told(run(at=7)))
    rows = {each.name: {p.label: p.y for p in each.points if p.y} for each in drawn.series}
    assert rows["layer 0, fp64, step 1"] == rows["layer 0, without, step 1"] == {"−2": 1.0}
    assert rows["layer 1, with, step 1"] == {"0": 1.0}
    assert drawn.series[0].points[0].label == "<−12"


def test_a_module_without_layers_is_told_so(told):
    bare = course(gradients=(1.0,), outputs=())
    whole = TrainingRun(
        layers=("others",), n_repeated=0, looks=(1,), candidate=bare, base=bare, oracle=bare
    )
    assert "Outputs by layer are not computed: the module repeats no layers" in text(told(whole))
    assert [each.kind for each in plots(told(whole))] == ["lines", "heat"]
    assert [column.name for column in table(told(whole)).columns] == [
        "layer",
        "gradient's norm, fp64",
        "gradient off without",
        "gradient off with",
    ]


def test_a_run_that_is_not_finite_is_said_so_first(told):
    everything = {"gradients": (None,) * 3, "outputs": (None,) * 2}
    assert text(told(run(losses=(9.0, None), **everything))) == (
        "The norm of the gradient of layer 0 is not finite from step 1 with tf32."
    )
    whole = run(losses=(9.0, None))
    said = "The loss is not finite from step 2 with tf32."
    assert text(told(whole)).startswith(
        f"{said} Of what stays finite over the later half of 2 steps"
    )
    both = replace(whole, base=course(losses=(None, None)))
    assert text(told(both)).startswith(f"{said} The loss is not finite from step 1 without tf32.")
    once = run(losses=(None, 8.0))
    assert text(told(once)).startswith("The loss is not finite at step 1 with tf32.")


def test_a_layer_that_is_not_finite_in_the_later_half_has_no_mean(told):
    """Its finite steps would look like those of a layer that drifts little."""
    steps = ((1.0, 2.0, 3.0), (1.0, 2.0, 3.3), (1.0, 2.5, 3.3), (1.0, None, 3.3))
    long = {"losses": (9.0,) * 4, "outputs": (10.0, 20.0)}
    made = [
        replace(course(**long), gradient_norms=norms, output_norms=((10.0, 20.0),) * 4)
        for norms in (steps, steps[:1] * 4)
    ]
    study = told(replace(run(), candidate=made[0], base=made[1], oracle=made[1]))
    assert table(study).rows[1][3] is None
    assert text(study).startswith(
        "The norm of the gradient of layer 1 is not finite from step 4 with tf32. Of what stays finite over "
        "the later half of 4 steps of training what is in no layer drifts most"
    )


def test_what_has_no_finite_value_is_not_drawn(told):
    nothing = course(losses=(None, None), gradients=(None,) * 3, outputs=(None,) * 2)
    study = told(replace(run(), candidate=nothing, base=nothing))
    assert [each.title.split()[0] for each in plots(study)] == ["Magnitudes"]
    assert "The loss is not finite from step 1 without tf32." in html.render(document(study))


def test_a_ratio_beyond_all_numbers_is_left_out(told):
    study = told(replace(run(losses=(1e308, 8.0)), oracle=course(losses=(5e-324, 8.0))))
    assert [point.x for point in plots(study)[0].series[1].points] == [2]


def test_what_is_not_finite_is_left_out(told):
    study = told(run(losses=(9.0, None), gradients=(1.0, None, 3.0)))
    assert len(plots(study)[0].series[1].points) == 1
    assert plots(study)[1].series[3].points == ()
    assert table(study).rows[1][3] is None


def test_pictures_of_a_long_run_take_little_of_a_page(told):
    """Four layers and others over 16 steps, as a check has them."""
    steps = tuple(tuple(1 + step / (50 + at) for at in range(5)) for step in range(16))
    bins = tuple(range(N_BINS))
    made = TrainingCourse(
        losses=(9.0,) * 16,
        gradient_norms=steps,
        output_norms=tuple(each[:4] for each in steps),
        magnitudes=((bins,) * 4,) * 4,
    )
    other = replace(made, gradient_norms=steps[::-1], output_norms=made.output_norms[::-1])
    long = TrainingRun(
        layers=(*(f"layer {n}" for n in range(4)), "others"),
        n_repeated=4,
        looks=(1, 6, 11, 16),
        candidate=other,
        base=made,
        oracle=made,
    )
    assert len(msgspec.json.encode(long)) < 16_000
    without, with_run = (len(html.render(document(told(each)))) for each in (None, long))
    assert with_run - without < 100_000
