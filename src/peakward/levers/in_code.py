"""A configuration as the lines that a program of the user's own makes it with.

There are two forms. `in_module` is the body of a function that is given the model where it is built, and
makes all that a model can have by itself, as `lab.levers.in_place` does. `in_program` is for a training
loop: it has the optimizer, and what stands around each step.
"""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from peakward.levers.axis import Axis, Code, Value, spoken
from peakward.levers.precision import said
from peakward.levers.registry import axes_of
from peakward.records.case import Configuration, DeviceType
from peakward.records.linear_layers import LinearChoice

IMPORT = "import torch"
_AUTOCAST = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16", "fp8": "bfloat16"}
_PARAMETERS_ALONE = (
    "for parameter in model.parameters():  # Buffers stay in fp32: angles are computed from them.",
    "    parameter.data = parameter.data.bfloat16()",
)
_CHECKPOINT = "from torch.utils.checkpoint import checkpoint"
_SELECTIVE = "from peakward.lab.levers.compilation import selective"
_METHOD = "from types import MethodType"
_FP8 = "from peakward.kernels import fp8_layers"
_WIDTH = 90
"""Characters of a line, less its indentation."""


class InModule(NamedTuple):
    """The body of a function that applies a configuration to `model` in place."""

    imports: tuple[str, ...]
    body: tuple[str, ...]
    """Four blanks a level; empty where nothing is to be done."""
    left: tuple[str, ...]
    """The settings that it does not make, a sentence each."""


class InProgram(NamedTuple):
    """Lines for a training loop."""

    once: tuple[str, ...]
    """Imports, then what is done when `model` is there, in this order. `blocks` are its repeated blocks, `lr`
    is the learning rate."""
    each_step: tuple[str, ...]


def in_module(
    best: Configuration,
    base: Configuration,
    device: DeviceType,
    blocks: str | None,
    *,
    keeps_buffers: bool,
    linear: LinearChoice | None = None,
) -> InModule:
    """The settings of the best that differ from the base, but for the optimizer's and for attention that the
    module writes out.

    Args:
        blocks: an expression of `model` that gives its repeated blocks; None where it has none.
        keeps_buffers: whether its buffers stay in fp32 under 16-bit parameters.
        linear: the layers in fp8, where that is a setting of the best alone. None: they are left.
    """
    chosen, codes = _chosen(best, base), _codes(best, base)
    around = [code for code in codes.values() if code.around_step is not None]
    contexts = [str(code.around_step)[len("with ") : -1] for code in around]
    imports = [IMPORT, *(line for code in around for line in code.imports)]
    body = list(_global(chosen))
    for name, code in codes.items():
        if code.once and name not in ("optimizer", "attention"):
            imports += code.imports
            body += code.once
    precision = chosen.get("precision")
    if precision == "bf16":
        body += _PARAMETERS_ALONE if keeps_buffers else ("model.to(torch.bfloat16)",)
    if precision == "fp8" and linear is not None:
        imports.append(_FP8)
        body += _in_fp8(linear)
        # The rest as bf16-mixed, which a step may have by itself.
        precision = None if base.precision == "bf16-mixed" else "bf16-mixed"
    mode = str(chosen.get("checkpointing", "none"))
    recomputes = mode in ("every-block", "selective") and blocks is not None
    # Where a block is computed again, the model's own forward pass and what stands around it have ended.
    outer = () if recomputes else contexts
    if outer or precision in ("bf16", "bf16-mixed"):
        imports += ["from functools import wraps", _METHOD]
        body += _forward(str(precision), device, outer)
    if precision in ("bf16", "bf16-mixed"):
        imports.append("from torch.utils._pytree import tree_map_only")
    if recomputes:
        imports += [_METHOD, _CHECKPOINT, *((_SELECTIVE,) if mode == "selective" else ())]
        body += _recomputing(mode, str(blocks), contexts)
    body += _compiling(best, chosen, blocks)
    body = _spaced(body)
    left = (
        f"{spoken(axis.name, chosen[axis.name])} {_why(axis, chosen[axis.name])}"
        for axis in axes_of(best)
        if axis.name in chosen and not _is_made(axis, chosen[axis.name], codes, blocks, linear)
    )
    return InModule(tuple(dict.fromkeys(imports)) if body else (), tuple(body), tuple(left))


def in_program(
    best: Configuration,
    base: Configuration,
    device: DeviceType,
    *,
    trains: bool,
    linear: LinearChoice | None = None,
) -> InProgram:
    """The settings of the best that differ from the base, by a training loop of the user's.

    Args:
        linear: as of `in_module`.
    """
    chosen, codes = _chosen(best, base), _codes(best, base)
    mode = str(chosen.get("checkpointing", "none"))
    imports = [IMPORT]
    if mode != "none":
        imports = [_METHOD, "", *imports, _CHECKPOINT]
    if mode == "selective":
        imports.append(_SELECTIVE)
    imports += [line for code in codes.values() for line in code.imports]
    lines = [*_global(chosen)]
    if chosen.get("precision") == "bf16":
        lines += [
            "model.to(torch.bfloat16)",
            "# In its place for a model of transformers, whose buffers have to stay in fp32:",
            *(f"# {line}" for line in _PARAMETERS_ALONE),
        ]
    lines += [line for name, code in codes.items() if name != "optimizer" for line in code.once]
    if chosen.get("precision") == "fp8" and linear is not None:
        imports.append(_FP8)
        lines += _in_fp8(linear)
    elif chosen.get("precision") == "fp8":
        lines.append(
            "# peakward.kernels.fp8_layers takes the linear layers that are faster in fp8."
        )
    if mode != "none":
        lines += _recomputing(mode, "blocks", ())
    lines += _compiling(best, chosen, "blocks")
    # Last, because what stands before it may replace parameters.
    lines += codes["optimizer"].once if "optimizer" in codes else ()
    if chosen.get("precision") == "fp16-mixed":
        lines.append('scaler = torch.amp.GradScaler("cuda")')
    once = [*imports, "", *lines] if lines else imports
    return InProgram(
        () if once == [IMPORT] else tuple(once),
        tuple(_each_step(chosen, codes, device, trains=trains)),
    )


def _spaced(lines: list[str]) -> list[str]:
    """The lines with a blank one before each function inside."""
    found: list[str] = []
    for line in lines:
        if (
            line.startswith(("def ", "forward = "))
            and found
            and found[-1]
            and not found[-1].startswith("@")
        ):
            found.append("")
        found.append(line)
    return found


def optimizer_line(best: Configuration, base: Configuration) -> str | None:
    """The line that makes the best's optimizer; None where the base has the same."""
    code = _codes(best, base).get("optimizer")
    return code.once[0] if code is not None else None


def _chosen(best: Configuration, base: Configuration) -> dict[str, Value]:
    before = base.settings
    return {name: value for name, value in best.settings.items() if value != before.get(name)}


def _codes(best: Configuration, base: Configuration) -> dict[str, Code]:
    chosen = _chosen(best, base)
    return {
        axis.name: axis.code[chosen[axis.name]]
        for axis in axes_of(best)
        if axis.name in chosen and chosen[axis.name] in axis.code
    }


def _global(chosen: Mapping[str, Value]) -> Iterator[str]:
    if chosen.get("precision") == "tf32":
        yield 'torch.set_float32_matmul_precision("high")'


def _in_fp8(linear: LinearChoice) -> Iterator[str]:
    """The layers by name, below the times that they were chosen by."""
    told = f"Faster in fp8 here, forward and backward. {'; '.join(said(linear))}."
    yield from (f"# {line}" for line in textwrap.wrap(told, _WIDTH - len("# ")))
    names = [json.dumps(each, ensure_ascii=False) for each in linear.taken]
    alone = f"fp8_layers(model, [{', '.join(names)}])"
    if len(alone) <= _WIDTH:
        yield alone
        return
    yield from ("fp8_layers(", "    model,", "    [")
    yield from (f"        {each}," for each in names)
    yield from ("    ],", ")")


def _forward(precision: str, device: DeviceType, contexts: Iterable[str]) -> Iterator[str]:
    """Binds a method of the class anew, so that a deep copy of the model computes with its own parameters."""
    within = list(contexts)
    if precision == "bf16-mixed":
        # Its cache of cast weights may not be kept by a CUDA graph.
        within.insert(0, f'torch.autocast("{device}", dtype=torch.bfloat16, cache_enabled=False)')
    yield from (
        "forward = type(model).forward",
        "",
        "@wraps(forward)",
        "def faster_forward(self, *args, **kwargs):",
    )
    if precision == "bf16":
        yield "    args, kwargs = tree_map_only("
        yield "        torch.Tensor,"
        yield "        lambda x: x.bfloat16() if x.dtype == torch.float32 else x,"
        yield "        (args, kwargs),"
        yield "    )"
    call = "forward(self, *args, **kwargs)"
    if within:
        yield f"    with {', '.join(within)}:"
        yield f"        result = {call}"
    else:
        yield f"    result = {call}"
    if precision in ("bf16", "bf16-mixed"):
        yield "    # The caller goes on in fp32."
        yield "    return tree_map_only("
        yield "        torch.Tensor, lambda x: x.float() if x.dtype == torch.bfloat16 else x, result"
        yield "    )"
    else:
        yield "    return result"
    yield from ("", "model.forward = MethodType(faster_forward, model)")


def _recomputing(mode: str, blocks: str, contexts: Iterable[str]) -> Iterator[str]:
    """A method, because torch.compile leaves a block whose forward is `checkpoint` itself eager: it skips the
    frames of torch's own files."""
    options = "use_reentrant=False" + (", context_fn=selective" if mode == "selective" else "")
    within = ", ".join(contexts)
    yield from ("def recomputed(block, *args, **kwargs):",)
    if within:
        yield "    def inner(*args, **kwargs):"
        yield f"        with {within}:"
        yield "            return type(block).forward(block, *args, **kwargs)"
        yield ""
        yield f"    return checkpoint(inner, *args, {options}, **kwargs)"
    else:
        yield f"    return checkpoint(type(block).forward, block, *args, {options}, **kwargs)"
    yield from ("", f"for block in {blocks}:", "    block.forward = MethodType(recomputed, block)")
    yield 'if getattr(getattr(model, "config", None), "use_cache", False):'
    yield "    model.config.use_cache = False  # Blocks that run again would fill a cache twice."


def _compiling(
    best: Configuration, chosen: Mapping[str, Value], blocks: str | None
) -> tuple[str, ...]:
    """As `module_levers.compile_in_place`."""
    if not {"compile", "compile_scope"} & chosen.keys() or best.compile == "none":
        return ()
    mode = "" if best.compile == "default" else f'mode="{best.compile}"'
    if best.compile_scope == "model" or blocks is None:
        return (f"model.compile({mode})",)
    return (f"for block in {blocks}:", f"    block.compile({mode})")


def _each_step(
    chosen: Mapping[str, Value], codes: Mapping[str, Code], device: DeviceType, *, trains: bool
) -> list[str]:
    lines = []
    if chosen.get("precision") in _AUTOCAST:
        dtype = _AUTOCAST[str(chosen["precision"])]
        lines += [
            f'with torch.autocast("{device}", torch.{dtype}):',
            "    ...  # forward pass and loss, as they were",
        ]
    for code in codes.values():
        if code.around_step is not None:
            lines = [
                code.around_step,
                *(f"    {line}" for line in lines),
                "    ...  # and the rest of forward and backward",
            ]
    lines += [line for code in codes.values() for line in code.each_step]
    if chosen.get("precision") == "fp16-mixed" and trains:
        lines += [
            "scaler.scale(loss).backward()",
            "scaler.step(optimizer)",
            "scaler.update()",
        ]
    if chosen.get("cuda_graphs"):
        lines += [
            "# The whole step as one graph: run it three times on a side stream, capture it with",
            "# torch.cuda.graph on tensors that stay where they are, then copy each batch into them and",
            "# replay. The optimiser needs capturable=True.",
        ]
    return lines


def _is_made(
    axis: Axis,
    value: Value,
    codes: Mapping[str, Code],
    blocks: str | None,
    linear: LinearChoice | None,
) -> bool:
    """Whether `in_module` makes the setting, or its caller does."""
    match axis.name:
        case "precision":
            return value != "fp16-mixed" and (value != "fp8" or linear is not None)
        case "checkpointing":
            return value == "none" or (value != "sqrt" and blocks is not None)
        case "compile" | "compile_scope" | "optimizer":
            return True
        case "attention":
            return str(value).startswith("sdpa") or value == axis.as_written()
        case _:
            return value == axis.default or (axis.name in codes and bool(codes[axis.name].once))


def _why(axis: Axis, value: Value) -> str:
    hint = axis.hints.get(value)
    why = None if hint is None else hint.for_step
    return why or "is no setting of a model by itself: set it in the training loop"
