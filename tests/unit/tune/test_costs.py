"""What the parts of an investigation should cost."""

import msgspec
import pytest

from peakward.levers.catalogue import lever, pull
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.measurement import CompileReport, Environment, Measurement, Protocol, Run
from peakward.tune.costs import AGAIN, OWN_KERNELS_S, again_s, build_s, guessed, learned

from .world import SHAPE

EAGER = ModelCase(model=SHAPE, workload=Workload(batch_size=2, seq_len=16), device="cuda")
COMPILED = msgspec.structs.replace(EAGER, configuration=Configuration(compile="default"))


def baseline(warmup_s, *, compile_s=None, wall_s=20.0):
    report = None
    if compile_s is not None:
        report = CompileReport(compile_s=compile_s, n_graphs=2, n_graph_breaks=0, n_recompiles=0)
    return Measurement(
        id="m",
        case=EAGER,
        protocol=Protocol(),
        environment=Environment(
            device_type="cuda",
            device_name="x",
            device_memory_bytes=1,
            n_cores=2,
            python="3",
            system="Linux",
            peakward="0",
        ),
        started_at="",
        wall_s=wall_s,
        status="ok",
        runs=(Run(warmup_s=warmup_s, steps_s=(0.1,) * 10),),
        compile=report,
    )


def test_compilation_is_counted_once():
    guess = guessed(EAGER, 0.1)
    apart = learned(guess, baseline((0.1,) * 10))
    within = learned(guess, baseline((8.1, *(0.1,) * 9), compile_s=8.0))
    assert within.arm_s == pytest.approx(apart.arm_s)
    assert within.turn_s(COMPILED) == pytest.approx(apart.turn_s(COMPILED))


def test_a_slower_baseline_makes_every_action_dearer():
    guess = guessed(EAGER, 0.1)
    slow, quick = (learned(guess, baseline((step_s,) * 10)) for step_s in (1.0, 0.1))
    assert slow.screen_s(EAGER) > quick.screen_s(EAGER)
    assert slow.turn_s(EAGER) > quick.turn_s(EAGER)


def test_compiling_costs_more_than_not():
    costs = guessed(EAGER, 0.1)
    assert costs.screen_s(COMPILED) > costs.screen_s(EAGER)
    assert costs.turn_s(COMPILED) > costs.turn_s(EAGER)


def test_a_baseline_that_did_not_run_teaches_nothing():
    guess = guessed(EAGER, None)
    failed = msgspec.structs.replace(baseline(()), status="oom", runs=())
    assert learned(guess, failed) == guess


def test_what_was_compiled_once_takes_less_in_another_process():
    eager = again_s(baseline((0.1,), wall_s=5.0), build_s=2.0)
    assert eager == pytest.approx(2.0 + 0.1 + 0.5)
    compiled = again_s(baseline((9.1,), wall_s=30.0, compile_s=9.0), build_s=2.0)
    assert compiled == pytest.approx(eager + AGAIN * 9.0), "kernels of ours lie in a cache"


def test_a_build_is_what_is_left_of_the_baselines_time():
    measured = baseline((0.1,) * 10, wall_s=5.0)
    assert build_s(measured, started_s=2.0) == pytest.approx(5.0 - 2.0 - 1.0 - 1.0)


def test_kernels_of_our_own_are_built_once():
    costs, flash = guessed(EAGER, 0.1), pull(lever("flash"), COMPILED)
    first_s = costs.screen_s(flash, on=COMPILED) - costs.screen_s(COMPILED, on=COMPILED)
    assert first_s == OWN_KERNELS_S
    assert costs.screen_s(flash, on=flash) == costs.screen_s(COMPILED, on=COMPILED)


def test_the_whole_model_compiles_longer_than_its_blocks():
    costs, whole = guessed(EAGER, 0.1), pull(lever("compile-model"), EAGER)
    assert costs.screen_s(whole) > costs.screen_s(COMPILED)
