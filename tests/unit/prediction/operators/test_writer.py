"""One description of a block's operators, read for time, for memory, and for both at once."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators import block, linear
from peakward.prediction.operators.linear import layers
from peakward.prediction.operators.plan import plan
from peakward.prediction.operators.tape import Tape
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.case import Configuration, ModelCase, Workload


def planned(shape=None, **settings):
    return plan(
        ModelCase(
            model=msgspec.structs.replace(model("small"), **(shape or {})),
            workload=Workload(batch_size=2, seq_len=128),
            configuration=Configuration(**settings),
            device="cuda",
        )
    )


def written(made, tape, line):
    x = None if line is None else line.op(made.hidden.n_bytes)
    on, given = Writer(tape, line), Value(made.hidden, x)
    saved, y = block.forward(on, made, given)
    block.backward(on, made, saved, y)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
@pytest.mark.parametrize("norm", ["torch", "fused"])
@pytest.mark.parametrize(
    "shape",
    [{}, {"norm": "layernorm", "bias": True, "gated": False}, {"n_experts": 4}],
    ids=["llama", "gpt", "experts"],
)
def test_what_is_written_does_not_depend_on_who_reads(shape, precision, norm):
    made = planned(shape, precision=precision, norm=norm, attention="sdpa")
    if "n_experts" in shape:
        made = made._replace(groups_in_one_kernel=True)
    tapes, lines = [Tape(), Tape()], [Timeline(), Timeline()]
    written(made, tapes[0], None)
    written(made, None, lines[0])
    written(made, tapes[1], lines[1])
    assert tapes[0].graph() == tapes[1].graph()
    assert lines[0].lifetimes().tensors() == lines[1].lifetimes().tensors()
    assert lines[0].phases == lines[1].phases


def test_a_linear_layer_s_calls_and_tensors():
    """Mixed: casts of weight and input, the product; then both gradients, and each one's cast."""
    made, tape, line = planned(precision="bf16-mixed"), Tape(), Timeline()
    on, layer = Writer(tape, line), layers(made).qkv
    x = Value(made.hidden, line.op(made.hidden.n_bytes))
    saved, y = linear.forward(on, layer, x)
    linear.backward(on, saved, y, "float32")
    names = [each.name.removeprefix("aten.") for each in tape.graph().operators]
    assert names == ["_to_copy", "_to_copy", "mm", "mm", "mm", "_to_copy", "_to_copy"]
    x_size, y_size, weight = 2 * 128 * 768, 2 * 128 * 3 * 768, 3 * 768 * 768
    tensors = line.lifetimes().tensors()
    assert [each.n_bytes for each in tensors] == [
        4 * x_size, 2 * weight, 2 * x_size, 2 * y_size,
        2 * weight, 2 * x_size, 4 * x_size, 4 * weight,
    ]  # fmt: skip
    assert [each.category for each in tensors[1:3]] == ["weight_casts", "activations"]
    assert tensors[-1].category == "gradients"
    assert tensors[1].last == tensors[5].made  # The cast weight is there until x's gradient is.
