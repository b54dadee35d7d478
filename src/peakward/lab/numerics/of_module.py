"""Runs a user's module with levers, without them, and in fp64, so that the results can be compared.

The oracle is the module itself with parameters, buffers and inputs in fp64. Values that its code casts
to a narrower type stay in fp64 too (transformers takes norms and angles in fp32). All run in eval mode,
because dropout would look like an error. They run on the first 4 repeated blocks, and on 2 × 256 tokens
where tokens are drawn; a batch that came with the module is taken whole.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.levers.module_step import ModuleStep, prepared_module
from peakward.lab.models.given_module import GivenModule, repeated_blocks
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.lab.numerics import training
from peakward.lab.numerics.judge import Outputs, Subject, outputs
from peakward.levers.precision import fp32_matmuls
from peakward.records.case import AS_WRITTEN, ConfiguredCase, ModuleCase, Workload
from peakward.records.errors import PeakwardError

MAX_LAYERS, MAX_BATCH, MAX_SEQ_LEN = 4, 2, 256
Build = Callable[[ModuleCase], GivenModule]


def few_tokens(workload: Workload) -> Workload:
    """The workload with at most 2 × 256 tokens."""
    return msgspec.structs.replace(
        workload,
        batch_size=min(workload.batch_size, MAX_BATCH),
        seq_len=min(workload.seq_len, MAX_SEQ_LEN),
    )


def of_module(base: ModuleCase, build: Build) -> Subject:
    """The computations to judge; `build` makes the module for a case, with the same weights each time."""
    first: GivenModule | None = build(base)
    assert first is not None
    drawn = first.vocab_size is not None
    blocks = repeated_blocks(first.module)
    initial = tuple(each.detach().cpu() for each in first.module.parameters())

    def reduced(case: ModuleCase) -> ModuleCase:
        work = few_tokens(case.workload) if drawn else case.workload
        return msgspec.structs.replace(case, workload=work, memory_limit_bytes=None)

    numbers: list[int | None] = []

    def oracle() -> Outputs:
        nonlocal first
        given, first = (
            first,
            None,
        )  # Nothing else holds it, so that its memory is free after the oracle.
        with _in_double(reduced(base), given or build(base)) as step:
            numbers[:] = training.numbers(step)
            return outputs(step, None)

    def erring(case: ConfiguredCase, error: float) -> Outputs:
        with _in_double(reduced(base), build(base)) as step:
            training.err(step, error=error, in_bf16=case.configuration.precision == "bf16")
            return outputs(step, training.N_STEPS)

    def made(case: ConfiguredCase, n_trained: int) -> Outputs:
        assert isinstance(case, ModuleCase)
        given = build(case)
        _expect_same(given, initial, case.source)
        with prepared_module(reduced(case), given, max_blocks=MAX_LAYERS) as step:
            step.model.eval()
            return outputs(step, n_trained)

    return Subject(
        oracle=oracle,
        outputs=made,
        n_layers=None if blocks is None else min(len(blocks), MAX_LAYERS),
        numbers=lambda: numbers,
        erring=erring,
    )


@contextmanager
def _in_double(case: ModuleCase, given: GivenModule) -> Iterator[ModuleStep]:
    plain = msgspec.structs.replace(case, configuration=AS_WRITTEN)
    with fp32_matmuls("fp32"):
        try:
            step = ModuleStep(plain, given, torch.float64, max_blocks=MAX_LAYERS)
            step.model.eval()
            with InDouble():
                yield step
        except Exception as error:  # noqa: BLE001  a user's code may raise anything
            raise_as_bad_input(
                error, "a module that runs in fp64 on its first blocks, for an oracle"
            )


def _expect_same(given: GivenModule, initial: tuple[Tensor, ...], source: str) -> None:
    now = tuple(given.module.parameters())
    same = len(now) == len(initial) and all(
        torch.equal(mine.detach().cpu(), theirs) for mine, theirs in zip(now, initial, strict=True)
    )
    if not same:
        raise PeakwardError(
            f"expected the same weights each time that {source} is built under one seed of torch, got "
            "others: seed what else draws them"
        )


class InDouble(TorchDispatchMode):
    """Replaces every cast to a floating type by a cast to fp64, that of an operator on tensors too, as a sum
    in fp32. Values in fp64 stay so, and whole numbers are cast to it: transformers' rotation multiplies
    positions with frequencies, and that product takes only one type. A cast to a complex type is one to
    complex128. Grouped products, of the experts of a mixture, are made group by group: torch's operator takes
    no fp64 (2.13)."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        wanted = kwargs.get("dtype")
        if wanted is not None and wanted.is_floating_point and args and isinstance(args[0], Tensor):
            kwargs["dtype"] = torch.float64
        elif wanted is not None and wanted.is_complex:
            kwargs["dtype"] = torch.complex128
        if func is _GROUPED and args[0].dtype == torch.float64:
            return _grouped(*args)
        return func(*args, **kwargs)


_GROUPED = torch.ops.aten._grouped_mm.default


def _grouped(first: Tensor, second: Tensor, offs: Tensor) -> Tensor:
    """torch's grouped product. Groups end at `offs` in the rows of `first`, in the columns of `second`, or,
    where both are matrices, in the dimension that is summed over."""
    spans = [slice(*each) for each in pairwise((0, *offs.tolist()))]
    if first.dim() == second.dim() == 2:
        return torch.stack([first[:, each] @ second[each] for each in spans])
    found = first.new_zeros(first.shape[-2], second.shape[-1])
    if second.dim() == 3:
        for each, matrix in zip(spans, second, strict=True):
            found[each] = first[each] @ matrix
    else:
        for each, matrix in zip(spans, first, strict=True):
            found[:, each] = matrix @ second[:, each]
    return found
