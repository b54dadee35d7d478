"""What the reader of a window makes of it."""

from pathlib import Path

import pytest

from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.loop import LoopTimes, Pauses, WatchedWindow
from peakward.tune.window_reader import reading

TRACES = Path(__file__).parents[2] / "data" / "traces"
WINDOW = TRACES / "h200_decoder_cuda_graphs.json.gz"
"""Of three steps."""
TIMES = LoopTimes(
    n_steps=100, total_s=10.0, median_s=0.1, spread_s=0.0, change=0.0, change_p_value=1.0,
    waited_s=0.0, n_collections=0, collected_s=0.0, longest_collection_s=0.0, pauses=Pauses(),
    n_windows=1, windows_s=0.1,
)  # fmt: skip


def test_a_gpus_window_knows_its_device():
    found = reading(WINDOW, TIMES)
    assert found.device == "h200-141"
    assert found.diagnosis.basis == "watched step"
    assert codec.from_json(codec.to_json(found), WatchedWindow) == found


def test_idle_time_is_that_of_the_loops_own_steps():
    """Three steps with 5 ms of work each: in a loop whose steps take 100 ms the rest is idle."""
    found = reading(WINDOW, TIMES)
    together = found.profile.breakdown.together
    busy_s, profiled_idle_s = together.busy_ns * 1e-9 / 3, together.idle_ns * 1e-9 / 3
    idle = [each for each in found.diagnosis.findings if each.code.startswith("HOST")]
    assert found.diagnosis.whole_s == pytest.approx(0.1)
    assert sum(each.beyond_s for each in idle) <= 0.1 - busy_s
    assert max(each.held_back_s for each in idle) > 10 * profiled_idle_s


def test_a_window_without_its_steps_is_refused():
    with pytest.raises(PeakwardError, match="steps marked"):
        reading(TRACES / "h200_decoder_compiled.json.gz", TIMES)


def test_what_is_no_trace_is_refused(tmp_path):
    (tmp_path / "window.json").write_text("{}")
    with pytest.raises(PeakwardError):
        reading(tmp_path / "window.json", TIMES)
