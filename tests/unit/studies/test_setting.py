"""Protocols bounded by the scope, and what a machine cannot run."""

import msgspec

from peakward.api.machine import Machine, case_obstacle
from peakward.models.presets import model
from peakward.studies.cases import model_case
from peakward.studies.scope import Scope
from peakward.studies.setting import TIMED_S


def case(device="cuda", **configuration):
    return model_case(model("tiny"), 2, 64, "train_step", device, **configuration)


def test_the_scope_bounds_the_timed_seconds(setting):
    assert setting("corners").protocol().max_timed_s == TIMED_S["corners"]
    own = setting(Scope("corners", max_timed_s=0.1, timeout_s=60.0)).protocol(min_steps=2)
    assert (own.max_timed_s, own.timeout_s, own.min_steps) == (0.1, 60.0, 2)


def test_what_the_study_needs_prevails(setting):
    assert setting("corners").protocol(max_timed_s=9.0).max_timed_s == 9.0


def test_a_gpu_of_capability_9_runs_everything(setting):
    for levers in ({}, {"precision": "bf16"}, {"compile": "max-autotune"}, {"cuda_graphs": True}):
        assert setting().obstacle(case(**levers)) is None


def test_the_compute_capability_is_the_gpus(setting):
    assert setting().compute_capability == (9, 0)
    assert setting(device="cpu").compute_capability is None


def test_a_cpu_has_no_tf32_and_no_graphs(setting):
    here = setting(device="cpu")
    assert "tf32 needs a CUDA GPU" in here.obstacle(case("cpu", precision="tf32"))
    assert "cuda-graphs needs a CUDA GPU" in here.obstacle(case("cpu", cuda_graphs=True))
    assert here.obstacle(case("cpu", precision="bf16")) is None


def test_an_older_gpu_has_no_bf16(setting):
    here = setting()
    volta = msgspec.structs.replace(here.environment, compute_capability="7.0")
    old = msgspec.structs.replace(here, environment=volta)
    assert old.obstacle(case(precision="bf16")) is not None
    assert old.obstacle(case()) is None


def test_no_compiler_no_mode_of_compile(setting):
    bare = msgspec.structs.replace(setting(), has_compiler=False)
    for mode in ("default", "reduce-overhead", "max-autotune"):
        assert "compiler" in bare.obstacle(case(compile=mode))


def test_it_judges_as_the_command_line_does(setting):
    here = setting(device="cpu")
    machine = Machine(
        environment=here.environment, compute_capability=None, has_compiler=here.has_compiler
    )
    for levers in ({"attention": "sdpa-efficient"}, {"optimizer": "adamw-triton"}, {}):
        assert here.obstacle(case("cpu", **levers)) == case_obstacle(case("cpu", **levers), machine)
