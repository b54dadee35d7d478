"""What Inductor fuses, rule by rule."""

from peakward.prediction.operators.compiled_module.fusion import kernels
from peakward.prediction.operators.compiled_module.partition import split
from peakward.prediction.operators.tape import BFLOAT


def made(trace, backward=False):
    cut = split(trace.part)
    values = list(cut.values)
    leaves = {i for i, each in enumerate(values) if each.leaves}
    loops = cut.backward if backward else cut.forward
    return kernels(loops, values, leaves | (set() if backward else set(cut.saved)))


def kinds(found):
    return [each.kind or "call" for each in found]


def read(kernel):
    return {each.value: each.n_bytes for each in kernel.reads}


def test_a_chain_reads_each_tensor_once_and_writes_what_leaves(trace):
    x, y = trace.given(64, 100), trace.given(64, 100)
    a = trace.call("add", x, y, made=(64, 100))
    b = trace.call("silu", a, made=(64, 100))
    c = trace.call("mul", b, x, made=(64, 100), leaves=True)
    (kernel,) = made(trace)
    assert read(kernel) == {x: 25_600, y: 25_600}
    assert kernel.writes == (c,)
    assert kernel.names == ("aten.add", "aten.mul", "aten.silu")


def test_what_nobody_reads_is_not_computed(trace):
    x = trace.given(64, 100)
    trace.call("exp", x, made=(64, 100))
    kept = trace.call("neg", x, made=(64, 100), leaves=True)
    (kernel,) = made(trace)
    assert (kernel.writes, kernel.names) == ((kept,), ("aten.neg",))


def test_a_call_ends_a_fusion(trace):
    x, weight = trace.given(64, 100), trace.parameter(100, 100)
    a = trace.call("silu", x, made=(64, 100))
    y = trace.call("mm", a, weight, made=(64, 100))
    trace.call("silu", y, made=(64, 100), leaves=True)
    assert kinds(made(trace)) == ["pointwise", "call", "pointwise"]


def test_what_is_added_to_places_is_made_there_and_what_it_is_added_to_lies_in_memory(trace):
    """As the gradient of a mixture's rows, which come back from their experts' order."""
    x, places = trace.given(64, 100), trace.given(64, dtype="int64")
    zeros = trace.call("new_zeros", x, made=(32, 100))
    values = trace.call("silu", x, made=(64, 100))
    trace.call("_index_put_impl", zeros, places, values, made=(32, 100), leaves=True)
    first, second = made(trace)
    assert (first.writes, first.names) == ((zeros,), ("aten.new_zeros",))
    assert second.names == ("aten._index_put_impl", "aten.silu")
    assert read(second) == {x: 25_600, places: 512, zeros: 12_800}


def test_two_chains_that_one_product_lies_between_stay_two_though_they_share_a_tensor(trace):
    """One kernel for both would have to wait for itself."""
    x, weight = trace.given(64, 100), trace.parameter(100, 100)
    y = trace.call("mm", trace.call("exp", x, made=(64, 100)), weight, made=(64, 100))
    trace.call("add", x, y, made=(64, 100), leaves=True)
    assert kinds(made(trace)) == ["pointwise", "call", "pointwise"]


def test_two_that_share_a_tensor_and_wait_for_nothing_are_one(trace):
    x = trace.given(64, 100)
    trace.call("exp", x, made=(64, 100), leaves=True)
    trace.call("neg", x, made=(64, 100), leaves=True)
    (kernel,) = made(trace)
    assert read(kernel) == {x: 25_600}
    assert len(kernel.writes) == 2


def test_two_that_share_nothing_are_two(trace):
    trace.call("exp", trace.given(64, 100), made=(64, 100), leaves=True)
    trace.call("exp", trace.given(64, 100), made=(64, 100), leaves=True)
    assert kinds(made(trace)) == ["pointwise", "pointwise"]


def joined_twice(trace, n_operators):
    """Two halves joined, each of so many operators, and the whole joined with something else."""
    halves = []
    for _ in range(2):
        half = trace.given(64, 50)
        for _ in range(n_operators):
            half = trace.call("exp", half, made=(64, 50))
        halves.append(half)
    whole = trace.call("cat", *halves, made=(64, 100))
    trace.call("cat", whole, trace.given(64, 100), made=(64, 200), leaves=True)
    return made(trace)


def test_what_was_joined_is_a_part_of_what_is_joined_again(trace):
    assert kinds(joined_twice(trace, 4)) == ["pointwise"]


def test_what_was_joined_out_of_much_is_written_first(trace):
    """As the gradient of what RoPE turned."""
    assert kinds(joined_twice(trace, 7)) == ["pointwise", "pointwise"]


def test_a_norm_is_one_kernel_with_the_sum_before_and_the_cast_behind(trace):
    x, y, weight = trace.given(64, 100), trace.given(64, 100), trace.parameter(100)
    total = trace.call("add", x, y, made=(64, 100))
    normed, *_ = trace.call("native_layer_norm", total, weight, made=[(64, 100), (64, 1), (64, 1)])
    narrow = trace.call("_to_copy", normed, made=(64, 100), dtype=BFLOAT, leaves=True)
    (kernel,) = made(trace)
    assert kernel.kind == "inner_reduction"
    assert read(kernel) == {x: 25_600, y: 25_600, weight: 400}
    assert kernel.writes == (narrow,)


def test_sums_across_rows_are_a_kernel_of_parts_and_one_that_ends_them(trace):
    x = trace.given(1000, 100)
    y = trace.call("exp", x, made=(1000, 100))
    total = trace.call("sum", y, made=(1, 100))
    cast = trace.call("_to_copy", total, made=(1, 100), dtype=BFLOAT, leaves=True)
    parts, end = made(trace)
    assert (parts.kind, end.kind) == ("outer_reduction", "outer_reduction")
    assert read(parts) == {x: 400_000}
    assert [each.shape for each in parts.made] == [(8, 100)], "128 rows at once"
    assert end.writes == (cast,)


def test_few_rows_are_summed_at_once(trace):
    trace.call("sum", trace.given(100, 100), made=(1, 100), leaves=True)
    assert kinds(made(trace)) == ["outer_reduction"]


def both_ways(trace, n_rows, width):
    x = trace.given(n_rows, width)
    trace.call("sum", x, made=(n_rows, 1), leaves=True)
    trace.call("sum", x, made=(1, width), leaves=True)
    return kinds(made(trace))


def test_sums_both_ways_are_one_kernel_where_the_rows_are_many(trace):
    assert both_ways(trace, 8192, 1024) == ["mixed_reduction", "outer_reduction"]


def test_and_two_where_they_are_few(trace):
    assert both_ways(trace, 2048, 1024) == [
        *("inner_reduction", "outer_reduction", "outer_reduction"),
    ]


def test_what_is_written_one_way_and_read_another_is_not_one_kernel(trace):
    x, y = trace.given(4, 8, 16), trace.given(4, 8, 16)
    a = trace.call("add", x, y, made=(4, 8, 16), leaves=True)
    trace.call("clone", a, made=(4, 16, 8), leaves=True, seen={a: (4, 16, 8)})
    assert kinds(made(trace)) == ["pointwise", "pointwise"]


def test_what_reads_much_and_is_read_twice_is_written(trace):
    given = [trace.given(64, 100) for _ in range(5)]
    a = trace.call("addcmul", *given, made=(64, 100))
    trace.call(
        "mm", trace.call("exp", a, made=(64, 100)), trace.parameter(100, 100), made=(64, 100)
    )
    product = trace.call(
        "mm", trace.call("neg", a, made=(64, 100)), trace.parameter(100, 100), made=(64, 100)
    )
    trace.call("add", product, a, made=(64, 100), leaves=True)
    first, *_, last = made(trace)
    assert a in first.writes
    assert set(read(last)) == {product, a}


def test_of_a_half_of_a_tensor_that_half_is_read(trace):
    x = trace.given(64, 200)
    a = trace.call("exp", x, made=(64, 200))
    trace.call("neg", a, made=(64, 100), leaves=True, seen={a: (64, 100)})
    (kernel,) = made(trace)
    assert read(kernel) == {x: 25_600}


def test_alike_traces_have_equal_kernels(trace):
    x = trace.given(64, 100)
    trace.call("exp", x, made=(64, 100), leaves=True)
    assert made(trace) == made(trace)
