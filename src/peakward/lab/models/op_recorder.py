"""Records the operators of running code, as torch dispatches them below autograd and autocast."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.models.module_paths import ModulePaths, Name
from peakward.lab.models.operator_bytes import (
    ALLOCATIONS,
    bytes_read,
    fresh,
    operands,
    stored_bytes,
    tensors,
    written_arguments,
)
from peakward.lab.models.operator_flops import flops
from peakward.records.measurement import Phase
from peakward.records.op_graph import Operator, OpGraph


class OpRecorder(TorchDispatchMode):
    """Keeps every operator that moves data, while it is on and a phase is marked.

    Operators that torch composes of others are seen as these others. A kernel of torch's own, such as
    fused attention, is one operator whatever it does inside. The set of such kernels depends on the
    device: `aten._fused_rms_norm` is one on CUDA, and several others on a CPU.

    A kernel that is launched past the dispatcher, such as a Triton kernel, is not seen.
    """

    def __init__(self, model: nn.Module, *, name: Name) -> None:
        super().__init__()
        self._paths = ModulePaths(model, name)
        self._phase: Phase | None = None
        self._seen: list[Operator] = []
        self.last_module: str | None = None
        """The module of the last operator, also where that operator raised an error."""

    def mark(self, phase: Phase | None) -> None:
        """Gives the following operators a phase. Operators before the first mark are not kept."""
        self._phase = phase

    def graph(self) -> OpGraph:
        """The operators that were kept so far."""
        return OpGraph.of(self._seen)

    @property
    def n_module_calls(self) -> int:
        """The number of calls of the followed modules."""
        return self._paths.n_calls

    def __enter__(self) -> "OpRecorder":
        self._following = self._paths.followed()
        self._following.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._following.__exit__(*raised)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.last_module = self._paths.current()
        result = func(*args, **kwargs)
        if self._phase is not None:
            self._keep(self._phase, func, args, kwargs, result)
        return result

    def _keep(self, phase: Phase, func: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        name = str(func.overloadpacket)
        given = tensors((args, kwargs))
        changed = written_arguments(func, args, kwargs)
        results = result if isinstance(result, tuple) else (result,)
        new = fresh(results, given)
        if name in ALLOCATIONS or not (changed or new):
            return
        self._seen.append(
            Operator(
                name=name,
                phase=phase,
                module=self._paths.current(),
                inputs=operands((*args, *kwargs.values())),
                outputs=operands((*changed, *new)),
                flops=flops(name, given),
                bytes_read=bytes_read(name, given),
                bytes_written=stored_bytes(tensors((changed, new))),
                scattered=scattered((*given, *tensors(new))),
                causal=is_causal(func, args, kwargs),
            )
        )


def scattered(operands: Iterable[Tensor]) -> bool:
    """Whether operands of more than one element differ in shape or strides, or leave gaps."""
    large = [each for each in operands if each.numel() > 1]
    kinds = {(tuple(each.shape), tuple(each.stride())) for each in large}
    return len(kinds) > 1 or not all(map(_is_dense, large))


def is_causal(operator: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether fused attention is causal; true for operators without such an argument."""
    names = [each.name for each in operator._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    said = next((each for each in ("is_causal", "causal") if each in names), None)
    return True if said is None else bool(given.get(said, False))


def _is_dense(tensor: Tensor) -> bool:
    """Whether every address between the first element and the last belongs to exactly one element."""
    expected = 1
    extents = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in extents if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
