"""The findings of a run's cases."""

import msgspec
import pytest
import torch
from torch import nn

from peakward.kernels.ops.forwards import states
from peakward.records.case import AS_WRITTEN, ModuleCase, Workload
from peakward.records.finding import Abstention, Diagnosis, Finding, LeverGain
from peakward.records.linear_layers import LinearChoice
from peakward.records.measurement import Interval
from peakward.records.study import CallSite, Column, Conclusion, Patch, Table
from peakward.report.document import Code, Command, Items, Paragraph, TableBlock
from peakward.report.run import sections
from peakward.report.run.investigation import read
from peakward.report.run.sections import BATCHES_TITLE, batches_section


def nothing(case):
    return Diagnosis(
        subject="", case=case, whole_s=None, basis=None, findings=(), abstentions=(), clean=("A",)
    )


def said(study):
    return [each.text for each in sections.findings_section(study, read(study)).blocks]


def test_the_baseline_then_the_best(studies, run_study):
    both = (nothing(studies.BEST), nothing(studies.BASELINE))
    shown = said(msgspec.structs.replace(run_study, diagnoses=both))
    assert shown[0] == "The baseline:"
    assert shown[2] == "The best:"


def test_rules_that_could_not_judge_are_told_once_for_both(studies, run_study):
    lacking = (Abstention(code="HOST001", missing=("a profile of GPU work",)),)
    best = msgspec.structs.replace(
        nothing(studies.BEST),
        abstentions=(*lacking, Abstention(code="NUM001", missing=("losses over a run",))),
    )
    base = msgspec.structs.replace(nothing(studies.BASELINE), abstentions=lacking)
    study = msgspec.structs.replace(run_study, diagnoses=(base, best))
    *_, last = sections.findings_section(study, read(study)).blocks
    assert last == Paragraph(
        text="1 rule could not judge the baseline, 2 rules could not judge the best. Missing: a profile of "
        "GPU work (HOST001); losses over a run (NUM001 for the best)."
    )


def held_back(case, *levers, basis="profiled work"):
    gains = tuple(
        LeverGain(
            lever=each, predicted=None, gain=None, saved_bytes=None, source="not computed: a CPU"
        )
        for each in levers
    )
    found = Finding(
        code="ATTN001", title="Scores", cause="They go through memory.", evidence=(), advice="fuse",
        gains=gains, held_back_s=0.2, share=0.25,
    )  # fmt: skip
    return msgspec.structs.replace(nothing(case), basis=basis, findings=(found,))


@pytest.mark.parametrize(
    ("levers", "told"),
    [
        (("sdpa", "flash"), "To do: fuse. Levers: flash. Tried and rejected: sdpa (0.815× on step 3)."),
        (("sdpa",), "They go through memory. Tried and rejected: sdpa (0.815× on step 3)."),
        (("flash",), "To do: fuse. Levers: flash."),
    ],
)  # fmt: skip
def test_a_lever_that_lost_on_the_step_before_the_best_is_not_recommended_for_it(
    studies, run_study, levers, told
):
    last = read(run_study).steps[-1]
    lost = msgspec.structs.replace(
        last, id="lost", lever="sdpa", candidate=studies.BASELINE, verdict="rejected",
        time_ratio=Interval(estimate=1 / 0.815, low=1.1, high=1.3),
    )  # fmt: skip
    study = msgspec.structs.replace(
        run_study,
        trials=(*run_study.trials, lost),
        diagnoses=(held_back(studies.BEST, *levers),),
    )
    lead, items = sections.first_findings(study, read(study))
    assert lead.text == "What holds the best back (times under the profiler):"
    assert items.texts[0].endswith(told)
    shown = sections.findings_section(study, read(study)).blocks
    assert any(told in text for each in shown if isinstance(each, Items) for text in each.texts)


def test_nor_where_the_baseline_s_findings_stand_for_the_best(studies, run_study):
    lost = msgspec.structs.replace(
        read(run_study).steps[-1], id="lost", lever="flash", base=studies.BEST, candidate=studies.BASELINE,
        verdict="rejected", time_ratio=Interval(estimate=1 / 0.92, low=1.05, high=1.2),
    )  # fmt: skip
    study = msgspec.structs.replace(
        run_study,
        trials=(*run_study.trials, lost),
        diagnoses=(held_back(studies.BASELINE, "flash"),),
    )
    _, items = sections.first_findings(study, read(study))
    assert items.texts[0].endswith("memory. Tried and rejected: flash (0.920× on step 4).")


def test_older_studies_have_none(run_study):
    old = msgspec.structs.replace(run_study, diagnoses=())
    section = sections.findings_section(old, read(old))
    assert section.blocks == ()


def test_nothing_without_its_table(run_study):
    assert batches_section(run_study).blocks == ()


def test_its_table_and_its_sentence(run_study):
    table = Table(title=BATCHES_TITLE, columns=(Column(name="batch size"),), rows=((8,),))
    said = Conclusion(text="Most tokens/s: 8.", evidence=())
    study = msgspec.structs.replace(run_study, tables=(table,), conclusions=(said,))
    assert batches_section(study).blocks == (TableBlock(table=table), Items(texts=(said.text,)))


WORK = Workload(batch_size=2, seq_len=4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.outer(self.inner(x).relu())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def case(**settings):
    return ModuleCase(
        source="py:m:f",
        fingerprint="0",
        workload=WORK,
        configuration=msgspec.structs.replace(AS_WRITTEN, **settings),
        device="cpu",
    )


def codes(**settings):
    blocks = sections.code_blocks(case(), case(**settings))
    return [each.text for each in blocks if isinstance(each, Code)]


def run(code, **names):
    space = {**names, "lr": 1e-3}
    exec(code, space)
    return space


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def test_nothing_chosen_needs_no_lines():
    assert not [each for each in codes() if each.strip() not in ("", "import torch")]


def test_a_fused_optimizer_is_made(model):
    (once,) = codes(optimizer="adamw-fused")
    assert run(once, model=model)["optimizer"].defaults["fused"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"optimizer": "adamw-fused"}, "is built. `lr` is your learning rate:"),
        ({"compile": "default"}, "is built. `blocks` are the model's repeated blocks:"),
        ({"norm": "fused"}, "is built:"),
    ],
)
def test_the_names_that_stand_in_the_lines_alone_are_told(settings, told):
    (text, *_) = [each.text for each in sections.code_blocks(case(), case(**settings))]
    assert text.endswith(f"after the model {told}")


def test_norms_are_fused():
    (once,) = codes(norm="fused")
    model = nn.Sequential(nn.LayerNorm(8))
    run(once, model=model)
    assert type(model[0]).__name__ == "FusedLayerNorm"


class Written(nn.Module):
    """A network with an activation that is written out, and one of SwiGLU."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.swish = Swish()

    def forward(self, x):
        return self.down(self.swish(self.gate(x)) * self.up(x))


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


@pytest.mark.parametrize("settings", [{"swiglu": "fused"}, {"more": (("activation", "torch"),)}])
def test_parts_that_are_found_are_replaced(settings):
    (once,) = codes(**settings)
    model = Written()
    before = [type(each) for each in model.modules()]
    run(once, model=model)
    assert [type(each) for each in model.modules()] != before


def test_a_models_own_rotation_is_replaced():
    (once,) = codes(rope="fused")
    assert "fuse_rope(model)" in once


def test_layers_in_fp8_are_named():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 10))
    found = LinearChoice(layers=(), left=("2 has sides that are no multiples of 16",), taken=("1",))
    blocks = sections.code_blocks(case(), case(precision="fp8"), found)
    once, each_step = [each.text for each in blocks if isinstance(each, Code)]
    run(once, model=model)
    assert [bool(states(each)) for each in model] == [False, True, False]
    assert each_step.startswith('with torch.autocast("cpu", torch.bfloat16)')


@pytest.mark.parametrize("mode", ["every-block", "selective"])
def test_blocks_are_recomputed(model, mode):
    (once,) = codes(checkpointing=mode)
    x = torch.randn(2, 4, 8)
    plain = torch.autograd.grad(model(x).sum(), model.parameters())
    run(once, model=model, blocks=model.blocks)
    calls = []
    model.blocks[0].inner.register_forward_hook(lambda *_: calls.append(1))
    again = torch.autograd.grad(model(x).sum(), model.parameters())
    assert len(calls) == 2
    assert all(map(torch.equal, plain, again))


def test_blocks_are_compiled(model):
    (once,) = codes(compile="default")
    run(once, model=model, blocks=model.blocks)
    assert all(each._compiled_call_impl is not None for each in model.blocks)


def test_types(model):
    (once,) = codes(precision="bf16")
    run(once, model=model)
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    before = torch.get_float32_matmul_precision()
    (once,) = codes(precision="tf32")
    try:
        run(once)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_autocast_and_a_backend_are_around_the_forward_pass(model):
    once, each = codes(precision="bf16-mixed", attention="sdpa-math")
    inner = nn.Linear(8, 8)
    space = run(once, model=model)
    step = each.replace("...", "seen = inner(x)", 1)
    assert run(step, **space, inner=inner, x=torch.randn(2, 8))["seen"].dtype == torch.bfloat16
    outer, *within = each.splitlines()
    assert outer == "with sdpa_kernel(SDPBackend.MATH):"
    assert all(line.startswith("    ") for line in within)


def of_a_module(run_study, patch=None):
    """The study as one of a factory, whose best has autocast."""
    base, best = case(), case(precision="bf16-mixed", compile="default")
    first, last = run_study.measurements[0], run_study.measurements[-1]
    trial = msgspec.structs.replace(run_study.trials[0], base=base, candidate=best)
    return msgspec.structs.replace(
        run_study,
        command="peakward run --model py:m:f",
        measurements=(
            msgspec.structs.replace(first, case=base),
            msgspec.structs.replace(last, case=best),
        ),
        trials=(trial,),
        steps=(trial.id,),
        patch=patch,
    )


def panel(study):
    (found,) = sections.panel(study, read(study))
    return found.blocks


def test_lines_and_the_command_of_a_patch_are_how_to_have_the_best(run_study):
    once, each_step = (each for each in panel(of_a_module(run_study)) if isinstance(each, Code))
    assert "block.compile()" in once.text
    assert "torch.autocast" in each_step.text
    commands = [each.text for each in panel(of_a_module(run_study)) if isinstance(each, Command)]
    assert commands[0] == "peakward run --model py:m:f --write-patch speed.patch"


def test_a_patch_that_was_written_is_shown_with_what_it_gave(run_study):
    patch = Patch(
        text="--- a/m.py\n", written_to="my speed.patch", left=("x",), best_s=0.024, patched_s=0.025
    )
    blocks = panel(of_a_module(run_study, patch))
    assert blocks[1] == Command(text="patch -p1 -i 'my speed.patch'")
    assert "25.0 ms a step, the best 24.0 ms" in blocks[2].text
    assert Items(texts=("x",)) in blocks
    assert Code(text="--- a/m.py", language="diff") in blocks


def test_a_study_that_a_call_began_says_how_to_patch_that_file(run_study):
    site = CallSite(function="run", line=1, files=(("train.py", "0"),))
    called = msgspec.structs.replace(of_a_module(run_study), called=site)
    assert any("diff of train.py" in each.text for each in panel(called) if hasattr(each, "text"))


def test_nothing_kept_has_no_panel(run_study):
    alone = msgspec.structs.replace(
        run_study, measurements=run_study.measurements[:1], trials=(), steps=()
    )
    assert sections.panel(alone, read(alone)) == ()
