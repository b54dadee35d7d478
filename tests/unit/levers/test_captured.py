"""What a capture of operators sees of a case."""

import msgspec
import pytest

from peakward.levers.catalogue import unseen
from peakward.records.case import AS_WRITTEN, ModuleCase, Workload


def case(pass_="train_step", work=None, **settings):
    return ModuleCase(
        source="py:model:build",
        fingerprint="0",
        workload=Workload(batch_size=2, seq_len=8, pass_=pass_, **(work or {})),
        configuration=msgspec.structs.replace(AS_WRITTEN, **settings),
        device="cuda",
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precision": "bf16"},
        {"precision": "bf16-mixed", "checkpointing": "every-block"},
        {"checkpointing": "selective"},
        {"compile": "default"},
        {"compile": "default", "compile_scope": "model"},
        {"pass_": "forward_backward", "precision": "fp16-mixed"},
        {"pass_": "forward", "optimizer": "adamw-fused"},
        {"optimizer": "adamw-fused"},
    ],
)
def test_what_is_seen(settings):
    assert unseen(case(**settings)) is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"attention": "sdpa-math"}, "attention sdpa-math is not seen"),
        ({"compile": "max-autotune"}, "compile max-autotune is not seen"),
        ({"compile": "default", "checkpointing": "sqrt"}, "with checkpointing sqrt is not seen"),
        ({"cuda_graphs": True}, "cuda-graphs on is not seen"),
        ({"loss": "fused"}, "torch's cross-entropy"),
        ({"precision": "tf32"}, "tf32 is not seen"),
        ({"precision": "fp16-mixed"}, "loss scaling"),
        ({"work": {"accumulate": 2}}, "2 micro-batches"),
        ({"pass_": "decode"}, "take forward"),
        ({"more": (("pace", "fast"),)}, "pace fast is not seen by operators"),
    ],
)
def test_what_is_not_seen(settings, reason):
    assert reason in unseen(case(**settings))
