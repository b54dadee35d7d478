"""Says what a lever is expected to leave of a step, before it is tried: from predictions, from findings, from
what is usual, and from what was seen in this search."""

from collections.abc import Mapping, Sequence
from math import prod
from statistics import median

from peakward.diagnose.rules import naive_attention
from peakward.levers import catalogue, loader
from peakward.levers.axis import Axis, Value
from peakward.levers.catalogue import AXES, pull
from peakward.levers.compile import in_one_piece
from peakward.records.case import LeverCase, ModuleCase
from peakward.records.finding import Diagnosis, Finding
from peakward.records.lever import Lever, Trial
from peakward.records.measurement import Measurement
from peakward.records.op_graph import OpGraph
from peakward.tune.bench import Bench
from peakward.tune.lever_stack import LeverStack

UNKNOWN = 0.98
"""The share that a lever is expected to leave of which nothing is known."""
NOTHING = 1.01
"""The share of which a lever that usually gains nothing is expected: it waits for all that may gain."""
TWICE = 0.5
"""By the rates of matrix products alone, a precision is sure to gain where they run twice as fast."""
FUSED_BY_COMPILING: dict[str, tuple[Value, ...]] = {
    "norm": ("fused",),
    "rope": ("fused",),
    "swiglu": ("fused",),
    "activation": ("torch",),
    "loss": ("fused",),
}
"""Settings whose kernels torch.compile makes of its own: on compiled steps of `2.7B` (H200) levers of these
left 0.985 to 0.997."""
OF_COMPILED = ("cuda_graphs",)
"""Settings that usually gain on a compiled step alone. Before it the device is what is waited for: a graph of
the eager bf16 step of transformers' Llama-1B (H200) was 1.15 times slower."""
LEAST_LEFT = 0.05
"""The least that is expected to be left of a step whose wait for data, or whose recomputation, goes."""
BY_LAYER = ("fp8",)
"""Precisions of those layers alone whose own products win, with casts beside them: the rates of products say
neither how many nor what the casts take. Sure of fp8 by its rate and of our own attention, a search left
71.8 ms of a live script of 12 layers of width 768; with bf16-mixed and SDPA in their place another left 33.5
(H200, slow hosts)."""
PARTS_OF_DEVICE = ("attention", "rotation", "gating", "norm", "loss")
"""Parts of a step whose levers save the device's time."""


class Outlook:
    """The expected ratio of what is sought, candidate over base, of levers of one search.

    Args:
        bounds: what the findings about the base leave of its time, by the levers that answer them.
        waits: what the levers of a loader leave of it, whose waits were timed.
        own: the values that the module's code has by itself, by axis, where they are known.
    """

    def __init__(
        self,
        bench: Bench,
        *,
        bounds: Mapping[str, float] | None = None,
        waits: Mapping[str, float] | None = None,
        own: Mapping[str, Value] | None = None,
    ) -> None:
        self._bench, self._waits, self._own = bench, waits or {}, own or {}
        self._bounds = {**self._waits, **(bounds or {})}
        self._ratios: dict[tuple[str, bool], float] = {}
        """The ratio in each lever's latest screening, with a CUDA graph below it and without."""
        self._errors: dict[str, float] = {}
        """The same ratio over the predicted one."""

    def saw(self, lever: Lever, trial: Trial) -> None:
        """Remembers what a screening saw."""
        if trial.ratio is None:
            return
        self._ratios[_key(lever, trial.base)] = seen = trial.ratio.estimate
        expected = self._bench.tries.expected(trial.base, trial.candidate)
        if expected:
            self._errors[lever.name] = seen / expected

    def saw_worse(self, lever: Lever, base: LeverCase, ratio: float) -> None:
        """Remembers what a lever is worth on a composition that is better without it. What it gained on the
        base had bf16-mixed screened again on bf16 (a default run on two cores)."""
        self._ratios[_key(lever, base)] = ratio
        self._errors.pop(lever.name, None)

    def forget_rivals(self, wrong: Lever) -> None:
        """Forgets what was seen of levers that set what this one sets, whose numbers do not hold: on top of
        it they may have been slower, where they are faster than what is left. int4 in groups of 32 takes
        longer than in groups of 128."""
        rivals = {each.name for axis in axes_of(wrong) for each in axis.levers}
        self._ratios = {key: seen for key, seen in self._ratios.items() if key[0] not in rivals}

    def surely(self, lever: Lever, base: LeverCase, left: float) -> float:
        """Returns the predicted ratio, or else, on a GPU, what rates or stored trials show, though no more
        than a finding leaves; 1 where it would be a guess.

        Args:
            left: the share of the first base's step that this base is expected to take: what a finding said
                of the first is a larger share of a shorter step.
        """
        candidate = pull(lever, base)
        if candidate == base or self._bench.obstacle(lever, base) is not None:
            return 1.0
        expected = self._bench.tries.expected(base, candidate)
        if expected is not None:
            return expected
        if base.device != "cuda":
            return 1.0
        by_rates = self._bench.tries.by_rates(base, candidate)
        if by_rates is not None:
            beside = max(0.0, 1 - (1 - self._beside_products(lever)) / left)
            tells = self._rates_tell(by_rates, lever, base)
            return beside + (1 - beside) * by_rates if tells else 1.0
        beside = 1 - (1 - self._bounds.get(lever.name, 0.0)) / left
        if lever.name in self._waits:
            # A wait for data is seen, and a larger share of each shorter step.
            return max(beside, LEAST_LEFT)
        usual = self._usual(lever, base)
        if usual is None or (_is_ours(lever) and self.waits_for_a_graph(lever, base)):
            return 1.0
        # GPT-2's blocks are predicted to gain little compiled, the whole model is not: it gains no more.
        rivals = (self._bench.tries.expected(base, pull(each, base)) for each in _on_axes_of(lever))
        return max(usual, beside, min((each for each in rivals if each is not None), default=0.0))

    def expected(self, lever: Lever, stack: LeverStack) -> float:
        """Returns the expected ratio on the stack's top: as it is predicted here, with the error that the
        prediction had where the lever was last seen; else as it was seen, at best as a finding about the base
        allows, or as is usual.

        A CPU's steps are not predicted. In the catalogue's order a run of 100 s on two cores tried
        bf16-mixed alone, 29 times slower there, and neither of the two levers that its findings named.
        """
        base = stack.top
        candidate = pull(lever, base)
        if candidate == base or self._bench.obstacle(lever, base) is not None:
            return 1.0
        expected = self._bench.tries.expected(base, candidate)
        if expected is not None:
            return expected * self._errors.get(lever.name, 1.0)
        if (seen := self._seen(lever, base)) is not None:
            return seen
        if is_given(lever, stack.base):
            return self.alone(lever, stack.base)
        if isinstance(base, ModuleCase) and in_one_piece(base) and "compile" in _fields(lever):
            return NOTHING
        rivals = [self.alone(each, stack.base) for each in rivals_of(lever, stack)]
        if not rivals:
            return self._unseen(lever, base)
        by_rates = self._bench.tries.by_rates(base, candidate)
        return max(self.alone(lever, stack.base) / min(rivals), by_rates or 0.0)

    def is_known(self, lever: Lever, stack: LeverStack) -> bool:
        """Whether more is known of the lever than what is usual: what is predicted, by rates, or was seen."""
        base, tries = stack.base, self._bench.tries
        candidate = pull(lever, base)
        return (
            self._seen(lever, stack.top) is not None
            or tries.expected(base, candidate) is not None
            or tries.by_rates(base, candidate) is not None
        )

    def alone(self, lever: Lever, base: LeverCase) -> float:
        """Returns the expected ratio of the lever by itself: what two of one axis are compared by where their
        stack is not predicted."""
        expected = self._bench.tries.expected(base, pull(lever, base))
        return self._unseen(lever, base) if expected is None else expected

    def waits_for_a_graph(self, lever: Lever, base: LeverCase) -> bool:
        """Whether what the lever does would be judged by the host's time: it saves the device's, nothing
        predicts it, and no graph of the step takes the host's away. Attention by our own kernels was 1.4 and
        1.9 times slower on the compiled step of nanoGPT's model (H200), and 1.02 faster once it was in a
        graph."""
        if base.device != "cuda" or base.configuration.cuda_graphs:
            return False
        return _is_of_device(lever) and self._bench.tries.expected(base, pull(lever, base)) is None

    def _rates_tell(self, by_rates: float, lever: Lever, base: LeverCase) -> bool:
        """Whether rates of products are all that is known of any lever of the axis, and are far enough."""
        if lever.name in BY_LAYER:
            return False
        told = (self._bench.tries.expected(base, pull(each, base)) for each in _on_axes_of(lever))
        return by_rates <= TWICE and all(each is None for each in told)

    def _seen(self, lever: Lever, base: LeverCase) -> float | None:
        """Returns the ratio of the latest screening; one of a step that the host may have bound says nothing
        of the step in a graph."""
        with_graph = base.configuration.cuda_graphs
        found = self._ratios.get((lever.name, with_graph))
        if found is not None or (with_graph and _is_of_device(lever)):
            return found
        return self._ratios.get((lever.name, not with_graph))

    def _unseen(self, lever: Lever, base: LeverCase) -> float:
        """Returns the expected ratio of what is neither predicted nor seen: by the rates of matrix products,
        for the share of the step that a finding says is theirs, else as the finding says or as is usual.

        Products are not all of a step. By their rates alone fp16-mixed came before bf16, which was predicted
        to be 8.7 times faster and was (nanoGPT's model, H200).
        """
        by_rates = self._bench.tries.by_rates(base, pull(lever, base))
        if by_rates is not None:
            beside = self._beside_products(lever)
            return beside + (1 - beside) * by_rates
        usual = self._usual(lever, base)
        return self._bounds.get(lever.name, UNKNOWN if usual is None else usual)

    def _beside_products(self, lever: Lever) -> float:
        """Returns what a finding leaves beside the products that a precision makes faster: one that names it,
        or another precision, for the finding about products in fp32 does not name fp8."""
        named = (self._bounds.get(each.name, 0.0) for each in (lever, *_on_axes_of(lever)))
        return max(named)

    def _usual(self, lever: Lever, base: LeverCase) -> float | None:
        """Returns the share of a step that the lever usually leaves: of a step with the default in its place,
        or with another value of which it is known how it usually compares with the default. None where that
        is not known.

        A module's own attention is as it was written, and gains nothing from SDPA where it calls it already.
        minGPT's, which writes it out, was left so for want of this: 34.1 ms, where nanoGPT's same blocks with
        SDPA take 24.4 (H200).
        """
        compiled = base.configuration.compile != "none"
        if compiled and any(
            value in FUSED_BY_COMPILING.get(name, ()) for name, value in lever.sets
        ):
            return NOTHING
        if not compiled and any(name in OF_COMPILED for name, _ in lever.sets):
            return None
        if not _is_usual_of(lever, base):
            return NOTHING
        if lever.usual_speedup is None:
            return None
        known = [self._usual_speedup(axis, self._value(base, axis)) for axis in axes_of(lever)]
        before = [each for each in known if each is not None]
        return prod(before) / lever.usual_speedup if len(before) == len(known) else None

    def _value(self, base: LeverCase, axis: Axis) -> Value:
        """The base's value, for `as-written` the one that its code has."""
        value = _value(base, axis)
        return self._own.get(axis.name, value) if value == "as-written" else value

    @staticmethod
    def _usual_speedup(axis: Axis, value: Value) -> float | None:
        if value == axis.default or value in axis.no_faster:
            return 1.0
        found = (each for each in axis.levers if dict(each.sets)[axis.name] == value)
        return next((each.usual_speedup for each in found), None)


def bounds_of(told: Sequence[Diagnosis]) -> dict[str, float]:
    """Returns for each lever the share of the step's time that its largest finding leaves."""
    bounds: dict[str, float] = {}
    for found in (each for diagnosis in told for each in diagnosis.findings):
        if (left := _left(found)) is None:
            continue
        for gain in found.gains:
            bounds[gain.lever] = min(bounds.get(gain.lever, 1.0), left)
    return bounds


def _left(found: Finding) -> float | None:
    """The share of the step's time that a finding leaves; None where it is about memory, or tells no share.

    Where its levers may take away more than it is about, nothing bounds their gain, and its share is still
    what they are expected to gain: for want of that, runs of 60 and 100 s on a CPU ended without a cache of
    keys and values, which made a step of `tiny` 10.6 times faster.
    """
    if found.bound is not None:
        return 1 / found.bound
    if found.share is None or found.held_back_bytes is not None:
        return None
    return max(1 - found.share, LEAST_LEFT)


def bounds_of_waits(baseline: Measurement) -> dict[str, float]:
    """Returns what the levers of a live step's loader leave of it: what is no wait for a batch.

    These waits are timed with the steps. A live step is not profiled before it is searched, for the profiler
    would stay attached.
    """
    if baseline.loader is None or baseline.summary is None:
        return {}
    waited_s = baseline.loader.wait_s if baseline.loader.idle_s is None else baseline.loader.idle_s
    if not waited_s:
        return {}
    # Where an epoch ends, one wait is as long as many steps.
    share = median(waited_s) / baseline.summary.median_s.estimate
    return dict.fromkeys(loader.NAMES, max(1 - share, LEAST_LEFT))


def own_values(told: Sequence[Diagnosis], graph: OpGraph | None) -> dict[str, Value]:
    """Returns the values that the module's code has by itself, by axis: as its operators tell, or a finding
    that saw attention written out."""
    found = (each.code for diagnosis in told for each in diagnosis.findings)
    seen: dict[str, Value] = {"attention": "naive"} if naive_attention.CODE in found else {}
    return seen if graph is None else seen | catalogue.own_values(graph)


def rivals_of(lever: Lever, stack: LeverStack) -> list[Lever]:
    """Returns the levers of the stack that set what this one sets."""
    return [each for each in stack.apart.levers if sets_alike(lever, each)]


def sets_alike(lever: Lever, other: Lever) -> bool:
    """Whether both set a field."""
    return not _fields(lever).isdisjoint(_fields(other))


def is_given(lever: Lever, base: LeverCase) -> bool:
    """Whether the base has a setting of its own where the lever has one."""
    return any(
        _value(base, axis) not in (axis.default, axis.as_written()) for axis in axes_of(lever)
    )


def axes_of(lever: Lever) -> list[Axis]:
    """The axes that it sets."""
    return [axis for axis in AXES if axis.name in _fields(lever)]


def _on_axes_of(lever: Lever) -> list[Lever]:
    return [each for axis in axes_of(lever) for each in axis.levers]


def _fields(lever: Lever) -> set[str]:
    return {field for field, _ in lever.sets}


def _is_of_device(lever: Lever) -> bool:
    return any(axis.part in PARTS_OF_DEVICE for axis in axes_of(lever))


def _is_ours(lever: Lever) -> bool:
    """Whether a kernel of Peakward's own carries it out."""
    settings = dict(lever.sets)
    return any(settings[axis.name] in axis.own_kernels for axis in axes_of(lever))


def _key(lever: Lever, base: LeverCase) -> tuple[str, bool]:
    return lever.name, base.configuration.cuda_graphs


def _is_usual_of(lever: Lever, base: LeverCase) -> bool:
    source = base.source if isinstance(base, ModuleCase) else ""
    return not lever.usual_of or source.partition(":")[0] in lever.usual_of


def _value(case: LeverCase, axis: Axis) -> Value:
    return case.configuration.settings.get(axis.name, axis.default)
