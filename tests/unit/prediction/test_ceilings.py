"""The longer of two times, and what is not known; the choice of a source is in test_floor."""

import pytest

from peakward.hardware.devices import device
from peakward.prediction.ceilings import Ceilings, ceilings, peak_flops_per_s, roof
from peakward.records.errors import PeakwardError

KNOWN = Ceilings("drawn", 100.0, 10.0, "datasheet")
UNKNOWN = KNOWN._replace(matmul_flops_per_s=None)


@pytest.mark.parametrize(
    ("flops", "bytes_", "times"),
    [
        (300.0, 20.0, (3.0, 2.0, 3.0, "compute")),
        (300.0, 40.0, (3.0, 4.0, 4.0, "memory")),
        (300.0, 30.0, (3.0, 3.0, 3.0, "memory")),
        (0.0, 30.0, (0.0, 3.0, 3.0, "memory")),
    ],
)
def test_the_longer_time_binds_and_a_tie_is_memory(
    flops: float, bytes_: float, times: tuple[float, float, float, str]
) -> None:
    assert roof(flops, bytes_, KNOWN) == times


def test_arithmetic_at_an_unknown_rate_has_no_time() -> None:
    assert roof(300.0, 20.0, UNKNOWN) == (None, 2.0, None, None)
    assert roof(0.0, 20.0, UNKNOWN) == (0.0, 2.0, 2.0, "memory")


def test_a_datasheet_gives_its_rate_and_bandwidth_or_no_rate() -> None:
    h200 = device("h200-141")
    assert ceilings("bf16", None, h200) == (h200.name, 989e12, 4800e9, "datasheet")
    assert ceilings("fp4", None, h200).matmul_flops_per_s is None
    assert peak_flops_per_s(h200, "bf16") == 989e12
    assert peak_flops_per_s(None, "bf16") is None


def test_nothing_to_stand_on_is_refused() -> None:
    with pytest.raises(PeakwardError, match="got neither"):
        ceilings("bf16", None, None)
