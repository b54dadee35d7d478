"""Compiled steps, alone and under everything that a best composition puts together.

Few: each costs a few seconds of code generation.
"""

import pytest
import torch

from peakward.lab.levers.prepare import prepare

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def counters():
    """Dynamo's, from nothing."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


BEST = {
    "precision": "bf16",
    "attention": "sdpa-cudnn",
    "compile": "default",
    "cuda_graphs": True,
    "optimizer": "adamw-fused",
}


@pytest.mark.parametrize("pass_", ["forward", "train_step", "prefill", "decode"])
def test_the_best_composition(pass_, make_case, check, counters):
    with prepare(make_case(pass_=pass_, **BEST)) as step:
        check(step)
        assert counters["stats"]["unique_graphs"] == 2
        assert not counters["graph_break"]
        assert step._captured is not None


def test_the_best_composition_trains(make_case):
    """On the eight batches that come round, for long enough that it must have learned them."""
    with prepare(make_case(**{**BEST, "optimizer": "adamw-triton"})) as step:
        step.step()
        first = step.loss()
        for _ in range(400):
            step.step()
        last = step.loss()
    assert last < first - 0.1


@pytest.mark.parametrize(
    "choices",
    [
        {"precision": "bf16-mixed", "attention": "sdpa-flash", "checkpointing": "selective"},
        {"precision": "fp8", "attention": "sdpa-cudnn", "cuda_graphs": True},
        {"precision": "tf32", "attention": "naive", "checkpointing": "every-block"},
    ],
    ids=["selective", "fp8", "every block"],
)
def test_compiled_with(choices, make_case, check, counters):
    with prepare(make_case(compile="default", **choices)) as step:
        check(step)
        assert not counters["graph_break"]


def test_checkpointing_still_holds_less_when_compiled(make_case):
    """The compiler sees block and recomputation together, and might keep what it should not."""

    def peak(mode):
        case = make_case(
            shape={"n_layers": 8},
            workload={"batch_size": 64},
            pass_="forward_backward",
            precision="bf16",
            attention="sdpa",
            compile="default",
            checkpointing=mode,
        )
        with prepare(case) as step:
            step.step()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step.step()
            return torch.cuda.max_memory_allocated() - before

    assert peak("every-block") < peak("none")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_reduce_overhead_gives_the_loss_of_its_own_step(accumulate, make_case, error):
    """torch's own graphs reuse their outputs' memory: what a step hands out must be its own."""

    def losses(mode):
        case = make_case(
            precision="fp32", attention="sdpa", compile=mode, workload={"accumulate": accumulate}
        )
        with prepare(case) as step:
            seen = []
            for _ in range(6):
                step.step()
                seen.append(step.output.clone())
            return seen

    assert error(losses("reduce-overhead"), losses("none")) <= 1e-5
