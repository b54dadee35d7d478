"""The help of the shared options says what may be asked for."""

from typing import get_args

import pytest

from peakward.cli.main import main
from peakward.cli.options import DEFAULTS
from peakward.models.presets import MODELS
from peakward.records import case as records

CHOICES = {
    "pass": records.Pass,
    "precision": records.Precision,
    "attention": records.Attention,
    "compile": records.Compile,
    "compile-scope": records.CompileScope,
    "optimizer": records.Optimizer,
    "checkpointing": records.Checkpointing,
    "device": records.DeviceType,
}


@pytest.fixture
def explained(capsys) -> dict[str, str]:
    """Option to its text in `peakward bench --help`."""
    assert main(["bench", "--help"]) == 0
    said: dict[str, str] = {}
    option = ""
    for line in capsys.readouterr().out.splitlines():
        words = line.strip("│| ")
        if words.startswith("--"):
            option = words.split()[0].removeprefix("--")
            said[option] = ""
        if option:
            said[option] += words + " "
    return said


def test_every_choice_of_an_option_is_named(explained):
    for option, choices in CHOICES.items():
        for choice in get_args(choices):
            assert choice in explained[option], f"--{option} does not name {choice}"


def test_the_defaults_named_are_the_ones_in_force(explained):
    for option in ("model", "batch_size", "seq_len"):
        text = explained[option.replace("_", "-")]
        for defaults in DEFAULTS.values():
            assert getattr(defaults, option) in text


def test_presets_named_in_the_help_exist(explained):
    listed = explained["model"].split("Presets: ")[1].split(", and others")[0]
    assert set(listed.split(", ")) <= {each.name for each in MODELS}
