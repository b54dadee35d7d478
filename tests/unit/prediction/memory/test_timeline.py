"""Lifetimes of tensors."""

from peakward.prediction.memory.timeline import Tensor, Timeline


def test_a_tensor_is_there_until_its_last_use():
    line = Timeline()
    a = line.op(1)
    b = line.op(2, a)
    line.op(3, b)
    line.op(4, a)
    assert line.lifetimes().tensors() == [
        Tensor(1, "temporaries", 0, 3),
        Tensor(2, "temporaries", 1, 2),
        Tensor(3, "temporaries", 2, 2),
        Tensor(4, "temporaries", 3, 3),
    ]


def test_what_is_kept_is_there_to_the_end():
    line = Timeline()
    line.keep(line.op(1, category="parameters"))
    line.op(2)
    assert line.lifetimes().tensors()[0] == Tensor(1, "parameters", 0, 1)


def test_what_backward_needs_is_an_activation_unless_it_is_something_else():
    line = Timeline()
    x, logits = line.op(1), line.op(2, category="logits")
    assert line.saved(x, logits) == (x, logits)
    assert [each.category for each in line.lifetimes().tensors()] == ["activations", "logits"]


def test_the_second_gradient_of_a_parameter_is_gone_once_it_is_added():
    line = Timeline()
    line.gradient(8)
    line.accumulate()
    line.gradient(8)
    line.op(1)
    line.drop_gradients()
    line.gradient(8)
    assert line.lifetimes().tensors() == [
        Tensor(8, "gradients", 0, 2),
        Tensor(8, "temporaries", 1, 1),
        Tensor(1, "temporaries", 2, 2),
        Tensor(8, "gradients", 3, 3),
    ]


def test_dear_results_are_made_once():
    line, dear = Timeline(), []
    with line.remembering(dear):
        line.dear((5, 6))
        line.dear((7,))
    line.op(1)
    with line.recalling(tuple(dear)) as left:
        assert line.dear((5, 6)) == (0, 1)
        assert left == [2]
    line.dear((8,))
    assert line.lifetimes().tensors() == [
        Tensor(5, "activations", 0, 3),
        Tensor(6, "activations", 0, 3),
        Tensor(7, "temporaries", 1, 1),
        Tensor(1, "temporaries", 2, 2),
        Tensor(8, "temporaries", 4, 4),
    ]
