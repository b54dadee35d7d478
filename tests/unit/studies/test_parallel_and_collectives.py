"""What `collectives` and `parallel` conclude from a lab whose rates and efficiencies are known."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.parameters import n_parameters
from peakward.records.case import CollectivesCase, LayoutCase
from peakward.records.layout import Layout
from peakward.studies import collectives, layouts, parallel


@pytest.fixture
def parts(setting, gathered):
    def make(study, name="corners", device="cuda", n_gpus=None, **options):
        here = setting(name, device)
        if n_gpus is not None:
            here = type(here)(
                **{**{f: getattr(here, f) for f in here.__struct_fields__}, "n_gpus": n_gpus}
            )
        return study.parts(gathered(study, here, **options), here)

    return make


def texts(made):
    return [each.text for each in made.conclusions]


def test_collectives_have_the_model_that_they_were_made_of(parts, rows):
    made = parts(collectives.STUDY)
    said = [each for each in texts(made) if each.startswith("2 ranks over NCCL: an all-reduce")]
    assert "moves 100 GB/s a rank. The model is 10.0 µs and 100 GB/s" in said[0]
    assert "half of that rate is reached at 977 KiB" in said[0]
    assert any("over the bus rate of all-reduce, all-gather 0.500×" in each for each in texts(made))
    lines = rows(made.tables[1])
    assert (
        len(lines) == 4 * 3 * 2
    )  # Two backends, two numbers of ranks, three sizes, two collectives.
    fits = rows(made.tables[2])
    assert len(fits) == 2 * 2 * 2 and max(each["largest error"] for each in fits) < 1e-9


def test_a_ring_between_more_ranks_takes_longer(parts):
    said = [each for each in texts(parts(collectives.STUDY)) if each.startswith("The largest")]
    assert any("a ring on links of one rate takes 1.50×" in each for each in said)


def test_on_a_cpu_collectives_are_those_of_gloo(setting):
    cases = [each.case for each in collectives.points(setting("full", "cpu"))]
    assert {each.device for each in cases} == {"cpu"}
    assert {each.n_ranks for each in cases} == {2, 4, 6} and len(cases) == 12


def test_missing_gpus_are_told_and_not_run(parts, rows):
    made = parts(collectives.STUDY, n_gpus=2)
    jobs = {each["ranks"]: (each["status"], each["reason"]) for each in rows(made.tables[0])}
    assert jobs["4 ranks over NCCL"] == ("not available", "needs 4 GPUs, here are 2")
    assert jobs["4 ranks over gloo"][0] == "ok"
    assert any("4 ranks over NCCL needs 4 GPUs" in each for each in made.notes)


def test_the_fastest_layout_and_those_that_take_less_memory(parts):
    said = texts(parts(parallel.STUDY))
    assert any(
        each.startswith("On 2 ranks, overlapped 2 is the fastest") and "of ddp 2" in each
        for each in said
    )
    assert any(
        "On 2 ranks, overlapped 2 scales best: one rank's plain step over its step is 96.0%" in each
        and "with 75.0% of its communication hidden" in each
        for each in said
    )
    (front,) = [each for each in said if each.startswith("On 2 ranks, take the first")]
    assert "(peak) fits: overlapped 2" in front and "fsdp 2" in front
    assert any("per-parameter 2 takes 1.36× the time of ddp 2" in each for each in said)


def test_the_model_of_buckets(parts, figures):
    assert layouts.best_bucket_mb(4e9, 25e-6, 1e11) == pytest.approx(95.4, abs=0.1)
    made = parts(parallel.STUDY, "full", "cuda")
    (said,) = [
        each for each in made.conclusions if each.text.startswith("On 2 ranks, of the buckets")
    ]
    n_bytes = 4 * n_parameters(model("2.7B"))
    due = layouts.best_bucket_mb(n_bytes, 1e-5, 1e11)
    assert figures(said)["best bucket by the model, MB"] == pytest.approx(due, rel=1e-3)


def test_what_cannot_be_shared_says_why(setting):
    here = setting("small", "cpu")
    given = parallel.case(here)
    absent = {
        each.name: each.absent
        for each in layouts.points_of(
            given,
            (Layout(tp=3), Layout(pp=16, n_micro_batches=16), Layout(dp=2, n_micro_batches=3)),
            here.protocol(),
        )
    }
    said = list(absent.values())
    assert said[0] is None
    assert "expected n_heads that 3 ranks of tensor parallelism can share" in said[1]
    assert "expected at least a block for each of 16 stages" in said[2]
    assert "expected a batch that 3 micro-batches divide" in said[3]


def test_the_full_grid_has_every_row_of_the_scope(setting):
    cases = [each.case for each in parallel.points(setting("full", "cuda"))]
    assert all(isinstance(each, LayoutCase) for each in cases) and len(cases) == len(set(cases))
    of_two = [each.layout for each in cases if each.layout.n_ranks == 2]
    assert {each.bucket_mb for each in of_two} == {None, 0, 1, 10, 100, 1000}
    assert {each.data for each in of_two if each.dp == 2} == {
        "ddp",
        "flat",
        "per-parameter",
        "overlapped",
        "zero1",
        "zero2",
        "fsdp",
    }
    assert any(each.wrap == "whole" for each in of_two) and any(each.find_unused for each in of_two)
    assert {each.schedule for each in of_two if each.pp == 2} == {"gpipe", "1f1b", "interleaved"}
    assert isinstance(parallel.link_case(setting("full", "cuda"), 2), CollectivesCase)


def test_bubbles_are_those_of_the_schedule(parts, rows):
    made = parts(parallel.STUDY, "full", "cuda")
    by_name = {each["layout"]: each["bubble of the schedule"] for each in rows(made.tables[0])}
    assert by_name["pp 2, 1f1b, 4 micro-batches"] == pytest.approx(1 / 5)
    assert by_name["pp 2, interleaved, 4 micro-batches, 2 stages a rank"] == pytest.approx(1 / 9)
    assert by_name["ddp 2"] is None


def test_candidates_of_a_search_can_all_be_shared():

    from peakward.records.layout import expect_shared

    for n in (2, 4, 8):
        for each in layouts.candidates(n, 4, 32):
            assert each.n_ranks == n
            expect_shared(each, model("2.7B"), 4)


def test_a_catalogued_device_has_its_predictions_beside_what_was_measured(setting, gathered, rows):
    here = setting("corners", "cuda")
    known = msgspec.structs.replace(
        here.environment, device_name="NVIDIA H100 80GB HBM3", device_memory_bytes=80 * 2**30
    )
    here = msgspec.structs.replace(here, environment=known)
    made = parallel.STUDY.parts(gathered(parallel.STUDY, here), here)
    (table,) = [each for each in made.tables if each.title == "Predicted beside measured"]
    predicted = {each["layout"]: each["predicted"] for each in rows(table)}
    assert predicted["one rank"] > 0 and predicted["fsdp 2"] > predicted["one rank"]
