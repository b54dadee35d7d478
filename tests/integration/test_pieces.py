"""Small pieces of code, measured for real in a worker, stored and taken from the store."""

import msgspec
import pytest

from peakward.lab.measure import probe
from peakward.lab.measure.isolated import Workers
from peakward.lab.measure.sweep import Sweep
from peakward.records.case import MicroCase
from peakward.records.measurement import Protocol
from peakward.store.database import Store

PROTOCOL = Protocol(warmup_steps=2, min_steps=3, max_steps=3, timeout_s=600.0)
SOFTMAX = MicroCase(subject="softmax", piece="three passes", sizes=(16, 64), device="cpu")


@pytest.fixture
def workers(handed_on):
    with Workers() as workers:
        yield workers


def test_a_piece_is_timed_with_its_work_and_resumes(workers, tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        sweep = Sweep(store, workers, probe.environment("cpu"))
        first, again = (sweep.measure(SOFTMAX, PROTOCOL) for _ in range(2))
    assert first.status == "ok", first.reason
    assert first == again
    assert len(first.runs[0].steps_s) == 3
    assert first.piece.moved_bytes == 8 * 4 * 16 * 64 + 4 * 4 * 16
    assert first.piece.difference < 64 * 2.0**-24
    assert (first.phases, first.loss, first.n_parameters) == ((), None, None)


@pytest.mark.full
def test_what_is_compiled_says_so(workers):
    case = msgspec.structs.replace(SOFTMAX, piece="compiled")
    found = workers.measure(case, PROTOCOL)
    assert found.status == "ok", found.reason
    assert (found.piece.moved_bytes, found.piece.counted_by) == (2 * 4 * 16 * 64, "compiler")
    assert found.compile.n_graphs == 1
    assert found.compile.compile_s > 0


def test_a_piece_that_cannot_run_here_is_a_status_with_its_reason(workers):
    case = msgspec.structs.replace(SOFTMAX, piece="abacus")
    found = workers.measure(case, PROTOCOL)
    assert found.status == "invalid"
    assert "got 'abacus'" in found.reason
