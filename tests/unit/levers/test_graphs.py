"""What a step that CUDA graphs replay cannot be combined with."""

import msgspec
import pytest

from peakward.levers.catalogue import case_obstacle, together_obstacle
from peakward.models.presets import model
from peakward.records.case import AS_WRITTEN, Configuration, ModelCase, ModuleCase, Workload


def together(case):
    return together_obstacle(case, compute_capability=None)


def built(pass_="train_step", **settings):
    return ModelCase(
        model=model("small"),
        workload=Workload(batch_size=2, seq_len=8, pass_=pass_),
        configuration=Configuration(**settings),
        device="cuda",
    )


EXCLUDED = [
    ({"compile": "reduce-overhead"}, "graphs of its own"),
    ({"compile": "max-autotune"}, "graphs of its own"),
    ({"optimizer": "adamw-loop"}, "without a step"),
    ({"precision": "fp16-mixed"}, "decisions on the host"),
]


@pytest.mark.parametrize(("settings", "reason"), EXCLUDED)
def test_what_graphs_exclude_goes_without_them(settings, reason):
    assert reason in together(built(**settings, cuda_graphs=True))
    assert together(built(**settings)) is None


@pytest.mark.parametrize("settings", [{}, {"compile": "default"}, {"precision": "bf16-mixed"}])
def test_other_settings_go_with_graphs(settings):
    assert together(built(**settings, cuda_graphs=True)) is None


def test_a_pass_that_scales_no_loss_goes_with_graphs():
    assert together(built("forward", precision="fp16-mixed", cuda_graphs=True)) is None


def test_a_case_is_told_before_it_is_tried_a_module_too():
    scaled = built(precision="fp16-mixed", cuda_graphs=True)
    given = ModuleCase(
        source="py:model:build",
        fingerprint="0",
        workload=scaled.workload,
        configuration=msgspec.structs.replace(AS_WRITTEN, precision="fp16-mixed", cuda_graphs=True),
        device="cuda",
    )
    for case in (scaled, given):
        found = case_obstacle(case, compute_capability=(9, 0), has_compiler=True)
        assert "decisions on the host" in found
