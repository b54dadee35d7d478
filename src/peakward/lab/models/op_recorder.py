"""Records the operators of running code, as torch dispatches them below autograd and autocast.

Autograd numbers its nodes as they are made. A module's call begins and ends at such numbers, so the
number of a node tells the innermost module that was running when it was made. In the backward pass, the
node that runs tells the module of an operator. Modules that are recomputed there are called again,
maybe in another thread with numbers of its own; the nodes that these calls make never run.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.models.compiled_parts import PartRecorder
from peakward.lab.models.operator_work import (
    ALLOCATIONS,
    apart_from_out,
    bytes_read,
    bytes_written,
    flops,
    fresh,
    operands,
    stored_bytes,
    tensors,
    written_arguments,
)
from peakward.records.measurement import Phase
from peakward.records.op_graph import COPIED_FROM_HOST, READ_BY_HOST, Operator, OpGraph

Name = Callable[[str], str]
Check = Callable[[str, str | None], None]


class OpRecorder(TorchDispatchMode):
    """Keeps every operator that moves data, while it is on and a phase is marked.

    Operators that torch composes of others are seen as these others. A kernel of torch's own, such as
    fused attention, is one operator whatever it does inside. The set of such kernels depends on the
    device: `aten._fused_rms_norm` is one on CUDA, and several others on a CPU.

    A kernel that is launched past the dispatcher, such as a Triton kernel, is not seen.

    Args:
        model: The model with the modules.
        name: Turns a module's path in the model into the reported name.
        parts: Is told of each operator; of none by default.
        check: Is given each operator's name and module before it runs, also before the first mark.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        name: Name,
        parts: PartRecorder | None = None,
        check: Check | None = None,
    ) -> None:
        super().__init__()
        self._check = check
        self._parts = PartRecorder() if parts is None else parts
        self._paths = ModulePaths(model, name, self._parts)
        self._phase: Phase | None = None
        self._first_node = 0
        self.n_nodes = 0
        """Nodes that autograd made in the last forward pass."""
        self._seen: list[Operator] = []
        self.last_module: str | None = None
        """The module of the last operator, also where that operator raised an error."""

    def mark(self, phase: Phase | None) -> None:
        """Gives the following operators a phase. Operators before the first mark are not kept."""
        number = torch._C._autograd._get_sequence_nr()
        if phase == "forward":
            self._first_node = number
        elif self._phase == "forward":
            self.n_nodes = number - self._first_node
        self._phase = phase
        self._parts.mark(phase)

    def graph(self) -> OpGraph:
        """The operators that were kept so far."""
        return OpGraph.of(self._seen)

    def keep_wait(self, read: Tensor) -> None:
        """Keeps that the host reads this tensor of one element, for which it waits."""
        if self._phase is None:
            return
        operator = Operator(
            name=READ_BY_HOST,
            phase=self._phase,
            module=self._paths.current(),
            inputs=operands((read,)),
            outputs=(),
            flops=0,
            bytes_read=read.element_size(),
            bytes_written=0,
        )
        self._add(operator, [read], [])

    def keep_copy(self, made: Tensor) -> None:
        """Keeps that this tensor is copied from the host, which waits for it."""
        if self._phase is None:
            return
        operator = Operator(
            name=COPIED_FROM_HOST,
            phase=self._phase,
            module=self._paths.current(),
            inputs=(),
            outputs=operands((made,)),
            flops=0,
            bytes_read=0,
            bytes_written=stored_bytes([made]),
        )
        self._add(operator, [], [made])

    def _add(self, operator: Operator, given: list[Tensor], written: list[Tensor]) -> None:
        self._seen.append(operator)
        self._parts.keep(operator, given, written)

    @property
    def n_module_calls(self) -> int:
        """The number of calls of the followed modules."""
        return self._paths.n_calls

    def __enter__(self) -> "OpRecorder":
        self._following = ExitStack()
        self._following.enter_context(self._parts.followed())
        self._following.enter_context(self._paths.followed())
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._following.__exit__(*raised)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.last_module = self._paths.current()
        if self._check is not None:
            self._check(str(func.overloadpacket), self.last_module)
        result = func(*args, **kwargs)
        if self._phase is not None:
            self._keep(self._phase, func, args, kwargs, result)
        return result

    def _keep(self, phase: Phase, func: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        name = str(func.overloadpacket)
        changed = written_arguments(func, args, kwargs)
        kwargs, out = apart_from_out(func, kwargs)
        given = tensors((args, kwargs))
        results = result if isinstance(result, tuple) else (result,)
        new = fresh(results, [*given, *tensors(changed)])
        if name in ALLOCATIONS or not (changed or new):
            return
        operator = Operator(
            name=name,
            phase=phase,
            module=self._paths.current(),
            inputs=operands((*args, *kwargs.values())),
            outputs=operands((*changed, *new)),
            flops=flops(name, given),
            bytes_read=bytes_read(name, given),
            bytes_written=bytes_written(name, given, tensors((changed, new))),
            scattered=scattered((*given, *out, *tensors(new))),
            causal=is_causal(func, args, kwargs),
            drops=drops(func, args, kwargs),
        )
        # What lies beside a part that is written stays, so it is an operand too.
        kept = [x for x in out if stored_bytes([x]) < x.untyped_storage().nbytes()]
        self._add(operator, [*kept, *given], tensors((changed, new)))


def scattered(operands: Iterable[Tensor]) -> bool:
    """Whether operands of more than one element differ in shape or strides, or leave gaps."""
    large = [each for each in operands if each.numel() > 1]
    kinds = {(tuple(each.shape), tuple(each.stride())) for each in large}
    return len(kinds) > 1 or not all(map(_is_dense, large))


def is_causal(operator: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether fused attention is causal; true for operators without such an argument."""
    named = _by_name(operator, args, kwargs)
    said = next((each for each in ("is_causal", "causal") if each in named), None)
    return True if said is None else bool(named[said])


def drops(operator: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether fused attention has dropout."""
    return bool(_by_name(operator, args, kwargs).get("dropout_p"))


def _by_name(operator: OpOverload, args: Any, kwargs: Any) -> dict[str, Any]:
    """Names what was given for each of the operator's arguments; None for nothing."""
    names = [each.name for each in operator._schema.arguments]
    return dict.fromkeys(names) | dict(zip(names, args, strict=False)) | kwargs


def _is_dense(tensor: Tensor) -> bool:
    """Whether every address between the first element and the last belongs to exactly one element."""
    expected = 1
    extents = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in extents if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


class ModulePaths:
    """Follows the calls of a model's modules.

    Args:
        model: The model with the modules.
        name: Turns a module's path in the model into the reported name.
        parts: The compiled parts that run.
    """

    def __init__(self, model: nn.Module, name: Name, parts: PartRecorder) -> None:
        self._parts = parts
        self._names = {module: name(path) for path, module in model.named_modules() if path}
        self._owners = {
            parameter: name(path.rpartition(".")[0]) for path, parameter in model.named_parameters()
        }
        self._running: list[str | None] = [None]
        self._starts: list[int] = [0]
        self._modules: list[str | None] = [None]
        """The modules of nodes: those numbered `_starts[i]` to `_starts[i + 1]` were made in
        `_modules[i]`."""
        self.n_calls = 0

    def current(self) -> str | None:
        """The innermost module that is running, or whose gradient is computed; None outside all
        modules."""
        node = torch._C._current_autograd_node()
        if node is None or len(self._running) > 1:
            return self._running[-1]
        if hasattr(
            node, "variable"
        ):  # This node adds to a parameter's gradient, and has no number.
            return self._owners.get(node.variable)
        return self._modules[bisect_right(self._starts, node._sequence_nr()) - 1]

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Sees calls while it lasts."""
        hooks = []
        for module, name in self._names.items():
            hooks.append(module.register_forward_pre_hook(self._entering(name)))
            # Always, because torch ends a recomputation by an exception.
            hooks.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: object) -> None:
            self.n_calls += 1
            self._parts.count_call()
            self._running.append(name)
            self._note()

        return enter

    def _leaving(self, *_: object) -> None:
        self._running.pop()
        self._note()

    def _note(self) -> None:
        if torch._C._current_autograd_node() is not None:
            return
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(self._running[-1])
