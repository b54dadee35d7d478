"""A case's command line gives the case back."""

import contextlib
import json
import shlex
import tempfile
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from peakward.api.cases import model as named
from peakward.api.reproduce import to_command
from peakward.cli import options
from peakward.cli.parse import parse
from peakward.cli.vocabulary import CaseOptions
from peakward.models.presets import MODELS, model
from peakward.records import case as records
from peakward.records.case import (
    Configuration,
    MicroCase,
    ModelCase,
    OperatorCase,
    Source,
    StepCase,
    TextData,
    Workload,
)
from peakward.records.errors import PeakwardError


def read(command: str) -> ModelCase:
    program, name, *words = shlex.split(command)
    assert (program, name) == ("peakward", "bench")
    given_options = parse(CaseOptions, words, prog="peakward bench")
    assert given_options is not None
    (case,) = options.cases(given_options, given_options.device)  # type: ignore[arg-type]
    return case


@st.composite
def shapes(draw):
    """Presets, some with parts of their size replaced as the options allow."""
    preset = draw(st.sampled_from(MODELS))
    if draw(st.booleans()):
        return preset
    kv_heads = draw(st.integers(1, 6))
    heads = kv_heads * draw(st.integers(1, 6))
    parts = {
        "n_layers": draw(st.integers(1, 60)),
        "d_ff": draw(st.integers(1, 4096)),
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "d_model": heads * 2 * draw(st.integers(1, 64)),
        "n_experts": draw(st.integers(2, 9)),
        "n_active_experts": draw(st.integers(1, 2)),
    }
    chosen = draw(st.sets(st.sampled_from(["n_layers", "d_ff"])))
    if not preset.bias and draw(st.booleans()):
        chosen |= {"n_experts", "n_active_experts"}
    if draw(st.booleans()):
        chosen |= {"n_heads", "n_kv_heads", "d_model"}
    (shape,) = options.shapes(
        CaseOptions(model=preset.name, **{part: str(parts[part]) for part in chosen}), "tiny"
    )
    return shape


configurations = st.builds(
    Configuration,
    precision=st.sampled_from(get_args(records.Precision)),
    attention=st.sampled_from(get_args(records.Attention)),
    compile=st.sampled_from(get_args(records.Compile)),
    compile_scope=st.sampled_from(get_args(records.CompileScope)),
    cuda_graphs=st.booleans(),
    optimizer=st.sampled_from(get_args(records.Optimizer)),
    checkpointing=st.sampled_from(get_args(records.Checkpointing)),
)
workloads = st.builds(
    Workload,
    batch_size=st.integers(1, options.MAX_BATCH_SIZE),
    seq_len=st.integers(1, 1024),
    pass_=st.sampled_from(get_args(records.Pass)),
    accumulate=st.integers(1, options.MAX_ACCUMULATE),
    seed=st.integers(0, 2**31 - 1),
)
cases = st.builds(
    ModelCase,
    model=shapes(),
    workload=workloads,
    configuration=configurations,
    device=st.sampled_from(get_args(records.DeviceType)),
    memory_limit_bytes=st.none() | st.integers(2**20, 2**50),
)


@given(cases)
def test_the_command_of_a_case_measures_that_case(case):
    command = to_command(case)
    assert command is not None
    assert read(command) == case


def test_the_words_are_the_ones_a_user_would_write():
    case = ModelCase(
        model=model("small"),
        workload=Workload(batch_size=4, seq_len=512),
        configuration=Configuration(precision="bf16", cuda_graphs=True),
        device="cuda",
    )
    assert to_command(case) == (
        "peakward bench --model small --batch-size 4 --seq-len 512 --pass train_step "
        "--precision bf16 --cuda-graphs on --device cuda"
    )


def test_what_no_options_say_has_no_command():
    plain = ModelCase(model=model("tiny"), workload=Workload(batch_size=1, seq_len=8), device="cpu")
    varying = msgspec.structs.replace(plain.workload, varying_seq_lens=(4, 8))
    fed = msgspec.structs.replace(plain.workload, data=TextData(text=Source("python-topics")))
    wider = msgspec.structs.replace(plain.model, vocab_size=12)
    unnamed = msgspec.structs.replace(plain.model, name="mine")
    headed = msgspec.structs.replace(plain.model, head_dim=34)
    resized = msgspec.structs.replace(plain.model, n_layers=1)  # But still named "tiny".
    others = [
        msgspec.structs.replace(plain, workload=varying),
        msgspec.structs.replace(plain, workload=fed),
        *(
            msgspec.structs.replace(plain, model=shape)
            for shape in (wider, unnamed, headed, resized)
        ),
        OperatorCase(batch_size=1, n_heads=1, seq_len=8, head_dim=8, device="cpu"),
        MicroCase(subject="matmul", piece="numpy", sizes=(8,), device="cpu"),
        StepCase(name="mine", fingerprint="0", device="cpu"),
    ]
    assert to_command(plain) is not None
    assert [to_command(each) for each in others] == [None] * len(others)


def configured(folder, **changed):
    """A configuration in that folder, of another shape than any preset's."""
    folder.mkdir(parents=True)
    settings = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 100} | changed
    (folder / "config.json").write_text(json.dumps(settings))


def of(shape, batch_size=1):
    return ModelCase(model=shape, workload=Workload(batch_size=batch_size, seq_len=8), device="cpu")


def test_a_cached_model_is_said_by_its_name(in_tmp, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(in_tmp))
    folder = in_tmp / "models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0")
    configured(folder / "snapshots" / "0")
    (sized,) = options.shapes(CaseOptions(model="org/name", d_model="64", n_heads="4"), "tiny")
    for shape in (named("org/name"), sized):
        command = to_command(of(shape))
        assert "--model org/name " in command
        assert read(command) == of(shape)


def test_a_name_that_means_another_model_by_now_has_no_command(in_tmp):
    configured(in_tmp / "mine")
    case = of(named("./mine"))
    assert to_command(case) is not None
    configured(in_tmp / "other", num_hidden_layers=9)
    (in_tmp / "other" / "config.json").replace(in_tmp / "mine" / "config.json")
    assert to_command(case) is None


def test_a_model_of_a_file_is_said_by_what_named_it(in_tmp):
    configured(in_tmp / "some models" / "mine")
    text = "some models/mine"
    (shape,) = options.shapes(CaseOptions(model=text, d_ff="32"), "tiny")
    command = to_command(of(shape), text)
    assert command.startswith("peakward bench --model 'some models/mine' --d-ff 32 --batch-size 1")
    assert read(command) == of(shape)
    assert to_command(of(shape)) is None
    assert to_command(of(model("small")), text) == to_command(of(model("small")))


def test_a_folder_here_is_said_by_its_name(in_tmp):
    configured(in_tmp / "mine")
    (shape,) = options.shapes(CaseOptions(model="./mine"), "tiny")
    assert read(to_command(of(shape))) == of(shape)


@pytest.mark.parametrize("name", ["a,b", "a:b", "a ", "-a", "None"])
def test_a_name_that_an_option_would_read_otherwise_has_no_command(name, in_tmp):
    configured(in_tmp / name)
    assert to_command(of(named(f"./{name}"))) is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8))
def test_whatever_a_folder_is_called_its_command_gives_the_case_back(name):
    assume("/" not in name and "\0" not in name and name not in (".", ".."))
    with tempfile.TemporaryDirectory() as root, contextlib.chdir(root):
        configured(Path(root) / name)
        try:
            case = of(named(f"./{name}"))
        except PeakwardError:  # It cannot be printed.
            return
        command = to_command(case)
        assert command is None or read(command) == case
