"""Changing lengths and padding: which cases, over whole cycles."""

from peakward.studies.compile.shapes import EIGHTHS, cells, plan
from peakward.studies.readings import Readings


def test_three_engines_on_a_gpu_and_two_on_a_cpu(setting):
    def engines(device):
        return {cell.engine for cell in cells(Readings(), setting(device=device))}

    assert engines("cuda") == {"eager", "compile default", "cuda-graphs"}
    assert engines("cpu") == {"eager", "compile default"}


def test_each_engine_runs_over_changing_and_over_padded_lengths(setting):
    found = [(cell.engine, cell.lengths) for cell in cells(Readings(), setting())]
    assert len(found) == len(set(found)) == 6
    for case, _ in plan(setting()):
        assert len(case.workload.varying_seq_lens) == len(EIGHTHS)
        assert max(case.workload.varying_seq_lens) == case.workload.seq_len


def test_whole_cycles_are_timed(setting):
    for _, protocol in plan(setting()):
        assert protocol.min_steps == protocol.max_steps
        assert protocol.max_steps % len(EIGHTHS) == 0
        assert protocol.warmup_steps % len(EIGHTHS) == 0
