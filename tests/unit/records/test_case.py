"""Text in a case, and its key."""

import subprocess
import sys

import msgspec
import pytest

from peakward.models.presets import model
from peakward.records.case import (
    Case,
    Configuration,
    ModelCase,
    ModuleCase,
    Source,
    StepCase,
    TextData,
    Workload,
)
from peakward.records.case_key import SPELLED_OUT, case_key, same_work
from peakward.records.codec import from_json
from peakward.records.model_shape import ModelShape

CASE = ModelCase(model=model("tiny"), workload=Workload(batch_size=1, seq_len=16), device="cpu")


def fed(**data):
    found = TextData(**{"text": Source("python-topics"), **data})
    work = msgspec.structs.replace(CASE.workload, data=found)
    return msgspec.structs.replace(CASE, workload=work)


def test_every_setting_is_in_the_key():
    cases = [
        CASE,
        fed(),
        fed(text=Source("/a")),
        fed(text=Source("/a", "1")),
        fed(tokenizer=Source("bpe")),
        fed(tokenise="on-the-fly"),
        fed(n_workers=1),
        fed(pin_memory=True),
        fed(non_blocking=True),
        fed(n_ranks=2),
        fed(sampler="same"),
    ]
    assert len({case_key(each) for each in cases}) == len(cases)
    assert len(set(cases)) == len(cases)


def test_a_case_comes_back_from_json():
    assert msgspec.json.decode(msgspec.json.encode(fed()), type=Case) == fed()


SHAPE = ModelShape(
    name="tiny",
    vocab_size=100,
    n_layers=2,
    d_model=8,
    d_ff=16,
    n_heads=2,
    n_kv_heads=1,
    head_dim=4,
    max_seq_len=32,
)
CPU_CASE = ModelCase(model=SHAPE, workload=Workload(batch_size=4, seq_len=16), device="cpu")
STEP = StepCase(name="step", fingerprint="abc", device="cpu")
STEP_KEY = "3b4ed06d599f14ec"
"""Results stored under it must stay findable: a change of this literal orphans every database."""
MODEL_KEY = "ad390c566678ee92"


def test_the_keys_of_known_cases_never_change() -> None:
    assert case_key(STEP) == STEP_KEY
    assert case_key(CPU_CASE) == MODEL_KEY


@pytest.mark.parametrize(
    ("pass_", "trains", "caches", "tokens"),
    [
        ("forward", False, False, 64),
        ("forward_backward", True, False, 64),
        ("train_step", True, False, 64),
        ("prefill", False, True, 64),
        ("decode", False, True, 4),
    ],
)
def test_what_a_pass_does(pass_, trains, caches, tokens) -> None:
    work = Workload(batch_size=4, seq_len=16, pass_=pass_)
    assert (work.trains, work.caches, work.tokens_per_step) == (trains, caches, tokens)


def test_experts_are_in_the_key() -> None:
    shapes = [
        msgspec.structs.replace(SHAPE, n_experts=total, n_active_experts=active)
        for total, active in ((1, 1), (4, 1), (4, 2))
    ]
    keys = {case_key(msgspec.structs.replace(CPU_CASE, model=shape)) for shape in shapes}
    assert len(keys) == 3


def test_a_case_stored_before_there_were_experts_is_dense() -> None:
    content = msgspec.to_builtins(CPU_CASE)
    del content["model"]["n_experts"], content["model"]["n_active_experts"]
    stored = msgspec.json.encode({"schema_version": 2, "record": content})
    assert from_json(stored, ModelCase) == CPU_CASE


def test_a_loss_that_older_records_do_not_name_is_torchs_and_in_no_key() -> None:
    content = msgspec.to_builtins(CPU_CASE)
    del content["configuration"]["loss"]
    stored = msgspec.json.encode({"schema_version": 2, "record": content})
    assert from_json(stored, ModelCase) == CPU_CASE
    fused = msgspec.structs.replace(CPU_CASE, configuration=Configuration(loss="fused"))
    assert case_key(fused) != case_key(CPU_CASE)


MODULE_KEY = "d5c7316f4a1dd418"


def test_settings_that_older_records_do_not_name_are_in_no_key() -> None:
    """A module's have named the loss since there were any."""
    module = ModuleCase(
        source="py:a:b", fingerprint="1", workload=Workload(batch_size=4, seq_len=16), device="cpu"
    )
    assert case_key(module) == MODULE_KEY
    for case in (CPU_CASE, module):
        for field in ("norm", "rope", "swiglu"):
            fused = msgspec.structs.replace(case.configuration, **{field: "fused"})
            assert case_key(msgspec.structs.replace(case, configuration=fused)) != case_key(case)
        quantised = msgspec.structs.replace(case.configuration, weights="int8")
        assert case_key(msgspec.structs.replace(case, configuration=quantised)) != case_key(case)


def test_the_key_is_the_same_in_another_process() -> None:
    program = (
        "from peakward.records.case import StepCase; from peakward.records.case_key import case_key;"
        "print(case_key(StepCase(name='step', fingerprint='abc', device='cpu')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == STEP_KEY


def test_defaults_spelled_out_are_the_same_case() -> None:
    spelled = ModelCase(
        model=SHAPE,
        workload=Workload(batch_size=4, seq_len=16, accumulate=1, seed=0),
        configuration=Configuration(precision="fp32"),
        device="cpu",
    )
    assert spelled == CPU_CASE
    assert case_key(spelled) == case_key(CPU_CASE)


def test_an_integer_in_a_float_field_is_the_same_case() -> None:
    whole = msgspec.structs.replace(STEP, tokens_per_step=64)
    real = msgspec.structs.replace(STEP, tokens_per_step=64.0)
    assert whole == real
    assert case_key(whole) == case_key(real)


@pytest.mark.parametrize(
    ("lengths", "accumulate", "tokens"), [((), 1, 64), ((), 3, 192), ((4, 8, 12), 1, 32)]
)
def test_tokens_of_a_step(lengths: tuple[int, ...], accumulate: int, tokens: float) -> None:
    workload = Workload(batch_size=4, seq_len=16, varying_seq_lens=lengths, accumulate=accumulate)
    assert workload.tokens_per_step == tokens


def test_a_live_step_as_it_is_has_the_key_of_before_it_had_settings() -> None:
    step = StepCase(name="step", fingerprint="f", device="cpu", tokens_per_step=64)
    assert case_key(step) == "11a8dde178a213f1"
    around = msgspec.structs.replace(step.configuration, attention="sdpa-math")
    assert case_key(msgspec.structs.replace(step, configuration=around)) != case_key(step)


def test_the_same_work_is_all_but_the_configuration() -> None:
    other = msgspec.structs.replace(CPU_CASE, configuration=Configuration(precision="bf16"))
    assert same_work(CPU_CASE, other)
    assert not same_work(CPU_CASE, STEP)
    assert not same_work(CPU_CASE, msgspec.structs.replace(CPU_CASE, device="cuda"))


def test_an_axis_without_a_field_is_in_the_key_and_a_default_in_none() -> None:
    """An axis that an older version does not know leaves every stored key as it is."""
    assert "more" not in SPELLED_OUT[ModelCase]
    one = Configuration(more=(("pace", "fast"), ("echo", "on")))
    other = Configuration().with_settings({"echo": "on", "pace": "fast", "norm": "torch"})
    assert one == other
    assert one.more == (("echo", "on"), ("pace", "fast"))
    assert one.settings["pace"] == "fast"
    assert one.settings["norm"] == "torch"
    keys = {
        case_key(msgspec.structs.replace(CPU_CASE, configuration=each))
        for each in (Configuration(), one, Configuration(more=(("pace", "fast"),)))
    }
    assert MODEL_KEY in keys
    assert len(keys) == 3


def test_a_stored_configuration_without_axes_of_a_younger_version_opens() -> None:
    content = msgspec.to_builtins(CPU_CASE)
    del content["configuration"]["more"]
    stored = msgspec.json.encode({"schema_version": 2, "record": content})
    assert from_json(stored, ModelCase) == CPU_CASE
