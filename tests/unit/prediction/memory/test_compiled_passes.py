"""The compiled step against the allocations of one on an H100 (torch 2.11), recorded by torch."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.memory.replay import replay
from peakward.prediction.memory.step import timeline
from peakward.prediction.operators.compiled import graph as memory_graph
from peakward.prediction.operators.compiled_module.loops import INTO_BUFFERS
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload

SNAPSHOTS = Path(__file__).parents[3] / "data" / "snapshots"


@pytest.fixture(scope="module")
def case():
    """As it was recorded: three blocks of `small`, two steps of 2 × 256."""
    return ModelCase(
        model=msgspec.structs.replace(model("small"), n_layers=3),
        workload=Workload(batch_size=2, seq_len=256),
        configuration=Configuration(precision="bf16-mixed", attention="sdpa", compile="default"),
        device="cuda",
    )


def test_it_holds_and_reserves_as_much(case):
    recorded = json.loads((SNAPSHOTS / "compiled.json").read_bytes())["stats"]
    found = replay(timeline(case).lifetimes())
    # 2.2 MiB of 907 less are predicted, and why is not known.
    allocated = recorded["allocated_bytes.all.peak"]
    assert found.split.total_bytes == pytest.approx(allocated, abs=2.5 * 2**20)
    assert found.reserved_bytes == pytest.approx(recorded["reserved_bytes.all.peak"], rel=0.03)


# The kernels of compiled blocks and readouts by which time is predicted, against those by which memory is:
# they write the same tensors.

LARGE = 2**16
"""Bytes: of what is smaller, as a scalar, memory leaves some out."""


def operators_case(tokens, d_model, **configuration):
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
        if each.fused or each.name.removeprefix("aten.") in INTO_BUFFERS:
            written[kind, each.bytes_written] += each.count
    return {key: n for key, n in written.items() if key[1] >= LARGE}


@pytest.mark.parametrize("tokens", [2048, 8192])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "fp16-mixed", "fp8"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", "flash"])
@pytest.mark.parametrize(
    "part",
    [{}, {"norm": "fused"}, {"rope": "fused"}, {"swiglu": "fused"}, {"loss": "chunked"}],
    ids=str,
)
def test_both_write_the_same_tensors(tokens, precision, attention, part, monkeypatch):
    """Of 8,192 tokens one kernel takes a norm's gradient with the sums for its weight (`mixes`)."""
    asked = operators_case(tokens, 768, precision=precision, attention=attention, **part)
    assert by_memory(asked, monkeypatch) == by_time(asked)


@pytest.mark.parametrize("checkpointing", ["none", "every-block", "selective"])
@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_both_write_the_same_tensors_of_gpt2(precision, checkpointing, monkeypatch):
    shape = msgspec.structs.replace(model("gpt2"), n_layers=1, vocab_size=50_304)
    asked = operators_case(2048, 768, precision=precision, checkpointing=checkpointing)
    asked = msgspec.structs.replace(asked, model=shape)
    assert by_memory(asked, monkeypatch) == by_time(asked)


def test_recomputed_blocks_hold_less():
    def peak_bytes(checkpointing):
        asked = operators_case(4096, 768, precision="bf16", checkpointing=checkpointing)
        deep = msgspec.structs.replace(asked.model, n_layers=8)
        lifetimes = timeline(msgspec.structs.replace(asked, model=deep)).lifetimes()
        return replay(lifetimes).split.total_bytes

    none, selective, every = map(peak_bytes, ("none", "selective", "every-block"))
    assert every < selective < none
