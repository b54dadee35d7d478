"""The rules on recorded traces: what each shows and nothing absurd."""

import os
from pathlib import Path

import pytest

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.diagnose.examine import examine
from peakward.hardware import devices
from peakward.prediction.planning.site import site
from peakward.traces.trace import Trace

TRACES = Path(__file__).parents[2] / "data" / "traces"
FOLDER = Path(os.environ.get("PEAKWARD_TRACES", Path(__file__).parents[4] / "shared" / "traces"))


def diagnosed(path: Path):
    if not path.exists():
        pytest.skip(f"no {path.name}: the real traces are not part of the project")
    trace = Trace.open(path)
    on = devices.match_all((each.name, each.memory_bytes) for each in trace.table.devices)
    profile = trace.profile(device=on)
    here = None if on is None else site(on)
    return examine(DiagnosisInput(subject=profile.source, profile=profile, site=here))


@pytest.mark.parametrize(
    ("path", "codes"),
    [
        # A compiled step whose profiled host is late; the same as one graph: nothing to find.
        (TRACES / "h200_decoder_compiled.json.gz", ["HOST002"]),
        (TRACES / "h200_decoder_cuda_graphs.json.gz", []),
        (TRACES / "cpu_decoder.json.gz", ["BW003", "ATTN001"]),
        # Steps of 1 ms, a good third of which is Python between small operators.
        (TRACES / "cpu_attention.json.gz", ["ATTN001", "TIME001"]),
        (FOLDER / "a100_ddp_nccl_ns.json.gz", ["HOST002", "COMM001"]),
        # Thinned: of a third of the time nothing in them says why the GPU is idle.
        (FOLDER / "two_ranks_us_rank0.json.gz", ["COMM001", "HOST002", "TIME001"]),
        (FOLDER / "two_ranks_us_rank1.json.gz", ["HOST002", "COMM001", "TIME001"]),
        # Batch 1, fused attention, bf16: launches, and the mask's `.item()`.
        (FOLDER / "h100_bert_small.json.gz", ["HOST002", "HOST004"]),
        (FOLDER / "mi300_bert_small.json.gz", ["HOST002", "HOST004"]),
        (FOLDER / "h100_2gpu_flash_nccl.sqlite", ["BW001", "PREC003", "BW002", "COMM001"]),
    ],
    ids=lambda each: each.name if isinstance(each, Path) else None,
)
def test_what_is_found(path, codes):
    found = diagnosed(path)
    assert [each.code for each in found.findings] == codes
    assert sum(each.beyond_s or 0.0 for each in found.findings) <= found.whole_s
