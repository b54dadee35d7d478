"""`pw.generate` and `peakward generate`: text, its times, and the bandwidth beside them."""

from dataclasses import dataclass

import pytest

import peakward as pw
from gguf_files import TOKENS, small_model
from peakward.api import generating
from peakward.cli.main import main
from peakward.lab.measure import probe
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.generation import Generation
from peakward.store.database import Store

pytest.importorskip("tokenizers")
PARAMETERS = len(TOKENS) * 32 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)
"""The head is the embedding."""


@pytest.fixture
def model(in_tmp):
    return small_model(in_tmp / "small.gguf")


def made(model, prompt="hello", **options):
    return pw.generate(model, prompt, device="cpu", **{"max_new_tokens": 6, **options})


def calibrated(place, bytes_per_s):
    with Store.open(place) as store:
        store.add_calibration(
            Calibration(
                environment=probe.environment("cpu"),
                started_at="2026-01-01T00:00:00+00:00",
                wall_s=1.0,
                matmul=(),
                copy_bytes_per_s=bytes_per_s,
                copy_size_bytes=2**30,
            )
        )


def test_texts_of_unequal_prompts_are_those_of_each_alone(model):
    both = made(model, ["hello", "a hell of a prompt"])
    alone = [made(model, each).continuations[0] for each in ("hello", "a hell of a prompt")]
    assert both.continuations == tuple(alone)
    assert [each.n_prompt_tokens for each in both.continuations] == [2, 15]
    assert both.n_steps == 5
    assert both.tokens_per_s == pytest.approx(2 * 5 / both.decode_s)
    assert both.time_to_first_token_s >= both.prefill_s


def test_seeds_and_choices(model):
    drawn = [made(model, temperature=5.0, seed=seed).continuations for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert made(model, temperature=5.0, top_k=1).continuations == made(model).continuations


def test_guesses_change_the_steps_and_not_the_text(model):
    prompt = "hell, hell, hell,"
    plain, found = (made(model, prompt, guesses=n, max_new_tokens=30) for n in (0, 4))
    assert found.continuations == plain.continuations
    assert found.n_steps + found.n_kept == plain.n_steps == 29
    assert 0 < found.n_kept <= found.n_guessed
    assert found.tokens_per_s == pytest.approx(29 / found.decode_s)
    assert f"{found.n_kept} of {found.n_guessed}" in pw.markdown(found)
    with pytest.raises(pw.PeakwardError, match="got 2 at 0"):
        made(model, ["a", "b"], guesses=2)


def test_the_share_of_bandwidth_is_of_what_a_step_reads(model, in_tmp):
    unknown = made(model)
    assert (unknown.bandwidth, unknown.bandwidth_share) == (None, None)
    calibrated(in_tmp / "peakward.db", 1e9)
    found = made(model)
    # Steps attend to 3 to 7 positions; keys and values are 2 layers of 2 heads of 8 numbers in fp32.
    assert found.bytes_per_step == PARAMETERS * 4 + 5 * (2 * 2 * 2 * 8 * 4)
    assert found.bandwidth.source == "calibrated"
    step_s = found.decode_s / found.n_steps
    assert found.bandwidth_share == pytest.approx(found.bytes_per_step / step_s / 1e9)


def test_a_datasheet_where_nothing_is_calibrated(model, monkeypatch):
    monkeypatch.setattr(generating.devices, "match", lambda *_: pw.device("h200"))
    found = made(model)
    assert (found.bandwidth.bytes_per_s, found.bandwidth.source) == (4.8e12, "datasheet")


def test_one_token_has_no_rate(model, in_tmp):
    calibrated(in_tmp / "peakward.db", 1e9)
    found = made(model, max_new_tokens=1)
    assert (found.n_steps, found.tokens_per_s, found.bandwidth_share) == (0, None, None)
    assert "not computed" in pw.markdown(found)


def test_the_record_is_read_back(model, in_tmp):
    found = made(model)
    found.save("text.json")
    assert pw.load("text.json") == found
    assert list(found.to_pandas().text) == [found.continuations[0].text]


@dataclass
class Line:
    words: tuple[str, ...]
    said: str


REFUSED = (
    Line((), "expected a prompt, got none"),
    Line(("--prompt", ""), "at least one token, got ''"),
    Line(("--prompt", "x" * 80), "at most 64, which small takes, got 80 and 64"),
    Line(("--prompt", "x", "--temperature", "hot"), "expected a number for --temperature"),
    Line(("--prompt", "x", "--top-p", "2"), "a share above 0, at most 1"),
    Line(("--prompt", "x", "--top-k", "0"), "--top-k"),
    Line(("--prompt", "x", "--guesses", "-1"), "from 0 to 64 for --guesses"),
    Line(
        ("--prompt", "x", "--guesses", "2", "--temperature", "1"), "got 1 at 1: leave guesses out"
    ),
    Line(("--prompt", "x", "--model", "none.gguf"), "No such file"),
)


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line.said)
def test_bad_lines(line, model, capsys):
    assert main(["generate", "--model", "small.gguf", "--device", "cpu", *line.words]) == 2
    said = capsys.readouterr().err
    assert line.said in said and said.count("\n") == 1


def test_the_command(model, capsys):
    line = ["generate", "--model", "small.gguf", "--prompt", "hello\n\x1b[2J", "--device", "cpu"]
    assert main([*line, "--max-new-tokens", "5", "--markdown", "a.md"]) == 0
    said = capsys.readouterr().out
    assert "hello" in said and "tok/s" in said and "first token after" in said
    assert "\x1b[2J" not in said
    assert main([*line, "--max-new-tokens", "5", "--json"]) == 0
    found = codec.from_json(capsys.readouterr().out.encode(), Generation)
    assert found.continuations[0].n_new_tokens == 5
