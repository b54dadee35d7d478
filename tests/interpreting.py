"""Triton's interpreter as the tests run it: parts of it that are slow or wrong, replaced."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from triton.language import core
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder


def _patched_once(patch: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's own, which patches Triton's language for a kernel and anew at every call of a
    function in it: once a kernel for each module that has one of the language's names. All of these calls
    were a fifth of what kernels take here."""
    patched: set[int] = set()

    def patch_lang(function):
        names = id(function.__globals__)
        if core.is_builtin(core.tensor.__add__):  # As it is outside of kernels.
            patched.clear()
        elif names in patched:
            return None
        patched.add(names)
        return patch(function)

    return patch_lang


def _rounded_by_torch(convert: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's conversion of floats, which loses the carry of a mantissa that rounds up into the
    exponent and makes numbers of NaN: to fp8 torch's takes its place, which a GPU's agrees with."""
    narrow = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}

    def create_fp_to_fp(builder, source, target, rounding):
        dtype = narrow.get(str(target.scalar))
        if dtype is None or str(source.dtype.scalar) != "fp32":
            return convert(builder, source, target, rounding)
        found = torch.from_numpy(source.data).to(dtype).view(torch.uint8).numpy()
        return TensorHandle(found, target.scalar)

    return create_fp_to_fp


def _looked_up_once(find: Callable[[core.dtype], np.dtype]) -> Callable[[core.dtype], np.dtype]:
    """The interpreter's own, which makes a table of 19 types at every operation: an eighth of them."""
    found: dict[str, np.dtype] = {}

    def np_dtype(kind):
        scalar = kind.scalar
        if scalar.name not in found:
            found[scalar.name] = find(scalar)
        return found[scalar.name]

    return np_dtype


def _reduced_by_halves(
    self: interpreter.ReduceOps, given: tuple[core.tensor, ...]
) -> list[core.tensor]:
    """`tl.reduce` by a function of ours: the first half of the axis with the second, until one is left.

    The interpreter's own calls that function once an element, which was half of what AdamW in 8 bits took.
    """

    def tensors(parts):
        return [self.to_tensor(part, each.dtype) for part, each in zip(parts, given, strict=True)]

    parts = [each.handle.data for each in given]
    while parts[0].shape[self.axis] > 1:
        first, second = zip(*(np.split(part, 2, self.axis) for part in parts), strict=True)
        combined = self.combine_fn.fn(*tensors(first), *tensors(second))
        parts = [each.handle.data for each in combined]
    return tensors(parts if self.keep_dims else [part.squeeze(self.axis) for part in parts])


def adapt() -> None:
    """Replaces them, once a process and before any kernel runs."""
    interpreter._patch_lang = _patched_once(interpreter._patch_lang)
    interpreter._get_np_dtype = _looked_up_once(interpreter._get_np_dtype)
    interpreter.ReduceOps.generic_reduce = _reduced_by_halves
    builder = interpreter.InterpreterBuilder
    builder.create_fp_to_fp = _rounded_by_torch(builder.create_fp_to_fp)
    # It computes fp32's products as numpy does, whatever parts a GPU takes them in, and lacks one name.
    options = interpreter_builder.options
    interpreter_builder.options = replace(
        options, allowed_dot_input_precisions=(*options.allowed_dot_input_precisions, "bf16x6")
    )
