"""The host link, where there is one."""

from types import SimpleNamespace

import pytest
import torch

from peakward.lab.measure.calibration import link
from peakward.lab.measure.calibration.attempt import NotMeasurableError, outcome


def test_a_cpu_has_none():
    with pytest.raises(NotMeasurableError, match="host's own memory"):
        next(link.attempts("cpu"))


def test_both_memories_in_both_directions(monkeypatch):
    copies = []

    class Place:
        def __init__(self, name):
            self.name = name

        def pin_memory(self):
            return Place("pinned")

        def cuda(self):
            return Place("device")

        def copy_(self, source, non_blocking):
            copies.append((source.name, self.name))

    monkeypatch.setattr(
        link,
        "torch",
        SimpleNamespace(randint=lambda *_, **__: Place("pageable"), uint8=torch.uint8),
    )
    monkeypatch.setattr(link, "device_s", lambda call, device_type: call() or 0.5)
    rates = [outcome(each, "link") for each in link.attempts("cuda")]
    assert copies == [
        ("pinned", "device"),
        ("device", "pinned"),
        ("pageable", "device"),
        ("device", "pageable"),
    ]
    assert [(rate.memory, rate.direction) for rate in rates] == [
        ("pinned", "to device"),
        ("pinned", "to host"),
        ("pageable", "to device"),
        ("pageable", "to host"),
    ]
    assert {rate.bytes_per_s for rate in rates} == {2 * link.SIZE_BYTES}
