"""Captures the step of any module on tensors that have shapes and types but no values.

It records the operators, and when the memory of each tensor comes and goes.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, get_args

import msgspec
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from peakward.hardware.attention_backend import HOPPER, ComputeCapability
from peakward.lab.models.compiled_parts import PartRecorder
from peakward.lab.models.cuda_functions import AS_ON_CUDA, AsOnCuda, autocast_for_cuda
from peakward.lab.models.cuda_operators import DispatchedAsOnCuda
from peakward.lab.models.given_module import expect_plain, repeated_blocks
from peakward.lab.models.known_values import KnownValues, not_traced
from peakward.lab.models.lifetimes import LifetimeRecorder
from peakward.lab.models.op_recorder import OpRecorder
from peakward.lab.models.operator_work import is_uncounted
from peakward.records.case import ModulePass
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.op_graph import CompiledParts, ModuleCapture, Operator, OpGraph

_PLAIN = (Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
Loss = Callable[[Any], Tensor]
_NEEDS_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)


def capture_module(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    pass_: ModulePass = "forward",
    loss: Loss | None = None,
    autocast: torch.dtype | None = None,
    autocast_cache: bool = True,
    tokens: int | None = None,
    compiled: Sequence[nn.Module] = (),
    compute_capability: ComputeCapability = HOPPER,
) -> ModuleCapture:
    """The operators and tensors of the module's second step; the first one makes the tensors that stay.

    Nothing is computed and only shapes are allocated, so a module of any size can be captured anywhere,
    also on the meta device. The module is not changed. Operators are those that torch dispatches on a
    CPU; attention, dropout, RMSNorm and copies of numbers are as on CUDA (`cuda_functions`). Where a few
    integers decide what runs, such as a mask's, the inputs' own values count (`known_values`).

    Args:
        args, kwargs: Example inputs; shapes and types are used, and the values of few integers.
        pass_: forward without gradients; forward_backward; or train_step, with AdamW over lists of
        tensors.
        loss: The loss as a function of the module's output; without it the output is the loss, or has
        it as `.loss`.
        autocast: bfloat16 or float16: mixed precision around the forward pass, by CUDA's lists.
        autocast_cache: Whether autocast keeps what it casts of the parameters until the forward pass is over,
        as torch's does by default.
        tokens: The tokens of a step, for rates; without it the number of token ids, where the first
        input holds integers.
        compiled: Modules in it that would be compiled, one graph each; the record then also says in which
        order their operators use which memory. But for repeated blocks they are told that they are compiled.
        compute_capability: The GPU's; the kernel of attention depends on it.

    Raises:
        PeakwardError: The module is compiled or wrapped; the operators depend on values; there is no
        loss; the amount of some arithmetic is not known here, as of a convolution; the module runs
        nothing; or the tokens are not above 0.
    """
    asked = _Asked(module, args, dict(kwargs or {}), pass_, loss, autocast, autocast_cache)
    _check(asked)
    if tokens is not None and not 0 < tokens < math.inf:
        raise PeakwardError(
            f"expected tokens above 0, got {tokens!r}: leave them out where a step has none"
        )
    line = LifetimeRecorder()
    blocks = set(repeated_blocks(module) or ())
    told = [each for each in compiled if each not in blocks]
    parts = PartRecorder(compiled, line, told=told)
    recorder = OpRecorder(module, name=_path, parts=parts, check=_expect_counted)
    step = _Step(asked, KnownValues(recorder.keep_wait), line)
    try:
        with (
            untouched(module),
            not_traced(),
            autocast_for_cuda(),
            FakeTensorMode(allow_non_fake_inputs=True),
            AsOnCuda(compute_capability, recorder.keep_copy),
            step.known,
            step.line,
        ):
            step.build()
            with recorder, DispatchedAsOnCuda(compute_capability) as dispatched:
                step.run(_unmarked)
                n_before = recorder.n_module_calls
                step.run(recorder.mark)
    except PeakwardError:
        raise
    except Exception as error:  # A user's code may raise anything where it finds no values.
        raise _refusal(error, recorder.last_module) from error
    if told and step.known.draws_decide:
        raise PeakwardError(
            f"expected compiled code that reads no number which it draws, got {type(module).__name__}, as "
            "where layers are dropped: compile its blocks, or measure it with `pw.measure_step`"
        )
    if parts.asked and dispatched.loops:
        raise PeakwardError(
            "expected blocks that do the same where they are compiled, got those of "
            f"{type(module).__name__}, whose experts ask and are then multiplied one by one in Python, where "
            "graphs end: capture it eager, or its experts in bf16"
        )
    graph = OpGraph.of(map(_as_on_cuda, recorder.graph().operators))
    if not graph.operators:
        raise PeakwardError("expected a module that computes something, got one without operators")
    found = parts.found(graph, _as_on_cuda) if compiled else None
    return ModuleCapture(
        name=type(module).__name__,
        fingerprint=_fingerprint(graph, found),
        pass_=pass_,
        n_parameters=sum(each.numel() for each in module.parameters()),
        n_trained=sum(each.requires_grad for each in module.parameters()),
        n_rows=_n_rows((args, kwargs)),
        tokens=_tokens((args, kwargs)) if tokens is None else tokens,
        n_module_calls=recorder.n_module_calls - n_before,
        n_nodes=recorder.n_nodes,
        graph=graph,
        phases=tuple(step.line.phases),
        lifetimes=step.line.lifetimes(),
        compiled=found,
    )


def _check(asked: "_Asked") -> None:
    _expect_eager(asked.module)
    if asked.pass_ not in get_args(ModulePass):
        raise PeakwardError(
            f"expected a pass of {', '.join(get_args(ModulePass))}, got {asked.pass_!r}"
        )
    if asked.autocast not in (None, torch.bfloat16, torch.float16):
        raise PeakwardError(
            f"expected torch.bfloat16 or torch.float16 for autocast, got {asked.autocast!r}"
        )
    for each in tree_leaves((tuple(asked.args), asked.kwargs)):
        if not isinstance(each, _PLAIN):
            raise PeakwardError(
                f"expected inputs of tensors and plain values, got {type(each).__name__}: what it "
                "holds would be taken for constants"
            )


def _expect_eager(module: nn.Module) -> None:
    """Without values compiled code does not run: the module would be captured as if it were eager."""
    for path, each in module.named_modules():
        wrapped = isinstance(each, torch._dynamo.eval_frame.OptimizedModule)
        if wrapped or each._compiled_call_impl is not None:
            where = path or "the module itself"
            raise PeakwardError(
                f"expected a module that runs eagerly, got one that is compiled in {where}: predict its "
                'case with levers=("compile",) (`pw.module_case`), or measure it with '
                "`pw.measure_step`"
            )
    expect_plain(module)


def _expect_counted(operator: str, module: str | None) -> None:
    """Refuses at the first such operator: a scan over positions may run for minutes."""
    if is_uncounted(operator):
        raise PeakwardError(
            f"expected operators whose arithmetic is known here, got {operator} in "
            f"{module or 'the module itself'}: measure the module with `pw.measure_step`"
        )


def _refusal(error: Exception, last_module: str | None) -> PeakwardError:
    where = last_module or "the module itself"
    if isinstance(error, _NEEDS_VALUES):
        return PeakwardError(
            f"expected a module whose operators do not depend on values, got {error.func} in {where}: "
            "capture it without that branch, give inputs that have values where they are on the meta device, "
            "or measure it with `pw.measure_step`"
        )
    said = " ".join(str(error).split())[:200]
    return PeakwardError(
        f"expected a module that runs on tensors of shapes alone, got {type(error).__name__} in "
        f"{where}: {said}"
    )


def _unmarked(_phase: Phase | None) -> None:
    """Ignores the marks of phases."""


class _Asked(NamedTuple):
    """The arguments of `capture_module`."""

    module: nn.Module
    args: Sequence[Any]
    kwargs: dict[str, Any]
    pass_: ModulePass
    loss: Loss | None
    autocast: torch.dtype | None
    autocast_cache: bool


class _Step:
    """One step on stand-ins of the module's parameters, buffers and inputs."""

    def __init__(self, asked: "_Asked", known: KnownValues, line: LifetimeRecorder) -> None:
        self.line, self.known = line, known
        self._asked, self._given = asked, (tuple(asked.args), asked.kwargs)
        self._parameters: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        self._optimizer: torch.optim.Optimizer | None = None

    def build(self) -> None:
        """Makes the stand-ins; the user's own tensors are never touched."""
        trains = self._asked.pass_ != "forward"
        for name, each in self._asked.module.named_parameters():
            # Also where nothing trains: autocast keeps its casts of what requires a gradient alone.
            self._parameters[name] = _stand_in(each).requires_grad_(each.requires_grad)
        self._buffers = {
            name: self._told(each) for name, each in self._asked.module.named_buffers()
        }
        alike: dict[int, Tensor] = {}  # A tensor that is given twice is in memory once.
        self._given = tree_map_only(
            Tensor, lambda x: alike.setdefault(id(x), self._told(x)), self._given
        )
        self.line.claim("parameters", (*self._parameters.values(), *self._buffers.values()))
        self.line.claim("inputs", [x for x in tree_leaves(self._given) if isinstance(x, Tensor)])
        if trains and not self._trained():
            raise PeakwardError(
                "expected a parameter to train, got none: capture the pass forward, or let one "
                "require gradients"
            )
        if self._asked.pass_ == "train_step":
            self._optimizer = torch.optim.AdamW(self._trained(), foreach=True)

    def _told(self, given: Tensor) -> Tensor:
        made = _stand_in(given)
        self.known.tell(made, given)
        return made

    def run(self, mark: Callable[[Phase | None], None]) -> None:
        """Runs one step and reports its phases to `mark`. The module has the stand-ins for all of the
        step, so recomputation in the backward pass uses them too."""
        standing_in = {**self._parameters, **self._buffers}
        with _reparametrize_module(self._asked.module, standing_in, tie_weights=True):
            self._run(mark)

    def _run(self, mark: Callable[[Phase | None], None]) -> None:
        self.line.enter("forward")
        for each in self._trained():
            each.grad = None
        mark("forward")
        trains = self._asked.pass_ != "forward"
        with torch.set_grad_enabled(trains):
            with self._mixed():
                output = self._called()
            if trains and self._asked.loss is not None:
                output = self._asked.loss(output)
        if trains:
            loss = _scalar(output)
            del output
            self.line.enter("backward")
            mark("backward")
            _backward(loss)
            self.line.claim("gradients", (each.grad for each in self._trained()))
        if self._optimizer is not None:
            self.line.enter("optimizer")
            mark("optimizer")
            with _ScalarsAreOne():
                self._optimizer.step()
            states = tree_leaves([dict(each) for each in self._optimizer.state.values()])
            self.line.claim("optimizer_state", (x for x in states if isinstance(x, Tensor)))
        mark(None)

    def _called(self) -> Any:
        args, kwargs = self._given
        return self._asked.module(*args, **kwargs)

    def _mixed(self) -> Any:
        if self._asked.autocast is None:
            return nullcontext()
        return torch.autocast("cpu", self._asked.autocast, cache_enabled=self._asked.autocast_cache)

    def _trained(self) -> list[Tensor]:
        return [each for each in self._parameters.values() if each.requires_grad]


def _stand_in(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")


def _backward(loss: Tensor) -> None:
    """As `loss.backward()`, which AsOnCuda would see as a function: a mode is off within what it sees, and
    blocks that are recomputed there would be as on a CPU."""
    torch.autograd.graph._engine_run_backward(
        (loss,),
        (torch.ones_like(loss),),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def _scalar(output: Any) -> Tensor:
    """The loss: the output itself, or its `.loss`.

    Raises:
        PeakwardError: The output is neither.
    """
    found = getattr(output, "loss", output)
    if isinstance(found, Tensor) and found.numel() == 1:
        return found
    got = f"a tensor of {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    raise PeakwardError(
        f"expected a loss of one element to go backward from, got {got}: give loss=, a function of the "
        "module's output"
    )


def _fingerprint(graph: OpGraph, compiled: CompiledParts | None) -> str:
    told = msgspec.json.encode(graph if compiled is None else (graph, compiled))
    return hashlib.sha256(told).hexdigest()[:16]


def _as_on_cuda(operator: Operator) -> Operator:
    name = AS_ON_CUDA.get(operator.name, operator.name)
    renamed: Operator = msgspec.structs.replace(operator, name=name)
    return renamed


def _n_rows(given: object) -> int:
    """The elements of the first tensor; for floats, without the last dimension."""
    first = next((x for x in tree_leaves(given) if isinstance(x, Tensor)), None)
    if first is None:
        return 1
    sizes = first.shape[:-1] if first.is_floating_point() else first.shape
    return max(1, int(torch.Size(sizes).numel()))


def _tokens(given: object) -> int | None:
    """The number of token ids in the first tensor; None where it does not hold token ids."""
    first = next((x for x in tree_leaves(given) if isinstance(x, Tensor)), None)
    if first is None or first.dtype not in (torch.int64, torch.int32) or not first.numel():
        return None
    return first.numel()


def _path(path: str) -> str:
    return re.sub(r"\b\d+\b", "*", path)


class _ScalarsAreOne(TorchDispatchMode):
    """Makes every read of a scalar give 1: AdamW reads its step count, on which no shape depends."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0
        return func(*args, **(kwargs or {}))


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Restores, on leaving, every attribute of every submodule and the contents of its lists and
    dictionaries: caches that a forward pass fills, and counters."""
    before = [(each, _copied(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for each, attributes in before:
            vars(each).clear()
            vars(each).update({name: _restored(*found) for name, found in attributes.items()})


def _copied(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each attribute, with a copy of its content where that may change."""
    return {
        name: (value, value.copy() if isinstance(value, dict | list | set) else None)
        for name, value in attributes.items()
    }


def _restored(value: Any, held: Any) -> Any:
    """The same object with its former content."""
    if isinstance(value, dict | set):
        value.clear()
        value.update(held)
    elif isinstance(value, list):
        value[:] = held
    return value
