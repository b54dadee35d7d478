"""Records what one call of an operator allocates and launches, and does the same again for other tensors.

A call is recorded at most once for each kind of inputs: equal shapes, strides, types, alignments and settings
allocate and launch the same, at other addresses. The replay leaves out all that found it: checks, settings,
Triton's own look at every argument. Replayed are memory, kernels that `launch` starts, and torch's operators.
A call that does something else, such as reading a value back, is refused.
"""

import threading
from collections.abc import Callable, Sequence
from copy import copy
from inspect import getclosurevars, isfunction
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

_ALLOCATIONS = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")
MOST_ADDRESSES = 64
"""The most addresses of which a launch keeps a written descriptor."""
_ZEROS = ("zeros", "zeros_like", "new_zeros")
_current = threading.local()


def launch(kernel: Any, grid: tuple[int, ...], /, *arguments: Any, **options: Any) -> None:
    """Starts a Triton kernel, as `kernel[grid](*arguments, **options)`; every launch of this room goes
    through here, so that a recording sees it."""
    recorder = getattr(_current, "recorder", None)
    if recorder is None:
        kernel[grid](*arguments, **options)
        return
    with _disable_current_modes():  # Memory that Triton itself takes is no step of the call.
        compiled = kernel[grid](*arguments, **options)
    recorder.launched(kernel, grid, arguments, options, compiled)


class NotReplayable(Exception):
    """A call does what no recording holds."""


class _Tensors:
    """The tensors of one replay by number, inputs first, with their addresses."""

    __slots__ = ("addresses", "held", "stream")

    def __init__(self, held: list[Tensor | None], addresses: list[int], stream: int) -> None:
        self.held, self.addresses, self.stream = held, addresses, stream


Step = Callable[[_Tensors], None]


class _Noted(NamedTuple):
    """A step, the numbers of the tensors it uses or makes, and whether it allocates."""

    step: Step
    uses: set[int]
    makes: bool


class _View(NamedTuple):
    """A tensor by the memory that it lies in: a tensor's number, and where and how in it."""

    number: int
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_whole: bool

    def over(self, tensors: _Tensors) -> Tensor:
        """A view of the whole, for torch's operators: it takes fewer calls than `of`."""
        base = tensors.held[self.number]
        assert base is not None
        if self.is_whole:
            return base
        if base.dtype != self.dtype:
            return self.of(tensors)
        first = base.storage_offset() + self.offset_bytes // self.dtype.itemsize
        return base.as_strided(self.shape, self.stride, first)

    def of(self, tensors: _Tensors) -> Tensor:
        """A tensor of its own, for results: autograd forbids writing over some views."""
        base = tensors.held[self.number]
        assert base is not None
        if self.is_whole:
            return base
        storage = base.untyped_storage()
        first = base.data_ptr() - storage.data_ptr() + self.offset_bytes
        found = torch.empty(0, dtype=self.dtype, device=base.device)
        return found.set_(storage, first // self.dtype.itemsize, self.shape, self.stride)


class Recording:
    """A call's steps, to be done again."""

    def __init__(
        self, steps: Sequence[Step], n_tensors: int, outputs: Any, device: torch.device
    ) -> None:
        self._steps = tuple(steps)
        self._rest = [None] * n_tensors
        self._no_addresses = [0] * n_tensors
        self._device = device.index if device.type == "cuda" else None
        is_one = isinstance(outputs, _View)
        self._outputs = None if outputs is None else (outputs,) if is_one else tuple(outputs)
        self._is_one = is_one
        self._whole = (
            tuple(each.number for each in self._outputs)
            if self._outputs is not None and all(each.is_whole for each in self._outputs)
            else None
        )

    def replay(self, inputs: list[Tensor], addresses: list[int]) -> Any:
        """The results for inputs of the recorded kind.

        Args:
            inputs: the tensors among the operator's arguments, in order.
            addresses: theirs.
        """
        device = self._device
        if device is not None and device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                return self.replay(inputs, addresses)
        stream = 0 if device is None else torch._C._cuda_getCurrentRawStream(device)
        held = inputs + self._rest
        tensors = _Tensors(held, addresses + self._no_addresses, stream)
        for step in self._steps:
            step(tensors)
        if self._outputs is None:
            return None
        if self._is_one:
            return self._outputs[0].of(tensors)
        if self._whole is not None:
            return tuple([held[each] for each in self._whole])
        return tuple(each.of(tensors) for each in self._outputs)


def record(
    body: Callable[..., Any], inputs: Sequence[Any], options: dict[str, Any]
) -> tuple[Any, Recording | None]:
    """The results of `body(*inputs, **options)`, and its recording; None where it cannot be replayed.

    It runs on aliases of the tensors, each in a storage of its own: two views of one projection can then be
    told apart, and are two tensors elsewhere.
    """
    tensors = [each for each in inputs if isinstance(each, Tensor)]
    aliases = iter([_alias(each) for each in tensors])
    given = [next(aliases) if isinstance(each, Tensor) else each for each in inputs]
    recorder = _Recorder([each for each in given if isinstance(each, Tensor)])
    with recorder:
        _current.recorder = recorder
        try:
            outputs = body(*given, **options)
        finally:
            _current.recorder = None
    return outputs, recorder.recording(outputs, tensors[0].device)


def _alias(tensor: Tensor) -> Tensor:
    """The same memory as a storage of its own. DLPack gives dimensions of size 1 other strides."""
    plain = tensor.detach()
    packed = torch._C._from_dlpack(torch._C._to_dlpack(plain))
    return packed.as_strided(plain.shape, plain.stride(), 0)


class _Recorder(TorchDispatchMode):
    """Sees every operator of torch, and by `launch` every kernel.

    A tensor is known by its storage. One that was freed may give its place to the next, which then takes over
    its entry.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._numbers: dict[int, int] = {}
        self._whole: list[tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]] = []
        self._noted: list[_Noted] = []
        self._refused = False
        self._n_inputs = len(inputs)
        for each in inputs:
            self._number(each)

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self, func, types, args=(), kwargs=None
    ) -> Any:
        kwargs = kwargs or {}
        _current.recorder = None
        try:
            outputs = func(*args, **kwargs)
        finally:
            _current.recorder = self
        if not self._refused:
            try:
                self._called(func, args, kwargs, outputs)
            except NotReplayable:
                self._refused = True
        return outputs

    def launched(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        compiled: Any,
    ) -> None:
        if self._refused:
            return
        try:
            uses: set[int] = set()
            placed = [self._placed(each, uses) for each in arguments]
            named = {name: self._placed(each, uses) for name, each in options.items()}
            start = _Launch(kernel, grid, placed, named)
            is_compiled = compiled is not None and hasattr(compiled, "packed_metadata")
            step = _compiled_launch(start, compiled) if is_compiled else start.plainly
            self._noted.append(_Noted(step, uses, makes=False))
        except NotReplayable:
            self._refused = True

    def recording(self, outputs: Any, device: torch.device) -> Recording | None:
        if self._refused:
            return None
        try:
            used: set[int] = set()
            places = tree_map(lambda each: self._placed(each, used), outputs)
        except NotReplayable:
            return None
        if any(each < self._n_inputs for each in used):
            return None
        return Recording(self._freeing(used), len(self._whole) - self._n_inputs, places, device)

    def _called(self, func: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        flat, _ = tree_flatten((args, kwargs))
        before = {_storage(each) for each in flat if isinstance(each, Tensor)}
        results, _ = tree_flatten(outputs)
        if not all(isinstance(each, Tensor) for each in results):
            raise NotReplayable
        name = func._schema.name.removeprefix("aten::")
        new = [each for each in results if _storage(each) not in before]
        if not new and not func._schema.is_mutable:
            return
        uses: set[int] = set()
        places = tree_map(lambda each: self._placed(each, uses), (args, kwargs))
        numbers = [self._number(each) for each in new]
        if new and name in _ALLOCATIONS + _ZEROS:
            (one,) = new
            step = _allocation(one, numbers[0], zeroed=name in _ZEROS)
            self._noted.append(_Noted(step, set(numbers), makes=True))
        elif len(new) in (0, len(results)):
            step = _call(func, places, numbers)
            self._noted.append(_Noted(step, {*uses, *numbers}, makes=bool(new)))
        else:
            raise NotReplayable

    def _freeing(self, outputs: set[int]) -> list[Step]:
        """The steps, with the end of each tensor of the call's own behind its last use where memory is
        allocated later: a replay then needs no more memory than the call."""
        found: list[Step] = []
        used = outputs | set(range(self._n_inputs))
        is_behind = True
        for each in reversed(self._noted):
            ended = tuple(sorted(each.uses - used))
            if ended and not is_behind:
                found.append(_end(ended))
            found.append(each.step)
            used |= each.uses
            is_behind = is_behind and not each.makes
        return found[::-1]

    def _number(self, tensor: Tensor) -> int:
        number = len(self._whole)
        self._numbers[_storage(tensor)] = number
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        self._whole.append((tensor.data_ptr(), shape, stride, tensor.dtype))
        return number

    def _placed(self, value: Any, uses: set[int]) -> Any:
        """A value of a call as a replay needs it: tensors, also of descriptors, by their places."""
        if isinstance(value, Tensor):
            view = self._view(value)
            uses.add(view.number)
            return view
        if isinstance(getattr(value, "base", None), Tensor) and hasattr(value, "block_shape"):
            view = self._view(value.base)
            uses.add(view.number)
            return _Descriptor(value, view)
        if isinstance(value, tuple | list) and any(isinstance(each, Tensor) for each in value):
            raise NotReplayable
        return value

    def _view(self, tensor: Tensor) -> _View:
        number = self._numbers.get(_storage(tensor))
        if number is None:
            raise NotReplayable
        address, *whole = self._whole[number]
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        # An empty view has no address.
        offset = tensor.data_ptr() - address if tensor.numel() else 0
        is_whole = offset == 0 and [shape, stride, tensor.dtype] == whole
        return _View(number, offset, shape, stride, tensor.dtype, is_whole)


class _Descriptor:
    """A tensor descriptor by the place of its tensor."""

    def __init__(self, descriptor: Any, view: _View) -> None:
        self._kind = type(descriptor)
        self._rest = {**vars(descriptor), "base": None}
        self.view = view

    def over(self, base: Any) -> Any:
        """The descriptor of other memory. Its checks held for the recorded call."""
        found = object.__new__(self._kind)
        found.__dict__.update(self._rest)
        found.base = base
        return found


class _Address:
    """As much of a tensor as Triton's launcher asks for."""

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _allocation(tensor: Tensor, number: int, *, zeroed: bool) -> Step:
    shape, stride, dtype = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
    make = _maker(tensor.device)

    def step(tensors: _Tensors) -> None:
        made = make(shape, stride, dtype)
        if zeroed:
            made.zero_()
        tensors.held[number] = made
        tensors.addresses[number] = made.data_ptr()

    return step


def _maker(device: torch.device) -> Callable[..., Tensor]:
    """torch.empty_strided on a device; Inductor's, which parses no keywords, where torch has it."""
    quick = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if device.type == "cuda" and quick is not None:
        return quick
    return lambda shape, stride, dtype: torch.empty_strided(
        shape, stride, dtype=dtype, device=device
    )


def _call(func: Any, places: Any, numbers: list[int]) -> Step:
    args, kwargs = places
    given = [_filling(each) for each in args]
    named = [(name, _filling(each)) for name, each in kwargs.items()]
    (only,) = numbers if len(numbers) == 1 else (None,)

    def step(tensors: _Tensors) -> None:
        made = func(
            *[fill(tensors) for fill in given], **{name: fill(tensors) for name, fill in named}
        )
        if only is not None and type(made) is Tensor:
            tensors.held[only] = made
            tensors.addresses[only] = made.data_ptr()
        elif numbers:
            results, _ = tree_flatten(made)
            for number, each in zip(numbers, results, strict=True):
                tensors.held[number] = each
                tensors.addresses[number] = each.data_ptr()

    return step


def _filling(place: Any) -> Callable[[_Tensors], Any]:
    """Makes an argument of a replay; its pytree is walked once, when recorded."""
    if isinstance(place, _View):
        return place.over
    if isinstance(place, list | tuple):
        kind, fillings = type(place), [_filling(each) for each in place]
        return lambda tensors: kind(fill(tensors) for fill in fillings)
    return lambda _: place


def _end(numbers: tuple[int, ...]) -> Step:
    def step(tensors: _Tensors) -> None:
        for each in numbers:
            tensors.held[each] = None

    return step


class _Launch(NamedTuple):
    """A kernel's launch, its tensors by their places."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: list[Any]
    options: dict[str, Any]

    def plainly(self, tensors: _Tensors) -> None:
        """By Triton's own way, with tensors: in its interpreter, and where hooks watch its launches."""

        def actual(value: Any) -> Any:
            if isinstance(value, _View):
                return value.of(tensors)
            return value.over(value.view.of(tensors)) if isinstance(value, _Descriptor) else value

        arguments = [actual(each) for each in self.arguments]
        options = {name: actual(each) for name, each in self.options.items()}
        self.kernel[self.grid](*arguments, **options)


def _compiled_launch(launched: _Launch, compiled: Any) -> Step:
    """By the compiled kernel's own launcher, with addresses."""
    from triton import knobs

    kernel = launched.kernel
    values = dict(zip(kernel.arg_names, launched.arguments, strict=False)) | launched.options
    template = [values.get(each.name, each.default) for each in kernel.params]
    pointers = [
        (at, each.number, each.offset_bytes)
        for at, each in enumerate(template)
        if isinstance(each, _View)
    ]
    described = [(at, each) for at, each in enumerate(template) if isinstance(each, _Descriptor)]
    template = [None if isinstance(each, _View | _Descriptor) else each for each in template]
    first, second, third = (*launched.grid, 1, 1)[:3]
    run, writings = _written(compiled.run, [each for _, each in described])
    # From the last one on: one writing may take the place of several arguments.
    descriptors = [
        (at, each.view.number, each.view.offset_bytes, writing)
        for (at, each), writing in zip(described, writings, strict=True)
    ][::-1]
    function, metadata = compiled.function, compiled.packed_metadata
    runtime = knobs.runtime

    def step(tensors: _Tensors) -> None:
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        # A chain without calls in it would still be called.
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            launched.plainly(tensors)
            return
        arguments, addresses = template.copy(), tensors.addresses
        for at, number, offset in pointers:
            arguments[at] = addresses[number] + offset
        for at, number, offset, writing in descriptors:
            arguments[at : at + 1] = writing(addresses[number] + offset)
        run(first, second, third, tensors.stream, function, metadata, None, None, None, *arguments)

    return step


Writing = Callable[[int], Sequence[Any]]
"""A descriptor of memory at an address, as arguments of a launcher."""


def _written(run: Any, descriptors: Sequence[_Descriptor]) -> tuple[Any, list[Writing]]:
    """A kernel's launcher, and what to give it for each descriptor.

    Triton's launcher writes each descriptor anew at every launch, as the driver's tensor map and its sizes.
    One depends on nothing but the address, so here those of the last addresses are kept, and a copy of the
    launcher takes them as they are. Where Triton is built otherwise the launcher gets descriptors.
    """
    parts = getclosurevars(run.launch) if descriptors and isfunction(run.launch) else None
    inner = dict(parts.nonlocals, **parts.globals) if parts is not None else {}
    launch, metas = inner.get("launcher"), inner.get("tensordesc_meta") or ()
    write = inner.get("make_tensordesc_arg")
    if launch is None or write is None or len(metas) != len(descriptors):
        return run, [_handing(each) for each in descriptors]
    direct = copy(run)
    direct.launch = launch
    return direct, [
        _keeping(each, write, meta) for each, meta in zip(descriptors, metas, strict=True)
    ]


def _handing(descriptor: _Descriptor) -> Writing:
    return lambda address: (descriptor.over(_Address(address)),)


def _keeping(descriptor: _Descriptor, write: Callable[..., list[Any]], meta: Any) -> Writing:
    known: dict[int, list[Any]] = {}

    def writing(address: int) -> list[Any]:
        written = known.get(address)
        if written is None:
            if len(known) >= MOST_ADDRESSES:
                known.clear()
            written = known[address] = write(descriptor.over(_Address(address)), meta)
        return written

    return writing
