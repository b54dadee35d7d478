"""What is kept between the passes, and what is computed again."""

from peakward.prediction.operators.compiled_module.partition import split
from peakward.prediction.operators.tape import BFLOAT


def made(trace, cut):
    """What is kept of what the forward pass made."""
    return [each for each in cut.saved if trace.values[each].origin == "made"]


def test_of_a_chain_of_loops_what_it_begins_with_is_kept(trace):
    """The product's result; the chain is computed again where its gradient needs it."""
    x, weight = trace.given(64, 100), trace.parameter(100, 100)
    y = trace.call("mm", x, weight, made=(64, 100))
    a = trace.call("tanh", y, made=(64, 100))
    b = trace.call("mul", a, y, made=(64, 100))
    trace.call("exp", b, made=(64, 100), leaves=True)
    trace.phase = "backward"
    gradient = trace.given(64, 100)
    c = trace.call("mul", gradient, b, made=(64, 100))
    trace.call("mul", c, a, made=(64, 100), leaves=True)
    cut = split(trace.part)
    assert made(trace, cut) == [y]
    assert [each.name for each in cut.backward] == ["tanh", "mul", "mul", "mul"]
    assert len(cut.values) == len(trace.values) + 2, "both are new values there"


def test_what_a_product_of_the_backward_pass_reads_is_kept(trace):
    x, weight = trace.given(64, 100), trace.parameter(100, 100)
    y = trace.call("mm", x, weight, made=(64, 100))
    a = trace.call("silu", y, made=(64, 100))
    trace.call("mm", a, weight, made=(64, 100), leaves=True)
    trace.phase = "backward"
    gradient = trace.given(64, 100)
    trace.call("mm", a, gradient, made=(100, 100), leaves=True, seen={a: (100, 64)})
    b = trace.call("mm", gradient, weight, made=(64, 100))
    trace.call("silu_backward", b, y, made=(64, 100), leaves=True)
    cut = split(trace.part)
    assert made(trace, cut) == [y, a]
    assert weight in cut.saved
    assert all(each.name != "silu" for each in cut.backward)


def test_of_a_norm_its_input_and_the_figures_of_its_rows_are_kept(trace):
    x, weight = trace.given(64, 100), trace.parameter(100)
    y, mean, rstd = trace.call("native_layer_norm", x, weight, made=[(64, 100), (64, 1), (64, 1)])
    a = trace.call("exp", y, made=(64, 100), leaves=True)
    trace.phase = "backward"
    gradient = trace.given(64, 100)
    b = trace.call("mul", gradient, a, made=(64, 100))
    trace.call(
        "native_layer_norm_backward",
        b,
        x,
        mean,
        rstd,
        weight,
        made=[(64, 100), (100,)],
        leaves=True,
    )
    cut = split(trace.part)
    assert x in cut.saved
    assert made(trace, cut) == [mean, rstd]


def test_what_was_drawn_is_kept(trace):
    x = trace.given(64, 100)
    y, mask = trace.call("native_dropout", x, made=[(64, 100), (64, 100)])
    trace.call("exp", y, made=(64, 100), leaves=True)
    trace.phase = "backward"
    trace.call("mul", trace.given(64, 100), mask, made=(64, 100), leaves=True)
    assert made(trace, split(trace.part)) == [mask]


def test_of_a_wide_sum_of_narrow_tensors_the_terms_are_kept(trace):
    """A residual stream in fp32 that gets a product's result in bf16."""
    x, other = trace.given(64, 100), trace.given(64, 100, dtype=BFLOAT)
    y = trace.call(
        "mm", other, trace.parameter(100, 100, dtype=BFLOAT), made=(64, 100), dtype=BFLOAT
    )
    total = trace.call("add", x, y, made=(64, 100))
    trace.call("exp", total, made=(64, 100), leaves=True)
    trace.phase = "backward"
    trace.call("mul", trace.given(64, 100), total, made=(64, 100), leaves=True)
    cut = split(trace.part)
    assert {x, y} <= set(cut.saved)
    assert total not in cut.saved


def test_without_a_backward_pass_nothing_is(trace):
    x = trace.given(64, 100)
    trace.call("exp", x, made=(64, 100), leaves=True)
    cut = split(trace.part)
    assert (cut.saved, cut.backward) == ((), ())
