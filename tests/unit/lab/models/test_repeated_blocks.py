"""The blocks that a module repeats."""

from torch import nn

from peakward.lab.models.repeated_blocks import repeated_blocks


def block(n_experts=0):
    experts = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(n_experts)]
    return nn.ModuleDict({"experts": nn.ModuleList(experts), "out": nn.Linear(2, 2)})


def test_the_longest_list_of_one_class():
    model = nn.ModuleDict(
        {
            "encoder": nn.ModuleList(block() for _ in range(2)),
            "decoder": nn.ModuleList(block() for _ in range(3)),
            "adapters": nn.ModuleList([block(), nn.Linear(2, 2), block(), block()]),
        }
    )
    assert repeated_blocks(model) is model["decoder"]


def test_what_lies_in_a_block_is_no_list_of_blocks():
    model = nn.ModuleDict({"blocks": nn.ModuleList(block(8) for _ in range(2))})
    assert repeated_blocks(model) is model["blocks"]


def test_mere_layers_and_single_blocks_are_none():
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    assert repeated_blocks(nn.ModuleDict({"layers": layers})) is None
    assert repeated_blocks(nn.ModuleDict({"one": nn.ModuleList([block()])})) is None
