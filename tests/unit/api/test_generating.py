"""`pw.generate` and `peakward generate`: text, its times, and the bandwidth beside them."""

import pickle
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace

import peakward as pw
from gguf_files import FIELDS, TOKENS, small_model
from peakward.api import generating
from peakward.api.machine import Machine
from peakward.cli.generate import read
from peakward.cli.main import main
from peakward.kernels.ops.quantized_matmul import reference
from peakward.lab.data import text
from peakward.lab.inference import text as texts
from peakward.lab.inference.pretrained import load
from peakward.lab.inference.quantised import calibrate
from peakward.lab.measure import probe
from peakward.lab.models import layers
from peakward.lab.models.layers import QuantisedLinear, apply_quantised
from peakward.models import presets
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.case import Source
from peakward.records.generation import Generation, GenerationSettings, Serving
from peakward.report import markdown
from peakward.report.generation import document
from peakward.store.database import Store
from tiers import in_full

pytest.importorskip("tokenizers")
PARAMETERS = len(TOKENS) * 32 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)
"""The head is the embedding."""
PROMPT = "no"
"""Its text with dense weights is another than that with the same in int8."""
ON_GPU = GenerationSettings(precision="bf16")


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


def test_a_text_that_the_draft_is_too_short_for_is_refused(model, in_tmp, monkeypatch):
    monkeypatch.setitem(FIELDS, "llama.context_length", 20)
    small_model(in_tmp / "short.gguf")
    said = (
        "a prompt and new tokens of at most 20, which the draft short takes, got 1 and 20: shorten"
    )
    with pytest.raises(pw.PeakwardError, match=f"expected {said}.* or for another draft$"):
        made(model, "hell", guesses=2, draft="short.gguf", max_new_tokens=20)
    made(model, "hell", guesses=2, draft="short.gguf", max_new_tokens=19)


def test_the_share_of_bandwidth_is_of_what_a_step_reads(model, in_tmp):
    unknown = made(model)
    assert (unknown.bandwidth, unknown.bandwidth_share) == (None, None)
    calibrated(in_tmp / "peakward.db", 1e9)
    found = made(model)
    # Steps attend to 3 to 7 positions; keys and values are 2 layers of 2 heads of 8 numbers in fp32.
    assert found.bytes_per_step == PARAMETERS * 4 + 5 * (2 * 2 * 2 * 8 * 4)
    assert found.bandwidth.source == "calibrated"
    assert made(model, db="peakward.db").bandwidth == found.bandwidth
    step_s = found.decode_s / found.n_steps
    assert found.bandwidth_share == pytest.approx(found.bytes_per_step / step_s / 1e9)


def test_a_cache_in_int8_is_read_in_bytes_and_told(model):
    found, plain = made(model, kv_cache="int8"), made(model)
    # Beside each key and each value of a head a scale of 4 bytes.
    assert found.bytes_per_step == PARAMETERS * 4 + 5 * (2 * 2 * 2 * (8 + 4))
    assert (found.kv_cache, plain.kv_cache) == ("int8", "static")
    assert found.not_fused == plain.not_fused == "decode-step fused needs a CUDA GPU, got a CPU"
    assert "in int8, with a scale" in pw.markdown(found)
    assert "in int8" not in pw.markdown(plain)
    queue = pw.serve(model, ["hello"], device="cpu", max_new_tokens=4, kv_cache="int8")
    assert queue.kv_cache == "int8"
    assert "in int8, with a scale" in pw.markdown(queue)


@pytest.fixture
def anywhere(monkeypatch):
    """As if weights in 4 bits were not for GPUs alone: multiplied by torch, for the interpreter takes 200 s
    where this takes one. tests/kernels holds the kernel to the same reference."""

    def int4(x, stored, scale):
        group = x.shape[-1] // len(scale)
        return F.linear(x, reference.int4_dequantized(stored, scale, None, x.dtype, group=group))

    monkeypatch.setattr(generating, "expect_here", lambda *_: None)
    monkeypatch.setattr(layers, "int4_matmul", int4)


@torch.no_grad()
def by_hand(model, weights, n, seen=None):
    """The text behind `PROMPT` of the model with quantised weights, all of it computed for each token."""
    found = load(str(model), attention="sdpa", device="cpu", dtype=torch.float32)
    rounded = {} if seen is None else calibrate(found.model, seen(found.words), group=32)
    apply_quantised(found.model.blocks, weights)
    for each in found.model.blocks.modules():
        if each in rounded:
            each.hold(*rounded[each])
        elif isinstance(each, QuantisedLinear):
            each.keep(each.weight.detach())
    given = found.words.of_prompt(PROMPT).tolist()
    ids = list(given)
    for _ in range(n):
        ids.append(int(found.model(torch.tensor([ids]))[0, -1].argmax()))
    return found.words.added(given, ids[len(given) :])


def rows_behind_those_that_judge(words):
    topics = text.read(Source("python-topics")).documents
    ids = np.concatenate([words.encode(each) for each in topics])
    return torch.from_numpy(ids[: 288 * 257]).view(288, 257)[32:, :256]


@pytest.mark.parametrize(
    ("weights", "seen", "kept"),
    [
        # Beside an output's elements, a scale of two bytes, or one for each 32 inputs. What is packed in 4
        # bits is filled up to whole tiles of 128 inputs.
        ("int8", None, 2 * (32 * 224 + 64 * 32 + 2 * (64 + 32 + 128 + 32))),
        ("int4:32-calibrated", rows_behind_those_that_judge, 2 * (256 * 64 + 2 * (224 + 2 * 32))),
    ],
)
def test_a_text_of_quantised_weights_is_that_of_them_by_hand(weights, seen, kept, model, anywhere):
    found, plain = (
        made(model, PROMPT, weights=each, max_new_tokens=12) for each in (weights, "dense")
    )
    expected = by_hand(model, weights, 12, seen)
    assert found.continuations[0].text == expected != plain.continuations[0].text
    dense = 2 * 4 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)
    assert plain.bytes_per_step - found.bytes_per_step == dense - kept
    assert (found.weights, found.computed_in, plain.weights) == (weights, "fp32", "dense")
    assert found.calibrated_on == ("python-topics" if seen else None)
    page = pw.markdown(found)
    assert f"computed in fp32 with weights {weights}" in page
    assert "and 32 inputs, rounded for the inputs that python-topics makes" in page or not seen
    assert "with a scale for each output" in page and "weights" not in pw.markdown(plain)


def test_calibrated_weights_are_rounded_on_the_text_that_is_named(model, anywhere, in_tmp):
    (in_tmp / "own.txt").write_text("hell, hello. " * 11000)
    how = {"weights": "int4:32-calibrated", "max_new_tokens": 12}
    own, default = made(model, calibration_text="own.txt", **how), made(model, **how)
    assert own.calibrated_on == str(in_tmp / "own.txt")
    assert own.continuations != default.continuations
    (in_tmp / "short.txt").write_text("hello")
    with pytest.raises(pw.PeakwardError, match=r"at least 74,016 tokens, got 2 in .*short\.txt"):
        made(model, calibration_text="short.txt", **how)


def test_quantised_weights_in_bf16_go_with_a_cache_in_int8_a_queue_and_drafts(model, anywhere):
    how = {"weights": "int8", "precision": "bf16"}
    found = made(model, kv_cache="int8", **how)
    assert (found.computed_in, found.kv_cache) == ("bf16", "int8")
    queue = pw.serve(model, ["hello", "he"], device="cpu", max_new_tokens=4, **how)
    assert (queue.weights, queue.computed_in, queue.n_equal) == ("int8", "bf16", 2)
    assert "of the blocks in int8 with a scale for each output; others in bf16" in pw.markdown(
        queue
    )
    plain = made(model, "hell, hell,", weights="int8", max_new_tokens=10)
    for draft in ("ngrams", "skip:1", "distilled:1"):
        drafted = made(
            model, "hell, hell,", weights="int8", max_new_tokens=10, guesses=2, draft=draft
        )
        assert drafted.continuations == plain.continuations


def test_a_precision_is_that_of_all_that_a_step_reads(model):
    found = made(model, precision="bf16")
    assert found.computed_in == "bf16"
    assert found.bytes_per_step == made(model).bytes_per_step / 2


def test_what_transformers_computes_and_widths_that_no_group_divides_are_refused(
    model, anywhere, at_user_modules
):
    with pytest.raises(pw.PeakwardError, match="weights int4:128 need d_model in whole groups"):
        made(model, weights="int4:128")
    with pytest.raises(pw.PeakwardError, match=r"decoder for weights int8: .*'gpt2'.* dense ones"):
        made("gpt2", weights="int8")


def test_a_datasheet_where_nothing_is_calibrated(model, monkeypatch):
    monkeypatch.setattr(generating.devices, "match", lambda *_: pw.device("h200"))
    found = made(model)
    assert (found.bandwidth.bytes_per_s, found.bandwidth.source) == (4.8e12, "datasheet")


def test_a_step_stands_beside_its_prediction_or_why_there_is_none(model):
    found = made(model, ["hello", "no"])
    h200 = pw.device("h200")
    assert generating.beside_prediction(found, ON_GPU, None, h200) is found, "a CPU"
    # As a GPU would make it: 100 and 28 tokens, then 40 steps.
    rows = [
        replace(each, n_prompt_tokens=n)
        for each, n in zip(found.continuations, (100, 28), strict=True)
    ]
    on_gpu = replace(
        found, environment=replace(found.environment, device_type="cuda"), n_steps=40,
        shape=presets.model("2.7B"), continuations=tuple(rows), captured=True, decode_step="fused",
    )  # fmt: skip
    guessing = replace(on_gpu, guesses=2)
    assert generating.beside_prediction(guessing, ON_GPU, None, h200) is guessing
    case = pw.case(
        "2.7B", batch_size=2, seq_len=64 + 20 + 1, pass_="decode", device="cuda",
        levers=["bf16", "flash-decode", "cuda-graphs", "fused-step"],
    )  # fmt: skip
    told = generating.beside_prediction(on_gpu, ON_GPU, None, h200)
    assert told.predicted_step_s == pw.predict(case, "h200").step_s
    assert "without the choice of a token" in pw.markdown(told)
    unknown = generating.beside_prediction(on_gpu, ON_GPU, None, None)
    assert unknown.predicted_step_s is None
    assert "not predicted: expected a GPU whose number of multiproc" in pw.markdown(unknown)


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
    reason = "decode-step fused needs a CUDA GPU, got a CPU"
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

    def told(capability=(9, 0), cuda="12.8", n_rows=1, guesses=0, how=ON_GPU, **changes):
        here = replace(probe.environment("cpu"), device_type="cuda", cuda=cuda)
        machine = Machine(environment=here, compute_capability=capability, has_compiler=True)
        shaped = replace(shape, **changes)
        return generating.not_fused(machine, shaped, asked=how, n_rows=n_rows, guesses=guesses)

    in_int8 = replace(ON_GPU, kv_cache="int8")
    assert told() is None
    assert told(how=in_int8) is None
    for weights in ("int8", "int4:128", "int4:128-calibrated"):
        assert told(how=replace(ON_GPU, weights=weights)) is None
        assert "at most 1 beside" in told(how=replace(ON_GPU, weights=weights), n_rows=2)
        of_guesses = told(how=replace(ON_GPU, weights=weights), guesses=2)
        assert "needs dense weights beside guesses" in of_guesses
        assert of_guesses.endswith(f"got weights {weights}")
    of_guesses = told(how=in_int8, guesses=2)
    assert "needs keys and values in the compute type beside guesses" in of_guesses
    assert of_guesses.endswith("got kv-cache int8")
    assert "needs a scale for 128 inputs" in told(how=replace(ON_GPU, weights="int4:32-calibrated"))
    assert "needs the precision bf16, got fp32" in told(how=replace(ON_GPU, precision="fp32"))
    assert told(tied_head=True, n_kv_heads=3, qkv_bias=True, d_model=576) is None
    assert told(capability=(8, 0)) == "decode-step fused needs compute capability 9.0, got 8.0"
    assert told(cuda=None) == "decode-step fused needs a GPU by NVIDIA"
    assert told(guesses=15) is None
    assert "at most 16 tokens at once" in told(guesses=16)
    assert told(n_rows=4) is None
    assert told(n_rows=4, how=in_int8) is None
    assert "at most 4 beside dense weights: of larger ones it is" in told(n_rows=5)
    assert "with guesses for one text at once, got 2" in told(n_rows=2, guesses=3)
    assert "needs no window, got 64" in told(window=64)
    assert "needs a d_model of at most 4096" in told(d_model=8192)


def test_what_a_machine_lacks_is_refused_before_a_model_is_read():
    def told(capability=(9, 0), cuda="12.8", precision=None, **named):
        here = replace(probe.environment("cpu"), device_type="cuda", cuda=cuda)
        machine = Machine(environment=here, compute_capability=capability, has_compiler=True)
        asked = {"calibration_text": None, "decode_step": "auto", "kv_cache": "static", **named}
        return generating.settings_here(machine, precision=precision, **asked)

    assert told(weights="dense") == ON_GPU
    assert told(weights="dense", capability=(7, 0)) == ON_GPU
    assert told(weights="int8", precision="tf32").precision == "tf32"
    assert told(weights="int4:128").calibration_text is None
    assert told(weights="int4:128-calibrated").calibration_text == Source("python-topics")
    for named, said in (
        ({"weights": "int8", "capability": (7, 5)}, "weights int8 needs compute capability 8.0"),
        ({"weights": "int8", "cuda": None}, "weights int8 need a GPU by NVIDIA"),
        ({"weights": "dense", "precision": "bf16", "capability": (7, 5)}, "precision bf16 needs"),
        (
            {"weights": "int4:32-calibrated", "calibration_text": "none.txt"},
            r"none\.txt', which is not there",
        ),
    ):
        with pytest.raises(pw.PeakwardError, match=said):
            told(**named)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"kv_cache": "int8"},
        *in_full([{"weights": "int8"}, {"guesses": 2}, {"guesses": 2, "draft": "skip:1"}]),
    ],
    ids=str,
)
def test_the_fused_step_makes_the_text_of_a_real_file(how, model, monkeypatch):
    """In Triton's interpreter: a tied head and grouped heads, through the whole call."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has it compiled")
    monkeypatch.setattr(generating, "expect_here", lambda *_: None)
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
    Line(
        ("--prompt", "x", "--decode-step", "fused"), "decode-step fused needs a CUDA GPU, got a CPU"
    ),
    Line(("--prompt", "x", "--precision", "fp16"), "a value of --precision, got 'fp16'"),
    Line(("--prompt", "x", "--precision", "tf32"), "precision tf32 needs a CUDA GPU, got a CPU"),
    Line(("--prompt", "x", "--weights", "int4"), "a value of --weights, got 'int4'"),
    Line(
        ("--prompt", "x", "--weights", "int4:128"), "weights int4:128 needs a CUDA GPU, got a CPU"
    ),
    Line(
        ("--prompts", "queue.txt", "--weights", "int4:128"),
        "weights int4:128 needs a CUDA GPU, got a CPU",
    ),
    Line(
        ("--prompt", "x", "--calibration-text", "kjv"), "no calibration text beside weights dense"
    ),
    Line(("--prompt", ""), "at least one token, got ''"),
    Line(("--prompt", "x" * 80), "at most 64, which small takes, got 80 and 64"),
    Line(("--prompt", "x", "--temperature", "hot"), "expected a number for --temperature"),
    Line(("--prompt", "x", "--temperature", "101"), "a number from 0 to 100 for --temperature"),
    Line(("--prompt", "x", "--top-p", "2"), "a share above 0, at most 1 for --top-p"),
    Line(("--prompt", "x", "--top-k", "0"), "--top-k"),
    Line(
        ("--prompt", "x", "--draft", ""), "for --draft, got '': name one, or leave the option out"
    ),
    Line(
        ("--prompt", "x", "--model", ""), "for --model, got '': name one, or leave the option out"
    ),
    Line(
        ("--prompt", "x", "--weights", "int4:32-calibrated", "--calibration-text", ""),
        "expected a path for --calibration-text",
    ),
    Line(("--prompt", "x", "--db", ""), "expected a path for --db"),
    Line(("--prompt", "x", "--db", "none/x.db"), "expected a results database at "),
    Line(("--prompts", "queue.txt", "--db", "x.db"), "expected no --db for a queue, got 'x.db'"),
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
    with pytest.raises(pw.PeakwardError, match=r"that can take the fused step: .* got a CPU"):
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
