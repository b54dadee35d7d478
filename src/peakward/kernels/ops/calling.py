"""Operators as torch knows them, called in eager code as lightly as torch's own.

A registered operator costs the host several times one of torch's: the dispatcher, checks, settings and
Triton's look at every argument take longer than a small kernel runs. Outside compilation `Operator` therefore
leaves them out for a kind of inputs that it has seen before, and replays what such a call did (`recording`).
Inside compilation, and whenever something else watches or changes calls, it is the registered operator.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._device import DeviceContext

from peakward.kernels.ops.launchable import interprets
from peakward.kernels.ops.recording import Recording, record

MOST_KINDS = 1024
"""The most kinds of inputs that an operator remembers; then the first one is forgotten."""
_ALIGNMENT = 15
"""Below 16 bytes kernels and their settings look at an address."""
_SEEN, _REFUSED = "seen", "refused"


class Operator:
    """An operator of torch, in place of `torch.library.custom_op`.

    The first call of a kind of inputs goes through the registered operator. The second one records
    what it allocates and launches, later ones replay that. A kind is all that a call may depend on: each
    tensor's shape, strides, type, device and alignment, every other argument, and autocast.
    """

    def __init__(
        self,
        name: str,
        body: Callable[..., Any],
        *,
        mutates: Sequence[str] = (),
        check: Callable[..., None] | None = None,
    ) -> None:
        """
        Args:
            mutates: the names of the tensors that it writes to.
            check: called with the arguments before each call that is not replayed; raises for those that do
                not fit.
        """
        self.registered = torch.library.custom_op(name, body, mutates_args=tuple(mutates))
        self._body = body
        self._check = check
        parameters = list(inspect.signature(body).parameters.values())
        self._mutated = tuple(at for at, each in enumerate(parameters) if each.name in mutates)
        self._reals = tuple(
            at for at, each in enumerate(parameters) if each.annotation in (float, float | None)
        )
        self._formula: Callable[..., Any] | None = None
        self._keep: Callable[..., None] | None = None
        self._kinds: dict[tuple[Any, ...], Recording | str] = {}
        _operators.append(self)

    @property
    def overload(self) -> OpOverload:
        """The operator as modes of dispatch are handed it."""
        return self.registered._opoverload

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """As of `torch.library.custom_op`."""
        return self.registered.register_fake(fake)

    def register_autograd(
        self, formula: Callable[..., Any], *, setup_context: Callable[..., None]
    ) -> None:
        """As of `torch.library.custom_op`."""
        self._formula, self._keep = formula, setup_context
        self.registered.register_autograd(formula, setup_context=setup_context)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or is_watched():
            return self._registered(inputs, options)
        kind: list[Any] = []
        tensors: list[Tensor] = []
        addresses: list[int] = []
        differentiates = False
        for each in inputs:
            if type(each) is Tensor or type(each) is Parameter:
                address = each.data_ptr()
                if not address or each.is_neg():
                    return self._registered(inputs, options)
                kind += (
                    each.shape,
                    each.stride(),
                    each.dtype,
                    each.get_device(),
                    address & _ALIGNMENT,
                )
                tensors.append(each)
                addresses.append(address)
                differentiates = differentiates or each.requires_grad
            elif isinstance(each, Tensor):
                return self._registered(inputs, options)
            else:
                kind.append(each)
        if options:
            kind += options.items()
        if torch.is_autocast_enabled("cuda"):
            kind += ("autocast", torch.get_autocast_dtype("cuda"))
        key = tuple(kind)
        known = self._kinds.get(key)
        if known is None or known is _REFUSED:
            results = self._registered(inputs, options)
            if known is None and _is_recordable(tensors):
                self._remember(key, _SEEN)
            return results
        call = key, tensors, addresses, options
        if not (differentiates and torch.is_grad_enabled()):
            return self._run(inputs, call)
        if self._formula is None:
            # Autograd says what is missing where a second derivative is asked for.
            return self._registered(inputs, options)
        return _Differentiated.apply(*inputs, (self, call))

    def _registered(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self._check is not None:
            self._check(*inputs, **options)
        return self.registered(*inputs, **options)

    def _run(self, inputs: tuple[Any, ...], call: tuple[Any, ...]) -> Any:
        """The results, replayed or recorded."""
        key, tensors, addresses, options = call
        known = self._kinds.get(key)
        if isinstance(known, Recording):
            results = known.replay(tensors, addresses)
        elif _is_capturing():
            results = self._body(*self._declared(inputs), **options)
        else:
            results, recording = record(self._body, self._declared(inputs), options)
            self._remember(key, _REFUSED if recording is None else recording)
        for each in self._mutated:
            if inputs[each] is not None:
                torch.autograd.graph.increment_version(inputs[each])
        return results

    def _declared(self, inputs: tuple[Any, ...]) -> list[Any]:
        """Real numbers as such: Triton would compile a whole one into a kernel as an integer."""
        found = list(inputs)
        for at in self._reals:
            if at < len(found) and found[at] is not None:
                found[at] = float(found[at])
        return found

    def _remember(self, key: tuple[Any, ...], what: Recording | str) -> None:
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            self._kinds.pop(next(iter(self._kinds)), None)
        self._kinds[key] = what


_operators: list[Operator] = []


def operator(
    name: str, *, mutates: Sequence[str] = (), check: Callable[..., None] | None = None
) -> Callable[[Callable[..., Any]], Operator]:
    """A decorator that makes a function the body of an `Operator`."""
    return lambda body: Operator(name, body, mutates=mutates, check=check)


def forget_calls() -> None:
    """Forgets what calls did, of all operators: the next ones go through the registered operators again."""
    for each in _operators:
        each._kinds.clear()


class _Differentiated(torch.autograd.Function):
    """An operator's formula, as the registered operator has it."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        *own, (operator, call) = inputs
        results = operator._run(own, call)
        ctx.formula = operator._formula
        operator._keep(ctx, tuple(own), results)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found = ctx.formula(ctx, *gradients)
        return (*found, None) if isinstance(found, tuple) else (found, None)


def is_watched() -> bool:
    """Whether something may want to see, change or forbid an operator's call: a mode of dispatch (fake
    tensors, tracing), a transform of functions, forward-mode differentiation, a profiler (which tells an
    operator's name), or deterministic algorithms (some kernels refuse them)."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._autograd._profiler_enabled()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch.are_deterministic_algorithms_enabled()
        or torch._C._get_tracing_state() is not None
        or (torch._C._len_torch_function_stack() > 0 and _is_mode_of_user())
    )


def _is_mode_of_user() -> bool:
    """Whether a mode over functions is active, other than torch's own of a default device."""
    modes = torch.overrides._get_current_function_mode_stack()
    return not all(isinstance(each, DeviceContext) for each in modes)


def _is_recordable(tensors: Sequence[Tensor]) -> bool:
    """Whether the next call of a kind may be recorded: of tensors where kernels run."""
    if not tensors or _is_capturing():
        return False
    return tensors[0].is_cuda or (tensors[0].device.type == "cpu" and interprets())


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured: nothing is tuned then, so nothing is recorded either."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
