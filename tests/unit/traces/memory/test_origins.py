"""What allocations are for: each rule on a program made by hand, and on recordings."""

import pytest

from peakward.traces.memory.memory import Memory
from peakward.traces.memory.origins import CATEGORIES
from peakward.traces.memory.snapshot_file import read

from .files import real, written

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
