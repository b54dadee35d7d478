"""The kernels of compiled blocks and readouts by which time is predicted, against those by which memory is:
they write the same tensors."""

from collections import Counter

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.memory.compiled import graph as memory_graph
from peakward.prediction.memory.step import timeline
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload

LARGE = 2**16
"""Bytes: of what is smaller, as a scalar, memory leaves some out."""


def case(tokens, d_model, **configuration):
    shape = msgspec.structs.replace(model("small"), n_layers=1, d_model=d_model)
    return ModelCase(
        model=shape,
        workload=Workload(batch_size=tokens // 512, seq_len=512, pass_="forward_backward"),
        configuration=Configuration(compile="default", **configuration),
        device="cuda",
    )


def by_memory(case, monkeypatch):
    written = Counter()
    run = memory_graph.Graph.run

    def kept(graph, line, *results, tuning):
        for kernel in graph._kernels:
            if kernel.kind != "operator":
                written[kernel.kind, sum(each.n_bytes for each in kernel.writes)] += 1
        return run(graph, line, *results, tuning=tuning)

    with monkeypatch.context() as patched:
        patched.setattr(memory_graph.Graph, "run", kept)
        timeline(case)
    return {key: n // 2 for key, n in written.items() if key[1] >= LARGE}  # Two steps are held.


def by_time(case):
    written = Counter()
    for each in op_graph(case).operators:
        kind = "fused" if each.fused else "product"
        if each.fused or each.name in ("aten.mm", "aten.bmm"):
            written[kind, each.bytes_written] += each.count
    return {key: n for key, n in written.items() if key[1] >= LARGE}


@pytest.mark.parametrize("tokens", [2048, 8192])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", "flash"])
@pytest.mark.parametrize(
    "part",
    [{}, {"norm": "fused"}, {"rope": "fused"}, {"swiglu": "fused"}, {"loss": "chunked"}],
    ids=str,
)
def test_both_write_the_same_tensors(tokens, precision, attention, part, monkeypatch):
    """Of 8,192 tokens one kernel takes a norm's gradient with the sums for its weight (`mixes`)."""
    asked = case(tokens, 768, precision=precision, attention=attention, **part)
    assert by_memory(asked, monkeypatch) == by_time(asked)
