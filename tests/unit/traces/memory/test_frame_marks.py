"""What a line of a stack tells."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.memory.frame_marks import Mark, frame_marks, is_library, is_node
from peakward.traces.memory.table import Frame

SITE = "/env/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("filename", "library"),
    [
        ("/home/me/train.py", False),
        ("train.py", False),
        (f"{SITE}/transformers/modeling.py", False),
        (f"{SITE}/torch/nn/modules/linear.py", True),
        (f"{SITE}/triton/runtime/jit.py", True),
        ("C:\\env\\torch\\optim\\adam.py", True),
        ("/usr/lib/python3.12/contextlib.py", True),
        ("/tmp/torchinductor_me/ab/cabc.py", True),
        ("<eval_with_key>.3", True),
        ("<frozen runpy>", True),
        ("<ipython-input-3>", False),
        ("<stdin>", False),
        ("CUDACachingAllocator.cpp", True),
        ("??", True),
        ("", True),
    ],
)
def test_lines_of_the_program_are_told_from_those_of_libraries(filename, library):
    assert is_library(Frame(filename, 1, "f")) is library


@pytest.mark.parametrize("name", ["__torch_dispatch__", "__torch_function__"])
def test_what_hands_an_operator_on_is_no_line_of_the_program(name):
    assert is_library(Frame("/home/me/my_mode.py", 1, name))


@pytest.mark.parametrize(
    ("filename", "name", "marks"),
    [
        ("train.py", "step", Mark.PYTHON),
        ("train.py", "zero_grad", Mark.PYTHON | Mark.ZERO_GRAD),
        (f"{SITE}/torch/optim/sgd.py", "step", Mark.PYTHON | Mark.OPTIMIZER),
        (f"{SITE}/torch/optim/adam.py", "_init_group", Mark.PYTHON | Mark.OPTIMIZER | Mark.STATE),
        (f"{SITE}/torch/_tensor.py", "backward", Mark.PYTHON | Mark.BACKWARD),
        (f"{SITE}/torch/autograd/graph.py", "_engine_run_backward", Mark.PYTHON | Mark.BACKWARD),
        (f"{SITE}/torch/autograd/function.py", "apply", Mark.PYTHON),
        ("train.py", "backward", Mark.PYTHON),
        (f"{SITE}/torch/nn/modules/linear.py", "__init__", Mark.PYTHON | Mark.WEIGHTS),
        (f"{SITE}/torch/nn/modules/module.py", "_apply", Mark.PYTHON | Mark.WEIGHTS),
        (f"{SITE}/torch/cuda/memory.py", "empty_cache", Mark.PYTHON | Mark.EMPTY_CACHE),
        ("engine.cpp", "torch::autograd::Engine::thread_main(x)", Mark.BACKWARD),
        ("a.cpp", "torch::autograd::generated::MmBackward0::apply(x)", Mark.BACKWARD),
        ("a.cpp", "at::native::mm(x)", Mark(0)),
    ],
)
def test_marks(filename, name, marks):
    assert frame_marks(Frame(filename, 1, name)) == marks


def test_a_node_of_autograds_graph():
    name = "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"
    assert is_node(Frame("??", 0, name))
    assert not is_node(Frame("train.py", 3, name))
    assert not is_node(Frame("??", 0, "torch::autograd::Engine::evaluate_function(int)"))


@given(
    parts=st.lists(st.sampled_from(["torch::autograd::", "::apply", "(", "a", "Relu", " ", "s"]))
)
def test_a_node_is_told_as_by_one_pattern_of_the_whole(parts):
    name = "".join(parts)
    pattern = re.compile(r"torch::autograd::[^(]*?\w+::apply\b")
    assert is_node(Frame("??", 0, name)) == bool(pattern.search(name))
