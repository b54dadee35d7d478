"""`peakward plan`, through its command line."""

import json
from logging import Handler
from pathlib import Path

import msgspec
import pytest

import peakward as pw
from peakward.api import predictions
from peakward.cli.main import main
from peakward.lab.measure import probe
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.plan import Plan
from stored_results import index

CALIBRATION = index()["2026-11-21-h200-calibration"].path()
CASE = ("--model", "small", "--batch-size", "2", "--seq-len", "128")


def planned(capsysbinary, *words):
    assert main(["plan", *CASE, *words, "--json"]) == 0
    return codec.from_json(capsysbinary.readouterr().out, Plan)


def test_one_screen_says_time_memory_cost_and_levers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["plan", *CASE, "--device", "h100-sxm", "--price", "2"]) == 0
    said = capsys.readouterr().out
    for part in ("Time of a step", "Memory of a GPU", "A million tokens", "speed-up"):
        assert part in said
    assert "on the host" not in said
    assert len(said.partition("WHAT LEVERS WOULD CHANGE")[0].splitlines()) < 25


def test_what_transformers_says_by_itself_is_kept_out(in_tmp, capsys):
    """A model of state spaces asks for packages at its first pass, before it is refused in one line."""
    logging = pytest.importorskip("transformers").utils.logging
    (in_tmp / "config.json").write_text(
        json.dumps(
            {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 50}
        )
    )
    heard = []
    library, listener = logging.get_logger("transformers"), Handler()
    listener.emit = heard.append
    library.addHandler(listener)
    library.warning_once.__func__.cache_clear()
    try:
        words = ["--batch-size", "1", "--seq-len", "8", "--device", "h100-sxm"]
        assert main(["plan", "--model", "hf:config.json", *words]) == 2
    finally:
        library.removeHandler(listener)
    assert heard == []
    assert capsys.readouterr().err.count("\n") == 1


def test_a_plan_is_computed_once(tmp_path, monkeypatch, capsysbinary):
    """The second time nothing is replayed and no operator is stated; the page is the same."""
    monkeypatch.setenv("PEAKWARD_CACHE", str(tmp_path))
    asked = ["plan", *CASE, "--device", "h100-sxm,a100-sxm-80", "--json"]
    assert main(asked) == 0
    first = capsysbinary.readouterr().out
    for place in ("memory.replay.replay", "time.step.op_graph"):
        monkeypatch.setattr(f"peakward.prediction.{place}", None)
    assert main(asked) == 0
    assert capsysbinary.readouterr().out == first
    computed = len(list(tmp_path.iterdir()))
    monkeypatch.undo()
    monkeypatch.setenv("PEAKWARD_CACHE", str(tmp_path))
    assert main([*asked[:-1], "--price", "2", "--json"]) == 0
    assert len(list(tmp_path.iterdir())) == 2 * computed == 4


def test_python_finds_what_the_command_computed_until_a_package_brings_levers(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PEAKWARD_CACHE", str(tmp_path))
    assert main(["plan", *CASE, "--device", "h100-sxm"]) == 0
    case = pw.case("small", batch_size=2, seq_len=128, device="cuda")
    pw.plan(case, ["h100-sxm"])
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(predictions, "PLUGINS", ("toy 1.0",))
    pw.plan(case, ["h100-sxm"])
    assert len(list(tmp_path.iterdir())) == 2


def test_everything_is_asked_for(capsys):
    assert main(["plan", *CASE, "--device", "h100-sxm", "--operators"]) == 0
    assert "on the host" in capsys.readouterr().out


def test_a_configuration_is_planned_as_the_preset_of_its_shape_is(in_tmp, capsysbinary):
    published = {
        "model_type": "llama",
        "vocab_size": 128_256,
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
    }
    (in_tmp / "mine").mkdir()
    (in_tmp / "mine" / "config.json").write_text(json.dumps(published))
    asked = ("--lever", "bf16,sdpa", "--device", "h200")
    found = planned(capsysbinary, "--model", "mine/config.json", *asked)
    preset = planned(capsysbinary, "--model", "llama-3-8b", *asked)
    assert (found.case.model.name, preset.case.model.name) == ("mine", "llama-3-8b")
    (mine,), (same,) = found.devices, preset.devices
    assert mine.forecast.step_s == same.forecast.step_s is not None
    assert mine.forecast.needed_bytes == same.forecast.needed_bytes is not None
    assert mine.largest_batch_size == same.largest_batch_size > 0


def test_files_hold_everything(in_tmp, capsys):
    assert (
        main(["plan", *CASE, "--device", "l4", "--html", "plan.html", "--markdown", "plan.md"]) == 0
    )
    assert "on the host" in Path("plan.md").read_text()
    assert "<table" in Path("plan.html").read_text()


def test_an_abbreviation_means_every_device_that_has_its_parts(capsysbinary):
    found = planned(capsysbinary, "--device", "a100-80,h200,a100-sxm-80")
    keys = [each.forecast.device for each in found.devices]
    assert keys == ["a100-sxm-80", "a100-pcie-80", "h200-141"]


def test_prices_go_to_their_devices(capsysbinary):
    found = planned(capsysbinary, "--device", "h200,l4", "--price", "4,0.5")
    assert [each.price_per_gpu_hour for each in found.devices] == [4.0, 0.5]
    found = planned(capsysbinary, "--device", "h200,l4", "--price", "4")
    assert [each.price_per_gpu_hour for each in found.devices] == [4.0, 4.0]


def test_levers_and_settings_make_the_case(capsysbinary):
    found = planned(
        capsysbinary, "--device", "l4", "--lever", "bf16,sdpa", "--optimizer", "adamw-fused"
    )
    settings = found.case.configuration
    assert (settings.precision, settings.attention) == ("bf16", "sdpa")
    assert settings.optimizer == "adamw-fused"
    assert found.case.device == "cuda"


def test_several_gpus_say_what_they_tell_each_other(capsysbinary):
    found = planned(capsysbinary, "--device", "h100-sxm", "--gpus", "8", "--parallel", "fsdp")
    assert found.devices[0].forecast.communication.group.parallel == "fsdp"


def test_a_calibration_narrows_its_device_alone(capsysbinary):
    words = ("--device", "h200,h100-sxm", "--calibration", str(CALIBRATION))
    # Where the host binds, that of the calibration is another than this one, and as unsure as any.
    large = ("--batch-size", "16", "--seq-len", "2048")
    found = planned(capsysbinary, *words, *large)
    sources = [each.forecast.time.source for each in found.devices]
    assert sources == ["calibrated", "datasheet"]
    widths = [each.forecast.step_s.high / each.forecast.step_s.low for each in found.devices]
    assert widths[0] < widths[1]


def test_a_calibration_knows_its_host(in_tmp):
    """On another, the host's costs are as sure as half of them to twice, and the page says so."""
    known = Calibration.load(CALIBRATION)
    msgspec.structs.replace(known, host=probe.host()).save("own.json")
    case = pw.case("tiny", batch_size=1, seq_len=128, device="cuda")
    own, other = (pw.plan(case, ["h200"], calibration=each) for each in ("own.json", known))
    here, there = (each.devices[0].forecast.time for each in (own, other))
    assert (here.host_is_known, there.host_is_known) == (True, False)
    assert here.bound == there.bound == "host"
    assert there.step_s.high > here.step_s.high
    assert there.step_s.low < here.step_s.low
    assert "of another host than this" in pw.markdown(other)
    assert "of another host than this" not in pw.markdown(own)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--device", "h100-smx"), "expected a device, got 'h100-smx': perhaps h100-sxm-80"),
        (("--price", "-1"), "expected an amount from 0 to 1,000,000 for --price, got -1"),
        (("--price", "nan"), "for --price, got 'nan'"),
        (("--price", "1,2"), "one price, or one for each device (3), got 2"),
        (
            ("--gpus", "9", "--parallel", "ddp"),
            "expected a whole number from 1 to 8 for --gpus, got '9'",
        ),
        (("--parallel", "tp"), "expected a value of --parallel, got 'tp'"),
        (("--seq-len", "128,256"), "expected one case, got a grid of 2"),
        (("--batch-size", "99999999999"), "for --batch-size, got '99999999999'"),
        (("--calibration", "nowhere.json"), "a calibration to read in nowhere.json"),
        (("--calibration", str(CALIBRATION), "--device", "l4"), "one of NVIDIA H200"),
        (("--pass", "forward", "--lever", "checkpointing"), "needs the pass forward_backward"),
    ],
)
def test_bad_input_is_one_line(words, line, capsys):
    given = [*CASE, *words] if "--seq-len" not in words and "--batch-size" not in words else words
    assert main(["plan", *given]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_a_calibration_of_the_ceilings_alone_is_refused(in_tmp, capsys):
    full = codec.from_json(CALIBRATION.read_bytes(), Calibration)
    Path("quick.json").write_bytes(codec.to_json(msgspec.structs.replace(full, rates=None)))
    assert main(["plan", *CASE, "--device", "h200", "--calibration", "quick.json"]) == 2
    assert "expected a full calibration, got one of the ceilings" in capsys.readouterr().err


def test_a_module_of_one_s_own_is_planned_from_the_command_line(at_user_modules, capsysbinary):
    words = ("--batch-size", "4", "--seq-len", "8", "--device", "h100-sxm,a100-sxm-80")
    assert main(["plan", "--model", "py:tiny_gpt:build", *words, "--json"]) == 0
    found = codec.from_json(capsysbinary.readouterr().out, Plan)
    assert [each.forecast.device for each in found.devices] == ["h100-sxm-80", "a100-sxm-80"]
    assert all(each.forecast.step_s and each.forecast.fits for each in found.devices)
    assert found.case.source == "py:tiny_gpt:build"
    assert found.n_parameters > 0
    assert {each.figure for each in found.devices[0].absent} >= {"largest batch", "levers"}


def test_a_model_of_transformers_of_any_size_is_planned_without_being_built(in_tmp, capsys):
    """Some 380 billion parameters, which fit no memory."""
    pytest.importorskip("transformers")
    config = {"model_type": "llama", "hidden_size": 65536, "intermediate_size": 4 * 65536}
    heads = {"num_attention_heads": 512, "num_key_value_heads": 8, "num_hidden_layers": 6}
    Path("config.json").write_text(json.dumps({**config, **heads, "vocab_size": 1000}))
    words = ("--batch-size", "1", "--seq-len", "64", "--pass", "forward", "--lever", "bf16")
    assert main(["plan", "--model", "hf:config.json", *words, "--device", "h100-sxm"]) == 0
    assert "does not fit the memory of NVIDIA H100" in capsys.readouterr().out


def test_several_gpus_for_a_module_are_refused(at_user_modules, capsys):
    words = ("--batch-size", "4", "--seq-len", "8", "--gpus", "2")
    assert main(["plan", "--model", "py:tiny_gpt:build", *words]) == 2
    assert "expected one GPU for a module, got several" in capsys.readouterr().err


GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    **{"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 128},
}


@pytest.mark.parametrize(
    ("changes", "pass_", "share"),
    [
        ({}, "train_step", "10%"),
        ({"attn_pdrop": 0.25}, "train_step", "25%"),
        ({"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}, "train_step", None),
        ({}, "forward", None),
    ],
)
def test_a_plan_says_that_it_leaves_a_configuration_s_dropout_out(
    in_tmp, capsys, changes, pass_, share
):
    """transformers' GPT-2 drops a tenth where its configuration says nothing."""
    Path("config.json").write_text(json.dumps({**GPT2, **changes}))
    words = ("--batch-size", "1", "--seq-len", "64", "--pass", pass_, "--device", "h100-sxm")
    assert main(["plan", "--model", "config.json", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    if share is None:
        assert "dropout" not in said
    else:
        assert f"The configuration drops {share} in training" in said
        assert "--model hf:config.json" in said
