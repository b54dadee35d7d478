"""What is said before anything is measured."""

import json
from pathlib import Path

import msgspec
import pytest

from peakward.api.cases import with_own_weights
from peakward.api.investigating import aim, allowed, real_model_of
from peakward.api.machine import this_machine
from peakward.cli.main import main
from peakward.cli.run import expectation
from peakward.hardware.devices import device
from peakward.levers.catalogue import lever
from peakward.models.presets import model
from peakward.prediction.floor import floor
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import site
from peakward.records.case import ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.tune.investigation import Aim

CARD = device("rtx-4090-24")


@pytest.fixture
def said():
    """said(batch_size, fitting): of `medium` on a card of 24 GB."""

    def say(batch_size, fitting=()):
        workload = Workload(batch_size=batch_size, seq_len=512)
        case = ModelCase(model=model("medium"), workload=workload, device="cuda")
        told = forecast(case, site(CARD))
        return expectation(case, floor(case, calibration=None, device=CARD), told, fitting)

    return say


def test_what_fits_is_said_with_what_it_needs(said):
    assert said(1).startswith("at most ")
    assert "; predicted " in said(1)
    assert said(1).endswith(" GiB of memory")


def test_what_does_not_fit_is_said_with_the_levers_that_help(said):
    assert said(64).endswith(", which does not fit 23.3 GiB")
    told = said(16, ("checkpointing", "bf16"))
    assert told.endswith(", which does not fit 23.3 GiB, but would with checkpointing or bf16")


def test_on_a_device_that_nobody_catalogued_the_floor_stands_alone(said):
    case = ModelCase(
        model=model("medium"), workload=Workload(batch_size=1, seq_len=8), device="cpu"
    )
    unknown = msgspec.structs.replace(floor(case, calibration=None, device=CARD), floor_s=None)
    assert expectation(case, unknown, None, ()).startswith("no floor: ")


def test_what_is_sought_is_read_and_by_default_is_the_shortest_step():
    here = this_machine("cpu")
    assert aim("latency", None, "approximate", here) == Aim()
    found = aim("throughput", 2**29, "exact", here)
    assert found == Aim(objective="throughput", max_memory_bytes=2**29, numerics="exact")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("speed", None, "exact"), "expected an objective, got 'speed'"),
        (("latency", None, "rough"), "expected a numerics class, got 'rough'"),
        (("energy", None, "exact"), "expected a GPU"),
    ],
)
def test_what_cannot_be_sought_is_refused(given, said):
    with pytest.raises(PeakwardError) as refused:
        aim(*given, this_machine("cpu"))
    assert said in str(refused.value)


def test_a_lever_named_beyond_the_class_asked_for_is_refused():
    case = ModelCase(model=model("tiny"), workload=Workload(batch_size=1, seq_len=8), device="cpu")
    here, strict = this_machine("cpu"), Aim(numerics="exact")
    with pytest.raises(PeakwardError, match="within what is sought: sdpa is reordered"):
        allowed((lever("sdpa"),), case, here, strict)
    recompute = (lever("checkpointing"),)
    assert allowed(recompute, case, here, strict) == recompute


def test_a_dry_run_plans_what_is_within_the_class(in_tmp, micro, capsys):
    words = ["run", "--dry-run", *micro, "--numerics"]
    assert main([*words, "exact"]) == 0
    strict = capsys.readouterr().out
    assert main([*words, "reordered"]) == 0
    assert "screen sdpa" in capsys.readouterr().out
    assert "screen checkpointing" in strict
    assert "screen sdpa" not in strict


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--write-patch", "new.patch"), "py:package.module:factory beside --write-patch"),
        (("--write-patch", "old.patch", "--model", "py:m:f"), "expected a new file"),
        (("--write-patch", "no/such.patch", "--model", "py:m:f"), "existing folder"),
    ],
)
def test_a_patch_that_could_not_be_written_is_refused_before_anything_runs(
    in_tmp, capsys, words, said
):
    Path("old.patch").touch()
    Path("m.py").write_text("def f(): pass\n")
    assert main(["run", "--device", "cpu", "--dry-run", *words]) == 2
    assert said in capsys.readouterr().err


TINY = model("tiny")
OF_TINY = {
    "model_type": "llama",
    "vocab_size": TINY.vocab_size,
    "hidden_size": TINY.d_model,
    "intermediate_size": TINY.d_ff,
    "num_hidden_layers": TINY.n_layers,
    "num_attention_heads": TINY.n_heads,
    "num_key_value_heads": TINY.n_kv_heads,
    "head_dim": TINY.head_dim,
    "tie_word_embeddings": TINY.tied_head,
}
HEADER = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'


def test_a_folder_with_weights_is_read_by_itself(in_tmp):
    folder = in_tmp / "own"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(OF_TINY))
    assert with_own_weights(str(folder)) is None
    (folder / "model.safetensors").write_bytes(
        len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)
    )
    assert with_own_weights(str(folder)) == str(folder)
    assert [with_own_weights(each) for each in (None, "tiny", "py:m:f")] == [None] * 3
    decode = ModelCase(
        model=model("tiny"),
        workload=Workload(batch_size=1, seq_len=8, pass_="decode"),
        device="cpu",
    )
    assert real_model_of(folder, decode) == str(folder)
    (folder / "config.json").write_text(json.dumps({**OF_TINY, "vocab_size": 300}))
    with pytest.raises(PeakwardError, match=r"of the shape of tiny, .* parameters, got .*own with"):
        real_model_of(folder, decode)


@pytest.mark.parametrize(
    ("name", "pass_", "said"),
    [
        (
            "own",
            "train_step",
            "forward, prefill or decode for a real model to be read, got train_step",
        ),
        ("own", "decode", "without weights in safetensors"),
        ("gone.gguf", "decode", "expected a model with weights of its own, got 'gone.gguf'"),
        ("tiny", "decode", "expected a model with weights of its own, got 'tiny'"),
    ],
)
def test_a_real_model_that_cannot_be_read_is_refused(in_tmp, name, pass_, said):
    folder = in_tmp / "own"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    case = ModelCase(
        model=model("tiny"), workload=Workload(batch_size=1, seq_len=8, pass_=pass_), device="cpu"
    )
    with pytest.raises(PeakwardError, match=said):
        real_model_of(name, case)


def test_decode_of_a_module_is_refused_for_its_pass(in_tmp, capsys):
    assert main(["run", "--pass", "decode", "--model", "py:m:f", "--device", "cpu"]) == 2
    assert "the pass decode needs the decoder's key-value cache" in capsys.readouterr().err


def test_a_real_model_is_part_of_what_is_asked(in_tmp, capsys):
    decode = ("run", "--dry-run", "--pass", "decode", "--batch-size", "1", "--seq-len", "8")
    assert main([*decode, "--model", "tiny", "--device", "cpu", "--real-model", "gone"]) == 2
    assert "expected a model with weights of its own, got 'gone'" in capsys.readouterr().err
