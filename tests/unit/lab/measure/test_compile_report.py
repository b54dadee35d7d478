"""torch.compile's own counters, read."""

import pytest

from peakward.lab.measure import compile_report
from peakward.lab.measure.isolated import Workers
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.measurement import Protocol, Run
from peakward.records.model_shape import ModelShape

BREAK = (
    "Unsupported Tensor.item() call with capture_scalar_outputs=False\n"
    "  Explanation: Dynamo does not support tracing it.\n  Hint: Set `torch._dynamo.config`\n"
)
COUNTERS = {
    "stats": {"calls_captured": 14, "unique_graphs": 5},
    "graph_break": {BREAK: 2, "generic_jump": 1},
    "inductor": {"fxgraph_cache_miss": 8, "fxgraph_cache_hit": 2},
}


@pytest.mark.parametrize(
    ("warmup", "steps", "seconds"),
    [
        ((10.0, 1.0, 1.0), (1.0, 1.0), 9.0),
        ((), (10.0, 1.0, 1.0), 9.0),
        ((0.9,), (1.0, 1.0), 0.0),
    ],
)
def test_compile_time_is_what_steady_steps_do_not_explain(warmup, steps, seconds):
    assert compile_report.compile_s(Run(warmup_s=warmup, steps_s=steps)) == seconds


def test_counts_and_reasons():
    recompilations = [
        "0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3",
        "1/0: tensor 'x' size mismatch at index 0. expected 2, actual 3",
    ]
    run = Run(warmup_s=(5.0,), steps_s=(1.0,))
    found = compile_report.report(run, COUNTERS, recompilations)
    assert (found.n_graphs, found.n_graph_breaks, found.n_recompiles) == (5, 3, 2)
    assert found.n_cached_graphs == 2
    assert found.reasons == (
        "graph break: Unsupported Tensor.item() call with capture_scalar_outputs=False",
        "graph break: generic_jump",
        "recompiled: tensor 'x' size mismatch at index 0. expected 2, actual 3",
    )


def test_no_counters_is_no_compilation():
    found = compile_report.report(Run(warmup_s=(), steps_s=(1.0,)), {}, [])
    assert (found.n_graphs, found.n_graph_breaks, found.n_recompiles) == (0, 0, 0)
    assert found.reasons == ()


def test_real_counters_of_a_break_and_a_recompilation():
    import torch

    def broken(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    compile_report.reset()
    compiled = torch.compile(broken, backend="eager", dynamic=False)
    for size in (2, 3):
        compiled(torch.ones(size))
    found = compile_report.read(Run(warmup_s=(1.0,), steps_s=(1.0,)))
    assert found.n_graphs == 4  # two pieces, each for two sizes
    assert found.n_graph_breaks >= 1
    assert found.n_recompiles == 2
    assert any(each.startswith("graph break: ") for each in found.reasons)
    assert any("size mismatch" in each for each in found.reasons)
    compile_report.reset()
    assert compile_report.read(Run(warmup_s=(1.0,), steps_s=(1.0,))).n_graphs == 0


@pytest.mark.full
def test_what_one_worker_compiled_another_takes_from_the_cache(tmp_path, monkeypatch):
    """Also where another optimizer steps. On two cores 129 s became 11."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    shape = ModelShape(
        name="t",
        vocab_size=64,
        n_layers=1,
        d_model=32,
        d_ff=64,
        n_heads=2,
        n_kv_heads=2,
        head_dim=16,
        max_seq_len=16,
    )
    protocol = Protocol(warmup_steps=1, min_steps=2, max_steps=2, phases=False)
    cached = []
    with Workers() as workers:
        for optimizer in ("adamw-foreach", "adamw-foreach", "adamw-fused"):
            case = ModelCase(
                model=shape,
                workload=Workload(batch_size=2, seq_len=16, pass_="train_step"),
                configuration=Configuration(compile="default", optimizer=optimizer),
                device="cpu",
            )
            cached.append(workers.measure(case, protocol).compile.n_cached_graphs)
            workers.close()
    assert cached == [0, 4, 4], "forward and backward, of the block and of the readout"
