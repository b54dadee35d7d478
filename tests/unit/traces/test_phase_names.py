import pytest

from peakward.traces.phase_names import PhaseCode, PhaseEvidence, said_by

F, B, O = PhaseCode.FORWARD, PhaseCode.BACKWARD, PhaseCode.OPTIMIZER  # noqa: E741
OURS, USER, TORCH = (
    PhaseEvidence.PEAKWARD_RANGE,
    PhaseEvidence.USER_RANGE,
    PhaseEvidence.TORCH_RANGE,
)


@pytest.mark.parametrize(
    ("name", "phase", "evidence"),
    [
        ("peakward::forward", F, OURS),
        ("peakward::backward", B, OURS),
        ("peakward::optimizer", O, OURS),
        ("forward", F, USER),
        ("## forward ##", F, USER),
        ("fwd_pass", F, USER),
        ("DecoderLayer.forward", F, USER),
        ("ForwardPass", F, USER),
        ("loss.backward", B, USER),
        ("bwd", B, USER),
        ("optimizer step", O, USER),
        ("OptimizerStep", O, USER),
        ("optim", O, USER),
        ("opt.step", O, USER),
        ("AdamW.step", O, USER),
        ("optimizer.zero_grad", O, USER),
        ("zero_grad", O, USER),
        ("Optimizer.step#AdamW.step", O, TORCH),
        ("Optimizer.zero_grad#SGD.zero_grad", O, TORCH),
        ("DistributedDataParallel.forward", F, TORCH),
        ("FSDP::pre_backward_unshard", B, TORCH),
    ],
)
def test_names_that_say_a_phase(name, phase, evidence):
    assert said_by(name) == (phase, evidence, True)


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#4",
        "peakward::step",
        "nccl:all_reduce",
        "forward_backward",
        "forward, backward and optimizer",
        "## Call CompiledFxGraph f7fwd3bwd ##",
        "train_step",
        "step 12",
        "denoising step",
        "lr_scheduler.step",
        "attention",
        "option",
        "OPT-13b",
        "straightforward",
        "",
    ],
)
def test_names_that_say_nothing(name):
    assert said_by(name) is None


def test_a_bare_step_may_be_an_optimizers():
    assert said_by("step") == (O, USER, False)
    assert said_by("scaler.step") == (O, USER, False)
