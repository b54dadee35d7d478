"""The types that autocast gives: to a model's tensors and operators, and to torch's functions one by one.

Nothing here rests on a list of what autocast does. A model's operators are seen as torch dispatches them, and
every function of torch that takes one of a few kinds of arguments is called with and without autocast.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import get_overridable_functions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import build as build_decoder
from peakward.records.case import NumericsCase
from peakward.records.errors import PeakwardError
from peakward.records.numerics import Numerics, TypeSeen

WAYS = {"fp16": torch.float16, "bf16": torch.bfloat16}
WIDTH, WORDS = 16, 10
"""The width and the vocabulary of the toy model."""
NAMESPACES = (torch, torch.functional, F)
"""Modules whose functions are called: `torch.linalg` and `torch.fft` take no narrow types at all."""
OF_ONE_LIBRARY = ("cudnn_", "fbgemm_", "miopen_", "mkldnn_")
"""How the names begin of functions of one library, which are no user's. `fbgemm_pack_gemm_matrix_fp16` reads
a GPU's address on the host, which ends the process."""


class Toy(nn.Module):
    """Two linear layers with a ReLU and a LayerNorm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.relu = nn.ReLU()
        self.norm = nn.LayerNorm(WIDTH)
        self.second = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, WIDTH) to logits (batch, WORDS)."""
        return self.second(self.norm(self.relu(self.first(x))))


def look_at_types(case: NumericsCase) -> Numerics:
    """The types in one step of the toy model, or of the decoder where the case has a shape; sizes are the
    sequences and their length.

    Raises:
        PeakwardError: another way, or other sizes.
    """
    dtype = _dtype(case)
    torch.manual_seed(case.seed)
    if len(case.sizes) != 2 or min(case.sizes) < 1:
        raise PeakwardError(f"expected two positive sizes (batch, length), got {case.sizes}")
    if case.model is None:
        model: nn.Module = Toy().to(case.device)
        given = torch.randn(case.sizes[0], WIDTH, device=case.device)
        targets = torch.zeros(case.sizes[0], dtype=torch.long, device=case.device)
    else:
        model = build_decoder(
            case.model,
            attention=implementation("naive"),
            device=case.device,
            dtype=torch.float32,
            seed=case.seed,
        )
        words = torch.randint(case.model.vocab_size, case.sizes, device=case.device)
        given, targets = words, words
    seen = [
        TypeSeen(kind="parameter", where=name, dtype=_name(each))
        for name, each in model.named_parameters()
    ]
    operators = _Operators()
    hooks = [
        each.register_forward_hook(_kept(seen, name))
        for name, each in model.named_modules()
        if name and not isinstance(each, nn.ModuleList)
    ]
    # autocast outside: the mode sees what autocast has made of the calls.
    with torch.autocast(case.device, dtype=dtype), operators:
        logits = model(given)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    for each in hooks:
        each.remove()
    loss.backward()
    seen += [
        TypeSeen(kind="logits", where="", dtype=_name(logits)),
        TypeSeen(kind="loss", where="", dtype=_name(loss)),
        *(
            TypeSeen(kind="gradient", where=name, dtype=_name(each.grad))
            for name, each in model.named_parameters()
            if each.grad is not None
        ),
    ]
    return Numerics(types=(*seen, *operators.seen()))


def look_at_functions(case: NumericsCase) -> Numerics:
    """Calls every function of torch that takes arguments of `_arguments`, in fp32 and in the narrow type,
    under autocast and without.

    Raises:
        PeakwardError: another way.
    """
    dtype = _dtype(case)
    found: list[TypeSeen] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in functions():
            found += _types_of(name, function, case.device, dtype)
    if case.device == "cuda":
        torch.cuda.synchronize()  # Raises where a kernel has failed, after which no call would run.
    return Numerics(types=tuple(found))


def _types_of(
    name: str, function: Callable[..., Any], device: str, dtype: torch.dtype
) -> Iterator[TypeSeen]:
    """The types that the function returns for each type of arguments, of the first kind of arguments that it
    takes under autocast in either type."""
    for make in _arguments(device):
        seen = []
        for given in (torch.float32, dtype):
            under = torch.autocast(device, dtype=dtype)
            out = _called(function, make(given), under)
            if out is not None:
                plain = _called(function, make(given), nullcontext())
                seen.append(
                    TypeSeen(
                        kind="function",
                        where=name,
                        dtype=_short(out),
                        given=_short(given),
                        plain=None if plain is None else _short(plain),
                    )
                )
        if seen:
            yield from seen
            return


def _called(
    function: Callable[..., Any], arguments: tuple[Any, ...], context: AbstractContextManager[None]
) -> torch.dtype | None:
    """The type of the first tensor of floats that is returned; None where the call is refused."""
    try:
        with context, torch.no_grad():
            returned = function(*arguments)
    except Exception:  # noqa: BLE001 - whatever it says to arguments that are not meant for it
        return None
    leaves = [each for each in tree_leaves(returned) if isinstance(each, Tensor)]
    return leaves[0].dtype if leaves and leaves[0].is_floating_point() else None


def functions() -> list[tuple[str, Callable[..., Any]]]:
    """Torch's public functions by name: none that writes into an argument, and none of one library."""
    every = get_overridable_functions()
    found = {
        f"{space.__name__}.{each.__name__}": each
        for space in NAMESPACES
        for each in every[space]
        if not each.__name__.startswith(("_", *OF_ONE_LIBRARY)) and not each.__name__.endswith("_")
    }
    return sorted(found.items())


def _arguments(device: str) -> list[Callable[[torch.dtype], tuple[Any, ...]]]:
    """Kinds of arguments. All numbers lie from 0.1 to 0.9, so that logarithms, roots and probabilities
    take them; integers are places within every size."""

    def of(*shape: int) -> Callable[[torch.dtype], Tensor]:
        numbers = torch.linspace(0.1, 0.9, torch.Size(shape).numel(), device=device)
        return lambda dtype: numbers.reshape(shape).to(dtype)

    x, v, y, image, kernel = of(4, 4), of(4), of(2, 4, 4), of(2, 4, 4, 4), of(4, 4, 3, 3)
    line = of(4, 4, 3)
    places = torch.arange(4, device=device) % 2
    return [
        lambda t: (x(t),),
        lambda t: (x(t), x(t)),
        lambda t: (x(t), v(t)),
        lambda t: (v(t), v(t)),
        lambda t: (y(t), y(t)),
        lambda t: (image(t), kernel(t)),
        lambda t: (y(t), line(t)),
        lambda t: (x(t), 1),
        lambda t: (x(t), [4]),
        lambda t: (x(t), places),
        lambda t: (places, x(t)),
        lambda t: ([x(t), x(t)],),
        lambda t: (x(t), x(t), x(t)),
        lambda t: (v(t), x(t), v(t)),
        lambda t: (x(t), v(t), v(t)),
        lambda t: (y(t), y(t), y(t)),
        lambda t: (x(t), y(t), y(t)),
        lambda t: (x(t), x(t), v(t).sign()),
        lambda t: ("ij,jk->ik", x(t), x(t)),
        lambda t: (x(t), 2, x(t)),
        lambda t: (y(t), 2),
        lambda t: (image(t), 2),
    ]


class _Operators(TorchDispatchMode):
    """Counts operators by the types of what they are given and of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        given = _floats((args, kwargs))
        made = _floats(returned)
        # A view shares its memory: nothing is computed.
        if given and made and not func.is_view and "view" not in str(func):
            self._counts[str(func), ", ".join(dict.fromkeys(given)), made[0]] += 1
        return returned

    def seen(self) -> list[TypeSeen]:
        """In the order in which they first ran."""
        return [
            TypeSeen(kind="operator", where=name, given=given, dtype=made, n=n)
            for (name, given, made), n in self._counts.items()
        ]


def _floats(tree: Any) -> list[str]:
    return [
        _name(each)
        for each in tree_leaves(tree)
        if isinstance(each, Tensor) and each.is_floating_point()
    ]


def _kept(seen: list[TypeSeen], name: str) -> Callable[[nn.Module, Any, Any], None]:
    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        for each in tree_leaves(output)[:1]:
            seen.append(TypeSeen(kind="output", where=name, dtype=_name(each)))

    return keep


def _dtype(case: NumericsCase) -> torch.dtype:
    if case.way not in WAYS:
        raise PeakwardError(f"expected a type of {', '.join(WAYS)}, got {case.way!r}")
    return WAYS[case.way]


def _name(tensor: Tensor) -> str:
    return _short(tensor.dtype)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
