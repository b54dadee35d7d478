"""Levers that reach into a user's module from outside: its blocks recomputed, compiled, in ranges."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from peakward.kernels.ops.forwards import Call, wrap_forward
from peakward.lab.levers.compilation import is_compiled, selective
from peakward.lab.levers.ranges import opened
from peakward.lab.models.given_module import repeated_blocks
from peakward.lab.rewriting import rewriting
from peakward.levers.axis import Undo
from peakward.records.case import Checkpointing, Compile, CompileScope
from peakward.records.errors import PeakwardError

_SDPA = F.scaled_dot_product_attention
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


def recompute(module: nn.Module, mode: Checkpointing) -> Undo:
    """Checkpoint each of the repeated blocks, in place. What they draw, as dropout does, is drawn again
    alike; names of parameters stay. A block that writes a buffer is refused when it first runs in training.

    Raises:
        PeakwardError: the module repeats no blocks.
    """
    if mode == "none":
        return _nothing
    blocks = repeated_blocks(module)
    if blocks is None:
        raise PeakwardError(
            f"expected a module that repeats blocks in a ModuleList, to checkpoint each, got "
            f"{type(module).__name__} without: call torch.utils.checkpoint in its code"
        )
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = selective

    caches, writes = _caches(), _Writes(blocks)

    def without(each: Any) -> Any:
        """Recomputed, a block would fill an empty cache twice, and the keys and values that it keeps are what
        recomputation is to save."""
        return None if isinstance(each, caches) and _is_empty(each) else each

    def around(inner: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.is_grad_enabled():
            args = tuple(without(each) for each in args)
            kwargs = {name: without(each) for name, each in kwargs.items()}
            if kwargs.get("use_cache"):
                kwargs["use_cache"] = False
        again = functools.partial(checkpoint, inner, *args, **options, **kwargs)
        # Compiled, the write is in the forward graph alone.
        return again() if torch.compiler.is_compiling() else writes.refused(again)

    return wrap_forward(blocks, around)


class _Writes:
    """Refuses blocks that write buffers in training: run again in the backward pass, they write twice, and a
    BatchNorm's statistics are others (a share of 0.19 of each batch, for 0.1).

    The first pass in training is looked at; a later one costs nothing. Seen are other tensors and versions:
    what torch writes without counting, the statistics of F.batch_norm and F.instance_norm, is not (BatchNorm
    counts its batches beside).
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        self._blocks = list(dict.fromkeys(blocks))
        self._n_left = len(self._blocks)

    def refused(self, call: Callable[[], Any]) -> Any:
        """The result of a call of one of the blocks.

        Raises:
            PeakwardError: it changed a buffer, by writing to it or by putting another in its place.
        """
        trains = torch.is_grad_enabled() and any(each.training for each in self._blocks)
        if not self._n_left or not trains:
            return call()
        before = self._buffers()
        result = call()
        self._n_left -= 1
        after = self._buffers()
        for name in {**before, **after}:
            tensor, version = before.get(name, (None, 0))
            if name not in after or after[name][0] is not tensor or after[name][1] != version:
                raise PeakwardError(
                    f"expected blocks that write no buffers, to run each again in the backward pass, got "
                    f"one that writes {name.split('.', 1)[1]}: call torch.utils.checkpoint in its code, "
                    "around what writes none"
                )
        return result

    def _buffers(self) -> dict[str, tuple[Tensor, int]]:
        """Each with its version, which a write in place counts up."""
        return {
            name: (each, each._version)
            for name, each in nn.ModuleList(self._blocks).named_buffers()
        }


def _caches() -> tuple[type[Any], ...]:
    """The class of transformers' caches, where its models are there. It is looked up before a forward pass is
    traced: Dynamo of torch 2.11 cannot read the name of a class."""
    held = sys.modules.get("transformers.cache_utils")
    return () if held is None else (held.Cache,)


def _is_empty(cache: Any) -> bool:
    """Whether a cache of transformers holds nothing yet."""
    try:
        return bool(cache.get_seq_length() == 0)
    except ValueError:  # Layers of a state space alone, which have no length.
        return not cache.has_previous_state()


def compile_in_place(module: nn.Module, mode: Compile, scope: CompileScope) -> Undo:
    """Compile the repeated blocks, of a module without any the whole."""
    if mode == "none":
        return _nothing
    if (replacements := rewriting.of(module)) is not None:
        return replacements.compiled(mode, scope)
    parts = compiled_parts(module, mode, scope)
    before = [vars(each).get("_compiled_call_impl") for each in parts]
    for part in parts:
        part.compile(mode=None if mode == "default" else mode)

    def undo() -> None:
        for part, held in zip(parts, before, strict=True):
            if held is None:
                del part._compiled_call_impl
            else:
                part._compiled_call_impl = held
        # Code that was compiled before a change can be taken for the code after it (pytorch#117265).
        torch._dynamo.reset()

    return undo


def compiled_parts(module: nn.Module, mode: Compile, scope: CompileScope) -> list[nn.Module]:
    """The modules that are compiled, each by itself, and once where it stands in several places."""
    if mode == "none":
        return []
    blocks = repeated_blocks(module) if scope == "block" else None
    return [module] if blocks is None else list(dict.fromkeys(blocks))


def _nothing() -> None:
    """Takes back that nothing was done."""


class SdpaCalls(TorchFunctionMode):
    """Sees calls of torch's scaled_dot_product_attention, and attention that is written out beside."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0
        self.n_written = 0
        """Softmaxes over the keys of scores (batch, heads, queries, keys)."""
        self.dtypes: set[torch.dtype] = set()
        """The type that queries came in, or that autocast casts them to."""
        self.longest = 0
        """The longest sum in it: over head_dim, or over keys."""
        self.drops = False
        """Whether a call drops probabilities at random."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _SDPA:
            self._see(args, kwargs)
        elif func in _SOFTMAX:
            operands = dict(zip(("input", "dim"), args, strict=False)) | kwargs
            self.n_written += operands["input"].ndim == 4 and operands.get("dim") in (-1, 3)
        return func(*args, **kwargs)

    def _see(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = dict(zip(("query", "key", "value", "attn_mask", "dropout_p"), args, strict=False))
        call |= kwargs
        query: Tensor = call["query"]
        kind = query.device.type
        self.n += 1
        self.dtypes.add(
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
        )
        self.longest = max(self.longest, query.shape[-1], call["key"].shape[-2])
        self.drops = self.drops or call.get("dropout_p", 0.0) > 0


@contextmanager
def ranged(module: nn.Module) -> Iterator[None]:
    """While it lasts, the repeated blocks run in the ranges of `ranges`; a module compiled as a whole
    is left as it is, and not compiled again."""
    blocks = None if is_compiled(module) else repeated_blocks(module)
    with ExitStack() as changes:
        for number, block in enumerate(blocks or ()):
            changes.enter_context(_ranged_block(block, f"block {number}"))
        yield


@contextmanager
def _ranged_block(block: nn.Module, name: str) -> Iterator[None]:
    """Around the call of what is compiled, not in it."""
    attribute = "_compiled_call_impl" if is_compiled(block) else "forward"
    held = vars(block).get(attribute)
    within = getattr(block, attribute)

    def called(*args: Any, **kwargs: Any) -> Any:
        with opened(name):
            return within(*args, **kwargs)

    setattr(block, attribute, called)
    try:
        yield
    finally:
        if held is None:
            delattr(block, attribute)
        else:
            setattr(block, attribute, held)
