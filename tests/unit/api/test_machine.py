"""What can run on a machine."""

import contextlib

import pytest

from peakward.api import machine, session
from peakward.api.machine import Machine
from peakward.cli import options
from peakward.cli.vocabulary import CaseOptions
from peakward.lab.measure.messages import Checked, Failed
from peakward.levers.catalogue import pull
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment, Protocol


def a_machine(device="cpu", capability=None, *, has_compiler=True) -> Machine:
    environment = Environment(
        device_type=device,
        device_name="Example",
        device_memory_bytes=2**34,
        n_cores=2,
        python="3.11.7",
        system="Linux",
        peakward="0.1.0",
    )
    return Machine(
        environment=environment, compute_capability=capability, has_compiler=has_compiler
    )


def cases(here, **given):
    return options.cases(CaseOptions(**given), here.device)


@pytest.mark.parametrize(
    ("here", "given", "line"),
    [
        (a_machine(), {"precision": "fp8"}, "precision fp8 needs a CUDA GPU, got a CPU"),
        (a_machine(), {"precision": "tf32"}, "precision tf32 needs a CUDA GPU"),
        (a_machine(), {"cuda_graphs": "on"}, "cuda-graphs needs a CUDA GPU, got a CPU"),
        (a_machine(), {"attention": "sdpa-cudnn"}, "attention sdpa-cudnn needs a CUDA GPU"),
        (
            a_machine(has_compiler=False),
            {"compile": "default"},
            "compile default needs a C++ compiler",
        ),
        (a_machine("cuda", (8, 0)), {"precision": "fp8"}, "precision fp8 needs compute capability"),
        (
            a_machine("cuda", (9, 0)),
            {"attention": "sdpa-cudnn"},
            "attention sdpa-cudnn needs the precision",
        ),
        (
            a_machine(),
            {"checkpointing": "sqrt", "pass_": "forward"},
            "checkpointing sqrt needs the pass forward_backward or train_step, got forward",
        ),
    ],
)
def test_a_setting_that_cannot_apply_is_refused_with_the_reason(here, given, line):
    with pytest.raises(PeakwardError) as caught:
        machine.runnable(cases(here, **given), here)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_a_grid_what_cannot_apply_is_left_out_and_said_once():
    here = a_machine()
    grid = cases(here, precision="fp32,fp8", seq_len="8,16")
    kept, reasons = machine.runnable(grid, here)
    assert [each.configuration.precision for each in kept] == ["fp32", "fp32"]
    assert reasons == ("precision fp8 needs a CUDA GPU, got a CPU",)


def test_every_default_can_run_everywhere():
    for here in (a_machine(has_compiler=False), a_machine("cuda", (7, 0), has_compiler=False)):
        kept, reasons = machine.runnable(cases(here), here)
        assert len(kept) == 1
        assert reasons == ()


def test_a_lever_that_the_start_has_already_is_refused():
    here = a_machine()
    (case,) = cases(here, attention="sdpa")
    sdpa, bf16, tf32 = options.levers(["sdpa,bf16,tf32"])
    with pytest.raises(PeakwardError, match="got sdpa, which it has already"):
        machine.applicable((bf16, sdpa), case, here)
    # After another precision it changes something again.
    on_gpu = a_machine("cuda", (9, 0))
    (start,) = cases(on_gpu, precision="bf16")
    assert machine.applicable((bf16, tf32), start, on_gpu) == (bf16, tf32)


def test_a_lever_may_lean_on_a_precision_that_another_brings():
    here = a_machine("cuda", (9, 0))
    (case,) = cases(here)
    cudnn, bf16 = options.levers(["sdpa-cudnn,bf16"])
    assert machine.lever_obstacle(cudnn, case, here) is not None
    (after,) = machine.after_precision([cudnn, bf16], case)
    assert after.configuration.precision == "bf16"
    assert machine.lever_obstacle(cudnn, after, here) is None


def test_a_lever_may_not_take_away_what_another_leans_on():
    """tf32 under cuDNN's attention ended in the compiler's own words (H200)."""
    here = a_machine("cuda", (9, 0))
    (case,) = cases(here)
    cudnn, bf16, tf32 = options.levers(["sdpa-cudnn,bf16,tf32"])
    attention = pull(cudnn, pull(bf16, case))
    reason = machine.lever_obstacle(tf32, attention, here)
    assert reason is not None
    assert reason.startswith("attention sdpa-cudnn needs the precision bf16-mixed or")


def test_this_machine_is_what_the_probe_says():
    here = machine.this_machine("cpu")
    assert here.device == here.environment.device_type == "cpu"
    assert here.compute_capability is None


def test_an_unknown_device_is_refused():
    with pytest.raises(PeakwardError, match="a value of --device, got 'gpu'"):
        machine.this_machine("gpu")


def test_cuda_is_never_replaced_by_the_cpu(monkeypatch):
    monkeypatch.setattr("peakward.lab.measure.nvml.visible_gpu", lambda: None)
    with pytest.raises(PeakwardError, match="use --device cpu"):
        machine.this_machine("cuda")


SOUND = Checked()


class Checking:
    """A sweep that finds this of every module, of which this much is stored."""

    def __init__(self, found=SOUND, stored=()):
        self.found, self.stored, self.checked = found, stored, []

    def known(self, case, protocol):
        return case if case in self.stored else None

    def check(self, case, timeout_s):
        self.checked.append((case, timeout_s))
        return self.found


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("invalid", "it went wrong"),
        (
            "timeout",
            "expected three steps of py:tiny_gpt:build as it is, got it went wrong: give a longer",
        ),
        ("crashed", None),
    ],
)
def test_a_run_needs_a_module_that_can_be_built_and_ends(status, line, make_module_case):
    sweep = Checking(Failed(status=status, reason="it went wrong"))
    case = make_module_case("py:tiny_gpt:build")
    with pytest.raises(PeakwardError, match=line) if line else contextlib.nullcontext():
        session.expect_sound(case, sweep, 300.0)
    assert sweep.checked == [(case, 300.0)]
    comes = Checked(compiled="model", in_bf16=True)
    assert session.expect_sound(case, Checking(comes), 5.0) == comes


def test_a_small_budget_leaves_a_module_the_time_to_be_built(make_module_case):
    sweep = Checking()
    session.expect_sound(make_module_case("py:tiny_gpt:build"), sweep, 5.0)
    assert sweep.checked[0][1] == session.LEAST_CHECK_S


def test_a_grid_checks_what_is_to_be_measured_and_is_ended_by_no_module(make_module_case):
    stored, new = (
        make_module_case("py:tiny_gpt:build", pass_=p) for p in ("forward", "train_step")
    )
    sweep = Checking(Failed(status="invalid", reason="it went wrong"), stored=[stored])
    quick = Protocol(timeout_s=5.0)
    session.check_modules([(stored, quick), (new, quick)], sweep)
    assert sweep.checked == [(new, 5.0)]
