"""`pw.generate` and `peakward generate`: text, its times, and the bandwidth beside them."""

import pickle
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

import peakward as pw
from gguf_files import TOKENS, small_model
from peakward.api import generating
from peakward.api.machine import Machine
from peakward.cli.generate import read
from peakward.cli.main import main
from peakward.lab.inference import text as texts
from peakward.lab.measure import probe
from peakward.models import presets
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.generation import Generation, Serving
from peakward.report import markdown
from peakward.report.generation import document
from peakward.store.database import Store
from tiers import in_full

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


def test_the_callers_autocast_changes_nothing(model):
    plain = made(model).continuations
    with torch.autocast("cpu", torch.bfloat16):
        assert made(model).continuations == plain
        assert pw.serve(model, ["hello"], max_new_tokens=6, device="cpu").continuations == plain
        assert torch.is_autocast_enabled("cpu")


def test_bytes_are_no_prompt(model):
    with pytest.raises(pw.PeakwardError, match="expected text for a prompt, got b'hello'"):
        made(model, b"hello")


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
    assert f"{found.n_kept} of {found.n_guessed}, guessed by ngrams" in pw.markdown(found)


@pytest.mark.parametrize("draft", ["ngrams", "skip:1", "distilled:1", "small.gguf"])
def test_drafts_change_no_text(draft, model):
    prompts = ["hell, hell, hell,", "a hell of"]
    plain = made(model, prompts, max_new_tokens=20)
    found = made(model, prompts, max_new_tokens=20, guesses=3, draft=draft)
    assert found.continuations == plain.continuations
    assert (found.guesses, found.draft) == (3, draft)
    if draft == "small.gguf":  # The model itself: all that it guesses is right.
        assert found.n_kept == found.n_guessed > 0
        assert found.n_steps < plain.n_steps
    drawn = [made(model, temperature=5.0, guesses=3, draft=draft, seed=n) for n in (1, 1, 2)]
    assert drawn[0].continuations == drawn[1].continuations != drawn[2].continuations


def test_a_draft_of_other_tokens_is_refused(model, in_tmp):
    one, other = (struct.pack("<Q", 1) + each for each in (b"x", b"y"))
    swapped = model.read_bytes().replace(one, b"(one)").replace(other, one).replace(b"(one)", other)
    (in_tmp / "other.gguf").write_bytes(swapped)
    with pytest.raises(pw.PeakwardError, match="a draft with the tokens of small, got other with"):
        made(model, guesses=2, draft="other.gguf")


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


def test_a_cache_in_int8_is_read_in_bytes_and_told(model):
    found, plain = made(model, kv_cache="int8"), made(model)
    # Beside each key and each value of a head a scale of 4 bytes.
    assert found.bytes_per_step == PARAMETERS * 4 + 5 * (2 * 2 * 2 * (8 + 4))
    assert (found.kv_cache, plain.kv_cache) == ("int8", "static")
    assert found.not_fused == plain.not_fused == "decode-step fused needs cuda, got cpu"
    assert "in int8, with a scale" in pw.markdown(found)
    assert "in int8" not in pw.markdown(plain)
    queue = pw.serve(model, ["hello"], device="cpu", max_new_tokens=4, kv_cache="int8")
    assert queue.kv_cache == "int8"
    assert "in int8, with a scale" in pw.markdown(queue)


def test_a_datasheet_where_nothing_is_calibrated(model, monkeypatch):
    monkeypatch.setattr(generating.devices, "match", lambda *_: pw.device("h200"))
    found = made(model)
    assert (found.bandwidth.bytes_per_s, found.bandwidth.source) == (4.8e12, "datasheet")


def test_one_token_has_no_rate(model, in_tmp):
    calibrated(in_tmp / "peakward.db", 1e9)
    found = made(model, max_new_tokens=1)
    assert (found.n_steps, found.tokens_per_s, found.bandwidth_share) == (0, None, None)
    assert "not computed" in pw.markdown(found)


def test_texts_that_end_at_once_have_no_rate(model, monkeypatch):
    """A GPU has made sixteen steps before the host knows."""
    plain = texts.generate

    def ended(decoding, ids):
        found = plain(decoding, ids)
        first = [each[:1] for each in found.tokens]
        return found._replace(tokens=first, n_steps=16, text_s=0.0)

    monkeypatch.setattr(texts, "generate", ended)
    assert made(model, max_new_tokens=8).tokens_per_s is None


def test_the_step_that_ran_is_told_and_why_no_other(model):
    found, asked = made(model), made(model, decode_step="separate")
    reason = "decode-step fused needs cuda, got cpu"
    assert (found.decode_step, found.not_fused) == ("separate", reason)
    assert (asked.decode_step, asked.not_fused) == ("separate", None)
    assert f"separate operators: {reason}" in pw.markdown(found)
    assert made(model, guesses=16).not_fused == (
        "decode-step fused takes at most 16 tokens at once (a prompt's next one and its guesses), got 17"
    )
    with pytest.raises(pw.PeakwardError, match="takes at most 16 tokens at once"):
        made(model, guesses=16, decode_step="fused")


def test_what_the_fused_step_is_taken_for():
    shape = presets.model("small")

    def told(capability=(9, 0), cuda="12.8", n_rows=1, guesses=0, kv_cache="static", **changes):
        here = replace(probe.environment("cpu"), device_type="cuda", cuda=cuda)
        machine = Machine(environment=here, compute_capability=capability, has_compiler=True)
        shaped = replace(shape, **changes)
        how = {"n_rows": n_rows, "guesses": guesses, "kv_cache": kv_cache}
        return generating.not_fused(machine, shaped, **how)

    assert told() is None
    assert told(kv_cache="int8") is None
    assert told(tied_head=True, n_kv_heads=3, qkv_bias=True, d_model=576) is None
    assert told(capability=(8, 0)) == "decode-step fused needs compute capability 9.0, got 8.0"
    assert told(cuda=None) == "decode-step fused needs a GPU by NVIDIA"
    assert told(guesses=15) is None
    assert "at most 16 tokens at once" in told(guesses=16)
    assert told(n_rows=4) is None
    assert told(n_rows=4, kv_cache="int8") is None
    assert "at most 4 beside dense weights: of larger ones it is" in told(n_rows=5)
    assert "with guesses for one text at once, got 2" in told(n_rows=2, guesses=3)
    assert "needs no window, got 64" in told(window=64)
    assert "needs a d_model of at most 4096" in told(d_model=8192)


@pytest.mark.parametrize(
    "how",
    [{}, {"kv_cache": "int8"}, *in_full([{"guesses": 2}, {"guesses": 2, "draft": "skip:1"}])],
    ids=str,
)
def test_the_fused_step_makes_the_text_of_a_real_file(how, model, monkeypatch):
    """In Triton's interpreter: a tied head and grouped heads, through the whole call."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has it compiled")
    monkeypatch.setattr(generating, "not_fused", lambda *_, **__: None)
    found, plain = (
        made(model, decode_step=each, max_new_tokens=4, **how) for each in ("auto", "separate")
    )
    assert (found.decode_step, found.not_fused) == ("fused", None)
    assert found.continuations == plain.continuations
    assert "fused, in five kernels a layer" in pw.markdown(found)


def test_the_record_is_read_back(model, in_tmp):
    found = made(model)
    found.save("text.json")
    assert pw.load("text.json") == found
    assert list(found.to_pandas().text) == [found.continuations[0].text]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("evil.pt", "got the pickle 'evil.pt', which may run any code"),
        ("cut.gguf", "got cut.gguf, which is damaged"),
        ("claims.gguf", "got claims.gguf, which is damaged"),
        (".", "got no such file: give a config.json"),
    ],
)
@pytest.mark.parametrize("where", ["model", "draft"])
def test_hostile_files_are_refused_in_a_line(name, said, where, model, in_tmp, capsys):
    """Nothing of a pickle is run, and no count of a file is believed beyond its size."""
    whole = model.read_bytes()
    (in_tmp / "evil.pt").write_bytes(pickle.dumps(Evil(in_tmp / "ran")))
    (in_tmp / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (in_tmp / "claims.gguf").write_bytes(whole[:8] + struct.pack("<QQ", 2**60, 2**60) + whole[24:])
    words = ["--model", name] if where == "model" else ["--guesses", "2", "--draft", name]
    line = ["generate", "--model", "small.gguf", "--prompt", "hi", "--device", "cpu", *words]
    assert main(line) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1
    assert not (in_tmp / "ran").exists()


class Evil:
    """Its pickle makes a file when it is read."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


@dataclass
class Line:
    words: tuple[str, ...]
    said: str


REFUSED = (
    Line((), "expected a prompt, got none"),
    Line(("--prompt", "x", "--prompts", "queue.txt"), "expected a prompt, got both"),
    Line(("--prompts", "none.txt"), "No such file"),
    Line(("--prompts", "empty.txt"), "expected prompts in empty.txt, got none"),
    Line(("--prompts", "bytes.txt"), "expected prompts in UTF-8"),
    Line(("--prompts", "wrong.jsonl"), "in line 2 of wrong.jsonl"),
    Line(("--prompts", "queue.txt", "--rows", "0"), "from 1 to 4,096 for --rows"),
    Line(("--prompts", "queue.txt", "--guesses", "2"), "expected no --guesses"),
    Line(
        ("--prompts", "queue.txt", "--draft", "skip:1"), "expected no --draft for a queue, got 'sk"
    ),
    Line(("--prompt", "x", "--decode-step", "eager"), "expected a value of --decode-step"),
    Line(("--prompt", "x", "--decode-step", "fused"), "decode-step fused needs cuda, got cpu"),
    Line(("--prompt", ""), "at least one token, got ''"),
    Line(("--prompt", "x" * 80), "at most 64, which small takes, got 80 and 64"),
    Line(("--prompt", "x", "--temperature", "hot"), "expected a number for --temperature"),
    Line(("--prompt", "x", "--top-p", "2"), "a share above 0, at most 1"),
    Line(("--prompt", "x", "--top-k", "0"), "--top-k"),
    Line(("--prompt", "x", "--guesses", "-1"), "from 0 to 64 for --guesses"),
    Line(("--prompt", "x", "--guesses", "2", "--draft", "skip:x"), "write skip:12-17"),
    Line(("--prompt", "x", "--guesses", "2", "--draft", "distilled:x"), "write distilled:12-17"),
    Line(("--prompt", "x", "--guesses", "2", "--draft", "distilled:0"), "begin at 1"),
    Line(
        ("--prompt", "x", "--guesses", "2", "--draft", "skip:0-1"),
        "expected some of the blocks 0 to 1",
    ),
    *(
        Line(
            ("--prompt", "x", "--guesses", "2", "--draft", named),
            f"expected some of the blocks 0 to 1 to leave out, the first one first, got '{named}'",
        )
        for named in ("skip:1-2", "skip:0-9999999999", "skip:5", "distilled:1-0")
    ),
    Line(("--prompt", "x", "--guesses", "2", "--draft", "skip:" + "9" * 40), "write skip:12-17"),
    Line(("--prompt", "x", "--guesses", "2", "--draft", "none.gguf"), "No such file"),
    Line(("--prompt", "x", "--model", "none.gguf"), "No such file"),
    Line(("--prompt", "x", "--rows", "2"), "expected no --rows for one prompt"),
    Line(("--prompts", "empty.jsonl"), "in line 2 of empty.jsonl"),
    Line(("--prompts", "few.jsonl"), "in line 1 of few.jsonl"),
)


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line.said)
def test_bad_lines(line, model, capsys, in_tmp):
    (in_tmp / "queue.txt").write_text("hello\n")
    (in_tmp / "empty.txt").write_text("\n \n")
    (in_tmp / "bytes.txt").write_bytes(b"\xff\xfe")
    (in_tmp / "empty.jsonl").write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    (in_tmp / "few.jsonl").write_text('{"prompt": "a", "max_new_tokens": 0}\n')
    (in_tmp / "wrong.jsonl").write_text('{"prompt": "a"}\n{"prompt": 5}\n')
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


def test_a_text_is_shown_in_its_own_lines(model):
    """Joiners hold an emoji together; a tab is the indentation of code."""
    shown = "def f(x):\n\n\treturn '👩\u200d👧'"
    page = markdown.render(document(made(model, shown)))
    assert "```text\ndef f(x):\n\n    return '👩\u200d👧'" in page


def test_choices_that_change_nothing_are_told(model):
    told = markdown.render(document(made(model, top_k=5, top_p=0.9)))
    assert "the likeliest; without effect at temperature 0: top-k 5, top-p 0.9" in told


def test_a_queue_is_served_in_both_ways(model):
    prompts = ["hello", "a hell of a prompt", "he", "hello, he"]
    most = [9, 2, 5, 7]
    found = pw.serve(model, prompts, rows=2, max_new_tokens=most, device="cpu")
    alone = [
        made(model, prompt, max_new_tokens=n).continuations[0]
        for prompt, n in zip(prompts, most, strict=True)
    ]
    assert found.continuations == tuple(alone)
    assert found.n_equal == 4
    ways = {each.batching: each for each in found.ways}
    assert ways["continuous"].n_steps < ways["static"].n_steps
    n_tokens = sum(each.n_new_tokens for each in found.continuations)
    for each in ways.values():
        assert each.tokens_per_s == pytest.approx(n_tokens / each.serve_s)
        assert len(each.first_token_s) == len(each.done_s) == 4


def test_a_queue_is_made_by_the_step_that_is_asked_for(model, monkeypatch):
    """In Triton's interpreter, in pages that the fused step writes to and reads."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has it compiled")
    with pytest.raises(pw.PeakwardError, match=r"that can take the fused step: .* got cpu"):
        pw.serve(model, ["hello"], decode_step="fused", device="cpu", max_new_tokens=2)
    monkeypatch.setattr(generating, "not_fused", lambda *_, **__: None)
    fused, plain = (
        pw.serve(
            model, ["hello", "a", "so"], rows=2, decode_step=each, device="cpu", max_new_tokens=3
        )
        for each in ("auto", "separate")
    )
    assert (fused.decode_step, plain.decode_step) == ("fused", "separate")
    assert fused.continuations == plain.continuations
    assert "fused, in five kernels a layer" in pw.markdown(fused)


def test_a_short_queue_has_no_rows_without_a_text(model):
    found = pw.serve(model, ["hello", "he"], rows=64, max_new_tokens=9, device="cpu")
    assert (found.rows, found.n_pages) == (2, 2)
    assert [each.row_use for each in found.ways] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "line"), [("queue.txt", "hello"), ("queue.jsonl", '{"prompt": "hello"}')]
)
def test_the_mark_at_the_start_of_a_file_is_no_part_of_a_prompt(name, line, in_tmp):
    (in_tmp / name).write_text(line, encoding="utf-8-sig")
    assert [each.prompt for each in read(in_tmp / name)] == ["hello"]


@pytest.mark.parametrize("name", ["queue.txt", "queue.jsonl"])
def test_the_command_with_a_queue(name, model, in_tmp, capsys):
    lines = ["hello\x1b[2J", "", "he"]
    if name == "queue.jsonl":
        lines = ['{"prompt": "hello\\u001b[2J"}', "", '{"prompt": "he", "max_new_tokens": 3}']
    (in_tmp / name).write_text("\n".join(lines))
    line = [
        "generate",
        "--model",
        "small.gguf",
        "--prompts",
        name,
        "--device",
        "cpu",
        "--rows",
        "2",
    ]
    assert main([*line, "--max-new-tokens", "5"]) == 0
    said = capsys.readouterr().out
    assert "continuous batching makes" in said and "static" in said
    assert "\x1b[2J" not in said
    assert main([*line, "--max-new-tokens", "5", "--json"]) == 0
    found = codec.from_json(capsys.readouterr().out.encode(), Serving)
    assert [each.n_new_tokens for each in found.continuations] == [5, 3 if "json" in name else 5]
