"""The events of a PyTorch trace, decoded with only the fields that the table needs, and their meaning."""

import pytest

from peakward.traces.readers.torch_events import direction_of, kind_of
from peakward.traces.table import Direction, GpuKind, HostKind


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("kernel", GpuKind.KERNEL),
        ("Memset", GpuKind.SET),
        ("cpu_op", HostKind.OP),
        ("cuda_runtime", HostKind.CALL),
        ("xpu_driver", HostKind.CALL),
        ("gpu_user_annotation", None),
        ("Trace", None),
        ("kernels", "unknown"),
        ("", "unknown"),
    ],
)
def test_kinds(category, kind):
    assert kind_of(category) is kind or kind_of(category) == kind == "unknown"


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy HtoD (Pinned -> Device)", Direction.HOST_TO_DEVICE),
        ("Memcpy DtoH (Device -> Pageable)", Direction.DEVICE_TO_HOST),
        ("Memcpy DtoD (Device -> Device)", Direction.DEVICE_TO_DEVICE),
        ("Memcpy PtoP (Device -> Device)", Direction.PEER),
        ("Memcpy HtoH (Pageable -> Pinned)", Direction.HOST_TO_HOST),
        ("CopyHostToDevice", Direction.HOST_TO_DEVICE),
        ("MEMORY_COPY_DEVICE_TO_HOST", Direction.DEVICE_TO_HOST),
        ("Memcpy", Direction.UNKNOWN),
    ],
)
def test_directions(name, direction):
    assert direction_of(name) == direction
