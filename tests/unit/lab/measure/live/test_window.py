"""A few steps under torch's profiler."""

import pytest
import torch

from peakward.lab.measure.live.others import is_profiled
from peakward.lab.measure.live.window import Window
from peakward.traces.trace import Trace


@pytest.fixture
def window():
    made = Window(with_stack=False)
    yield made
    if made._is_recording:
        made.close()


def test_each_step_is_a_range_and_so_is_the_wait(window, tmp_path):
    torch.ones(3).exp()
    window.start()
    assert is_profiled()
    for i in range(2):
        with window.waiting_for_data():
            x = torch.ones(4, 4)
        x @ x
        if i == 0:
            window.next_step()
    window.close()
    assert not is_profiled()
    window.write(tmp_path / "trace.json")
    found = Trace.open(tmp_path / "trace.json")
    profile = found.profile()
    assert profile.n_steps == 2
    names = {each.name: each.n for each in profile.kernels}
    assert names["aten::mm"] == 2
    assert "aten::exp" not in names, "before recording began"
    assert "peakward::data_load" in found.table.names


def test_one_that_never_recorded_is_let_go_of(window):
    with window.waiting_for_data():
        pass
    window.close()
    assert not is_profiled()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert is_profiled()
