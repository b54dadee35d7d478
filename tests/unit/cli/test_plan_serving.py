"""`peakward plan --output-len`, through its command line."""

from pathlib import Path

import pytest

from peakward.cli.main import main
from peakward.records import codec
from peakward.records.plan import Plan, ServingPlan

CASE = ("--model", "llama-3-8b", "--seq-len", "1024", "--output-len", "64")


def planned(capsysbinary, *words):
    assert main(["plan", *CASE, *words, "--json"]) == 0
    return codec.from_json(capsysbinary.readouterr().out, ServingPlan)


def test_one_screen_says_what_can_be_had_at_best(capsys, monkeypatch, in_tmp):
    monkeypatch.setenv("COLUMNS", "100")
    words = ("--device", "h100-sxm,l4", "--price", "2,0.5", "--markdown", "plan.md")
    assert main(["plan", *CASE, *words]) == 0
    said = capsys.readouterr().out
    for part in ("At best", "first token", "largest batch size", "cost per", "FLOPs a byte"):
        assert part in said
    assert len(said.splitlines()) < 60
    assert "serving 1 × (1024 + 64) tokens" in Path("plan.md").read_text()


def test_options_make_the_workload(capsysbinary):
    words = ("--batch-size", "16", "--weights", "int4:128", "--cache", "fp8", "--precision", "fp8")
    found = planned(capsysbinary, *words, "--draft", "llama-3.2-1b", "--acceptance", "80%")
    work = found.cost.workload
    assert (work.batch_size, work.prompt_len, work.output_len) == (16, 1024, 64)
    assert (work.weights.type, work.weights.group_size) == ("int4", 128)
    assert (work.cache_type, work.compute_type) == ("fp8", "fp8")
    assert work.speculation.draft.name == "llama-3.2-1b"
    assert (work.speculation.draft_len, work.speculation.acceptance_rate) == (4, 0.8)


def test_weights_are_as_what_they_are_multiplied_in_unless_said(capsysbinary):
    assert planned(capsysbinary).cost.workload.weights.type == "bf16"
    assert planned(capsysbinary, "--precision", "tf32").cost.workload.weights.type == "fp32"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--output-len", "1"), "expected a whole number from 2"),
        (("--weights", "int3"), "expected a value of --weights, got 'int3'"),
        (("--weights", "int4:0"), "for --weights TYPE:GROUP, got '0'"),
        (("--weights", "bf16:128"), "only quantised weights have scales"),
        (("--weights", "dense"), "expected a value of --weights, got 'dense'"),
        (("--cache", "int4"), "expected a value of --cache, got 'int4'"),
        (("--precision", "bf16-mixed"), "expected a type to serve in, got 'bf16-mixed'"),
        (("--acceptance", "0.5"), "expected --draft beside --acceptance, got none"),
        (("--draft", "gpt2"), "a draft of the target's vocabulary"),
        (("--draft", "llama-3.2-1b", "--acceptance", "1.5"), "for --acceptance, got 1.5"),
        (("--lever", "sdpa"), "expected no --lever beside --output-len"),
        (("--gpus", "2"), "expected no --gpus beside --output-len"),
        (("--attention", "sdpa"), "expected no --attention beside --output-len, got sdpa"),
        (("--batch-size", "1,2"), "expected one value of --batch-size to serve with, got 2"),
        (("--seq-len", "8192"), "prompt_len + output_len of at most 8,192"),
    ],
)
def test_bad_input_is_one_line(words, line, capsys):
    assert main(["plan", *CASE, *words]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_options_of_serving_need_something_to_serve(capsys):
    assert main(["plan", "--cache", "fp8"]) == 2
    assert "expected --output-len beside --cache, got none" in capsys.readouterr().err


def test_weights_are_said_in_the_words_of_serving_where_a_pass_is_planned(capsysbinary):
    words = ("--pass", "decode", "--precision", "bf16", "--weights", "int4:128")
    assert main(["plan", "--model", "llama-3-8b", *words, "--device", "h100-sxm", "--json"]) == 0
    found = codec.from_json(capsysbinary.readouterr().out, Plan)
    assert found.case.configuration.weights == "int4:128"
    assert 5.6e9 < found.devices[0].forecast.memory.peak.parameters_bytes < 5.8e9


def test_of_a_pass_the_formats_are_those_that_there_are_products_for(capsys):
    assert main(["plan", "--pass", "decode", "--weights", "int4"]) == 2
    assert "expected" in (said := capsys.readouterr().err)
    assert "int4:128" in said
