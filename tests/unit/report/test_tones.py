from typing import get_args

from peakward.records.measurement import Status, Verdict
from peakward.report.tones import tone


def test_every_status_and_verdict_has_a_tone():
    words = [
        *get_args(Status),
        *get_args(Verdict),
        "gain confirmed",
        "makes it run",
        "rejected",
        "inconclusive",
    ]
    assert [word for word in words if tone(word) is None] == []


def test_nothing_else_has():
    assert tone("sdpa") is tone(1.0) is tone(None) is None
