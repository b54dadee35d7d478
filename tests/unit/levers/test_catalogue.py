"""The levers: well formed, resolved into cases, and refused where they cannot apply."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from peakward.levers.catalogue import (
    AXES,
    LEVERS,
    case_obstacle,
    changes,
    lever,
    numerics_class,
    obstacle,
    pull,
)
from peakward.levers.registry import BUILT_IN
from peakward.models.presets import model
from peakward.records.case import Configuration, DeviceType, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever

each_lever = pytest.mark.parametrize("pulled", LEVERS, ids=lambda pulled: pulled.name)


def case(device: DeviceType = "cuda", pass_: Any = "train_step", **configuration: Any) -> ModelCase:
    return ModelCase(
        model=model("tiny"),
        workload=Workload(batch_size=2, seq_len=64, pass_=pass_),
        configuration=Configuration(**configuration),
        device=device,
    )


def applies(
    pulled: Lever, at: ModelCase, capability: tuple[int, int] | None = (9, 0)
) -> str | None:
    return obstacle(pulled, at, compute_capability=capability, has_compiler=True)


def test_names_are_unique() -> None:
    names = [each.name for each in LEVERS]
    assert len(set(names)) == len(names)


@each_lever
def test_sets_values_that_are_admitted(pulled: Lever) -> None:
    """Of a field of a configuration by its type, else of its axis."""
    admitted = get_type_hints(Configuration)
    without_field = {each.name: each.values for each in BUILT_IN if not each.is_field}
    assert pulled.sets
    for field, value in pulled.sets:
        if field in without_field:
            assert value in without_field[field]
        elif get_origin(admitted[field]) is Literal:
            assert value in get_args(admitted[field])
        else:
            assert type(value) is admitted[field]


def start(pulled: Lever) -> ModelCase:
    """The baseline, which a lever changes; a decode step that keeps nothing, where it sets what is usual."""
    return case(kv_cache="none") if pulled.name == "kv-cache" else case()


@each_lever
def test_needs_only_precisions_that_exist(pulled: Lever) -> None:
    assert set(pulled.needs_precision) <= set(get_args(get_type_hints(Configuration)["precision"]))


@each_lever
def test_pulling_changes_the_baseline_and_only_once(pulled: Lever) -> None:
    base = start(pulled)
    once = pull(pulled, base)
    assert changes(pulled, base)
    assert once != base
    assert pull(pulled, once) == once
    assert not changes(pulled, once)


@each_lever
def test_pulling_sets_what_it_says_and_leaves_the_rest(pulled: Lever) -> None:
    base = start(pulled)
    before, after = base.configuration.settings, pull(pulled, base).configuration.settings
    changed = {name for name in after if after[name] != before.get(name)}
    assert {name: after[name] for name in changed} == dict(pulled.sets)
    assert pull(pulled, base).workload == base.workload


def test_looking_one_up() -> None:
    assert lever("compile").sets == (("compile", "default"),)
    with pytest.raises(PeakwardError, match="expected a lever, got 'complie': perhaps compile"):
        lever("complie")


def test_a_compiler_makes_an_exact_lever_reorder() -> None:
    exact = lever("checkpointing")
    assert exact.numerics == "exact"
    assert numerics_class(exact, pull(exact, case())) == "exact"
    assert numerics_class(exact, pull(exact, case(compile="default"))) == "reordered"
    assert numerics_class(lever("bf16"), case(compile="default")) == "approximate"


@each_lever
def test_nothing_stands_in_the_way_of_a_recent_gpu_that_trains_in_16_bits(pulled: Lever) -> None:
    admitted = pulled.needs_precision or ("bf16-mixed",)
    precision = "bf16-mixed" if "bf16-mixed" in admitted else admitted[0]
    assert applies(pulled, case(pass_=pulled.passes[-1], precision=precision)) is None


OPTIMIZERS = ("fused-optimizer", "triton-optimizer", "bf16-states", "8bit-states")
LOSSES = ("fused-loss", "chunked-loss", "recomputed-loss")


@pytest.mark.parametrize("name", ["fused-optimizer", *LOSSES, "checkpointing"])
def test_refused_where_the_pass_lacks_what_it_changes(name: str) -> None:
    assert "needs the pass" in str(applies(lever(name), case(pass_="forward")))


@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_what_makes_a_pass_with_a_cache_faster(pass_: str) -> None:
    at = case(pass_=pass_, precision="bf16-mixed")
    found = {each.name for each in LEVERS if applies(each, at) is None}
    # The fused step is of bf16 parameters alone.
    without = {*OPTIMIZERS, *LOSSES, "checkpointing", "fused-step"}
    caches = {"flash-decode", "kv-cache", "int8-cache", "fp8-cache"}
    without |= {"flash", "flash-hopper"} if pass_ == "decode" else caches
    assert found == {each.name for each in LEVERS} - without


def test_an_optimizer_lever_needs_an_optimizer() -> None:
    at = case(pass_="forward_backward")
    assert "needs the pass train_step, got forward_backward" in str(
        applies(lever("fused-optimizer"), at)
    )
    assert applies(lever("checkpointing"), at) is None


@pytest.mark.parametrize(
    "name",
    [
        "tf32",
        "fp16-mixed",
        "fp8",
        "sdpa-cudnn",
        "flash",
        "flash-hopper",
        *LOSSES,
        "fused-norm",
        "fused-rope",
        "fused-swiglu",
        "cuda-graphs",
    ],
)
def test_refused_on_a_cpu(name: str) -> None:
    at = case(device="cpu", precision="bf16-mixed")
    assert applies(lever(name), at, capability=None) == "needs a CUDA GPU, got a CPU"


@pytest.mark.parametrize(
    ("name", "too_old", "new_enough"),
    [("tf32", (7, 5), (8, 0)), ("bf16", (7, 0), (8, 0)), ("fp8", (8, 6), (8, 9))],
)
def test_refused_below_its_compute_capability(
    name: str, too_old: tuple[int, int], new_enough: tuple[int, int]
) -> None:
    assert "needs compute capability" in str(applies(lever(name), case(), too_old))
    assert applies(lever(name), case(), new_enough) is None


def test_compute_capability_is_no_matter_on_a_cpu() -> None:
    assert applies(lever("bf16"), case(device="cpu"), capability=None) is None


def test_a_16_bit_kernel_is_refused_under_fp32() -> None:
    assert "needs the precision" in str(applies(lever("sdpa-cudnn"), case(precision="fp32")))


def test_compile_needs_a_compiler() -> None:
    at = case(device="cpu")
    without = obstacle(lever("compile"), at, compute_capability=None, has_compiler=False)
    assert without is not None and "compiler" in without
    assert obstacle(lever("compile"), at, compute_capability=None, has_compiler=True) is None


def stopped(at: ModelCase, capability: tuple[int, int] | None = None) -> str | None:
    return case_obstacle(at, compute_capability=capability, has_compiler=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention", "sdpa-efficient"),
        ("compile", "reduce-overhead"),
        ("compile", "max-autotune"),
        ("optimizer", "adamw-triton"),
        ("optimizer", "adamw-bf16-states"),
        ("optimizer", "adamw-8bit-states"),
    ],
)
def test_a_setting_for_cuda_alone_is_refused_on_a_cpu(field: str, value: str) -> None:
    assert stopped(case("cpu", **{field: value})) == f"{field} {value} needs a CUDA GPU, got a CPU"
    assert stopped(case("cuda", **{field: value}), (9, 0)) is None


@pytest.mark.parametrize("value", ["adamw-bf16-states", "adamw-8bit-states"])
def test_moments_in_fewer_bits_need_fp32_parameters(value: str) -> None:
    refused = f"optimizer {value} needs fp32 parameters, got precision bf16: use bf16-mixed or fp8"
    assert stopped(case("cuda", optimizer=value, precision="bf16"), (9, 0)) == refused
    for precision in ("fp32", "tf32", "bf16-mixed", "fp8"):
        assert stopped(case("cuda", optimizer=value, precision=precision), (9, 0)) is None


def test_cuda_graphs_are_refused_on_a_cpu() -> None:
    assert stopped(case("cpu", cuda_graphs=True)) == "cuda-graphs needs a CUDA GPU, got a CPU"


def test_flash_takes_any_precision_on_a_cpu_and_16_bits_on_a_gpu() -> None:
    assert stopped(case("cpu", attention="sdpa-flash")) is None
    assert "needs the precision" in str(stopped(case(attention="sdpa-flash"), (9, 0)))
    in_16_bits = case(attention="sdpa-flash", precision="bf16")
    assert stopped(in_16_bits, (9, 0)) is None
    assert "needs compute capability" in str(stopped(in_16_bits, (7, 5)))


@pytest.mark.parametrize(
    "setting", [{"optimizer": "adamw-loop"}, {"checkpointing": "sqrt"}, {"attention": "sdpa-math"}]
)
def test_a_setting_that_no_lever_makes_is_judged_by_what_it_needs(setting: dict[str, str]) -> None:
    assert stopped(case("cpu", **setting)) is None
    refused = stopped(case("cpu", pass_="forward", **setting))
    assert (refused is None) == ("attention" in setting)


def test_what_is_declared_beside_the_levers_is_a_setting_and_no_lever_s() -> None:
    hints = get_type_hints(Configuration)
    by_levers = {pair for each in LEVERS for pair in each.sets}
    for field, value in ((axis.name, value) for axis in AXES for value in axis.others):
        assert value in get_args(hints[field])
        assert (field, value) not in by_levers
