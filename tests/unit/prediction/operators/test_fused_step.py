"""The fused step of decode, operator by operator, beside the step of separate kernels."""

from collections import Counter

import pytest

from peakward.models.presets import model
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError

FUSED = (("decode_step", "fused"),)


def case(
    name="2.7B",
    *,
    batch_size=1,
    seq_len=1024,
    more=FUSED,
    attention="flash-decode",
    **configuration,
):
    return ModelCase(
        model=model(name),
        workload=Workload(batch_size=batch_size, seq_len=seq_len, pass_="decode"),
        configuration=Configuration(
            precision="bf16", attention=attention, more=more, **configuration
        ),
        device="cuda",
    )


def calls(made):
    found = Counter()
    for each in op_graph(made).operators:
        found[each.name.removeprefix("peakward.decode_step_")] += each.count
    return found


def test_a_layer_is_four_products_and_attention():
    assert calls(case()) == {"embedded": 1, "product": 4 * 32 + 1, "attention": 32}
    of_rows = {"embedded": 1, "product_of_rows": 4 * 32 + 1, "attention": 32}
    assert calls(case(batch_size=4)) == of_rows


@pytest.mark.parametrize(
    ("weights", "product"), [("int8", "product_int8"), ("int4:128", "product_int4")]
)
def test_the_head_stays_dense_beside_narrow_weights_and_a_cache_of_bytes(weights, product):
    found = calls(case(weights=weights, kv_cache="int8"))
    assert found == {"embedded": 1, product: 4 * 32, "product": 1, "attention_int8": 32}


@pytest.mark.parametrize("settings", [{}, {"kv_cache": "int8"}, {"weights": "int4:128"}], ids=str)
def test_flops_and_what_is_read_are_those_of_separate_kernels(settings):
    """Of separate ones those of products and attention; beside weights and cache a fused one reads little."""
    fused, separate = (op_graph(case(more=more, **settings)) for more in (FUSED, ()))
    flops, as_separate = (
        sum(each.count * each.flops for each in graph.operators) for graph in (fused, separate)
    )
    assert flops == as_separate
    heavy = [each for each in separate.operators if each.flops]
    read = sum(each.count * each.bytes_read for each in heavy)
    assert sum(each.count * each.bytes_read for each in fused.operators) == pytest.approx(
        read, rel=2e-3
    )


def test_memory_is_that_of_separate_kernels():
    fused, separate = (peak_memory(case(more=more)).peak for more in (FUSED, ()))
    assert fused == separate


@pytest.mark.parametrize("kept", ["static", "int8"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_the_setting_of_attention_changes_neither_operators_nor_memory(kept, attention):
    here, there = (case(kv_cache=kept, attention=each) for each in (attention, "flash-decode"))
    assert op_graph(here).operators == op_graph(there).operators
    assert peak_memory(here).peak == peak_memory(there).peak


def test_beside_separate_kernels_a_cache_of_bytes_needs_attention_that_reads_it():
    with pytest.raises(PeakwardError, match="expected attention to a cache in bytes flash-decode"):
        op_graph(case(kv_cache="int8", attention="sdpa", more=()))


def test_what_the_kernels_do_not_compute_is_refused():
    with pytest.raises(PeakwardError, match="decode-step fused needs RMSNorm"):
        op_graph(case("gpt2"))
