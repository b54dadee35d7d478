"""Modules by `--model`."""

import shlex

import pytest

from peakward.api.cases import is_source
from peakward.api.reproduce import to_command
from peakward.cli import options, parse
from peakward.cli.bench import Options
from peakward.cli.main import main
from peakward.records.case import AS_WRITTEN, ModuleCase
from peakward.records.errors import PeakwardError

SIZES = ["--batch-size", "2", "--seq-len", "8", "--device", "cpu"]


def cases(*words):
    given = parse.parse(Options, [*words, *SIZES], prog="peakward bench")
    return options.cases(given.case, "cpu", start=options.settings(given.lever, "--lever"))


def test_only_a_prefix_makes_a_source():
    assert is_source("py:a:b")
    assert not any(map(is_source, ("small", "org/name", "./py", "pyramid")))


def test_a_module_stands_in_a_grid_beside_shapes(at_user_modules):
    found = cases("--model", "tiny,py:tiny_gpt:build", "--pass", "forward,train_step")
    assert [type(each).__name__ for each in found] == ["ModelCase"] * 2 + ["ModuleCase"] * 2
    assert found[2].configuration == AS_WRITTEN
    assert found[0].configuration.attention == "naive"


@pytest.mark.parametrize(
    "words", [(), ("--lever", "bf16,compile,checkpointing"), ("--attention", "sdpa-math")]
)
def test_its_command_gives_the_case_back(words, at_user_modules):
    (case,) = cases("--model", "py:tiny_gpt:build", "--pass", "forward_backward", *words)
    command = shlex.split(to_command(case))
    assert isinstance(case, ModuleCase)
    assert command[:2] == ["peakward", "bench"]
    given = parse.parse(Options, command[2:], prog="peakward bench")
    assert options.cases(given.case, "cpu") == (case,)


def test_its_sizes_are_its_own(at_user_modules):
    with pytest.raises(
        PeakwardError, match="expected no --n-layers with the module py:tiny_gpt:build"
    ):
        cases("--model", "py:tiny_gpt:build", "--n-layers", "2")


def test_where_a_shape_is_needed_it_is_refused(at_user_modules, capsysbinary):
    assert main(["study", "warmup", "--model", "py:tiny_gpt:build"]) == 2
    assert (
        b"expected the shape of a model, got the module py:tiny_gpt:build"
        in capsysbinary.readouterr().err
    )
