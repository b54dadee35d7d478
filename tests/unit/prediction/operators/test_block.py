"""What is recomputed, held to the lever; the operators themselves are in `test_against_h200`."""

from peakward.lab.levers.compilation import SAVED_BY_SELECTIVE
from peakward.prediction.operators.block import KEPT_BY_SELECTIVE


def test_what_is_kept_is_what_the_lever_keeps():
    kept = {each if "." in each else f"aten.{each}" for each in KEPT_BY_SELECTIVE}
    assert kept == {str(each.overloadpacket) for each in SAVED_BY_SELECTIVE}
