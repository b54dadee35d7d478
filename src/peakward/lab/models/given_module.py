"""A user's module, with the inputs that it is called on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peakward.records.errors import PeakwardError

Loss = Callable[[Any], Tensor]
"""The loss as a function of the module's output; a scalar."""


@dataclass(frozen=True, kw_only=True)
class GivenModule:
    """A user's module, with its inputs and its loss.

    If `vocab_size` is known, the module is called on token ids drawn below it, (batch_size, seq_len) of
    int64, and its logits are scored against the ids one place on. Else it is called on `args` and
    `kwargs`, the same in every step.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss: Loss | None = None
    """The user's loss. Without it, the output is the loss if it is a scalar; else its `.loss` is."""
    vocab_size: int | None = None
    keeps_buffers: bool = False
    """Whether buffers stay in fp32 under 16-bit parameters, as in transformers: it computes its angles
    from a buffer, and 8 bits of mantissa would change them."""


def given(made: object) -> GivenModule:
    """The module, from the return value of a factory or the arguments of `pw.run`.

    Args:
        made: A module; or (module, batch) or (module, batch, loss); or an object with the attributes
        `module`, `batch` and, optionally, `loss`. A batch is a tensor, a sequence of positional or a
        mapping of named inputs. A module alone is a language model: it says the range of its token ids
        as `vocab_size` or `config.vocab_size`.

    Raises:
        PeakwardError: None of these; or a module that is compiled or wrapped already.
    """
    module, batch, loss = _parts(made)
    if not isinstance(module, nn.Module):
        raise PeakwardError(
            f"expected a torch.nn.Module, got {type(module).__name__}: return a module, (module, batch), "
            "(module, batch, loss), or an object with these as attributes"
        )
    expect_plain(module)
    if loss is not None and not callable(loss):
        raise PeakwardError(
            f"expected a loss that is a function of the module's output, got {type(loss).__name__}"
        )
    if batch is None:
        return GivenModule(module=module, loss=loss, vocab_size=_vocab_size(module))
    args, kwargs = _inputs(batch)
    if not any(isinstance(each, Tensor) for each in tree_leaves((args, kwargs))):
        raise PeakwardError(f"expected a batch that holds tensors, got {type(batch).__name__}")
    return GivenModule(module=module, args=args, kwargs=kwargs, loss=loss)


def _parts(made: object) -> tuple[object, Any, Any]:
    if isinstance(made, nn.Module):
        return made, None, None
    if isinstance(made, tuple):
        if len(made) not in (2, 3):
            raise PeakwardError(
                f"expected (module, batch) or (module, batch, loss), got a tuple of {len(made)}"
            )
        return made[0], made[1], made[2] if len(made) == 3 else None
    module = getattr(made, "module", made)
    return module, getattr(made, "batch", None), getattr(made, "loss", None)


def _inputs(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(batch), {}
    return (batch,), {}


def expect_plain(module: nn.Module) -> None:
    """Refuses a module with a compiler or a wrapper around or in it, which would be measured in its
    place.

    Raises:
        PeakwardError: There is one.
    """
    wrappers = (
        nn.DataParallel,
        nn.parallel.DistributedDataParallel,
        torch._dynamo.eval_frame.OptimizedModule,
    )
    for path, each in module.named_modules():
        where = path or "the module itself"
        if isinstance(each, wrappers):
            inner = "._orig_mod" if isinstance(each, wrappers[2]) else ".module"
            raise PeakwardError(
                f"expected a plain module, got {type(each).__name__} in {where}: give what it wraps, "
                f"its `{inner}`; compilation is a lever here"
            )
        if each._compiled_call_impl is not None:
            raise PeakwardError(
                f"expected a plain module, got one that `.compile()` was called on in {where}: leave that "
                "out; compilation is a lever here"
            )


def _vocab_size(module: nn.Module) -> int:
    config = getattr(module, "config", None)
    for found in (getattr(module, "vocab_size", None), getattr(config, "vocab_size", None)):
        if isinstance(found, int) and found > 0:
            return found
    raise PeakwardError(
        f"expected a module that says the range of its token ids, got {type(module).__name__} without "
        "vocab_size or config.vocab_size: add one, or return (module, batch)"
    )
