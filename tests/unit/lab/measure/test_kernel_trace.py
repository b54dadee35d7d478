"""What a traced step's file tells, on a machine whose device is the host."""

import pytest
import torch

from peakward.lab.levers.ranges import opened_phases
from peakward.lab.measure.memory_record import KernelTrace
from peakward.traces.readers.torch_allocations import read
from peakward.traces.step_spans import step_rows
from peakward.traces.trace import Trace


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_step_its_ranges_and_its_allocations_are_in_the_file(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    trace = KernelTrace(tmp_path / "t.json.gz")
    torch.ones(100)
    trace.start()
    with opened_phases("step") as mark:
        mark("forward")
        torch.ones(1000).sum()
        mark(None)
    trace.stop()
    trace.write()
    assert len(waited) == 2
    found = Trace.open(trace.path).table
    assert len(step_rows(found)) == 1
    assert {"peakward::forward", "aten::sum"} <= set(found.names)
    # The host's memory is no GPU's.
    assert len(read(trace.path).at_ns) == 0
    assert not list(tmp_path.glob("*.json"))
