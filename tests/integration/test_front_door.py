"""Python's door, for real."""

import msgspec
import pytest

import peakward as pw

pytestmark = pytest.mark.usefixtures("handed_on")


@pytest.fixture
def case() -> pw.ModelCase:
    shape = msgspec.structs.replace(
        pw.model("tiny"), name="mine", n_layers=1, d_model=32, d_ff=64, n_heads=2, n_kv_heads=2
    )
    shape = msgspec.structs.replace(shape, head_dim=16)
    return pw.case(shape, batch_size=1, seq_len=8, pass_="forward", device="cpu")


PROTOCOL = pw.Protocol(warmup_steps=0, min_steps=2, max_steps=2)


def test_measured_benched_compared_and_rendered(case, in_tmp):
    alone = pw.measure(case, PROTOCOL)
    assert (alone.status, alone.summary.n) == ("ok", 2)
    first = pw.bench([case], [PROTOCOL])
    again = pw.bench([case], [PROTOCOL])
    assert first.measurements == again.measurements
    assert pw.compare(first, again).measurements == first.measurements * 2
    assert first.title in pw.markdown(first)
    assert pw.html(first).lower().startswith("<!doctype html>")
    with pw.Store.open_read_only(in_tmp / "peakward.db") as store:
        assert store.study("last") == again
    judged = pw.compare(first, again, threshold=0.05, across=True)
    assert judged.command == f"peakward compare {first.id} {again.id} --threshold 0.05 --across"
    for threshold in (-0.01, 3, float("nan")):
        with pytest.raises(pw.PeakwardError, match="expected a share from 0 to below 1 for thresh"):
            pw.compare(first, again, threshold=threshold)


def test_a_live_step_is_measured_where_it_is():
    steps = []
    measurement = pw.measure_step(lambda: steps.append(1), name="append", protocol=PROTOCOL)
    assert measurement.status == "ok"
    assert len(steps) >= 2
