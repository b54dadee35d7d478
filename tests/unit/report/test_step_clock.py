"""The two tables of a step on its kernels' clock say the same phases in the same order."""

import importlib.util
from pathlib import Path

import msgspec

from peakward.report.step_clock import PEAK_COLUMNS, QUEUE_COLUMNS, peak_rows, queue_rows


def recorded():
    path = Path(__file__).parents[2] / "golden" / "studies.py"
    spec = importlib.util.spec_from_file_location("studies", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.recorded()


def test_a_row_of_each_for_every_phase():
    memory = recorded()
    peaks, queue = peak_rows(memory), queue_rows(memory)
    assert [row[0] for row in peaks] == [each.phase for each in memory.phases]
    assert [row[0] for row in queue] == [row[0] for row in peaks]
    assert {len(row) for row in peaks} == {len(PEAK_COLUMNS)}
    assert {len(row) for row in queue} == {len(QUEUE_COLUMNS)}


def test_without_a_clock_there_is_none():
    memory = msgspec.structs.replace(recorded(), clock=None, not_joined="got 3 for 4")
    assert peak_rows(memory) == queue_rows(memory) == []
