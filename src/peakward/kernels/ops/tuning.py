"""Settings of kernels found by timing them, kept on disk for each device, where PEAKWARD_TUNE_KERNELS is set.

Without it kernels have the settings of rules, which come of sweeps on an H100. With it the first call of a
kernel on inputs of a new kind times that rule's and other settings, says so, and keeps the fastest in
`peakward/kernels` in the user's cache ($XDG_CACHE_HOME, else ~/.cache).
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources

ASKED = "PEAKWARD_TUNE_KERNELS"
RULE = "rule"
"""As what was found; the rule's settings may be others for other inputs of a kind."""
LEAST_GAIN = 0.02
"""The least gain over the rule, as a share of its time: with less, another run would choose otherwise."""
N_ROUNDS, N_CALLS = 3, 5
L2_CACHES = 4
"""As much is read between two calls."""
CYCLES_PER_S = 2e9
"""The clock of a multiprocessor, roughly: it is asked to wait for twice as long as needed."""
WITHIN = 2e-2
"""The largest ‖difference‖ over ‖result‖ from the rule's results: a larger one is a fault of a
compiler, and not a rounding."""
S = TypeVar("S")
Outputs = tuple[Tensor | None, ...]


def tuned(
    kernel: str,
    inputs: Callable[[], str],
    device: torch.device,
    *,
    rule: S,
    others: Callable[[], Sequence[S]],
    start: Callable[[S], Outputs],
) -> S:
    """The settings to start a kernel with: the rule's, or if asked for and on CUDA the fastest found.

    While a graph is captured nothing can be timed, and what is not kept yet is the rule's.

    Args:
        inputs: of what kind they are, as far as the fastest settings depend on it, and whether they fit.
        rule: for inputs of one kind not always the same.
        others: settings with which the kernel computes the same, for inputs of one kind the same; which
            does not is left out.
        start: what it makes of these inputs with such settings, anew every time.
    """
    if os.environ.get(ASKED, "0") in ("", "0") or device.type != "cuda":
        return rule
    path, name = path_of(device), f"{kernel}: {inputs()}"
    settled = _settled(path)
    if name not in settled:
        tried = {repr(each): each for each in others()}
        found = _kept(path).get(name)
        if tried and found not in {RULE, *tried}:
            if torch.cuda.is_current_stream_capturing():
                return rule
            print(
                f"peakward: tuning {name} once, {len({repr(rule), *tried})} settings; kept in {path}",
                file=sys.stderr,
            )
            calls = {text: _call(start, each) for text, each in tried.items() if each != rule}
            found = fastest(_call(start, rule), calls)
            _keep(path, name, found)
        settled[name] = tried.get(found or RULE)
    chosen = settled[name]
    return rule if chosen is None else chosen


def fastest(rule: Callable[[], Outputs], others: Mapping[str, Callable[[], Outputs]]) -> str:
    """By the median of calls in turns, `RULE` unless another is faster by `LEAST_GAIN`; what does not fit the
    device, or computes something else than the first that does, is left out."""
    calls, expected = {}, None
    for name, call in {RULE: rule, **others}.items():
        got = _outputs(call)
        if got is not None and (expected is None or _agree(got, expected)):
            calls[name] = call
            expected = got if expected is None else expected
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(N_ROUNDS)]
    took_s = {name: statistics.median(each[name] for each in rounds) for name in calls}
    best = min(took_s, key=lambda name: took_s[name], default=RULE)
    is_gain = RULE not in took_s or took_s[best] < (1 - LEAST_GAIN) * took_s[RULE]
    return best if is_gain else RULE


def seconds(call: Callable[[], Outputs]) -> float:
    """The median time of a call, each with an L2 that holds none of its data."""
    call()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    flush = torch.zeros(L2_CACHES * properties.L2_cache_size // 4, device="cuda")
    pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(N_CALLS)]
    torch.cuda.synchronize()
    began_s = perf_counter()
    call()
    # What it takes from Python is longer than many kernels: the device waits until all is launched.
    torch.cuda._sleep(int(2 * N_CALLS * (perf_counter() - began_s) * CYCLES_PER_S))
    for begin, end in pairs:
        flush.sum()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1e3


@cache
def path_of(device: torch.device) -> Path:
    """Where a device's are kept, by its name and the Triton that compiles for it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"{torch.cuda.get_device_name(device)}-triton-{triton.__version__}"
    return caches / "peakward" / "kernels" / f"{name.replace(' ', '-').replace('/', '-')}.json"


def _call(start: Callable[[S], Outputs], settings: S) -> Callable[[], Outputs]:
    return lambda: start(settings)


def _outputs(call: Callable[[], Outputs]) -> Outputs | None:
    """None where it does not fit."""
    try:
        return call()
    except OutOfResources:
        return None


def _agree(got: Outputs, expected: Outputs) -> bool:
    return all(
        mine is None or theirs is None or _agrees(mine, theirs)
        for mine, theirs in zip(got, expected, strict=True)
    )


def _agrees(got: Tensor, expected: Tensor) -> bool:
    """Where both are finite by the norm of their difference; an empty sequence has a log-sum-exp of -inf."""
    special = ~torch.isfinite(expected)
    if not torch.equal(~torch.isfinite(got), special):
        return False
    got, expected = (each.masked_fill(special, 0) for each in (got, expected))
    difference = torch.linalg.vector_norm(got - expected, dtype=torch.float32)
    return bool(difference <= WITHIN * torch.linalg.vector_norm(expected, dtype=torch.float32))


@cache
def _settled(path: Path) -> dict[str, Any]:  # noqa: ARG001 (one of each)
    """Settings of what this process has asked for; None for the rule's."""
    return {}


@cache
def _kept(path: Path) -> dict[str, str]:
    """The stored results, read once; the dictionary grows with new ones."""
    return _read(path)


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        print(
            f"peakward: expected settings of kernels as JSON in {path}, got something else; it is begun anew",
            file=sys.stderr,
        )
        return {}
    return found


def _keep(path: Path, name: str, found: str) -> None:
    """Beside what another process has kept since; the file is whole at any time."""
    kept = _kept(path)
    kept[name] = found
    scratch = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            scratch = Path(file.name)
            json.dump({**_read(path), **kept}, file, indent=1, sort_keys=True)
        scratch.replace(path)
    except OSError as error:
        print(
            f"peakward: expected a cache folder that can be written, got {path.parent}: {error.strerror}; "
            "settings are kept for this process alone. Set XDG_CACHE_HOME to another",
            file=sys.stderr,
        )
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
