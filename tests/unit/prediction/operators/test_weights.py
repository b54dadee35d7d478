"""AdamW in a CUDA graph, which no capture holds, as torch calls it; and in Peakward's own kernel."""

import pytest

from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.parameters import n_parameters
from peakward.records.case import Configuration, ModelCase, Workload

CALLED = (
    "_foreach_add_",  # The step counts.
    *("_foreach_mul_", "_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_"),
    *("_foreach_pow", "_foreach_pow", "_foreach_sub_", "_foreach_sub_", "_foreach_neg_"),
    *("_foreach_div_", "_foreach_reciprocal_", "_foreach_sqrt_"),
    *("_foreach_sqrt", "_foreach_div_", "_foreach_add_", "_foreach_div_", "_foreach_addcdiv_"),
)
"""By a step of torch 2.13 with `foreach` and `capturable` on fake tensors of a GPU."""


def operators(*, captured, optimizer="adamw-foreach"):
    made = ModelCase(
        model=model("small"),
        workload=Workload(batch_size=4, seq_len=512),
        configuration=Configuration(cuda_graphs=captured, optimizer=optimizer),
        device="cuda",
    )
    return op_graph(made).operators


def test_a_captured_step_calls_what_torch_calls():
    names = [
        each.name.removeprefix("aten.")
        for each in operators(captured=True)
        if each.phase == "optimizer"
        for _ in range(each.count)
    ]
    assert sorted(names) == sorted(CALLED)


@pytest.mark.parametrize(("captured", "passes"), [(False, 20), (True, 22)])
def test_how_often_it_moves_the_parameters(captured, passes):
    """2 for each of mul_, mul_, sqrt, add_ and div_, 3 for lerp_ and addcmul_, 4 for addcdiv_; captured
    it divides twice. The rest are step counts."""
    moved = sum(
        each.count * (each.bytes_read + each.bytes_written)
        for each in operators(captured=captured)
        if each.phase == "optimizer" and any(x.shape for x in each.outputs)
    )
    assert moved / (4 * n_parameters(model("small"))) == pytest.approx(passes, rel=1e-5)


def test_the_batch_is_copied_to_where_the_graph_reads_it():
    copies = [each for each in operators(captured=True) if each.name == "aten.copy_"]
    assert [(each.count, each.bytes_read, each.bytes_written) for each in copies] == [
        (2, 4 * 512 * 8, 4 * 512 * 8)
    ]
    assert not any(each.name == "aten.copy_" for each in operators(captured=False))


@pytest.mark.parametrize("captured", [False, True])
def test_peakwards_own_moves_each_of_seven_streams_once(captured):
    """Of 12 blocks with six tensors, the embedding, the last norm and the head; 8 bytes are shared."""
    own = [
        each
        for each in operators(captured=captured, optimizer="adamw-triton")
        if each.name == "peakward.adamw"
    ]
    assert sum(each.count for each in own) == 12 * 6 + 3
    moved = sum(each.count * (each.bytes_read + each.bytes_written) for each in own)
    assert moved == 7 * 4 * n_parameters(model("small")) + 8 * (12 * 6 + 3)


@pytest.mark.parametrize(
    ("optimizer", "name", "a_parameter"),
    [
        ("adamw-bf16-states", "peakward.adamw_bf16", 3 * 4 + 4 * 2),
        # All sizes of the model divide by the block.
        ("adamw-8bit-states", "peakward.adamw_8bit", 3 * 4 + 4 * (1 + 1 / 256)),
    ],
)
def test_moments_in_fewer_bits_are_moved_as_they_are_stored(optimizer, name, a_parameter):
    """Beside them two factors and the step count are read for each tensor."""
    own = [each for each in operators(captured=True, optimizer=optimizer) if each.name == name]
    assert sum(each.count for each in own) == 12 * 6 + 3
    moved = sum(each.count * (each.bytes_read + each.bytes_written) for each in own)
    assert moved == a_parameter * n_parameters(model("small")) + 12 * (12 * 6 + 3)
