"""The host's time of an eager call: Peakward's kernels, also by their registered operators, and torch's own.

    python benchmarks/kernel_calls.py --out results/kernel-calls.json

Tensors are so small that the device is never waited for: a burst of calls is issued, and only then is the
device awaited, outside of what is timed. Arms take turns, burst by burst; a figure is the median burst with
its quartiles. Short attention is timed with the device instead, from the first call of a burst until all is
done. Before that replayed results and gradients are compared with the registered operators', bit by bit.
"""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from peakward.kernels import (
    add_layer_norm,
    add_rms_norm,
    cross_entropy,
    flash_attention,
    layer_norm,
    linear_cross_entropy,
    rms_norm,
    rope,
    softmax,
    swiglu,
)
from peakward.kernels.ops import calling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
ROWS, WIDTH, VOCAB = 8, 1024, 1000
ATTENTION_TOKENS = 16384
SHORT = ((512, 64), (512, 128), (1024, 64), (1024, 128))
IMPLEMENTATIONS = ("triton", "hopper")
N_WARM_UPS = 4
"""A kind's first call is registered, its second recorded; the others are replayed."""
LEAST_AGREEMENT = 1e-2
"""The largest ‖difference‖ / ‖result‖ of results whose order of additions is not fixed."""


class Pair(NamedTuple):
    """One operator: ours and torch's, over the same tensors."""

    name: str
    ours: Callable[..., Any]
    torchs: dict[str, Callable[..., Any]]
    tensors: tuple[Tensor, ...]
    is_repeatable: bool = True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=40, help="calls of a burst")
    parser.add_argument("--budget-s", type=float, default=170.0)
    options = parser.parse_args(arguments)
    deadline = monotonic() + options.budget_s
    torch.manual_seed(0)
    agreements = [agreement(each) for each in pairs()]
    for each in agreements:
        print(each, flush=True)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "agreement": agreements,
        "calls": [],
        "parts_us": parts() if DEVICE == "cuda" else {},
        "attention": [],
        "left": [],
    }
    print(found["parts_us"], flush=True)
    for pair in pairs():
        for differentiates in (False, True):
            if monotonic() > deadline:
                found["left"].append(f"{pair.name}, gradients: {differentiates}")
                continue
            found["calls"].append(contest(pair, options, differentiates=differentiates))
            print(line(found["calls"][-1]), flush=True)
            write(found, options.out)
    for length, head_dim in SHORT if DEVICE == "cuda" else ():
        for differentiates in (False, True):
            name = f"attention {length} × {head_dim}, gradients: {differentiates}"
            if monotonic() > deadline:
                found["left"].append(name)
                continue
            pair = attention(ATTENTION_TOKENS // length, 2048 // head_dim, length, head_dim)
            timed = contest(pair, options, differentiates=differentiates, awaits=True)
            found["attention"].append(timed)
            print(line(timed), flush=True)
            write(found, options.out)
    write(found, options.out)
    return 0 if all(each["agrees"] for each in agreements) else 1


def pairs() -> Iterator[Pair]:
    x, residual, weight, bias = draw(ROWS, WIDTH), draw(ROWS, WIDTH), draw(WIDTH), draw(WIDTH)
    yield Pair(
        "rms_norm",
        lambda x, w: rms_norm(x, (WIDTH,), w),
        {"torch": lambda x, w: F.rms_norm(x, (WIDTH,), w)},
        (x, weight),
    )
    yield Pair(
        "add_rms_norm",
        add_rms_norm,
        {"torch": lambda x, r, w: (F.rms_norm(x + r, (WIDTH,), w), x + r)},
        (x, residual, weight),
    )
    yield Pair(
        "layer_norm",
        lambda x, w, b: layer_norm(x, (WIDTH,), w, b),
        {"torch": lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b)},
        (x, weight, bias),
    )
    yield Pair("add_layer_norm", add_layer_norm, {}, (x, residual, weight, bias))
    yield Pair("softmax", softmax, {"torch": lambda x: torch.softmax(x, -1)}, (x,))
    yield Pair("swiglu", swiglu, {"torch": torch_swiglu}, (x,))
    heads, angles = draw(1, 4, ROWS, 64), draw(ROWS, 32).detach()
    yield Pair("rope", rope, {"torch": torch_rope}, (heads, angles, angles.clone()))
    logits = draw(ROWS, VOCAB)
    targets = torch.randint(VOCAB, (ROWS,), device=DEVICE)
    yield Pair("cross_entropy", cross_entropy, {"torch": F.cross_entropy}, (logits, targets))
    for each in ("chunked", "recomputed"):
        yield Pair(
            f"linear_cross_entropy {each}",
            partial(linear_cross_entropy, implementation=each),
            {"torch": lambda h, w, t: F.cross_entropy(h @ w.t(), t)},
            (draw(ROWS, WIDTH), draw(VOCAB, WIDTH), targets),
        )
    for each in IMPLEMENTATIONS if DEVICE == "cuda" else ("triton",):
        yield attention(1, 4, 64, 64, each)


def attention(
    batch: int, n_heads: int, length: int, head_dim: int, implementation: str = "hopper"
) -> Pair:
    tensors = tuple(draw(batch, n_heads, length, head_dim) for _ in range(3))
    return Pair(
        f"flash_attention {implementation} {batch} × {n_heads} × {length} × {head_dim}",
        partial(flash_attention, causal=True, implementation=implementation),
        {
            "SDPA flash": partial(sdpa, SDPBackend.FLASH_ATTENTION),
            "SDPA cuDNN": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
        }
        if DEVICE == "cuda"
        else {"SDPA": partial(F.scaled_dot_product_attention, is_causal=True)},
        tensors,
        is_repeatable=implementation != "hopper",
    )


def sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Called within `chosen`, which takes longer than the call."""
    del backend
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def torch_swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def torch_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE, requires_grad=True)


def contest(
    pair: Pair, options: argparse.Namespace, *, differentiates: bool, awaits: bool = False
) -> dict[str, Any]:
    """The time of a call for each arm, in µs: the host's, or where it awaits the device until all is done."""
    arms: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
        "ours": (pair.ours, nullcontext),
        "registered": (pair.ours, registered),
        **{name: (each, partial(chosen, each)) for name, each in pair.torchs.items()},
    }
    calls = {
        name: (one_of(each, pair, differentiates=differentiates), way)
        for name, (each, way) in arms.items()
    }
    took: dict[str, list[float]] = {name: [] for name in arms}
    failed: dict[str, str] = {}
    for turn in range(N_WARM_UPS + options.rounds):
        for name, (call, way) in calls.items():
            if name in failed:
                continue
            try:
                with way():
                    us = burst(call, options.calls, differentiates=differentiates, awaits=awaits)
            except (RuntimeError, ValueError) as error:
                failed[name] = str(error).splitlines()[0]
                continue
            if turn >= N_WARM_UPS:
                took[name].append(us)
    figures = {name: spread(each) for name, each in took.items() if each}
    return {
        "name": pair.name,
        "gradients": differentiates,
        "us": figures,
        "failed": failed,
        "over_torch": {
            name: figures["ours"]["median"] / figures[name]["median"]
            for name in pair.torchs
            if name in figures and "ours" in figures
        },
    }


def one_of(call: Callable[..., Any], pair: Pair, *, differentiates: bool) -> Callable[[], Any]:
    """One call over the pair's tensors, with its gradients where wanted."""
    tensors = pair.tensors
    if not differentiates:

        def forward() -> None:
            call(*tensors)

        return forward
    leaves = [each for each in tensors if each.requires_grad]
    gradients = [torch.randn_like(each) for each in outputs_of(call(*tensors))]

    def both() -> None:
        torch.autograd.grad(outputs_of(call(*tensors)), leaves, gradients)

    return both


def burst(
    call: Callable[[], Any], n_calls: int, *, differentiates: bool = False, awaits: bool = False
) -> float:
    """The time of one of them, in µs."""
    with torch.set_grad_enabled(differentiates):
        await_device()
        gc.disable()
        begin = perf_counter()
        for _ in range(n_calls):
            call()
        if awaits:
            await_device()
        took = perf_counter() - begin
        gc.enable()
        await_device()
    return 1e6 * took / n_calls


def await_device() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def spread(took: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(took, n=4)
    return {"median": median, "low": low, "high": high}


@contextmanager
def registered() -> Iterator[None]:
    """Every call by the registered operator, as if a profiler were on."""
    found = calling.is_watched
    calling.is_watched = lambda: True
    try:
        yield
    finally:
        calling.is_watched = found


@contextmanager
def chosen(call: Callable[..., Any]) -> Iterator[None]:
    """SDPA's backend, where the call is of one."""
    backends = [each for each in getattr(call, "args", ()) if isinstance(each, SDPBackend)]
    with sdpa_kernel(backends) if backends else nullcontext():
        yield


def outputs_of(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def agreement(pair: Pair) -> dict[str, Any]:
    """Whether replayed calls, of other values than the recorded one, give what the registered one does."""
    worst, differs = 0.0, False
    for _ in range(N_WARM_UPS):
        tensors = [each if not each.is_floating_point() else fresh(each) for each in pair.tensors]
        got = results_of(pair, tensors)
        with registered():
            expected = results_of(pair, tensors)
        for mine, theirs in zip(got, expected, strict=True):
            differs |= not torch.equal(mine, theirs)
            distance = torch.linalg.vector_norm((mine - theirs).float())
            worst = max(worst, float(distance / torch.linalg.vector_norm(theirs.float())))
    return {
        "name": pair.name,
        "bitwise": not differs,
        "worst_norm": worst,
        "agrees": not differs if pair.is_repeatable else worst < LEAST_AGREEMENT,
        "kinds": kinds(),
    }


def kinds() -> dict[str, int]:
    """How many kinds of calls are recorded, of all operators, and how many of them were refused."""
    known = [each for operator in calling._operators for each in operator._kinds.values()]
    return {
        "recorded": sum(not isinstance(each, str) for each in known),
        "refused": known.count("refused"),
    }


def fresh(tensor: Tensor) -> Tensor:
    return torch.randn_like(tensor).requires_grad_(tensor.requires_grad)


def results_of(pair: Pair, tensors: list[Tensor]) -> list[Tensor]:
    outputs = outputs_of(pair.ours(*tensors))
    leaves = [each for each in tensors if each.requires_grad]
    gradients = [torch.linspace(-1, 1, each.numel(), device=DEVICE) for each in outputs]
    gradients = [
        each.view(of.shape).to(of.dtype) for each, of in zip(gradients, outputs, strict=True)
    ]
    with torch.no_grad():
        alone = outputs_of(pair.ours(*tensors))
    return [
        *(each.detach() for each in outputs),
        *alone,
        *torch.autograd.grad(outputs, leaves, gradients),
    ]


def parts() -> dict[str, float]:
    """What the pieces of a light call take, in µs."""
    x, weight = draw(ROWS, WIDTH).detach(), draw(WIDTH).detach()
    own = calling._operators
    for _ in range(N_WARM_UPS):
        rms_norm(x, (WIDTH,), weight)
    operator = next(each for each in own if "add_rms_norm" in str(each.registered))
    recording = next(each for each in operator._kinds.values() if not isinstance(each, str))
    addresses = [x.data_ptr(), weight.data_ptr()]
    pieces: dict[str, Callable[[], Any]] = {
        "nothing": lambda: None,
        "is_compiling": torch.compiler.is_compiling,
        "is_watched": calling.is_watched,
        "shape, stride, type, address": lambda: (
            x.shape,
            x.stride(),
            x.dtype,
            x.get_device(),
            x.data_ptr(),
            x.is_neg(),
            x.requires_grad,
        ),
        "is_autocast_enabled": lambda: torch.is_autocast_enabled("cuda"),
        "empty_like": lambda: torch.empty_like(x),
        "empty_strided_cuda": lambda: torch._C._dynamo.guards._empty_strided_cuda(
            (ROWS, WIDTH), (WIDTH, 1), DTYPE
        ),
        "replay": lambda: recording.replay([x, weight], addresses),
        "operator": lambda: operator(x, None, weight, 1e-5),
        "rms_norm": lambda: rms_norm(x, (WIDTH,), weight),
        "torch rms_norm": lambda: F.rms_norm(x, (WIDTH,), weight),
    }
    for number, step in enumerate(recording._steps):
        tensors = replayed(recording, x, weight, addresses)
        pieces[f"step {number} {step.__qualname__}"] = partial(step, tensors)
    found = {}
    for name, piece in pieces.items():
        bursts = [burst(piece, 100) for _ in range(12)]
        found[name] = round(statistics.median(bursts), 2)
    return found


def replayed(recording: Any, x: Tensor, weight: Tensor, addresses: list[int]) -> Any:
    """The tensors of a replay that has been made, to make single steps of it again."""
    from peakward.kernels.ops.recording import _Tensors

    stream = torch._C._cuda_getCurrentRawStream(x.get_device())
    tensors = _Tensors(
        [x, weight, *recording._rest], [*addresses, *recording._no_addresses], stream
    )
    for step in recording._steps:
        step(tensors)
    return tensors


def line(timed: dict[str, Any]) -> str:
    us = {name: round(each["median"], 1) for name, each in timed["us"].items()}
    over = {name: round(each, 2) for name, each in timed["over_torch"].items()}
    way = "forward + backward" if timed["gradients"] else "forward"
    return f"{timed['name']}, {way}: {us} µs, over torch {over} {timed['failed'] or ''}"


def write(found: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
