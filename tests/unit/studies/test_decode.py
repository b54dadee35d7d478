"""What `decode` plans, predicts and concludes from known figures."""

import msgspec
import pytest

from peakward.prediction.flops import forward_flops
from peakward.prediction.inference.cost import decode_step, prefill
from peakward.records.inference import ServingWorkload
from peakward.studies.decode import (
    CACHED,
    FUSED,
    GRAPHS,
    LENGTH,
    NAIVE,
    STUDY,
    WHOLE,
    available,
    case,
    flops_per_token,
    points,
)
from peakward.studies.engine import view
from peakward.studies.expected import bandwidth_share, expected_s, floor_s
from peakward.studies.readings import Readings
from peakward.studies.values import Value, table


@pytest.fixture
def on_h200(setting):
    here = setting()
    named = msgspec.structs.replace(
        here.environment, device_name="NVIDIA H200", device_memory_bytes=139 * 2**30
    )
    return msgspec.structs.replace(here, environment=named)


def test_a_cpu_goes_two_ways_and_a_gpu_five(setting):
    assert available(setting("small", "cpu")) == (NAIVE, CACHED)
    assert available(setting()) == (NAIVE, CACHED, GRAPHS, FUSED, WHOLE)
    assert {point.case.configuration.precision for point in points(setting("small", "cpu"))} == {
        "fp32"
    }


def test_keeping_nothing_costs_as_many_times_as_there_are_positions(
    setting, gathered, figures, rows
):
    """The fake lab takes the FLOPs of a step, times the positions where nothing is kept, over a rate."""
    here = setting("small", "cpu")
    found = STUDY.parts(gathered(STUDY, here), here)
    said = [each.text for each in found.conclusions]
    assert any(
        each.startswith("tiny at 1,024 positions: re-projection takes 1,020× the time of KV cache")
        for each in said
    )
    flops = "a token takes 16.0 GFLOP by re-projection and 17.7 MFLOP with a KV cache."
    assert f"tiny at 1,024 positions: {flops}" in said
    assert any("micro, re-projection: a step's time grows with positions" in each for each in said)
    table = rows(found.tables[0])
    assert [each["way"] for each in table[:2]] == [NAIVE, CACHED]
    assert table[0]["FLOPs a token"] > 50 * table[1]["FLOPs a token"]
    assert all(each["share of the bandwidth"] for each in table)


def test_what_failed_is_not_told(setting, gathered):
    here = setting("small", "cpu")
    failed = STUDY.parts(gathered(STUDY, here, overrule=lambda _case: "oom"), here)
    assert failed.conclusions == ()
    assert {row[2] for table in failed.tables[:1] for row in table.rows} == {"oom"}


def test_flops_are_those_of_planned_serving(setting):
    """`plan --output-len` counts the same: a prefill for each token without a cache, one step with it."""
    here = setting()
    for row in view(points(here), gathered_nothing(), here).rows:
        shape, n = row.point.case.model, row.point.case.workload.seq_len
        served = ServingWorkload(batch_size=1, prompt_len=n - 1, output_len=2)
        if row.name == NAIVE:
            whole = msgspec.structs.replace(served, prompt_len=n)
            # The loop has the logits of all positions, which nobody asked for.
            heads = forward_flops(shape, 1, n) - prefill(shape, whole).flops
            assert heads == pytest.approx(2 * (n - 1) * shape.vocab_size * shape.d_model)
        else:
            step = decode_step(shape, served, served.contexts)
            assert flops_per_token(row) == pytest.approx(step.flops, rel=1e-12)


def gathered_nothing():
    from peakward.studies.readings import Readings

    return Readings()


def test_every_way_is_predicted_on_a_catalogued_gpu(on_h200, gathered):
    readings = gathered(STUDY, on_h200)
    rows = view(points(on_h200), readings, on_h200).rows
    seen = {row.name: row for row in rows if row.case.model.name == "2.7B"}
    predicted = {name: expected_s(row).estimate for name, row in seen.items()}
    assert predicted[NAIVE] > 4 * predicted[CACHED] > predicted[GRAPHS] >= predicted[FUSED]
    assert len({floor_s(row) for row in seen.values()}) == 1
    assert bandwidth_share(seen[CACHED]).low < bandwidth_share(seen[CACHED]).estimate
    headings = [each.name for each in STUDY.parts(readings, on_h200).tables[0].columns]
    level = expected_s(seen[CACHED]).level
    assert {f"predicted ({level:.0%} interval)", "time (95% interval)"} <= {*headings}


def test_the_ways_are_one_work(setting):
    here = setting()
    shape = here.grid.models[0]
    works = {case(here, shape, 128, way).workload for way in available(here)}
    assert len(works) == 1


def test_a_sentence_on_a_value_stands_in_a_note_only_where_some_row_has_it(setting):
    seen = view(STUDY.points(setting()), Readings(), setting())
    unknown = Value("predicted", "s", lambda _row: None)
    for value, note in ((unknown, "First."), (LENGTH, "First. It has its own interval.")):
        told = table(
            "", (LENGTH, value), note="First.", about=((value, "It has its own interval."),)
        )
        (made,) = told(seen)
        assert made.note == note
