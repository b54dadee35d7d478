"""A user's module in a case, predicted by its operators."""

import msgspec
import pytest

import peakward as pw
from peakward.lab.levers.module_prediction import capture_case
from peakward.records.errors import PeakwardError


@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_products_are_counted_as_the_layers_have_them(pass_, make_module_case):
    """2·m·n·k of the linear layers: 3 + 1 + 2 + 2 widths squared a block, and the head."""
    found = capture_case(make_module_case("py:tiny_gpt:build", pass_=pass_))
    tokens, width, vocab_size = 32, 32, 50
    forward = 2 * tokens * width * (2 * 8 * width + vocab_size)
    linear = sum(
        each.count * each.flops
        for each in found.graph.operators
        if each.name in ("aten.mm", "aten.addmm", "aten.bmm")
    )
    assert linear == forward * (3 if pass_ == "train_step" else 1)
    assert found.tokens == tokens


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_a_model_of_transformers_is_predicted(kind, precision, make_module_case):
    pytest.importorskip("transformers")
    case = make_module_case(f"hf:{kind}", device="cuda", precision=precision)
    found = pw.predict(case, "h100-sxm-80")
    assert found.case == case
    assert found.needed_bytes > 0
    assert found.floor_s is None
    assert {"floor", "MFU"} <= {each.figure for each in found.absent}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"compile": "default"}, "expected compile none"),
        ({"attention": "sdpa-math"}, "expected attention as-written"),
        ({"checkpointing": "every-block"}, "expected checkpointing none"),
        ({"precision": "tf32"}, "a capture tells neither tf32"),
    ],
)
def test_what_a_capture_does_not_see_is_refused(settings, line, make_module_case):
    case = make_module_case("py:tiny_gpt:build")
    changed = msgspec.structs.replace(case.configuration, **settings)
    with pytest.raises(PeakwardError, match=line):
        capture_case(msgspec.structs.replace(case, configuration=changed))
