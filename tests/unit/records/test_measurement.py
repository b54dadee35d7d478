"""Which environments may stand in one table, and how a measurement ended."""

import msgspec
import pytest

from peakward.records.case import MicroCase
from peakward.records.measurement import Environment, Measurement, Protocol

HERE = Environment(
    device_type="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    device_memory_bytes=85_520_809_984,
    device_uuid="GPU-1",
    driver="570.1",
    n_cores=16,
    torch="2.13.0",
    python="3.11.7",
    system="Linux 6.1",
    peakward="0.1.0",
)


@pytest.mark.parametrize("change", [{"device_uuid": "GPU-2"}, {"peakward": "0.2.0"}])
def test_the_unit_and_peakward_itself_do_not_matter(change: dict[str, str]) -> None:
    assert msgspec.structs.replace(HERE, **change).key == HERE.key


@pytest.mark.parametrize(
    "change",
    [
        {"device_memory_bytes": 1},
        {"device_name": "NVIDIA H200"},
        {"driver": "570.2"},
        {"n_cores": 8},
        {"torch": "2.12.0"},
        {"system": "Linux 6.2"},
    ],
)
def test_everything_else_does(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(HERE, **change).key != HERE.key


def test_packages_of_levers_matter_and_without_any_the_key_is_as_it_was() -> None:
    assert HERE.key == "2803d3092a2a1d52"
    assert msgspec.structs.replace(HERE, lever_packages=("toy-levers 1.0",)).key != HERE.key


@pytest.mark.parametrize(
    ("ended_by", "told"), [("user", "interrupted"), ("case", "crashed"), ("outside", "crashed")]
)
def test_what_ctrl_c_ended_did_not_crash(ended_by, told) -> None:
    found = Measurement(
        id="m",
        case=MicroCase(subject="copy", piece="write", sizes=(1,), device="cuda"),
        protocol=Protocol(),
        environment=HERE,
        started_at="2026-11-29T12:00:00Z",
        wall_s=1.0,
        status="crashed",
        reason="interrupted by Ctrl-C while timing",
        ended_by=ended_by,
    )
    assert (found.status, found.told) == ("crashed", told)
