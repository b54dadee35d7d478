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
        def __init__(self, name, size):
            self.name, self.size = name, size

        def pin_memory(self):
            return Place("pinned", self.size)

        def cuda(self):
            return Place("device", self.size)

        def copy_(self, source, non_blocking):
            copies.append((source.name, self.name, self.size))

    monkeypatch.setattr(
        link,
        "torch",
        SimpleNamespace(
            randint=lambda _high, size, **_: Place("pageable", size[0]), uint8=torch.uint8
        ),
    )
    monkeypatch.setattr(link, "device_s", lambda call, device_type: call() or 0.5)
    rates = [outcome(each, "link") for each in link.attempts("cuda")]
    ways = [
        ("pinned", "to device", "pinned", "device"),
        ("pinned", "to host", "device", "pinned"),
        ("pageable", "to device", "pageable", "device"),
        ("pageable", "to host", "device", "pageable"),
    ]
    sizes = (4096, 256 * 2**20)
    assert copies == [(source, target, size) for *_, source, target in ways for size in sizes]
    assert [(rate.memory, rate.direction, rate.size_bytes, rate.bytes_per_s) for rate in rates] == [
        (memory, direction, size, 2 * size) for memory, direction, *_ in ways for size in sizes
    ]
