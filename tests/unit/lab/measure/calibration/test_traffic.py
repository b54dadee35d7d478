"""Copies and additions, and the bytes that they move."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peakward.lab.measure.calibration import traffic
from peakward.lab.measure.calibration.timing import NotMeasurableError, outcome

MIB = 2**20


class BytesMoved(TorchDispatchMode):
    """Counts the bytes of every distinct tensor that an operator takes or fills."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = {
            id(each): each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)
        }
        self.total += sum(each.numel() * each.element_size() for each in tensors.values())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def counted(monkeypatch):
    """A device that moves 10 bytes a second, as counted, and memory for 64 KiB a tensor."""

    def count(call, device_type):
        with BytesMoved() as moved:
            call()
        return moved.total / 10

    monkeypatch.setattr(traffic, "device_s", count)
    monkeypatch.setattr(traffic, "copy_size_bytes", lambda device_type: 128 * 2**10)


def test_both_operations_at_every_size_move_what_is_claimed(counted):
    rates = [outcome(each, "traffic") for each in traffic.traffic_attempts("cpu")]
    assert [(rate.operation, rate.size_bytes) for rate in rates] == [
        (operation, size * 2**10) for size in (4, 32, 64) for operation in ("copy", "add")
    ]
    assert all(rate.bytes_per_s == pytest.approx(10) for rate in rates)


@pytest.mark.parametrize(
    ("operation", "result"), [("copy", [1.0, 2.0, 3.0]), ("add", [11.0, 22.0, 33.0])]
)
def test_they_compute_what_they_say(monkeypatch, operation, result):
    def once(call, device_type):
        call()
        return 1.0

    monkeypatch.setattr(traffic, "device_s", once)
    a, b, out = torch.tensor([1.0, 2, 3]), torch.tensor([10.0, 20, 30]), torch.zeros(3)
    traffic._traffic_rate(operation, [a, b, out], "cpu")
    assert out.tolist() == result


def test_sizes_go_from_a_few_kib_to_the_largest():
    assert traffic.sizes_bytes(128 * MIB) == tuple(
        size * 2**10 for size in (4, 32, 256, 2048, 16384, 131072)
    )
    assert traffic.sizes_bytes(100 * MIB)[-2:] == (16 * MIB, 100 * MIB)


def test_a_cpu_has_none():
    with pytest.raises(NotMeasurableError, match="host's own memory"):
        next(traffic.link_attempts("cpu"))


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
        traffic,
        "torch",
        SimpleNamespace(
            randint=lambda _high, size, **_: Place("pageable", size[0]), uint8=torch.uint8
        ),
    )
    monkeypatch.setattr(traffic, "device_s", lambda call, device_type: call() or 0.5)
    rates = [outcome(each, "link") for each in traffic.link_attempts("cuda")]
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
