"""Carries out a contest: everyone's result is checked, then all are timed in turns."""

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
import torch
import triton
from torch import Tensor

from kernels.contest import COPY, OURS, READ, Arm, Contest
from kernels.reading import BLOCK, read
from kernels.results import Arm as ArmResult
from kernels.results import Outcome
from kernels.timing import in_turns
from peakward.records.lever import Pair
from peakward.stats.pairs import ratio_interval

WARM_UP_CALLS = 3


def build(contest: Contest) -> None:
    """Calls everyone once, so that what compiles is cached; who fails will fail again when timed."""
    for arm in contest.arms.values():
        with suppress(Exception):
            arm()()


def carry_out(contest: Contest, *, n_rounds: int, n_calls: int) -> Outcome:
    """Its outcome; what fails on the way is said of the arm that it befell."""
    exact = contest.exact() if contest.exact is not None else None
    calls: dict[str, Arm] = {}
    failed: dict[str, str] = {}
    errors: dict[str, float] = {}
    for name, build in contest.arms.items():
        try:
            calls[name] = build()
            got = calls[name]()
            exact = got if exact is None and not name.startswith(OURS) else exact
            if exact is not None:
                errors[name] = _error(got, exact)
            del got
            for _ in range(WARM_UP_CALLS):
                calls[name]()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 (a peer may raise anything, and is said to)
            calls.pop(name, None)
            failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
    for name, error in errors.items():
        if not error <= contest.within and calls.pop(name, None) is not None:
            failed[name] = f"relative error {error:.2g}, expected at most {contest.within:g}"
    del exact
    yardstick = _yardstick(contest.n_bytes, reads=contest.reads) if contest.n_bytes else {}
    times_s = in_turns({**calls, **yardstick}, n_rounds=n_rounds, n_calls=n_calls) if calls else {}
    moved_s = {name: statistics.median(times_s.pop(name)) for name in yardstick if name in times_s}
    arms = tuple(
        _result(contest, name, times_s.get(name), errors.get(name), failed.get(name))
        for name in contest.arms
    )
    return _judged(contest, arms, times_s, moved_s)


def _yardstick(n_bytes: int, *, reads: bool) -> dict[str, Arm]:
    if reads:
        values = torch.ones(triton.cdiv(n_bytes, 4 * BLOCK) * BLOCK, device="cuda")
        return {READ: lambda: read(values)}
    source = torch.randint(0, 127, (n_bytes // 2,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return {COPY: lambda: target.copy_(source)}


def _error(got: Tensor | tuple[Tensor, ...], exact: Tensor | tuple[Tensor, ...]) -> float:
    """The largest of the outputs'; NaN where one has a NaN that the other has not."""
    mine, others = _tuple(got), _tuple(exact)
    if len(mine) != len(others):
        raise ValueError(f"expected {len(others)} outputs, got {len(mine)}")
    return max(map(_relative, mine, others))


def _tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value


def _relative(got: Tensor, exact: Tensor) -> float:
    wide = exact.dtype if exact.dtype == torch.float64 else torch.float32
    scale = float(torch.linalg.vector_norm(exact, dtype=wide))
    difference = float(torch.linalg.vector_norm(got.to(wide) - exact.to(wide)))
    return difference / (scale or 1.0) if not math.isnan(difference) else math.inf


def _result(
    contest: Contest,
    name: str,
    rounds_s: Sequence[float] | None,
    error: float | None,
    failed: str | None,
) -> ArmResult:
    if rounds_s is None:
        return ArmResult(name=name, error=error, failed=failed)
    median_s = statistics.median(rounds_s)
    return ArmResult(
        name=name,
        median_s=median_s,
        spread=(max(rounds_s) - min(rounds_s)) / median_s,
        error=error,
        flops_per_s=contest.flops / median_s if contest.flops else None,
        bytes_per_s=contest.n_bytes / median_s if contest.n_bytes else None,
    )


def _judged(
    contest: Contest,
    arms: tuple[ArmResult, ...],
    times_s: dict[str, list[float]],
    moved_s: Mapping[str, float],
) -> Outcome:
    known = Outcome(
        operator=contest.operator,
        shape=dict(contest.shape),
        arms=arms,
        copy_s=moved_s.get(COPY),
        read_s=moved_s.get(READ),
    )
    peers = [each for each in arms if not each.name.startswith(OURS) and each.median_s is not None]
    if OURS not in times_s or not peers:
        return known
    best = min(peers, key=lambda each: each.median_s).name
    pairs = [
        Pair(process=0, base_s=mine, candidate_s=theirs)
        for mine, theirs in zip(times_s[OURS], times_s[best], strict=True)
    ]
    return msgspec.structs.replace(known, best_peer=best, speed_over_best=ratio_interval(pairs))
