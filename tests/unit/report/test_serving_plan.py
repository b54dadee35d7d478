"""What a serving plan's report leads with."""

import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.planning.plan import serving_plan
from peakward.prediction.planning.site import site
from peakward.records.inference import ServingWorkload, WeightFormat
from peakward.report.document import Facts, Note, TableBlock
from peakward.report.format import format_cell
from peakward.report.serving_plan import document


def report(*keys, batch_size=4, prompt_len=2048, **fields):
    workload = ServingWorkload(
        batch_size=batch_size, prompt_len=prompt_len, output_len=128, **fields
    )
    sites = [site(device(key)) for key in keys]
    plan = serving_plan(model("llama-3-8b"), workload, sites, limit_bytes=None, command="")
    return plan, document(plan)


def test_the_fastest_that_it_fits_leads():
    plan, found = report("l4-24", "h100-sxm-80", "t4-16")
    pace = plan.devices[1].floor.pace
    rate = format_cell(pace.output_tokens_per_s, "tokens_per_s")
    assert found.headline.startswith(f"NVIDIA H100 SXM 80 GB: at most {rate}")


def test_what_does_not_fit_is_said_and_does_not_lead():
    _, found = report("l4-24", batch_size=512)
    notes = [each.text for each in found.blocks if isinstance(each, Note)]
    assert notes == [
        "The workload does not fit the memory of NVIDIA L4 24 GB. Times there assume that it does."
    ]
    assert found.headline.startswith("Weights and cache fit none")


def test_without_a_rate_there_are_no_times_and_the_reason_is_there():
    _, found = report("t4-16", "h100-sxm-80")
    times = next(each.table for each in found.blocks if isinstance(each, TableBlock))
    assert [row[0] for row in times.rows] == ["NVIDIA H100 SXM 80 GB"]
    assert any("bf16" in each.text for each in found.blocks if isinstance(each, Note))


def test_it_says_what_may_beat_its_floors():
    _, found = report("h100-sxm-80")
    (conventions,) = (each for each in found.sections if each.title == "Conventions")
    said = conventions.blocks[0].texts[0]
    for exception in ("last cache", "router has favourites", "calibrated"):
        assert exception in said


def test_where_no_batch_is_bound_by_compute_the_devices_are_named():
    """A context of 512 takes an H100 longer to read than to compute with, and an A100 not."""
    notes = []
    for keys in (("h100-sxm-80",), ("a100-sxm-80",), ("h100-sxm-80", "a100-sxm-80")):
        plan, found = report(*keys, prompt_len=512)
        tables = [each.table for each in found.blocks if isinstance(each, TableBlock)]
        notes.append(next(each.note for each in tables if each.title == "Memory and batch"))
    always = "The cache keeps decoding bound by memory at every batch size."
    turns = "Compute-bound from: the smallest batch size whose decode step is bound by compute."
    assert notes[:2] == [always, turns]
    h100 = plan.devices[0].device_name
    assert notes[2] == (
        f"{turns} On {h100} the cache keeps decoding bound by memory at every batch size."
    )


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (WeightFormat(), "bf16"),
        (
            WeightFormat(type="int4", group_size=128),
            "int4 in the blocks' matrices, a scale for 128; embedding, head and norms in 16 bits",
        ),
        (
            WeightFormat(type="fp8"),
            "fp8 in the blocks' matrices; embedding, head and norms in 16 bits",
        ),
    ],
)
def test_what_stays_in_16_bits_is_named(stored, told):
    _, found = report("l4-24", weights=stored)
    (facts,) = (each.facts for each in found.blocks if isinstance(each, Facts))
    assert {each.name: each.value for each in facts}["weights"] == told
