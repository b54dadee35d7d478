"""The best of a run as a patch of the user's files, checked in a process before it is given."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from peakward.api.patching import patch
from peakward.kernels.ops.fp8_modules import api as fp8_modules
from peakward.lab.models.module_source import fingerprint
from peakward.records.case import AS_WRITTEN, ModuleCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.linear_layers import LinearChoice, LinearTimes
from peakward.tune import patching

MODEL = """\
import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        T = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, dim=1)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    vocab_size = 32

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layers = nn.ModuleDict({"h": nn.ModuleList(Block() for _ in range(2))})

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.layers.h:
            x = block(x)
        return self.head(x)
"""
BUILD = """\
import torch

from parts.model import Model


def build():
    return Model()


def train(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "model.py").write_text(MODEL)
    (tmp_path / "build.py").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def case(**settings):
    return ModuleCase(
        source="py:build:build",
        fingerprint=fingerprint("py:build:build"),
        workload=Workload(batch_size=2, seq_len=8),
        configuration=msgspec.structs.replace(AS_WRITTEN, **settings),
        device="cpu",
    )


def of(base, best, called=None):
    """A study of that baseline and that best."""
    place = Path(__file__).parents[2] / "golden" / "studies.py"
    spec = importlib.util.spec_from_file_location("studies", place)
    studies = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(studies)
    study = studies.run_study()
    first, last = study.measurements[0], study.measurements[-1]
    trial = msgspec.structs.replace(study.trials[0], base=base, candidate=best)
    return msgspec.structs.replace(
        study,
        measurements=(
            msgspec.structs.replace(first, case=base),
            msgspec.structs.replace(last, case=best),
        ),
        trials=(trial,),
        steps=(trial.id,),
        called=called,
    )


SCRIPT = """\
import torch

from parts.model import Model

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
found = run(
    model,
    torch.ones(2, 8, dtype=torch.long),
)
logits = model(torch.arange(16).view(2, 8))
"""


RUN = eval(
    'lambda model, _batch: call_site("run", model)',
    {"__name__": "peakward.api.stub", "call_site": patching.call_site},
)
"""In the place of a public function: frames of Peakward's own are passed over."""


def ran(text, run):
    """The script's names, as Python would run it."""
    space = {"__name__": "script", "run": run}
    exec(compile(text, str(Path("train.py").resolve()), "exec"), space)
    return space


@pytest.fixture
def script(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    for name in ("parts", "parts.model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (folder / "train.py").write_text(SCRIPT)
    yield folder / "train.py"
    for name in ("parts", "parts.model"):
        sys.modules.pop(name, None)


def live(**settings):
    return msgspec.structs.replace(case(**settings), source="live:Model")


def test_lines_stand_in_the_place_of_a_call(script):
    site = ran(SCRIPT, RUN)["found"]
    assert site.blocks == "model.layers.h"
    assert [path for path, _ in site.files] == ["train.py", "parts/model.py"]
    best = live(precision="bf16-mixed", attention="sdpa", optimizer="adamw-fused")
    text = patch(of(live(), best, called=site))
    subprocess.run(("git", "apply"), input=text.encode(), check=True)
    after = script.read_text()
    assert "run(" not in after
    assert "faster(model)\n" in after
    assert "fused=True" in after
    assert "scaled_dot_product_attention" in Path("parts/model.py").read_text()
    for name in ("parts", "parts.model"):
        sys.modules.pop(name, None)
    logits = ran(after, None)["logits"]
    assert logits.dtype == torch.float32
    assert logits.grad_fn.name().startswith("ToCopy")


def test_what_a_diff_does_not_make_stands_above_it(script):
    (script.parent / "parts" / "model.py").write_text(MODEL.replace("-inf", "-1e9"))
    site = ran(SCRIPT, RUN)["found"]
    text = patch(of(live(), live(precision="bf16-mixed", attention="sdpa"), called=site))
    assert text.startswith("# By hand: Attention in parts/model.py:")
    subprocess.run(("git", "apply"), input=text.encode(), check=True)
    assert "faster(model)\n" in script.read_text()


def test_attention_of_another_form_is_not_said_to_be_missing(script):
    path = script.parent / "parts" / "model.py"
    assert "dim=-1" in MODEL
    path.write_text(MODEL.replace("dim=-1", "dim=3"))
    site = ran(SCRIPT, RUN)["found"]
    text = patch(of(live(), live(precision="bf16-mixed", attention="sdpa"), called=site))
    assert text.startswith(
        "# By hand: No attention was found in a method of your files whose softmax"
    )


def test_attention_in_one_expression_is_replaced(script):
    chain = "att = F.softmax(att, dim=-1)\n        y = att @ v"
    assert chain in MODEL
    path = script.parent / "parts" / "model.py"
    path.write_text(MODEL.replace(chain, "y = F.softmax(att, dim=-1) @ v"))
    site = ran(SCRIPT, RUN)["found"]
    text = patch(of(live(), live(precision="bf16-mixed", attention="sdpa"), called=site))
    assert "+        y = F.scaled_dot_product_attention(" in text


def test_a_best_that_no_line_makes_is_refused_with_what_to_do(script):
    (script.parent / "parts" / "model.py").write_text(MODEL.replace("-inf", "-1e9"))
    site = ran(SCRIPT, RUN)["found"]
    with pytest.raises(PeakwardError, match=r"by hand: Attention in parts/model.py:"):
        patch(of(live(), live(attention="sdpa"), called=site))


def test_a_call_whose_file_has_changed_is_refused(script):
    site = ran(SCRIPT, RUN)["found"]
    script.write_text(SCRIPT + "\n")
    with pytest.raises(PeakwardError, match=r"expected train.py as it was when run was called"):
        patch(of(live(), live(precision="bf16"), called=site))


def test_a_call_of_no_file_has_no_place(script):
    script.unlink()
    assert ran(SCRIPT, RUN)["found"] is None


def test_studies_of_no_file_of_the_users_are_refused(folder):
    with pytest.raises(PeakwardError, match="expected a run of py:"):
        patch(of(live(), live(precision="bf16")))
    with pytest.raises(PeakwardError, match="nothing to patch"):
        patch(of(live(), live()))


IN_FP8 = LinearChoice(
    layers=(
        LinearTimes(
            tokens=16,
            inputs=16,
            outputs=48,
            bias=True,
            n_layers=2,
            n_taken=2,
            plain_s=2e-3,
            fp8_s=1e-3,
        ),
    ),
    left=("head shares its weight with embed.weight",),
    taken=("layers.h.*.qkv", "layers.h.*.out"),
)


@pytest.mark.full
def test_layers_in_fp8_are_those_of_the_best_and_say_why(folder):
    best = case(precision="fp8", checkpointing="every-block")
    found = patching.patched(best, IN_FP8, n_rounds=1)
    assert found.numerics.verdict == "holds"
    assert all(each.candidate_error == each.base_error for each in found.numerics.errors)
    errors = {each.quantity: each.candidate_error for each in found.numerics.errors}
    assert errors["gradients"] > 2.0**-5  # More than bf16 has.
    assert found.patched_s > 0
    assert found.left == ()
    subprocess.run(("git", "apply"), input=found.text.encode(), check=True)
    after = (folder / "build.py").read_text()
    assert 'fp8_layers(model, ["layers.h.*.qkv", "layers.h.*.out"])' in after
    assert "# Faster in fp8 here, forward and backward. 16 × 16 → 48 with bias takes 2 ms" in after
    assert "head shares its weight with embed.weight." in after
    # What is patched can be the start of another run.
    again = patching.patched(case(optimizer="adamw-fused"), n_rounds=0)
    assert again.numerics.verdict == "holds"
    assert "fused=True" in again.text


def test_layers_in_fp8_stand_in_the_place_of_a_call(script):
    site = ran(SCRIPT, RUN)["found"]
    study = of(live(), live(precision="fp8"), called=site)
    with pytest.raises(PeakwardError, match="got one by an earlier Peakward: run it with another"):
        patch(study)
    first, last = study.measurements
    with pytest.raises(PeakwardError, match="got none, because the budget ended before it"):
        patch(msgspec.structs.replace(study, measurements=(first,)))
    last = msgspec.structs.replace(last, linear=IN_FP8)
    text = patch(msgspec.structs.replace(study, measurements=(first, last)))
    subprocess.run(("git", "apply"), input=text.encode(), check=True)
    for name in ("parts", "parts.model"):
        sys.modules.pop(name, None)
    space = ran(script.read_text(), None)
    assert space["logits"].dtype == torch.float32
    model = space["model"]
    in_fp8 = {name for name, each in model.named_modules() if is_in_fp8(each)}
    assert in_fp8 == {f"layers.h.{i}.{name}" for i in range(2) for name in ("qkv", "out")}


def is_in_fp8(module):
    return type(module).forward.__code__.co_filename == fp8_modules.__file__


def test_the_patched_files_compute_as_the_best(folder):
    best = case(precision="bf16-mixed", checkpointing="every-block", optimizer="adamw-fused")
    found = patching.patched(best, n_rounds=2)
    assert found.numerics.verdict == "holds"
    assert found.left == ()
    assert found.best_s > 0
    assert found.patched_s > 0
    assert (folder / "build.py").read_text() == BUILD
    subprocess.run(("git", "apply"), input=found.text.encode(), check=True)
    after = (folder / "build.py").read_text()
    assert "return faster(Model())" in after
    assert "for block in model.layers.h:" in after
    assert "lr=1e-3, fused=True)" in after
    assert (folder / "parts" / "model.py").read_text() == MODEL


@pytest.mark.full
def test_attention_of_another_file_is_rewritten(folder):
    found = patching.patched(case(attention="sdpa"), n_rounds=0)
    assert found.numerics.verdict == "holds"
    assert found.left == ()
    subprocess.run(("git", "apply"), input=found.text.encode(), check=True)
    assert (folder / "build.py").read_text() == BUILD
    assert "y = F.scaled_dot_product_attention(" in (folder / "parts" / "model.py").read_text()


@pytest.mark.full
def test_what_a_patch_put_in_bf16_is_patched_again(folder):
    first = patching.patched(case(precision="bf16"), n_rounds=0)
    subprocess.run(("git", "apply"), input=first.text.encode(), check=True)
    again = patching.patched(case(precision="bf16", checkpointing="every-block"), n_rounds=0)
    assert again.numerics.verdict == "holds"
    assert "+def faster_2(model):" in again.text
    assert not [each for each in again.text.splitlines() if each[:1] == "+" and "float16" in each]


COMPILED = """\
    model = Model()
    for block in model.layers.h:
        block.compile()
    return model
"""


@pytest.mark.full
def test_a_patch_of_a_compiled_factory_leaves_its_compilation_to_it(folder):
    (folder / "build.py").write_text(BUILD.replace("    return Model()\n", COMPILED))
    found = patching.patched(case(precision="bf16-mixed", compile="default"), n_rounds=0)
    assert found.numerics.verdict == "holds"
    subprocess.run(("git", "apply"), input=found.text.encode(), check=True)
    after = (folder / "build.py").read_text()
    assert "return faster(model)" in after
    assert after.count("compile()") == 1


@pytest.mark.full
def test_a_factory_that_compiles_another_part_than_the_best_is_refused(folder):
    (folder / "build.py").write_text(BUILD.replace("    return Model()\n", COMPILED))
    best = case(compile="default", compile_scope="model")
    with pytest.raises(PeakwardError, match="default by block, got default by model: leave its"):
        patching.patched(best, n_rounds=0)


def test_a_factory_that_returns_a_compiled_wrapper_is_refused(folder):
    text = BUILD.replace("    return Model()\n", "    return torch.compile(Model())\n")
    (folder / "build.py").write_text(text)
    with pytest.raises(PeakwardError, match=r"compiles in place, by \.compile"):
        patching.patched(case(compile="default", compile_scope="model"), n_rounds=0)


@pytest.mark.full  # As test_module_source has it, after five seconds of imports.
def test_a_file_that_has_changed_is_refused(folder):
    best = case(precision="bf16")
    (folder / "build.py").write_text(BUILD + "\n")
    with pytest.raises(PeakwardError, match="files have changed since"):
        patching.patched(best, n_rounds=0)


def test_an_installed_file_is_refused(folder):
    place = folder / "site-packages" / "build.py"
    place.parent.mkdir()
    place.touch()
    with pytest.raises(PeakwardError, match="expected a file of yours"):
        patching.expect_theirs(place)
