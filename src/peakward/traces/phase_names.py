"""Reads the phase of a step from the name of a range."""

import re
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple


class PhaseCode(IntEnum):
    """A phase of a step. `OTHER` is work that no evidence puts into one of the three."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    OTHER = 3


class PhaseEvidence(IntEnum):
    """The evidence that put a piece of work into its phase, strongest first after `NOTHING`."""

    NOTHING = 0
    PEAKWARD_RANGE = 1
    USER_RANGE = 2
    TORCH_RANGE = 3
    """torch's own ranges: `Optimizer.step#AdamW.step`, `DistributedDataParallel.forward`."""
    AUTOGRAD = 4
    """Backward by autograd's nodes; forward and the optimizer by their place before and after it."""
    NO_BACKWARD = 5
    """Forward, because nothing in the process is a backward pass or an optimizer."""


class Said(NamedTuple):
    """The phase that a name gives."""

    phase: PhaseCode
    evidence: PhaseEvidence
    is_sure: bool
    """False for a bare "step", which is an optimizer's only if it contains no backward pass."""


_OURS = {
    "peakward::forward": PhaseCode.FORWARD,
    "peakward::backward": PhaseCode.BACKWARD,
    "peakward::optimizer": PhaseCode.OPTIMIZER,
}
_SILENT = (
    "peakward::",
    "nccl:",
    "ProfilerStep#",
    "## Call CompiledFxGraph",
    "Torch-Compiled Region",
)
_TORCHS = re.compile(
    r"Optimizer\.(step|zero_grad)#|DistributedDataParallel\.|FullyShardedDataParallel\.|FSDP::"
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WORDS = {
    PhaseCode.FORWARD: {"forward", "forwards", "fwd", "fprop"},
    PhaseCode.BACKWARD: {"backward", "backwards", "bwd", "bprop"},
    PhaseCode.OPTIMIZER: {"optimizer", "optimizers", "optimiser", "optimisers", "optim"},
}
_OPTIMIZERS = {
    "opt", "adam", "adamw", "sgd", "lion", "muon", "shampoo", "lamb", "adagrad", "adafactor",
    "rmsprop", "lbfgs",
}  # fmt: skip
_WHOLE_STEPS = {
    "train", "training", "eval", "evaluation", "val", "validation", "test", "profiler", "iter",
    "iteration", "epoch", "batch", "micro", "global", "time", "decode", "decoding", "prefill",
    "generate", "generation", "inference", "sample", "sampling", "denoise", "denoising", "model",
    "scheduler",
}  # fmt: skip


@lru_cache(maxsize=4096)
def said_by(name: str) -> Said | None:
    """The phase that the name of a range gives; None where it gives none, or several at once."""
    if name in _OURS:
        return Said(_OURS[name], PhaseEvidence.PEAKWARD_RANGE, is_sure=True)
    if name.startswith(_SILENT):
        return None
    evidence = PhaseEvidence.TORCH_RANGE if _TORCHS.match(name) else PhaseEvidence.USER_RANGE
    words = [word.lower() for word in _WORD.findall(name)]
    phases = {phase for phase, its_words in _WORDS.items() if its_words & set(words)}
    if ("step" in words and _OPTIMIZERS & set(words)) or ("zero", "grad") in pairwise(words):
        phases.add(PhaseCode.OPTIMIZER)
    if phases:
        return Said(phases.pop(), evidence, is_sure=True) if len(phases) == 1 else None
    if "step" in words and not any(word in _WHOLE_STEPS or word.isdigit() for word in words):
        return Said(PhaseCode.OPTIMIZER, evidence, is_sure=False)
    return None
