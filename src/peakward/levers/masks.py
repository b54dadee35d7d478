"""Masks: whether a model of transformers makes attention masks where the batch needs none."""

from typing import Any

from peakward.levers.axis import Axis, Code, CodeHint, ComputeCapability, Undo, not_seen
from peakward.records.case import ConfiguredCase, ModelCase
from peakward.records.lever import Lever


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase):
        return None
    return "masks left-out is for models of transformers: the decoder makes no mask of causal attention"


def _to_module(module: Any, _value: str) -> Undo:
    from peakward.lab.levers.masks_left_out import leave_out_masks

    return leave_out_masks(module)


AXIS = Axis(
    name="masks",
    default="as-written",
    help="Of a model of transformers: as-written, or left-out where a batch has no padding and no positions.",
    levers=(
        # transformers waits for the device once a step to learn that no row holds several sequences, so the
        # host cannot run ahead; while it is traced, and while a graph is captured, it makes a mask in the
        # place of a flag, and the capture of compiled blocks fails. Left out, with bf16 and AdamW fused:
        # compiled blocks of gpt2 at 12 × 1024 take 52.0 ms for 53.1, of Qwen2-1.5B at 4 × 1024 86 for 91.9,
        # of Llama-1B at 4 × 2048 128.9 for 128.8; gpt2 compiled as one piece 33.8 for 39.0. The larger gain
        # is that of the graph that can be captured then (H200, torch 2.11, transformers 5.17).
        Lever(
            name="no-masks",
            summary="transformers makes no attention mask where a batch has no padding and no positions",
            sets=(("masks", "left-out"),),
            numerics="reordered",
            usual_speedup=1.03,
            usual_of=("hf",),
            device_types=("cuda",),
        ),
    ),
    obstacle=_obstacle,
    to_module=_to_module,
    hints={
        "left-out": CodeHint(
            step="is a choice of the model's calls: give it as model=, or call "
            "peakward.lab.levers.masks_left_out.leave_out_masks(model) before the loop",
            handle="model",
        ),
    },
    code={
        "left-out": Code(
            imports=("from peakward.lab.levers.masks_left_out import leave_out_masks",),
            once=("leave_out_masks(model)",),
        ),
    },
    called="masks",
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture neither waits for the device nor has these masks"),
)
