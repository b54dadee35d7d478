"""Files of stacks, named alike on every machine."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.memory import origins
from peakward.traces.memory.memory import Memory, memory
from peakward.traces.memory.origins import (
    CATEGORIES,
    Mark,
    frame_marks,
    is_library,
    is_node,
    source_path,
)
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import Frame
from stored_results import index

from .files import real, written

ROOTED = re.compile(r"(?<![\w./:-])/(?:[\w.-]+/)+[\w.-]+\.(?:py|db|json|pickle)\b[^\"]*")


@pytest.mark.parametrize(
    ("filename", "short"),
    [
        ("/home/a/peakward/src/peakward/lab/models/decoder.py", "peakward/lab/models/decoder.py"),
        ("/env/lib/python3.12/site-packages/peakward/lab/x.py", "peakward/lab/x.py"),
        (
            "/run/env/lib/python3.12/site-packages/torch/nn/modules/linear.py",
            "torch/nn/modules/linear.py",
        ),
        ("/usr/lib/python3/dist-packages/torch/_tensor.py", "torch/_tensor.py"),
        ("C:\\env\\Lib\\site-packages\\torch\\_tensor.py", "torch\\_tensor.py"),
        ("/run/train.py", "train.py"),
        ("/run/models/src/llama.py", "models/src/llama.py"),
        ("/running/train.py", "/running/train.py"),
        ("/usr/lib/python3.12/threading.py", "/usr/lib/python3.12/threading.py"),
        ("train.py", "train.py"),
        ("<string>", "<string>"),
    ],
)
def test_packages_and_what_lies_below_the_directory(filename, short):
    assert source_path(filename, "/run") == source_path(filename, "/run/") == short


def test_without_a_directory_only_packages_are_shortened():
    assert source_path("/run/train.py", "") == "/run/train.py"
    assert source_path("/run/src/peakward/a.py", "") == "peakward/a.py"


def test_a_snapshot_names_lines_from_where_it_is_read(tmp_path, monkeypatch):
    frame = {"filename": str(tmp_path / "train.py"), "line": 7, "name": "step"}
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "frames": [frame]}
    path = written(tmp_path, {"segments": [], "device_traces": [[event]]})
    monkeypatch.chdir(tmp_path)
    assert origins.source(read(path), 0) == "train.py:7 step"
    (device,) = memory(path).report().devices
    assert device.peak.holders[0].source == "train.py:7 step"


def test_a_path_of_a_machine_is_seen():
    assert ROOTED.findall(
        '{"source": "/home/someone/train.py:7 step", "url": "https://x.org/home/y.py"}'
    ) == ["/home/someone/train.py:7 step"]


@pytest.mark.parametrize("result", index().results, ids=lambda each: each.name)
def test_stored_results_name_no_machine_s_folders(result):
    assert not ROOTED.findall(result.read().decode())


TORCH = "/env/lib/python3.12/site-packages/torch"


def frame(path, name):
    return {"filename": path, "line": 1, "name": name}


STACKS = {
    "forward": [
        frame("train.py", "forward"),
        frame(f"{TORCH}/nn/modules/module.py", "_call_impl"),
        frame("train.py", "main"),
    ],
    "backward": [],
    "optimizer": [frame(f"{TORCH}/optim/adamw.py", "_foreach_adamw"), frame("train.py", "main")],
    "state": [frame(f"{TORCH}/optim/adamw.py", "_init_group"), frame("train.py", "main")],
    "zero_grad": [frame(f"{TORCH}/optim/optimizer.py", "zero_grad"), frame("train.py", "main")],
    "weights": [frame(f"{TORCH}/nn/modules/module.py", "_apply"), frame("train.py", "main")],
    "cublas": [frame("??", "at::cuda::setWorkspaceForHandle(cublasContext*)")],
    "main": [frame("train.py", "main")],
    "none": None,
    "C++ backward": [frame("engine.cpp", "torch::autograd::Engine::evaluate_function(...)")],
    "custom backward": [
        frame("ops.py", "backward"),
        frame(f"{TORCH}/autograd/function.py", "apply"),
    ],
    "custom forward": [
        frame("ops.py", "forward"),
        frame(f"{TORCH}/autograd/function.py", "apply"),
        frame("train.py", "main"),
    ],
    "recomputed": [
        frame("train.py", "forward"),
        frame(f"{TORCH}/nn/modules/module.py", "_call_impl"),
        frame(f"{TORCH}/utils/checkpoint.py", "unpack_hook"),
    ],
}


def program(tmp_path, *moves):
    """Of (letter, stack) to allocate and free by turns: the category of each letter."""
    events, blocks, addresses = [], {}, {}
    for letter, stack in moves:
        address = addresses.setdefault(letter, 4096 * (len(addresses) + 1))
        freed = address in blocks
        for action in ("free_requested", "free_completed") if freed else ("alloc",):
            event = {"action": action, "addr": address, "size": 512, "time_us": len(events)}
            events.append(event | ({} if STACKS[stack] is None else {"frames": STACKS[stack]}))
        if freed:
            del blocks[address]
        else:
            blocks[address] = STACKS[stack]
    segments = [
        {
            "address": address,
            "total_size": 512,
            "blocks": [
                {"size": 512, "state": "active_allocated", "requested_size": 512, "frames": stack}
            ],
        }
        for address, stack in blocks.items()
    ]
    value = {"segments": segments, "device_traces": [events]}
    (device,) = Memory(read(written(tmp_path, value))).devices
    found = dict(zip(device.lifetimes.address.tolist(), device.origins.category, strict=True))
    return {letter: CATEGORIES[found[address]] for letter, address in addresses.items()}


TRAINS = ("z", "zero_grad")
"""An event that tells that the program trains."""


@pytest.mark.parametrize(
    ("moves", "category"),
    [
        ((("a", "weights"),), "parameters"),
        ((("a", "weights"), ("a", "weights")), "temporaries"),
        ((("a", "state"),), "optimizer_state"),
        ((("a", "optimizer"), ("b", "main")), "optimizer_state"),
        ((("a", "optimizer"), ("a", "optimizer"), ("b", "main")), "temporaries"),
        ((("a", "optimizer"),), "untold"),
        ((("a", "backward"), ("a", "zero_grad")), "gradients"),
        ((("a", "backward"), ("b", "optimizer"), ("a", "main"), TRAINS), "gradients"),
        ((("a", "backward"), ("b", "optimizer")), "untold"),
        ((("a", "backward"), ("a", "backward"), TRAINS), "temporaries"),
        ((("a", "backward"), ("a", "backward")), "untold"),
        ((("a", "forward"), ("a", "backward"), TRAINS), "activations"),
        ((("a", "main"), ("a", "backward"), TRAINS), "activations"),
        ((("a", "custom forward"), ("a", "custom backward")), "activations"),
        ((("a", "custom forward"), ("a", "main"), TRAINS), "untold"),
        ((("a", "forward"), ("a", "backward")), "untold"),
        ((("a", "forward"), ("a", "forward")), "temporaries"),
        ((("a", "forward"),), "untold"),
        ((("a", "forward"), ("a", "main")), "untold"),
        ((("a", "recomputed"), ("a", "recomputed")), "temporaries"),
        ((("a", "C++ backward"), ("a", "zero_grad")), "gradients"),
        ((("a", "forward"), ("a", "C++ backward")), "activations"),
        ((("a", "cublas"),), "workspace"),
        ((("a", "none"), TRAINS), "untold"),
        ((("a", "none"), ("a", "none"), TRAINS), "untold"),
    ],
)
def test_each_rule(moves, category, tmp_path):
    assert program(tmp_path, *moves)["a"] == category


@pytest.mark.parametrize("name", ["train", "allstacks", "compiled", "expandable"])
def test_a_recorded_adamw_has_two_moments_and_a_gradient_for_each_weight(name):
    """The decoder has 21 weights, of which the optimiser's moments and temporaries are copies."""
    (record,) = Memory(read(real(name))).report().devices
    n = {each.name: each.n for each in record.peak.categories}
    assert (n["optimizer_state"], n["gradients"], n["temporaries"]) == (42, 21, 21)
    assert n.get("workspace", 0) == (2 if name == "allstacks" else 0)


@pytest.mark.parametrize("name", ["train", "allstacks", "compiled", "expandable", "graph", "oom"])
def test_shares_of_the_peak_sum_to_it(name):
    (record,) = Memory(read(real(name))).report().devices
    whole = record.peak.balance.allocated_bytes
    assert sum(each.n_bytes for each in record.peak.categories) == whole
    assert sum(each.n_bytes for each in record.peak.places) == whole
    assert record.peak.n_holders <= 50
    assert sum(each.n_bytes for each in record.peak.holders) == whole


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
