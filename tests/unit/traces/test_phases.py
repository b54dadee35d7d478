import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.phase_names import PhaseCode, PhaseEvidence
from peakward.traces.phases import phases
from peakward.traces.table import NONE, GpuKind, HostKind

from .plain_readers import real
from .rows import Rows

F, B, O, OTHER = PhaseCode  # noqa: E741
OURS, USER, TORCH = (
    PhaseEvidence.PEAKWARD_RANGE,
    PhaseEvidence.USER_RANGE,
    PhaseEvidence.TORCH_RANGE,
)


def found(builder):
    """{kernel: (phase, evidence)}."""
    table, launches = builder.table()
    answer = phases(table, launches)
    rows = range(len(table.gpu))
    return {
        table.names[table.gpu.name[i]]: (answer.code[i], PhaseEvidence(answer.evidence[i]))
        for i in rows
    }


def a_step(at=0):
    """Operators of a forward pass, nodes of a backward one, and the optimizer's annotation."""
    builder = Rows().op("aten::mm", at + 1, at + 5, sequence=1)
    builder.launch("mm", at + 2, gpu=(at + 2, at + 9))
    builder.op("autograd::engine::evaluate_function: MmBackward0", at + 11, at + 15, "autograd",
               sequence=1, backward=True)  # fmt: skip
    builder.launch("dmm", at + 12, gpu=(at + 12, at + 20), thread="autograd")
    builder.range("Optimizer.step#AdamW.step", at + 20, at + 30)
    return builder.launch("adam", at + 22, gpu=(at + 22, at + 29))


def test_by_autograds_marks():
    assert found(a_step()) == {
        "mm": (F, PhaseEvidence.AUTOGRAD),
        "dmm": (B, PhaseEvidence.AUTOGRAD),
        "adam": (O, TORCH),
    }


def test_by_the_users_ranges():
    builder = a_step().range("forward", 0, 6).range("backward", 9, 18).range("optimizer", 19, 31)
    assert found(builder) == {"mm": (F, USER), "dmm": (B, USER), "adam": (O, USER)}


def test_by_peakwards_ranges_whatever_else_is_there():
    builder = a_step().range("peakward::forward", 0, 6).range("peakward::backward", 9, 18)
    builder.range("peakward::optimizer", 19, 31).range("backward", 0, 40)
    assert found(builder) == {"mm": (F, OURS), "dmm": (B, OURS), "adam": (O, OURS)}


def test_a_checkpoints_second_forward_is_backward():
    builder = a_step().range("Block.forward", 11, 14, "autograd")
    assert found(builder)["dmm"] == (B, PhaseEvidence.AUTOGRAD)
    assert found(builder.range("backward", 10, 18))["dmm"] == (B, USER)


def test_hooks_between_nodes_on_autograds_thread_are_backward():
    builder = a_step().range("nccl:all_reduce", 16, 18, "autograd")
    builder.launch("all_reduce", 17, gpu=(20, 25), thread="autograd")
    assert found(builder)["all_reduce"] == (B, PhaseEvidence.AUTOGRAD)


def test_an_optimizer_in_a_backward_hook_and_a_backward_in_an_optimizers_closure():
    builder = a_step().range("Optimizer.step#SGD.step", 12, 14, "autograd")
    assert found(builder.range("backward", 10, 18))["dmm"] == (O, TORCH)
    builder = a_step().range("Optimizer.step#LBFGS.step", 0, 31)
    assert found(builder)["dmm"] == (B, PhaseEvidence.AUTOGRAD)
    builder.range("forward", 1, 6)
    assert found(builder)["mm"] == (F, USER)


def test_between_backward_and_optimizer_is_the_optimizers():
    builder = a_step().op("aten::norm", 17, 19).launch("clip", 18, gpu=(30, 31))
    assert found(builder)["clip"] == (O, PhaseEvidence.AUTOGRAD)


def a_users_step(builder, at=0, name="", *, micro_batches=1):
    """As programs write it: `zero_grad` after the loss, a scaled loss, clipped gradients."""
    for batch in range(micro_batches):
        mine = f"{name}{batch}" if micro_batches > 1 else name
        builder.op("aten::linear", at + 1, at + 10).launch(
            f"mm{mine}", at + 2, gpu=(at + 3, at + 9)
        )
        if batch == 0:
            builder.range("Optimizer.zero_grad#AdamW.zero_grad", at + 10, at + 14)
            builder.op("aten::_foreach_zero_", at + 11, at + 13)
            builder.launch(f"zero{name}", at + 12, gpu=(at + 12, at + 14))
        builder.op("aten::mul", at + 15, at + 18).launch(
            f"scale{mine}", at + 16, gpu=(at + 16, at + 18)
        )
        builder.op("MmBackward0", at + 20, at + 30, "autograd")
        builder.launch(f"dmm{mine}", at + 21, gpu=(at + 22, at + 29), thread="autograd")
        at += 30
    builder.op("aten::_amp_foreach_non_finite_check_and_unscale_", at + 2, at + 6)
    builder.launch(f"unscale{name}", at + 3, gpu=(at + 4, at + 6))
    builder.op("aten::_foreach_norm", at + 7, at + 12).launch(
        f"clip{name}", at + 8, gpu=(at + 9, at + 12)
    )
    builder.op("aten::item", at + 12, at + 15).launch(f"inf{name}", at + 13, gpu=(at + 14, at + 15))
    builder.range("Optimizer.step#AdamW.step", at + 16, at + 24)
    builder.launch(f"adam{name}", at + 17, gpu=(at + 18, at + 24))
    builder.op("aten::_amp_update_scale_", at + 25, at + 28)
    builder.launch(f"scaler{name}", at + 26, gpu=(at + 27, at + 28))
    return builder.op("aten::item", at + 29, at + 31).launch(
        f"log{name}", at + 30, gpu=(at + 30, at + 31)
    )


def codes(builder):
    return {name: code for name, (code, _) in found(builder).items()}


WHOLE_STEP = {
    "mm": F, "zero": O, "scale": F, "dmm": B, "unscale": O, "clip": O, "inf": O, "adam": O, "scaler": O,
    "log": OTHER,
}  # fmt: skip


@pytest.mark.parametrize("marked", [False, True])
def test_a_users_step(marked):
    builder = a_users_step(Rows())
    assert codes(builder.range("ProfilerStep#1", 0, 80) if marked else builder) == WHOLE_STEP


def test_micro_batches_alternate():
    assert codes(a_users_step(Rows(), micro_batches=3)) == {
        **{name: phase for name, phase in WHOLE_STEP.items() if name not in ("mm", "scale", "dmm")},
        **{f"{name}{at}": WHOLE_STEP[name] for name in ("mm", "scale", "dmm") for at in range(3)},
    }


def test_a_step_whose_update_was_left_out_for_an_infinite_gradient():
    builder = Rows().op("aten::linear", 1, 10).launch("mm", 2, gpu=(3, 9))
    builder.op("MmBackward0", 20, 30, "autograd").launch("dmm", 21, gpu=(22, 29), thread="autograd")
    builder.op("aten::_amp_foreach_non_finite_check_and_unscale_", 32, 36)
    builder.launch("unscale", 33, gpu=(34, 36)).op("aten::item", 37, 39)
    builder.launch("inf", 38, gpu=(38, 39)).op("aten::_amp_update_scale_", 40, 42)
    builder.launch("scaler", 41, gpu=(41, 42))
    assert codes(builder) == {"mm": F, "dmm": B, "unscale": O, "inf": O, "scaler": O}


@pytest.mark.parametrize("marked", [False, True])
def test_an_evaluation_among_steps_that_train(marked):
    builder = a_users_step(Rows(), 0, "1")
    builder.op("aten::linear", 110, 120).launch("eval", 111, gpu=(112, 120))
    builder.op("aten::add", 120, 130).launch("eval add", 121, gpu=(122, 130))
    if marked:
        builder.range("ProfilerStep#0", 0, 100).range("ProfilerStep#1", 100, 200)
    assert (codes(builder)["eval"], codes(builder)["eval add"]) == (F, F)
    assert codes(a_users_step(builder, 200, "2"))["eval"] == F


def test_what_follows_the_optimizer_without_a_models_operators_is_other():
    builder = a_users_step(Rows()).op("aten::_foreach_lerp_", 70, 80)
    assert codes(builder.launch("average", 71, gpu=(72, 80)))["average"] == OTHER


@pytest.mark.parametrize("own", [(10, 20, "autograd"), (10, 20, "main")])
def test_what_follows_the_last_backward_pass_is_other_whatever_that_multiplied(own):
    builder = Rows().op("aten::linear", 0, 5).launch("mm", 1, gpu=(2, 5))
    builder.op("MmBackward0", *own).op("aten::mm", 12, 19, own[-1])
    builder.op("aten::item", 22, 24).launch("log", 23, gpu=(23, 24))
    assert codes(builder) == {"mm": F, "log": OTHER}


def test_two_optimizers_take_turns():
    """A generator's forward pass, both passes of the discriminator, then its step; then the generator's."""
    builder = Rows().op("aten::linear", 0, 5).launch("G", 1, gpu=(2, 5))
    for player, at in (("D", 10), ("GD", 50)):
        builder.op("aten::linear", at, at + 5).launch(player, at + 1, gpu=(at + 2, at + 5))
        builder.range("Optimizer.zero_grad#Adam.zero_grad", at + 6, at + 8)
        builder.op("MmBackward0", at + 10, at + 20, "autograd")
        builder.launch(f"d{player}", at + 11, gpu=(at + 12, at + 20), thread="autograd")
        builder.op("aten::_foreach_norm", at + 21, at + 24)
        builder.launch(f"clip {player}", at + 22, gpu=(at + 23, at + 24))
        builder.range("Optimizer.step#Adam.step", at + 25, at + 30)
        builder.launch(f"step {player}", at + 26, gpu=(at + 27, at + 30))
    assert codes(builder) == {
        "G": F, "D": F, "dD": B, "clip D": O, "step D": O, "GD": F, "dGD": B, "clip GD": O, "step GD": O,
    }  # fmt: skip


def test_a_closure_that_the_optimizer_calls_is_a_step_of_its_own():
    builder = Rows()
    for at in (0, 100):
        builder.range("Optimizer.step#AdamW.step", at + 2, at + 60)
        builder.op("aten::to", at, at + 2).launch("batch", at, gpu=(at, at + 1))
        builder.op("aten::linear", at + 5, at + 10).launch("mm", at + 6, gpu=(at + 7, at + 10))
        builder.op("MmBackward0", at + 20, at + 30, "autograd")
        builder.launch("dmm", at + 21, gpu=(at + 22, at + 30), thread="autograd")
        builder.op("aten::_foreach_norm", at + 32, at + 36).launch(
            "clip", at + 33, gpu=(at + 34, at + 36)
        )
        builder.launch("adam", at + 40, gpu=(at + 41, at + 59))
    assert codes(builder) == {"batch": F, "mm": F, "dmm": B, "clip": O, "adam": O}


def test_forward_ends_with_its_step():
    builder = a_step(100).op("aten::add", 50, 60).launch("log", 55, gpu=(56, 57))
    assert found(builder)["log"] == (F, PhaseEvidence.AUTOGRAD)
    builder.range("ProfilerStep#0", 40, 90).range("ProfilerStep#1", 90, 200)
    answer = found(builder)
    assert answer["log"] == (OTHER, PhaseEvidence.NOTHING)
    assert answer["mm"] == (F, PhaseEvidence.AUTOGRAD)


def test_accumulation_runs_forward_after_backward():
    builder = a_step().op("aten::mm", 16, 17).launch("second mm", 16, gpu=(30, 31))
    builder.op("MmBackward0", 18, 19, "autograd")
    assert found(builder)["second mm"] == (F, PhaseEvidence.AUTOGRAD)


def test_a_bare_step_is_an_optimizers_unless_it_holds_a_backward_pass():
    builder = a_step().op("aten::add_", 40, 50).launch("add", 45, gpu=(46, 47))
    assert found(builder)["add"] == (OTHER, PhaseEvidence.NOTHING)
    assert found(builder.range("step", 39, 51))["add"] == (O, USER)
    assert found(a_step().range("step", 0, 40))["mm"] == (F, PhaseEvidence.AUTOGRAD)


def test_a_fused_optimizers_operator_needs_no_annotation():
    builder = Rows().op("aten::_fused_adamw_", 0, 9).launch("adam", 5, gpu=(6, 7))
    assert found(builder)["adam"] == (O, TORCH)


def test_without_backward_operators_are_forward():
    builder = Rows().op("aten::mm", 0, 9).launch("mm", 5, gpu=(6, 7))
    builder.launch("triton", 10, gpu=(11, 12)).gpu("unknown", 20, 21)
    builder.launch("library", 10, gpu=(13, 14), thread="helper")
    assert found(builder) == {
        "mm": (F, PhaseEvidence.NO_BACKWARD),
        "triton": (F, PhaseEvidence.NO_BACKWARD),
        "unknown": (OTHER, PhaseEvidence.NOTHING),
        "library": (OTHER, PhaseEvidence.NOTHING),
    }


def test_another_process_trains_by_itself():
    builder = a_step().op("aten::mm", 0, 9, "2/main")
    builder.launch("infers", 5, gpu=(6, 7), thread="2/main")
    assert found(builder)["infers"] == (F, PhaseEvidence.NO_BACKWARD)


def test_a_captured_step_is_not_divided():
    builder = Rows().op("aten::copy_", 0, 2).launch("copy", 1, gpu=(2, 3))
    builder.launch("step", 5, gpu=[(6, 7), (7, 9)], call="cudaGraphLaunch")
    table, launches = builder.table()
    answer = phases(table, launches)
    assert answer.code.tolist() == [F, OTHER, OTHER]
    assert answer.undivided.tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["backward", "MmBackward0"])
def test_a_captured_part_belongs_to_the_phase_that_launched_it(name):
    builder = Rows().host(HostKind.OP if "Mm" in name else HostKind.RANGE, name, 4, 9)
    builder.launch("part", 5, gpu=[(6, 7)], call="cudaGraphLaunch", graph=3)
    table, launches = builder.table()
    answer = phases(table, launches)
    assert answer.code.tolist() == [B]
    assert not answer.undivided.any()


def test_an_empty_trace():
    table, launches = Rows().table()
    assert phases(table, launches).code.tolist() == []
    table, launches = Rows().gpu("k", 0, 1).table()
    assert phases(table, launches).code.tolist() == [OTHER]


_NAMES = ("aten::mm", "MmBackward0", "forward", "backward", "optimizer", "step", "peakward::forward",
          "ProfilerStep#1", "Optimizer.step#SGD.step", "nccl:all_reduce")  # fmt: skip
_HOST_ROW = st.tuples(
    st.sampled_from([HostKind.OP, HostKind.RANGE, HostKind.PYTHON]),
    st.sampled_from(_NAMES),
    st.sampled_from(["main", "autograd", "2/main"]),
    st.integers(0, 30),
    st.integers(0, 12),
    st.integers(NONE, 2),
)
_LAUNCH = st.tuples(
    st.sampled_from(["main", "autograd", "2/main"]),
    st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch"]),
    st.integers(0, 40),
)


@given(drawn=st.lists(_HOST_ROW, max_size=15), launched=st.lists(_LAUNCH, max_size=6))
def test_whatever_a_trace_holds_each_phase_has_its_evidence(drawn, launched):
    builder = Rows()
    for kind, name, thread, start, length, sequence in drawn:
        builder.host(kind, name, start, start + length, thread, sequence=sequence)
    for thread, call, at in launched:
        builder.launch("k", at, gpu=[(at, at + 5), (at + 5, at + 9)], thread=thread, call=call)
    table, launches = builder.table()
    answer = phases(table, launches)
    assert ((answer.code == OTHER) == (answer.evidence == PhaseEvidence.NOTHING)).all()
    assert (answer.code[answer.undivided] == OTHER).all()
    by_call = {row: answer.code[launches == row] for row in launches}
    assert all(len(set(codes.tolist())) == 1 for codes in by_call.values())
    is_ours = answer.evidence == PhaseEvidence.PEAKWARD_RANGE
    assert (answer.code[is_ours] == F).all()


def time_by_phase(table, answer):
    kernels = table.gpu.kind == GpuKind.KERNEL
    return [int(table.gpu.duration_ns[kernels & (answer.code == code)].sum()) for code in PhaseCode]


def without_phase_ranges(table, launches):
    """The trace as if nobody had named phases: ranges gone, but for torch's own of optimizers."""
    by_name = np.array([name.startswith(("Optimizer.", "ProfilerStep#")) for name in table.names])
    keep = (table.host.kind != HostKind.RANGE) | by_name[table.host.name]
    host = type(table.host)(
        **{column: getattr(table.host, column)[keep] for column in table.host.__slots__}
    )
    moved = np.append(np.cumsum(keep) - 1, NONE)
    return dataclasses.replace(table, host=host), moved[launches].astype(np.int32)


@pytest.mark.parametrize(
    ("file", "times"),
    [
        ("a100_ddp_nccl_ns.json.gz", [38_035_875, 122_418_187, 2_078_278, 0]),
        ("two_ranks_us_rank0.json.gz", [246_213_000, 245_893_000, 112_055_000, 2_358_000]),
        ("two_ranks_us_rank1.json.gz", [224_249_000, 313_194_000, 110_620_000, 2_963_000]),
    ],
)
def test_marks_agree_with_the_ranges_of_real_training(file, times):
    table, launches = real(file)
    by_ranges = phases(table, launches)
    assert time_by_phase(table, by_ranges) == times
    by_marks = phases(*without_phase_ranges(table, launches))
    assert set(by_marks.evidence.tolist()) <= {PhaseEvidence.NOTHING, TORCH, PhaseEvidence.AUTOGRAD}
    kernels = table.gpu.kind == GpuKind.KERNEL
    same = kernels & (by_ranges.code == by_marks.code)
    total = table.gpu.duration_ns[kernels].sum()
    assert table.gpu.duration_ns[same].sum() / total > 0.999


@pytest.mark.parametrize("file", ["h100_bert_small.json.gz", "mi300_bert_small.json.gz"])
def test_real_inference_is_forward(file):
    table, launches = real(file)
    answer = phases(table, launches)
    kernels = table.gpu.kind == GpuKind.KERNEL
    assert (answer.code[kernels] == F).all()
    assert (answer.evidence[kernels] == PhaseEvidence.NO_BACKWARD).all()
