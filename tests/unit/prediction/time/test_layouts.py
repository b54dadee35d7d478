"""Which elementwise operators of the decoder meet tensors with gaps."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.time.layouts import scattered_share

from .round_device import operator, tensor

GATED, PLAIN = model("small"), model("gpt2")
X = tensor(4, 128, 3072)


def share(name, shape, module, phase="forward", inputs=(X, X)):
    return scattered_share(operator(name, inputs, [X], phase, module), shape)


@pytest.mark.parametrize("name", ["silu", "silu_backward", "gelu", "relu", "threshold_backward"])
def test_activations_read_a_half_of_each_row_where_they_are_gated(name):
    assert share(name, GATED, "blocks.*.ff") == 1.0
    assert share(name, PLAIN, "blocks.*.ff") == 0.0


def test_of_the_gates_two_gradients_one_multiplies_by_what_is_whole():
    assert share("mul", GATED, "blocks.*.ff") == 1.0
    assert share("mul", GATED, "blocks.*.ff", "backward") == 0.5
    assert share("mul", PLAIN, "blocks.*.ff") == 0.0


def test_of_what_experts_gave_gradients_are_expanded_unless_they_were_cast():
    mixture = msgspec.structs.replace(GATED, n_experts=4, n_active_experts=2)
    given = tensor(512, 2, 768)
    whole = operator("mul", (given, given), [given], "backward", "blocks.*.ff")
    expanded = msgspec.structs.replace(whole, bytes_read=whole.bytes_read * 3 // 4)
    assert scattered_share(whole, mixture) == 0.0
    assert scattered_share(expanded, mixture) == 1.0
    rows = operator("mul", (tensor(1024, 3072),) * 2, [given], "backward", "blocks.*.ff")
    assert scattered_share(rows, mixture) == scattered_share(rows, GATED) == 0.5


@pytest.mark.parametrize(("name", "scattered"), [("mul", 1.0), ("neg", 1.0), ("add", 0.0)])
def test_rotation_multiplies_and_negates_halves_of_heads(name, scattered):
    assert share(name, GATED, "blocks.*.attention") == scattered
    assert share(name, PLAIN, "blocks.*.attention") == 0.0


def test_what_is_broadcast_is_scattered_wherever_it_is():
    assert share("add", PLAIN, None, inputs=(X, tensor(128, 3072))) == 1.0
    assert share("div", PLAIN, None, inputs=(X, tensor())) == 1.0
    assert share("add", PLAIN, None, inputs=(X,)) == 0.0
    assert share("add", GATED, "blocks.*", inputs=(X, X)) == 0.0
