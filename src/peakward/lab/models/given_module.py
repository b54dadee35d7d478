"""A user's module, with the inputs that it is called on and the blocks that it repeats."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peakward.records import check
from peakward.records.case import CompileScope
from peakward.records.errors import PeakwardError, quoted

PACKAGE = Path(__file__).parents[2]
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
    compiled: CompileScope | None = None
    """The part that a factory compiled, which was taken off the module; None where it compiled nothing."""
    in_fp8: tuple[str, ...] | None = None
    """The linear layers that precision fp8 takes, by names as `kernels.fp8_layers` has them; None: those that
    win when they are timed."""

    @property
    def comes_in_bf16(self) -> bool:
        """Whether all its parameters are in bf16, as a patch to that makes them."""
        return held_in_bf16(self.module)


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
    module, _, _ = parts_of(made)
    if isinstance(module, nn.Module):
        expect_plain(module)  # Before its vocabulary is asked for, which a wrapper hides.
    return given_as_is(made)


def given_as_is(made: object) -> GivenModule:
    """The same where a module may be compiled or wrapped already.

    Raises:
        PeakwardError: None of what `given` takes.
    """
    module, batch, loss = parts_of(made)
    if not isinstance(module, nn.Module):
        raise PeakwardError(
            f"expected a torch.nn.Module, got {type(module).__name__}: return a module, (module, batch), "
            "(module, batch, loss), or an object with these as attributes"
        )
    if loss is not None and not callable(loss):
        raise PeakwardError(
            f"expected a loss that is a function of the module's output, got {type(loss).__name__}"
        )
    if loss is not None:
        _expect_takes_output(loss)
    if batch is None:
        return GivenModule(
            module=module,
            loss=loss,
            vocab_size=_vocab_size(module),
            keeps_buffers=keeps_buffers(module),
        )
    args, kwargs = called_on(batch)
    if not any(isinstance(each, Tensor) for each in tree_leaves((args, kwargs))):
        raise PeakwardError(f"expected a batch that holds tensors, got {type(batch).__name__}")
    return GivenModule(
        module=module, args=args, kwargs=kwargs, loss=loss, keeps_buffers=keeps_buffers(module)
    )


def keeps_buffers(module: nn.Module) -> bool:
    """Whether the module is one of transformers (`GivenModule.keeps_buffers`), or is cast as it is to be."""
    of_transformers = any(
        kind.__module__.startswith("transformers.") for kind in type(module).__mro__
    )
    return of_transformers or held_in_bf16(module)


def held_in_bf16(module: nn.Module) -> bool:
    """Whether a module has parameters, and all of floats are in bf16."""
    types = {each.dtype for each in module.parameters() if each.is_floating_point()}
    return types == {torch.bfloat16}


def parts_of(made: object) -> tuple[object, Any, Any]:
    """Takes apart what may be a module, its batch and its loss; None for each of the two that is not there.

    Raises:
        PeakwardError: a tuple of another length.
    """
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


def called_on(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for a batch: a tensor, a sequence of positional or a mapping of named inputs.

    Raises:
        PeakwardError: a mapping with a key that is no name.
    """
    if isinstance(batch, Mapping):
        for name in batch:
            if not isinstance(name, str):
                raise PeakwardError(
                    f"expected a mapping of named inputs as the batch, got the key {quoted(name)}: name each "
                    "as the forward pass does"
                )
        return (), dict(batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(batch), {}
    return (batch,), {}


SHARDED = ("FullyShardedDataParallel", "FSDPModule")
"""Classes of torch.distributed.fsdp, whose import takes a second."""


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
        if any(kind.__name__ in SHARDED for kind in type(each).__mro__):
            raise PeakwardError(
                f"expected a plain module, got {type(each).__name__}, whose parameters are sharded, in "
                f"{where}: give the module before it is sharded, and set what is found where it is sharded"
            )
        if each._compiled_call_impl is not None:
            raise PeakwardError(
                f"expected a plain module, got one that `.compile()` was called on in {where}: leave that "
                "out; compilation is a lever here"
            )


def loss_on(loss: Callable[..., Tensor] | None, batch: Any) -> Loss | None:
    """The loss as a function of the output alone, where it may take the batch beside it."""
    if loss is None or not _takes_batch(loss):
        return loss
    return functools.wraps(loss)(lambda output: loss(output, batch))


def _expect_takes_output(loss: Callable[..., Tensor]) -> None:
    try:
        # What `loss_on` wraps takes the output alone.
        wanted = inspect.signature(loss, follow_wrapped=False)
    except ValueError:  # One written in C says nothing.
        return
    try:
        wanted.bind(None)
    except TypeError as error:
        raise PeakwardError(
            f"expected a loss that takes the module's output, got one of {wanted}: {error}"
        ) from error


def _takes_batch(loss: Callable[..., Tensor]) -> bool:
    try:
        wanted = inspect.signature(loss).parameters.values()
    except ValueError:  # One written in C says nothing.
        return False
    needed = [
        each
        for each in wanted
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.default is each.empty
    ]
    return len(needed) == 2


def _vocab_size(module: nn.Module) -> int:
    config = getattr(module, "config", None)
    for found in (getattr(module, "vocab_size", None), getattr(config, "vocab_size", None)):
        if isinstance(found, int) and found > 0:
            return found
    raise PeakwardError(
        f"expected a module that says the range of its token ids, got {type(module).__name__} without "
        "vocab_size or config.vocab_size: add one, or return (module, batch)"
    )


def expect_live(model: object, optimizer: object) -> None:
    """Refuse what is neither a module nor an optimizer, where one is given, and parameters that cannot be
    stepped.

    Raises:
        PeakwardError: it is another thing; or a parameter has no shape yet, or is an inference tensor.
    """
    if not isinstance(model, nn.Module | None):
        raise PeakwardError(
            f"expected a torch.nn.Module for model, got {quoted(model)}: give the module itself"
        )
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise PeakwardError(
            f"expected a torch.optim.Optimizer for optimizer, got {quoted(optimizer)}: give the one that "
            "steps, or leave it out"
        )
    for name, each in () if model is None else model.named_parameters():
        if isinstance(each, nn.parameter.UninitializedParameter):
            raise PeakwardError(
                f"expected parameters with shapes, got {name} of a lazy module: call the model once on "
                "a batch before"
            )
        if each.is_inference():
            raise PeakwardError(
                f"expected parameters that can be trained, got {name}, made under torch.inference_mode: "
                "make the model outside of it"
            )


def expect_trained(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """
    Raises:
        PeakwardError: the optimizer, where one is given, holds no parameter of the model.
    """
    if optimizer is None:
        return
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if held.isdisjoint(map(id, model.parameters())):
        raise PeakwardError(
            f"expected an optimizer of the model's parameters, got {type(optimizer).__name__} that holds "
            "none of them: make it of model.parameters(), behind what replaces parameters"
        )


def expect_module(given: object) -> nn.Module:
    """The module, where it is one.

    Raises:
        PeakwardError: it is another thing.
    """
    if not isinstance(given, nn.Module):
        raise PeakwardError(
            f"expected a case or a module, got {quoted(given)}: make one with `pw.case`"
        )
    return given


def place(given: object) -> torch.device:
    """A device that is here.

    Raises:
        PeakwardError: torch knows none of that name, or has none here.
    """
    try:
        found = torch.device(given) if isinstance(given, str | torch.device) else None
    except (RuntimeError, ValueError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise PeakwardError(f"expected a step on cpu or cuda, got one on {quoted(given)}")
    if found.type == "cuda" and not (found.index or 0) < torch.cuda.device_count():
        raise PeakwardError(
            f"expected a GPU that is here ({torch.cuda.device_count()} are), got {quoted(given)}: give "
            "another index, or cpu"
        )
    return found


def inputs(given: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A module's inputs, by position and by name.

    Raises:
        PeakwardError: neither a sequence nor a mapping.
    """
    if isinstance(given, torch.Tensor):
        raise PeakwardError("expected a sequence or a mapping of inputs, got a tensor: write (x,)")
    if not isinstance(given, Mapping):
        return check.items(given, "inputs"), {}
    for name in given:
        check.line(name, "the name of an input")
    return (), dict(given)


def repeated_blocks(module: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """The list of repeated blocks that holds the most parameters; None without one.

    The number of blocks does not choose: PaliGemma has 18 of its language model (2.0 billion parameters) and
    27 of what sees its images (0.4). A block's own lists, such as experts, lie in the list of blocks and are
    therefore not chosen.
    """
    found: list[nn.ModuleList | nn.Sequential] = []
    _search(module, found)
    return max(found, key=_n_parameters, default=None)


def _n_parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _search(module: nn.Module, found: list[nn.ModuleList | nn.Sequential]) -> None:
    if isinstance(module, nn.ModuleList | nn.Sequential) and _are_blocks(module):
        found.append(module)
        return
    for child in module.children():
        _search(child, found)


LEAST_PARAMETERS = 3
"""Parameters of its own that a module without parts is a block by; a layer or a norm has two at most."""


def _are_blocks(listed: nn.ModuleList | nn.Sequential) -> bool:
    """Whether these are modules of one class, each with several parts, and not mere layers.

    Those of a ModuleList may be of a few classes, as of attention and of a state space in turn, where one
    class repeats. Lists, and None in the place of a module, are never called themselves.
    """
    kinds = {type(each) for each in listed}
    if len(listed) < 2 or kinds & {type(None), nn.ModuleList, nn.ModuleDict}:
        return False
    if len(kinds) > 1 and (isinstance(listed, nn.Sequential) or len(kinds) == len(listed)):
        return False
    return all(map(_has_parts, listed))


def _has_parts(module: nn.Module) -> bool:
    own = module.parameters(recurse=False)
    return any(True for _ in module.children()) or len(list(own)) >= LEAST_PARAMETERS


def blocks_of(module: nn.Module) -> str | None:
    """An expression of `model` that gives the repeated blocks; None where it repeats none."""
    blocks = repeated_blocks(module)
    if blocks is None:
        return None
    path = next(name for name, each in module.named_modules() if each is blocks)
    found: Any = module
    for part in path.split(".") if path else ():
        found = getattr(found, part, None)
    if found is blocks and all(each.isidentifier() for each in path.split(".") if path):
        return f"model.{path}" if path else "model"
    return f'model.get_submodule("{path}")'


def files_of(module: nn.Module) -> tuple[str, ...]:
    """The absolute paths of the files in the working directory that define parts of a module."""
    found: dict[str, None] = {}
    for kind in dict.fromkeys(type(each) for each in module.modules()):
        try:
            file = Path(inspect.getsourcefile(kind) or "").resolve()
        except (OSError, TypeError):  # Made in a notebook, or in C.
            continue
        if is_of_working_directory(file):
            found[str(file)] = None
    return tuple(found)


def is_of_working_directory(file: Path) -> bool:
    """Whether a file is below it, and is neither of an installed package nor Peakward's own."""
    inside = file.is_relative_to(Path.cwd().resolve()) and file.is_file()
    return inside and "site-packages" not in file.parts and not file.is_relative_to(PACKAGE)
