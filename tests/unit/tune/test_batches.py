"""Which larger batches are worth measuring, and what they came to."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.levers.catalogue import lever, pull
from peakward.models.presets import model
from peakward.prediction.planning.forecast import CAPTURED_SHARE, largest_batch_size
from peakward.prediction.planning.site import site
from peakward.records.case import ModelCase, Workload
from peakward.records.measurement import (
    Environment,
    Interval,
    Measurement,
    MemoryUse,
    Protocol,
    Summary,
)
from peakward.tune.larger_batches import conclusion, fastest, larger, with_batch

HERE = site(device("h100-sxm-80"))
CASE = ModelCase(model=model("small"), workload=Workload(batch_size=4, seq_len=512), device="cuda")


def sizes(case=CASE, here=HERE, *, may_checkpoint=False, max_memory_bytes=None):
    found = larger(case, here, may_checkpoint=may_checkpoint, max_memory_bytes=max_memory_bytes)
    return [each.workload.batch_size for each in found.cases], found


def test_the_largest_that_is_predicted_to_fit():
    (size,), found = sizes()
    assert size == largest_batch_size(CASE, HERE)
    assert found.cases == (with_batch(CASE, size),)
    assert found.notes == ()


def test_checkpointing_is_tried_where_it_fits_more():
    (plain, recomputed), found = sizes(may_checkpoint=True)
    assert recomputed > plain
    assert found.cases[1].configuration.checkpointing == "every-block"


def test_less_memory_allows_less():
    (some,), _ = sizes(max_memory_bytes=40 * 2**30)
    assert some < sizes()[0][0]
    none, found = sizes(max_memory_bytes=6 * 2**30)
    assert none == []
    assert "twice as large" in found.notes[0]


def test_a_graph_gets_what_its_uncompiled_twin_does_with_room_to_spare():
    captured = pull(lever("cuda-graphs"), CASE)
    (size,), found = sizes(captured)
    limit = round(HERE.limit_bytes(None) / CAPTURED_SHARE[1])
    assert size == largest_batch_size(msgspec.structs.replace(CASE, memory_limit_bytes=limit), HERE)
    assert found.cases[0].configuration.cuda_graphs


@pytest.mark.parametrize(
    ("case", "here"), [(CASE, None), (msgspec.structs.replace(CASE, device="cpu"), HERE)]
)
def test_where_memory_is_not_predicted_it_says_so(case, here):
    none, found = sizes(case, here)
    assert none == []
    assert "on a catalogued GPU alone" in found.notes[0]


def measured(size, step_s, gib):
    median = Interval(estimate=step_s, low=step_s, high=step_s)
    return Measurement(
        id=f"m{size}",
        case=with_batch(CASE, size),
        protocol=Protocol(),
        environment=Environment(
            device_type="cuda",
            device_name="A GPU",
            device_memory_bytes=80 * 2**30,
            n_cores=2,
            python="3.11.7",
            system="Linux",
            peakward="0.1.0",
        ),
        started_at="2026-11-22T00:00:00+00:00",
        wall_s=1.0,
        status="ok",
        summary=Summary(median_s=median, mean_s=step_s, sd_s=0.0, min_s=step_s, n=9),
        memory=MemoryUse(peak_allocated_bytes=gib * 2**30),
    )


def test_the_most_tokens_within_the_memory_that_is_allowed():
    base, some, most = measured(4, 0.1, 4), measured(16, 0.3, 16), measured(64, 1.0, 64)
    assert fastest((base, some, most)) is most
    assert fastest((base, some, most), 20 * 2**30) is some
    said = conclusion(some, base)
    assert said.text.startswith("Most tokens/s: 27.3k tok/s at a batch size of 16, 1.33×")
    assert said.evidence[1].from_ids == ("m16", "m4")
    assert conclusion(None, base) is None
