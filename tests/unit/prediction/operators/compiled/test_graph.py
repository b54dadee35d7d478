"""Who writes to which buffer."""

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.compiled.graph import TUNING_BYTES, Buffer, Graph
from peakward.prediction.operators.tape import BFLOAT, FLOAT, tensor

ROW = tensor(FLOAT, 100)
WIDE = tensor(FLOAT, 1000)


def run(graph, *results, tuning=False):
    line = Timeline()
    graph.run(line, *results, tuning=tuning)
    return line.lifetimes().tensors()


def fused(graph, *reads, writes, over=None):
    (made,) = graph.fused(*reads, writes=(writes,), over=over)
    return made


def test_what_was_freed_by_the_kernel_before_is_written_to():
    graph = Graph()
    first = fused(graph, writes=ROW)
    second = graph.product(first, writes=WIDE)
    third = fused(graph, second, writes=ROW)
    assert [each.n_bytes for each in run(graph, third)] == [400, 4000]
    assert third.tensor == first.tensor


def test_another_type_gets_a_buffer_of_its_own():
    graph = Graph()
    first = fused(graph, writes=ROW)
    second = fused(graph, first, writes=WIDE)
    third = fused(graph, second, writes=tensor(BFLOAT, 200))
    assert [each.n_bytes for each in run(graph, third)] == [400, 4000, 400]


def is_kept(n_later):
    """Whether a row that dies is kept for a later one while a wide tensor is there, in a graph that
    holds so many elements more at its end."""
    graph = Graph()
    row = fused(graph, writes=ROW)
    wide = graph.product(row, writes=WIDE)
    narrow = fused(graph, wide, writes=tensor(FLOAT, 1))
    later = fused(graph, narrow, writes=ROW)
    last = graph.product(later, writes=tensor(FLOAT, n_later))
    run(graph, last)
    return row.tensor == later.tensor


def test_a_buffer_is_kept_where_the_peak_is_none_the_higher():
    assert is_kept(2000)
    assert not is_kept(1)


def test_results_are_never_written_over():
    graph = Graph()
    first = fused(graph, writes=ROW)
    second = fused(graph, first, writes=ROW)
    third = fused(graph, second, writes=ROW)
    last = fused(graph, third, writes=ROW)
    assert len(run(graph, first, last)) == 3
    assert last.tensor == second.tensor


def test_over_an_input_that_nobody_needs_any_more():
    line = Timeline()
    graph = Graph()
    logits = Buffer(WIDE, line.op(WIDE.n_bytes))
    gradient = fused(graph, logits, writes=WIDE, over=logits)
    needed = Buffer(WIDE, line.op(WIDE.n_bytes))
    other = fused(graph, needed, writes=WIDE, over=needed)
    graph.product(needed, gradient, writes=ROW)
    graph.run(line, other, tuning=False)
    assert gradient.tensor == logits.tensor
    assert other.tensor != needed.tensor


def test_one_result_alone_is_written_over_an_input():
    """As RoPE of queries and of keys in one kernel: Helium's keys had the place of its queries."""
    line = Timeline()
    graph = Graph()
    given = Buffer(WIDE, line.op(WIDE.n_bytes))
    queries, keys = graph.fused(given, writes=(WIDE, WIDE), over=given)
    graph.run(line, queries, keys, tuning=False)
    assert queries.tensor == given.tensor
    assert keys.tensor != given.tensor


def test_an_operator_of_torch_s_allocates_and_gives_back_by_itself():
    graph = Graph()
    first = fused(graph, writes=ROW)
    middle = fused(graph, first, writes=WIDE)
    (result,) = graph.operator(middle, writes=(ROW,), scratch=(64,))
    last = fused(graph, result, writes=ROW)
    found = run(graph, last)
    assert [each.n_bytes for each in found] == [400, 4000, 400, 64, 400]
    assert result.tensor not in (first.tensor, last.tensor)
    scratch = found[3]
    assert scratch.made == scratch.last


def test_kernels_that_are_launched_for_the_first_time_are_tuned_and_products_are_not():
    graph = Graph()
    first = fused(graph, writes=ROW)
    last = graph.product(first, writes=WIDE)
    found = run(graph, last, tuning=True)
    assert [each.n_bytes for each in found] == [400, TUNING_BYTES, 4000]
