"""The grid of `checkpointing`: how it trains, and what each mode costs."""

import msgspec
import pytest

from peakward.prediction.flops import recomputed_flops
from peakward.studies import checkpointing
from peakward.studies.checkpointing.grid import MODES, cells, plan, precision
from peakward.studies.scope import Scope


def test_size_by_sequence_by_mode(setting):
    assert len(plan(setting())) == 2 * 2 * len(MODES)
    assert {case.configuration.attention for case, _ in plan(setting())} == {"sdpa"}


def test_the_precision_is_the_users_or_what_the_device_trains_in(setting):
    assert precision(setting()) == "bf16-mixed"
    assert precision(setting(device="cpu")) == "fp32"
    assert precision(setting(Scope("corners", precisions=("bf16", "fp32")))) == "bf16"
    here = setting()
    volta = msgspec.structs.replace(here.environment, compute_capability="7.0")
    assert precision(msgspec.structs.replace(here, environment=volta)) == "fp32"


def test_each_mode_is_held_against_keeping_everything(setting, gathered):
    here = setting()
    found = cells(gathered(checkpointing, here), here)
    every = [cell for cell in found if cell.mode == "every-block"]
    assert len(every) == 4
    for cell in every:
        assert cell.recomputed_flops == recomputed_flops(cell.case) > 0
        assert cell.time_ratio == pytest.approx(1 + cell.recomputed_share)
        assert cell.peak_share < 1
    assert {cell.time_ratio for cell in found if cell.mode == "none"} == {1.0}
