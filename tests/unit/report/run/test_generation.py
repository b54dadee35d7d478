"""How a report says to generate with the best of a run on one step of decode."""

import shlex

import pytest
from msgspec.structs import replace

from peakward.cli.generate import Options
from peakward.cli.parse import parse
from peakward.levers.catalogue import with_settings
from peakward.levers.in_generation import OPTIONS, in_generation
from peakward.levers.registry import BY_NAME
from peakward.records.case import Configuration, Workload
from peakward.report.document import Command, Panel, Paragraph
from peakward.report.run import document

FUSED = {
    "precision": "bf16",
    "attention": "flash-decode",
    "cuda_graphs": True,
    "norm": "fused",
    "weights": "int8",
    "decode_step": "fused",
}


@pytest.fixture
def blocks(run_study):
    """blocks(settings, **fields of the study): the panel of a run on a step of decode."""

    def told(settings, *, batch_size=1, pass_="decode", guesses=(), **fields):
        work = Workload(batch_size=batch_size, seq_len=512, pass_=pass_)
        base, best = (
            replace(each, workload=work, configuration=with_settings(Configuration(), chosen))
            for each, chosen in zip(
                (run_study.measurements[0].case, run_study.measurements[-1].case),
                ({"kv_cache": "none"}, settings),
                strict=True,
            )
        )
        measured = tuple(
            replace(old, case=case)
            for old, case in zip(run_study.measurements, (base, best), strict=True)
        )
        step = replace(run_study.trials[0], base=base, candidate=best)
        study = replace(
            run_study,
            measurements=(*measured, *guesses),
            trials=(step,),
            steps=(step.id,),
            **{"real_model": "smollm2", **fields},
        )
        panels = [each for each in document(study).blocks if isinstance(each, Panel)]
        return panels[0].blocks

    return told


def read(command):
    """The options that the command's own parser reads."""
    program, name, *words = shlex.split(command)
    assert (program, name) == ("peakward", "generate")
    return parse(Options, words, prog="peakward generate")


@pytest.mark.parametrize(
    "settings",
    [
        FUSED,
        {**FUSED, "weights": "int4:128-calibrated", "kv_cache": "int8"},
        {"precision": "bf16", "attention": "flash-decode", "weights": "int4:32-calibrated"},
        {"precision": "tf32", "cuda_graphs": True},
        {"precision": "fp32", "optimizer": "adamw-fused", "compile_scope": "model"},
    ],
    ids=str,
)
def test_the_command_means_the_best_case(settings, blocks):
    said, command, *again = blocks(settings)
    assert said == Paragraph(text="To generate text with it:")
    assert again[0] == Paragraph(text="To measure the best again:")
    found, asked = read(command.text), with_settings(Configuration(), settings)
    assert (found.model, found.device) == ("smollm2", "cuda")
    assert found.prompt and found.prompts is None
    for name in OPTIONS:
        assert getattr(found, name) == BY_NAME[name].value(asked)


@pytest.mark.parametrize(("factor", "asked"), [(1.5, "4"), (0.5, "0")])
def test_guesses_are_in_the_command_where_they_pay(factor, asked, blocks, studies):
    _, command, *_ = blocks(FUSED | {"weights": "dense"}, guesses=(studies.guesses(factor),))
    found = read(command.text)
    assert (found.guesses, found.draft) == (asked, "ngrams")


def test_several_sequences_are_the_rows_of_a_queue(blocks):
    said, command, *_ = blocks({"precision": "bf16"}, batch_size=8, real_model="my models/one")
    assert "with a prompt in each line of FILE" in said.text
    found = read(command.text)
    assert (found.model, found.prompts, found.rows) == ("my models/one", "FILE", "8")
    assert found.prompt is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kv_cache": "none", "precision": "bf16"}, "kv-cache none"),
        ({"kv_cache": "fp8", "attention": "flash-decode"}, "kv-cache fp8"),
        ({"precision": "bf16-mixed", "rope": "fused"}, "precision bf16-mixed and rope fused"),
        ({"compile": "default"}, "compile default"),
        ({"attention": "sdpa"}, "attention sdpa"),
        ({"activation": "torch"}, "activation torch"),
    ],
)
def test_a_setting_without_an_option_is_named_and_the_command_has_the_rest(settings, said, blocks):
    first, command, *_ = blocks(settings)
    assert first == Paragraph(
        text=f"To generate text with it, except {said} (peakward generate has no option for that):"
    )
    found = read(command.text)
    for name, options in OPTIONS.items():
        if settings.get(name) in options:
            assert getattr(found, name) == settings[name]


@pytest.mark.parametrize("how", [{"real_model": None}, {"pass_": "prefill"}], ids=str)
def test_random_weights_and_other_passes_have_no_text(how, blocks, run_study):
    assert blocks(FUSED, **how) == (
        Paragraph(text="To measure the best again:"),
        Command(text=run_study.best_command),
    )


def test_a_cpu_has_attention_of_its_own():
    assert in_generation(Configuration(attention="sdpa"), "cpu").left == ()
    assert in_generation(Configuration(attention="flash-decode"), "cpu").left == (
        "attention flash-decode",
    )
    assert in_generation(Configuration(cuda_graphs=True), "cpu").left == ("cuda-graphs on",)
