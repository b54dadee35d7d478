"""What the options of `study` become."""

import pytest

from peakward.api.machine import this_machine
from peakward.cli.study import Options, _scope


@pytest.mark.parametrize("given", ["64,256,128", "256,128,64", "64,128,256"])
def test_sequence_lengths_are_in_order_however_they_are_given(given):
    scope = _scope(Options(name="memory", seq_len=given), this_machine("cpu"))
    assert scope.seq_lens == (64, 128, 256)
