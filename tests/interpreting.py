"""Triton's interpreter as the tests run it: parts of it that are slow or wrong, replaced."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder


def _patched_once(patch: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's own, which patches Triton's language for a kernel, at every call of a function in it
    too, and takes that back behind it. Nothing else speaks the language in this process: once a module that
    has its names, and for good. All of these calls were a quarter of what kernels take here."""
    patched: dict[int, dict[str, Any]] = {}

    def patch_lang(function):
        names = function.__globals__
        if id(names) not in patched:
            patched[id(names)] = names  # Kept, for its id to stay its own.
            patch(function)
        return interpreter._LangPatchScope()  # Of no change: none is taken back.

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
        several = (combined,) if isinstance(combined, core.tensor) else combined
        parts = [each.handle.data for each in several]
    return tensors(parts if self.keep_dims else [part.squeeze(self.axis) for part in parts])


@cache
def _shape(sizes: tuple[int, ...]) -> tuple[core.tuple, int, core.tuple, core.constexpr]:
    """The shape and the number of elements of a type, and of a tensor of it."""
    numel = core.validate_block_shape(sizes)
    of_tensor = core.tuple([core.constexpr(each) for each in sizes])
    return core.tuple(sizes), numel, of_tensor, core.constexpr(numel)


def _type_of_known_shape(self: core.block_type, element_ty: core.dtype, shape: Any) -> None:
    """`block_type.__init__`, which checks and names each shape anew, with `tensor.__init__` a fourth of what
    kernels took here."""
    self.element_ty = element_ty
    sizes = tuple([each.value if isinstance(each, core.constexpr) else each for each in shape])
    if not sizes:
        raise TypeError("0d block_type is forbidden")
    self.shape, self.numel, *self.of_tensor = _shape(sizes)


def _tensor_of_known_shape(self: core.tensor, handle: TensorHandle, type: core.dtype) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.of_tensor if type.is_block() else SCALAR


def _broadcast_where_shapes_differ(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's own, which broadcasts blocks of one shape to that shape too."""

    def broadcast_impl_value(self, left, right):
        if left.type.is_block() and right.type.is_block() and left.type.shape is right.type.shape:
            return left, right
        return broadcast(self, left, right)

    return broadcast_impl_value


SCALAR = (core.tuple([]), core.constexpr(1))


def adapt() -> None:
    """Replaces them, once a process and before any kernel runs."""
    interpreter._patch_lang = _patched_once(interpreter._patch_lang)
    TritonSemantic.broadcast_impl_value = _broadcast_where_shapes_differ(
        TritonSemantic.broadcast_impl_value
    )
    core.block_type.__init__ = _type_of_known_shape
    core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
    core.tensor.__init__ = _tensor_of_known_shape
    interpreter._get_np_dtype = _looked_up_once(interpreter._get_np_dtype)
    interpreter.ReduceOps.generic_reduce = _reduced_by_halves
    builder = interpreter.InterpreterBuilder
    builder.create_fp_to_fp = _rounded_by_torch(builder.create_fp_to_fp)
    options = interpreter_builder.options
    interpreter_builder.options = replace(
        options,
        # It computes fp32's products as numpy does, whatever parts a GPU takes them in, and lacks one name.
        allowed_dot_input_precisions=(*options.allowed_dot_input_precisions, "bf16x6"),
        # Without `debug` it asserts nothing of what it computed: two fifths of what kernels took here.
        sanitize_overflow=False,
    )
