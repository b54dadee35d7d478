"""Lets models of transformers make no attention mask where a batch has neither padding nor positions.

Without an attention mask, `create_causal_mask` of transformers (from 4.53 on) does two things that cost time:

- It asks whether positions restart within a row, as they do where several sequences are packed into it. The
  answer is a tensor, so each forward pass waits for the device.
- While torch.compile traces, and while a CUDA graph is captured, it cannot wait, and makes a mask of (batch,
  1, seq_len, seq_len). Attention is then masked by it and not causal by a flag, for which torch has no kernel
  that is as fast.

Positions that the model makes itself count up by one, so the answer is known, and causal attention needs no
mask.
"""

import inspect
import sys
import warnings
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from peakward.kernels.ops.forwards import Call, wrap_forward
from peakward.levers.axis import Undo
from peakward.records.errors import PeakwardError

_POSITIONS = "position_ids"


class _Running:
    """Counts, which compiled code looks at each time."""

    n = 0
    """The forward passes under way that need no mask."""
    n_modules = 0
    """The modules to which this is applied."""


_running = _Running()
_written: dict[str, Call] = {}
"""The functions of transformers that are replaced, as they were."""


def leave_out_masks(module: nn.Module) -> Undo:
    """Let the models of transformers in the module make no mask that a batch does not need, in place.

    A call with positions of its own runs as before, with one warning where it is not compiled. One with an
    attention mask has it. Other models in the process are not touched.

    Raises:
        PeakwardError: no model of transformers is in the module, or its version makes no such masks.
    """
    masking = sys.modules.get("transformers.masking_utils")
    models = _making_masks(module)
    if masking is None or not models:
        raise PeakwardError(
            "expected a model of transformers that makes its positions itself, for masks left-out, got "
            f"{type(module).__name__} without one"
        )
    if not hasattr(masking, "find_packed_sequence_indices"):
        raise PeakwardError(
            "expected transformers from 4.53 on, for masks left-out, got one that makes masks otherwise"
        )
    undos = [_replaced_functions(masking)]
    for each in models:
        place = list(inspect.signature(each.forward).parameters).index(_POSITIONS)
        undos.append(wrap_forward([each], _WithoutMasks(place)))

    def undo() -> None:
        for each in reversed(undos):
            each()
        # Code that was compiled before a change can be taken for the code after it (pytorch#117265).
        torch._dynamo.reset()

    return undo


def _making_masks(module: nn.Module) -> list[nn.Module]:
    """The models of transformers that make masks and take positions; of one with an output layer that is the
    model beneath it. Dynamo cannot end a graph inside the wrapper that counts passes, and the graph of a
    replaced loss must end where the model beneath is called: the wrapper must not be around both."""
    kind = getattr(sys.modules.get("transformers"), "PreTrainedModel", None)
    if kind is None:
        return []
    found: list[nn.Module] = []
    waiting = [module]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, kind):
            waiting.extend(each.children())
            continue
        takers = [
            one
            for one in (each.base_model, each)
            if _POSITIONS in inspect.signature(one.forward).parameters
        ]
        found.extend(takers[:1])
    return found


def _replaced_functions(masking: ModuleType) -> Undo:
    """Its functions with an answer of ours while a pass runs that needs no mask; one pair for all modules."""
    if not _written:
        _written.update(
            {name: getattr(masking, name) for name in _ANSWERS if hasattr(masking, name)}
        )
        for name, function in _written.items():
            setattr(masking, name, _ANSWERS[name](function))
    _running.n_modules += 1

    def undo() -> None:
        _running.n_modules -= 1
        if not _running.n_modules:
            for name, function in _written.items():
                setattr(masking, name, function)
            _written.clear()

    return undo


def _search(written: Call) -> Call:
    def find_packed_sequence_indices(position_ids: Tensor) -> Tensor | None:
        return None if _running.n else written(position_ids)

    return find_packed_sequence_indices


def _tracing(written: Call) -> Call:
    """Asked without a tensor, it is to tell whether causal attention may go by a flag."""

    def is_tracing(tensor: Tensor | None = None) -> bool:
        return False if tensor is None and _running.n else written(tensor)

    return is_tracing


def _exporting(written: Call) -> Call:
    """Later versions ask this for the same. Up to torch 2.13 Dynamo may take it for true whatever it traces
    (seen with torch 2.11)."""

    def is_torchdynamo_exporting() -> bool:
        return not _running.n and bool(written())

    return is_torchdynamo_exporting


_ANSWERS = {
    "find_packed_sequence_indices": _search,
    "is_tracing": _tracing,
    "is_torchdynamo_exporting": _exporting,
}


_POSITIONS_GIVEN = (
    "expected a call without position_ids, which masks left-out rests on, got one with them: packed "
    "sequences are looked for in such calls"
)


class _WithoutMasks:
    """Runs a forward pass that needs no mask, unless positions come with the call."""

    def __init__(self, place: int) -> None:
        self._place, self._warned = place, False

    def __call__(self, inner: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args[self._place] if len(args) > self._place else kwargs.get(_POSITIONS)
        if given is not None:
            # A break of the graph here would let Dynamo call this very function again, without end.
            if not (self._warned or torch.compiler.is_compiling()):
                self._warned = True
                warnings.warn(_POSITIONS_GIVEN, stacklevel=4)
            return inner(*args, **kwargs)
        _running.n += 1
        try:
            return inner(*args, **kwargs)
        finally:
            _running.n -= 1
