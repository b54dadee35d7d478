"""What a factory may return, and what it may not."""

import pytest
import torch
from torch import nn

from peakward.lab.models.given_module import expect_live, given, loss_on, repeated_blocks
from peakward.records.errors import PeakwardError


def test_a_module_alone_is_called_on_drawn_ids(tiny_gpt):
    found = given(tiny_gpt.build())
    assert (found.vocab_size, found.args, found.loss) == (tiny_gpt.VOCAB_SIZE, (), None)


@pytest.mark.parametrize(
    ("batch", "args", "kwargs"),
    [
        (torch.zeros(2, 3), 1, []),
        ((torch.zeros(2, 3), torch.zeros(1)), 2, []),
        ({"ids": torch.zeros(2, 3)}, 0, ["ids"]),
    ],
)
def test_a_batch_is_a_tensor_a_sequence_or_a_mapping(batch, args, kwargs, tiny_gpt):
    found = given((tiny_gpt.build(), batch, tiny_gpt.scored))
    assert (len(found.args), list(found.kwargs), found.vocab_size) == (args, kwargs, None)
    assert found.loss is tiny_gpt.scored


def test_an_object_says_it_by_its_attributes(tiny_gpt):
    found = given(tiny_gpt.as_object())
    assert list(found.kwargs) == ["ids"]
    assert found.loss is tiny_gpt.scored


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        ("no_module", "expected a torch.nn.Module, got int"),
        ("of_no_range", "expected a module that says the range of its token ids, got GPT without"),
        (
            "compiled",
            "expected a plain module, got OptimizedModule in the module itself: .*_orig_mod",
        ),
        ("compiled_inside", r"got one that `.compile\(\)` was called on in blocks.1"),
        ("wrapped", "got DataParallel in the module itself: give what it wraps, its `.module`"),
    ],
)
def test_what_is_no_plain_module_is_refused(factory, line, tiny_gpt):
    with pytest.raises(PeakwardError, match=line):
        given(getattr(tiny_gpt, factory)())


@pytest.mark.parametrize(
    ("batch", "loss", "line"),
    [
        ("text", None, "expected a batch that holds tensors, got str"),
        ((1, 2), None, "expected a batch that holds tensors, got tuple"),
        (
            torch.zeros(2, 3),
            4,
            "expected a loss that is a function of the module's output, got int",
        ),
        (
            {1: torch.zeros(2, 3)},
            None,
            "expected a mapping of named inputs as the batch, got the key 1",
        ),
        (
            torch.zeros(2, 3),
            lambda output, batch, weights: output.mean(),
            "expected a loss that takes the module's output, got one of .output, batch, weights.",
        ),
    ],
)
def test_what_is_no_batch_or_loss_is_refused(batch, loss, line, tiny_gpt):
    with pytest.raises(PeakwardError, match=line):
        given((tiny_gpt.build(), batch, loss))


def test_a_loss_may_take_the_batch_beside_the_output_or_tell_nothing(tiny_gpt):
    batch = torch.zeros(2, 3)
    for loss in (loss_on(lambda output, batch: output.mean(), batch), nn.MSELoss(), torch.mean):
        assert given((tiny_gpt.build(), batch, loss)).loss is loss


def block(n_experts=0):
    experts = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(n_experts)]
    return nn.Sequential(nn.ModuleList(experts), nn.Linear(2, 2))


def test_a_model_of_transformers_keeps_its_buffers_with_a_batch_and_alone(tiny_gpt):
    made = type("Made", (tiny_gpt.GPT,), {"__module__": "transformers.models.made"})()
    assert given(made).keeps_buffers
    assert given((made, torch.zeros(2, 8).long())).keeps_buffers
    assert not given(tiny_gpt.GPT()).keeps_buffers


def test_parameters_that_cannot_be_stepped_are_refused():
    with torch.inference_mode():
        of_inference = nn.Linear(2, 2)
    for module, line in (
        (
            nn.Sequential(nn.LazyLinear(2)),
            "expected parameters with shapes, got 0.weight of a lazy",
        ),
        (nn.Sequential(of_inference), "got 0.weight, made under torch.inference_mode"),
    ):
        with pytest.raises(PeakwardError, match=line):
            expect_live(module, None)


def test_the_list_of_blocks_that_holds_the_most_parameters():
    model = nn.ModuleDict(
        {
            "encoder": nn.ModuleList(block() for _ in range(2)),
            "decoder": nn.ModuleList(block() for _ in range(3)),
            "adapters": nn.ModuleList([block(), nn.Linear(2, 2), block(), block()]),
        }
    )
    assert repeated_blocks(model) is model["decoder"]


def test_few_large_blocks_stand_before_many_small_ones():
    """As a language model's beside those of what sees its images."""
    large = nn.ModuleList(nn.Sequential(nn.Linear(9, 9)) for _ in range(2))
    model = nn.ModuleDict(
        {"sees": nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(4)), "says": large}
    )
    assert repeated_blocks(model) is large


def test_blocks_in_turn_are_blocks():
    class Other(nn.Sequential):
        """A block of another class."""

    def other():
        return Other(nn.Linear(2, 2))

    in_turn = nn.ModuleList([block(), other(), block(), other()])
    assert repeated_blocks(nn.ModuleDict({"blocks": in_turn})) is in_turn
    parts = nn.ModuleList([block(), other()])
    assert repeated_blocks(nn.ModuleDict({"parts": parts})) is None
    called = nn.Sequential(block(), other(), block())
    assert repeated_blocks(nn.ModuleDict({"called": called})) is None


def test_a_block_may_hold_its_parameters_itself():
    class Bare(nn.Module):
        def __init__(self, n):
            super().__init__()
            for i in range(n):
                self.register_parameter(f"w{i}", nn.Parameter(torch.ones(2)))

    blocks, norms = (nn.ModuleList(Bare(n) for _ in range(2)) for n in (3, 2))
    assert repeated_blocks(nn.ModuleDict({"blocks": blocks, "norms": norms})) is blocks
    assert repeated_blocks(nn.ModuleDict({"norms": norms})) is None


def test_what_lies_in_a_block_is_no_list_of_blocks():
    model = nn.ModuleDict({"blocks": nn.ModuleList(block(8) for _ in range(2))})
    assert repeated_blocks(model) is model["blocks"]


def test_mere_layers_and_single_blocks_are_none():
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    assert repeated_blocks(nn.ModuleDict({"layers": layers})) is None
    assert repeated_blocks(nn.ModuleDict({"one": nn.ModuleList([block()])})) is None


def test_lists_in_a_list_are_no_blocks_for_nobody_calls_them():
    """Written like x-transformers': a layer is a list of its norms, of which some are None, and its parts."""

    def layer():
        norms = nn.ModuleList([nn.LayerNorm(2), None, None])
        return nn.ModuleList([norms, nn.Linear(2, 2)])

    model = nn.ModuleDict({"layers": nn.ModuleList(layer() for _ in range(3))})
    assert repeated_blocks(model) is None
    assert repeated_blocks(nn.ModuleList([None, None])) is None
