"""Superlatives: of whom, and who was not there."""

import msgspec
import pytest

from peakward.records.case import OperatorCase
from peakward.records.measurement import Interval, Protocol
from peakward.studies.rivals import Rival, not_timed, rank


@pytest.fixture
def rival(measure, setting):
    def make(name, median_s=1.0, status="ok", reason=None, **options):
        case = OperatorCase(
            batch_size=1,
            n_heads=1,
            seq_len=128,
            head_dim=64,
            pass_="forward",
            precision="fp32",
            device="cuda",
        )
        found = measure(case, Protocol(), setting().environment, status=status)
        if status == "ok":
            median = Interval(estimate=median_s, low=0.9 * median_s, high=1.1 * median_s)
            found = msgspec.structs.replace(
                found, summary=msgspec.structs.replace(found.summary, median_s=median)
            )
        if reason is not None:
            found = msgspec.structs.replace(found, reason=reason)
        return Rival(name=name, measurement=found, **options)

    return make


def test_with_all_timed_the_first_is_the_fastest(rival):
    found = rank([rival("slow", 2.0), rival("near", 1.1), rival("quick", 1.0)])
    assert [each.name for each in found.timed] == ["quick", "near", "slow"]
    assert [each.name for each in found.near] == ["near"]
    assert (found.title, found.absent) == ("the fastest", "")


def test_the_absent_are_named_once_each_with_their_reason(rival):
    found = rank(
        [
            rival("quick"),
            rival("big", status="oom"),
            rival("long", status="timeout"),
            rival("ended", status="crashed", reason="interrupted by Ctrl-C while warming up"),
            rival("broken", status="crashed"),
            Rival(name="unseen", measurement=None),
            Rival(name="later", measurement=None),
            Rival(name="other GPU's", measurement=None, can_run=False),
        ]
    )
    assert found.title == "the fastest of those timed"
    assert found.absent == (
        "; not timed: big (out of memory), long (timed out), ended (interrupted), broken (crashed), "
        "unseen, later (not run), other GPU's (cannot run here)"
    )
    assert not_timed((*found.untimed, *found.untimed)) == found.absent
