"""A mixture's operators on CUDA, where they differ from a CPU's; those are in
`test_against_capture`."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload

MIXTRAL = msgspec.structs.replace(model("mixtral-8x7b"), n_layers=1)


def graph(precision, capability=(9, 0), shape=MIXTRAL, **workload):
    made = ModelCase(
        model=shape,
        workload=Workload(**{"batch_size": 2, "seq_len": 128, **workload}),
        configuration=Configuration(precision=precision, attention="sdpa"),
        device="cuda",
    )
    return op_graph(made, compute_capability=capability)


def of_mixture(found, name, phase="forward"):
    return [
        each
        for each in found.operators
        if each.name == f"aten.{name}" and each.phase == phase and ".ff" in (each.module or "")
        if ".ff_" not in (each.module or "")
    ]


def test_bf16_on_hopper_and_blackwell_multiplies_all_experts_in_one_kernel():
    for capability in ((9, 0), (10, 0)):
        found = of_mixture(graph("bf16", capability), "_grouped_mm")
        assert [each.count for each in found] == [1, 1]
    assert not of_mixture(graph("bf16", (8, 0)), "_grouped_mm")
    assert not of_mixture(graph("fp16-mixed"), "_grouped_mm")


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed", "fp16-mixed", "fp32"])
def test_however_it_multiplies_the_products_are_the_models(precision):
    """Of the mixture alone, for attention's products depend on its kernel."""
    found, totals = graph(precision), {}
    for phase in ("forward", "backward"):
        products = (*of_mixture(found, "mm", phase), *of_mixture(found, "_grouped_mm", phase))
        totals[phase] = sum(each.count * each.flops for each in products)
    shape, tokens = MIXTRAL, 2 * 128
    active = 2 * shape.expert_parameters + shape.d_model * shape.n_experts
    assert totals == {"forward": 2 * tokens * active, "backward": 4 * tokens * active}


def test_of_all_experts_the_weights_are_read_of_the_active_ones_the_flops_counted():
    (up, down) = of_mixture(graph("bf16"), "_grouped_mm")
    weights = 8 * MIXTRAL.expert_parameters * 2
    rows = 2 * 2 * 128
    moved = rows * (MIXTRAL.d_model + MIXTRAL.d_ff) * 2 + 2 * 4 * 8
    assert up.bytes_read + down.bytes_read == weights + moved
    few = of_mixture(graph("bf16", batch_size=1, seq_len=2), "_grouped_mm")
    assert sum(each.bytes_read for each in few) < weights * 4 / 8 + 200_000


def test_where_there_is_no_kernel_the_host_reads_where_groups_end():
    read = [
        each for each in of_mixture(graph("fp32"), "_to_copy") if each.inputs[0].dtype == "int32"
    ]
    assert [each.outputs == each.inputs for each in read] == [True, True]
    assert all(each.inputs[0].dtype != "int32" for each in of_mixture(graph("bf16"), "_to_copy"))


def test_autocast_on_cuda_sums_what_experts_give_in_fp32():
    (summed,) = (
        each for each in of_mixture(graph("bf16-mixed"), "sum") if len(each.inputs[0].shape) == 3
    )
    assert (summed.inputs[0].dtype, summed.outputs[0].dtype) == ("bfloat16", "float32")
    (narrowed,) = (
        each
        for each in of_mixture(graph("bf16-mixed"), "_to_copy", "backward")
        if each.inputs[0].shape == (256, 2, MIXTRAL.d_model)
    )
    assert narrowed.bytes_read == 256 * MIXTRAL.d_model * 4


def test_fp16s_softmax_widens_by_itself():
    forward = of_mixture(graph("fp16-mixed"), "_softmax")
    backward = of_mixture(graph("fp16-mixed"), "_softmax_backward_data", "backward")
    assert [(each.inputs[0].dtype, each.outputs[0].dtype) for each in (*forward, *backward)] == [
        ("float16", "float32"),
        ("float32", "float16"),
    ]
