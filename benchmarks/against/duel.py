"""One size, workload and pass: the peer's settings tried, both arms checked, the best against ours."""

import functools
import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from statistics import median
from time import monotonic
from typing import NamedTuple

import msgspec
import torch

from against import interleaved
from against.interleaved import Arm, Builder, Turn
from against.outcome import Guard, Outcome, Solo, TriedSetting, first_line, part_name
from against.peer import PRECISIONS, Setting, peer
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.prepare import prepare
from peakward.lab.measure import nvml
from peakward.lab.measure.clock import clock_for
from peakward.lab.models.transformers_weights import decoder_state
from peakward.prediction.flops import step_flops
from peakward.prediction.parameters import n_parameters
from peakward.records.case import Configuration, DeviceType, ModelCase, Precision, Workload
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape
from peakward.stats.pairs import ratio_interval

GIB = 2**30
N_WARMUP = 4
SEARCH_SHARE = 0.55
"""Of a part's time, for the peer's settings; the rest is for ours and for the turns."""
SPARE_BYTES = 4 * GIB
"""Left free beside both arms: library workspaces, and what fragmentation takes."""
GUARD_RELATIVE = {"fp32": 1e-5, "tf32": 1e-2, "bf16-mixed": 1e-2, "bf16": 1e-2, "fp8": 1e-2}
"""How far the two losses may lie apart on equal weights: some roundings of a mean near ln(vocab)."""


class Effort(NamedTuple):
    """What a part may take."""

    n_pairs: int
    turn_s: float
    deadline_s: float
    """By `monotonic`."""


def release() -> None:
    """Give back what closed arms held: compiled code, graphs, cached blocks."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peer_case(case: ModelCase) -> ModelCase:
    """The peer's: in ours' precision, or where it has none, as of fp8, in bf16, its fastest."""
    if case.configuration.precision in PRECISIONS:
        return case
    configuration = msgspec.structs.replace(case.configuration, precision="bf16")
    return msgspec.structs.replace(case, configuration=configuration)


def synchronise(device: DeviceType) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def guard(case: ModelCase, recipe: str | None) -> Guard:
    """Both losses on equal weights: in fp32, in the peer's precision, and where the peer goes by a recipe of
    float8, with that beside ours as it runs.

    Raises:
        PeakwardError: they differ, so that a comparison of speed would mean nothing.
    """
    shape = msgspec.structs.replace(case.model, n_layers=min(2, case.model.n_layers))
    peers: list[tuple[Precision, str | None]] = [
        ("fp32", None),
        (peer_case(case).configuration.precision, None),
    ]
    if recipe is not None:
        peers.append((case.configuration.precision, recipe))
    losses = {}
    for precision, float8 in peers:
        name = precision if float8 is None else f"float8 {float8}"
        ours, theirs = losses_on_equal_weights(shape, precision, float8, case.device)
        losses[name] = ours, theirs
        if not abs(ours - theirs) <= GUARD_RELATIVE[precision] * theirs:
            raise PeakwardError(
                f"expected equal losses on equal weights in {name}, got ours {ours} and "
                f"transformers' {theirs}: the two do not compute the same"
            )
    return Guard(losses=losses)


@functools.cache
def losses_on_equal_weights(
    shape: ModelShape, precision: Precision, recipe: str | None, device: DeviceType
) -> tuple[float, float]:
    """Ours in a precision and theirs, perhaps by a recipe of float8, of one eager step over the same 2 × 128
    tokens.

    Matrices are scaled to a deviation of 1/√d_model, so that every part of the model moves the
    loss: at 0.02 and a small width the scores are near 0, and attention the same whatever they are.
    """
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=2, seq_len=128, pass_="forward_backward"),
        configuration=Configuration(precision=precision, attention="sdpa"),
        device=device,
    )
    setting = Setting(attention="sdpa", scope="eager", float8=recipe)
    with peer(peer_case(case), setting) as theirs, prepare(case) as ours:
        assert isinstance(ours, ModelStep)
        for parameter in theirs.model.parameters():
            if parameter.dim() == 2:
                parameter.data.mul_(50 / math.sqrt(shape.d_model))
        ours.model.load_state_dict(decoder_state(theirs.model.state_dict(), shape))
        theirs.step()
        ours.step()
        losses = ours.loss(), theirs.loss()
    release()
    assert losses[0] is not None and losses[1] is not None
    return losses[0], losses[1]


class Duel:
    """One size, workload and pass, against the best of the peer's settings."""

    def __init__(self, case: ModelCase, settings: Sequence[Setting], effort: Effort) -> None:
        """
        Args:
            settings: all in float8, or none.
        """
        self.case, self.settings, self.effort = case, settings, effort
        self.clock = clock_for(case.device)
        self.gpu = nvml.visible_gpu() if case.device == "cuda" else None

    def ours(self) -> AbstractContextManager[Arm]:
        """Our arm, built."""
        return prepare(self.case)

    def theirs(self, setting: Setting) -> Builder:
        """The peer under a setting, to be built."""
        return lambda: peer(peer_case(self.case), setting)

    def warm_up(self, arm: Arm) -> None:
        """Compile and capture; refuse an arm that computes no number."""
        for _ in range(N_WARMUP):
            arm.step()
        synchronise(self.case.device)
        loss = arm.loss()
        if loss is not None and not 0 < loss < 100:
            raise PeakwardError(f"expected a loss near the logarithm of the vocabulary, got {loss}")

    def solo(self, build: Builder) -> Solo:
        """An arm alone on the device: what it takes to start, its step time, its peak memory."""
        release()
        started = monotonic()
        with build() as arm:
            if arm.n_parameters != n_parameters(self.case.model):
                raise PeakwardError(
                    f"expected {n_parameters(self.case.model)} parameters, got {arm.n_parameters}"
                )
            self.warm_up(arm)
            start_s = monotonic() - started
            turns = [self.turn("solo", arm) for _ in range(2)]
            cuda = self.case.device == "cuda"
            return Solo(
                step_s=median(turn.median_s for turn in turns),
                start_s=start_s,
                peak_allocated_bytes=torch.cuda.max_memory_allocated() if cuda else None,
                peak_reserved_bytes=torch.cuda.max_memory_reserved() if cuda else None,
            )

    def turn(self, name: str, arm: Arm) -> Turn:
        """One turn of the arm."""
        return interleaved.run_turn(name, arm, self.clock, self.gpu, turn_s=self.effort.turn_s)

    def try_settings(self) -> Iterator[TriedSetting]:
        """The peer under each setting, while half of this part's time is left."""
        started, latest_s = monotonic(), 0.0
        search_s = SEARCH_SHARE * (self.effort.deadline_s - started)
        for i, setting in enumerate(self.settings):
            spent_s = monotonic() - started
            if i and spent_s + latest_s > search_s:
                yield TriedSetting(setting=setting, reason="not tried: no time left")
                continue
            try:
                yield TriedSetting(setting=setting, solo=self.solo(self.theirs(setting)))
            except Exception as error:  # noqa: BLE001  A peer and its compiler may raise anything.
                yield TriedSetting(setting=setting, reason=first_line(error))
            latest_s = monotonic() - started - spent_s

    def run(self) -> Outcome:
        """All of it.

        Raises:
            PeakwardError: the guard, or no setting of the peer ran.
            RuntimeError: ours did not run.
        """
        tried = tuple(self.try_settings())
        ran = [each for each in tried if each.solo is not None]
        if not ran:
            raise PeakwardError(f"expected a setting that runs, got {tried}")
        best = min(ran, key=lambda each: each.solo.step_s)
        checked = guard(self.case, best.setting.float8)
        ours = self.solo(self.ours)
        release()
        turns, resident = self.interleave(best, ours)
        release()
        pairs = interleaved.pairs_of(turns, base="A")
        return Outcome(
            name=part_name(self.case),
            case=self.case,
            flops_per_step=step_flops(self.case),
            guard=checked,
            peer_settings=tried,
            peer=best.setting,
            peer_precision=peer_case(self.case).configuration.precision,
            peer_solo=best.solo,
            ours_solo=ours,
            resident=resident,
            turns=tuple(turns),
            pairs=pairs,
            time_ratio=ratio_interval(pairs),
        )

    def interleave(self, best: TriedSetting, ours: Solo) -> tuple[list[Turn], str]:
        """The turns, and whether both arms were resident."""
        arms = {"A": self.theirs(best.setting), "B": self.ours}
        if self.both_fit(best.solo, ours):
            with interleaved.both_resident(arms) as take:
                for name in arms:
                    self.warm_up(take(name))
                order = interleaved.order(self.effort.n_pairs)
                return [self.turn(name, take(name)) for name in order], "both"
        with interleaved.one_resident(arms, self.warm_up, release) as take:
            order = interleaved.order(max(2, self.effort.n_pairs // 2))
            return [self.turn(name, take(name)) for name in order], "one at a time"

    def both_fit(self, theirs: Solo, ours: Solo) -> bool:
        """Whether the reserved peaks of both leave something free."""
        if self.case.device == "cpu":
            return True
        free, _ = torch.cuda.mem_get_info()
        return theirs.peak_reserved_bytes + ours.peak_reserved_bytes + SPARE_BYTES < free
