"""A step replayed from one graph is the step that ran eagerly, step after step."""

import gc

import msgspec
import pytest
import torch

from peakward.lab.levers.prepare import prepare
from peakward.levers.optimizer import OWN

pytestmark = pytest.mark.gpu

N_STEPS = 6


def eagerly(case):
    configuration = msgspec.structs.replace(case.configuration, cuda_graphs=False)
    return msgspec.structs.replace(case, configuration=configuration)


def trace(case):
    """The outputs of successive steps, and the parameters after them."""
    with prepare(case) as step:
        outputs = []
        for _ in range(N_STEPS):
            step.step()
            outputs.append(step.output.clone())
        return outputs, [each.detach().clone() for each in step.model.parameters()]


def check_equal(case, error):
    """As far as kernels that add in any order allow: 1e-5 of the outputs, and of the parameters
    1e-4, a fiftieth of what one update moves them by (the rate 1e-4 of weights about 0.02)."""
    (graph, graph_parameters), (eager, eager_parameters) = trace(case), trace(eagerly(case))
    for found, expected in zip(graph, eager, strict=True):
        assert error([found], [expected]) <= 1e-5
    assert error(graph_parameters, eager_parameters) <= 1e-4


@pytest.mark.parametrize("optimizer", ["adamw-foreach", "adamw-fused", *OWN])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_equals_eager(optimizer, accumulate, make_case, error):
    check_equal(
        make_case(cuda_graphs=True, optimizer=optimizer, workload={"accumulate": accumulate}), error
    )


@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-math"])
@pytest.mark.parametrize("pass_", ["prefill", "decode"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"n_kv_heads": 1, "window": 7}, {"positions": "learned"}, {"positions": "sinusoidal"}],
    ids=["rope", "mqa, window", "learned", "sinusoidal"],
)
def test_passes_with_a_cache_equal_eager(changes, pass_, attention, make_case, error):
    check_equal(make_case(shape=changes, cuda_graphs=True, pass_=pass_, attention=attention), error)


@pytest.mark.parametrize("setting", ["tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_every_precision_of_a_decode_step_can_be_captured(setting, attention, make_case, check):
    # 16 sequences: of the sides of fp8 matrices cuBLAS takes multiples of 16.
    case = make_case(
        pass_="decode",
        precision=setting,
        attention=attention,
        cuda_graphs=True,
        workload={"batch_size": 16},
    )
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_the_other_passes_equal_eager(pass_, make_case, error):
    check_equal(make_case(cuda_graphs=True, pass_=pass_, attention="sdpa"), error)


@pytest.mark.parametrize("mode", ["sqrt", "every-block", "selective"])
def test_checkpointing_equals_eager(mode, make_case, error):
    check_equal(make_case(cuda_graphs=True, checkpointing=mode), error)


@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_one_graph_for_each_length(pass_, make_case, error):
    """Three lengths twice round: each replay gives the loss of its own graph."""
    case = make_case(cuda_graphs=True, pass_=pass_, workload={"varying_seq_lens": (16, 64, 40)})
    check_equal(case, error)
    with prepare(case) as step:
        for _ in range(N_STEPS):
            step.step()
        assert len(step._captured._graphs) == 3


def test_padded_lengths_share_one_graph(make_case, error):
    lengths = {"varying_seq_lens": (16, 64, 40), "padding": "to-seq-len"}
    case = make_case(cuda_graphs=True, workload=lengths)
    check_equal(case, error)
    with prepare(case) as step:
        for _ in range(N_STEPS):
            step.step()
        assert len(step._captured._graphs) == 1


@pytest.mark.parametrize("setting", ["tf32", "bf16-mixed", "bf16", "fp8"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_every_precision_can_be_captured(setting, attention, make_case, check):
    with prepare(make_case(precision=setting, attention=attention, cuda_graphs=True)) as step:
        check(step)


@pytest.mark.parametrize("attention", ["sdpa-cudnn", "sdpa-flash"])
@pytest.mark.parametrize("optimizer", ["adamw-fused", "adamw-triton"])
def test_the_fast_kernels_can_be_captured(attention, optimizer, make_case, check):
    case = make_case(precision="bf16", attention=attention, optimizer=optimizer, cuda_graphs=True)
    with prepare(case) as step:
        check(step)


def test_a_graph_of_autograd_left_in_a_cycle_breaks_no_capture(make_case):
    """It was made on the default stream, and gradients are summed on the stream that it was made on."""
    with prepare(make_case(cuda_graphs=True, precision="bf16-mixed", attention="sdpa")) as step:
        gc.disable()
        try:
            (batch,) = next(step.batches())
            cycle = [step._loss_of(batch)]
            cycle.append(cycle)
            del cycle
            step.step()
        finally:
            gc.enable()
        assert torch.isfinite(step.output)


def test_a_step_is_one_launch(make_case):
    """Beside the copies of its inputs."""
    with prepare(make_case(cuda_graphs=True, precision="bf16", attention="sdpa")) as step:
        step.step()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            step.step()
            torch.cuda.synchronize()
    launches = [e.name for e in profile.events() if "Launch" in e.name]
    assert sum("GraphLaunch" in name for name in launches) == 1
    assert sum("LaunchKernel" in name for name in launches) <= 2


def test_graphs_hold_their_activations_once_for_all_lengths(make_case):
    """One pool: a graph for each of three lengths reserves about what the longest needs."""

    def reserved(lengths):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        workload = {"batch_size": 512, "varying_seq_lens": lengths}
        case = make_case(cuda_graphs=True, workload=workload)
        with prepare(case) as step:
            for _ in lengths:
                step.step()
            torch.cuda.empty_cache()
            return torch.cuda.memory_reserved() - before

    reserved((64,))  # The first sets up what stays.
    assert reserved((64, 48, 32)) < 1.6 * reserved((64,))
