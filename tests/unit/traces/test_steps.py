import pytest

from peakward.traces.steps import step_rows

from .plain_readers import real
from .rows import Rows


def starts(builder):
    table, _ = builder.table()
    return table.host.start_ns[step_rows(table)].tolist()


def test_torchs_steps():
    assert starts(Rows().range("ProfilerStep#7", 0, 10).range("ProfilerStep#8", 10, 20)) == [0, 10]


def test_peakwards_steps_before_torchs():
    builder = Rows().range("ProfilerStep#0", 0, 40)
    builder.range("peakward::step", 1, 10).range("peakward::step", 11, 20)
    builder.range("peakward::steps", 0, 40).range("ProfilerStep#x", 0, 40)
    assert starts(builder) == [1, 11]


def test_no_steps():
    assert starts(Rows().range("training", 0, 10)) == []


@pytest.mark.parametrize(
    ("name", "n"), [("a100_ddp_nccl_ns.json.gz", 3), ("two_ranks_us_rank0.json.gz", 2)]
)
def test_steps_of_real_traces(name, n):
    table, _ = real(name)
    assert len(step_rows(table)) == n
