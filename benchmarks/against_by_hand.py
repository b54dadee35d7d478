"""What `peakward run` finds for a model that it has never seen, against the best settings by hand.

    python benchmarks/against_by_hand.py --subject gpt=py:mine:factory,12x1024,240s --out results/….json

Each subject is a module's source, a workload and a budget. First the search: `pw.run` on the source, as a
user would start it, with nothing but the module handed over. Then the settings that an engineer tries by
hand, in plain torch: eager, blocks or the whole model compiled, with or without CUDA graphs, cuDNN's
attention, bf16 parameters or autocast, always with fused AdamW. The best of them and what was found are then
timed in turns in one process. The time of a search and of every setting stands beside its result.
"""

import argparse
import gc
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import monotonic

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import peakward as pw
from against import interleaved
from against.interleaved import Arm
from peakward.lab.data.feed import micro_batches
from peakward.lab.levers.configured_step import N_BATCHES
from peakward.lab.levers.module_step import main_tensor, scalar
from peakward.lab.levers.prepare import prepare
from peakward.lab.measure import nvml, probe
from peakward.lab.measure.clock import clock_for
from peakward.lab.models import module_source
from peakward.lab.models.given_module import GivenModule, repeated_blocks
from peakward.levers.optimizer import LEARNING_RATE
from peakward.records.case import Configuration, ModuleCase
from peakward.records.lever import Pair
from peakward.records.measurement import Environment, Interval
from peakward.stats.pairs import ratio_interval

N_WARMUP = 4


class Hand(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that an engineer tries."""

    precision: str = "bf16"
    scope: str = "blocks"
    """eager, blocks or model."""
    mode: str = "default"
    cudnn: bool = False

    @property
    def name(self) -> str:
        """For a table."""
        compiled = "eager" if self.scope == "eager" else f"{self.scope} compiled, {self.mode}"
        return f"{self.precision}, {compiled}" + (", cuDNN" if self.cudnn else "")


HANDS = {
    "cuda": (
        Hand(),
        Hand(cudnn=True),
        Hand(scope="model"),
        Hand(scope="model", mode="reduce-overhead"),
        Hand(precision="autocast"),
        Hand(scope="eager"),
    ),
    "cpu": (Hand(precision="fp32", scope="eager"), Hand(precision="fp32")),
}
NAMED = {each.name: each for device in HANDS.values() for each in device}


class TriedHand(msgspec.Struct, frozen=True, kw_only=True):
    """A setting with the time of a step, or why there is none."""

    setting: Hand
    step_s: float | None = None
    start_s: float | None = None
    """Building, compiling and the first steps."""
    reason: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One subject. Ratios are of ours over the best by hand: below 1 ours is faster."""

    name: str
    source: str
    case: ModuleCase
    found: Configuration
    found_levers: tuple[str, ...]
    baseline_s: float | None
    budget_s: float
    search_s: float
    complete: bool
    hands: tuple[TriedHand, ...]
    best_hand: Hand | None = None
    pairs: tuple[Pair, ...] = ()
    ours_s: float | None = None
    hand_s: float | None = None
    time_ratio: Interval | None = None
    losses: tuple[float | None, float | None] | None = None
    """Ours and by hand, after the same number of steps from the same weights on the same tokens."""
    reason: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All subjects of one run."""

    environment: Environment
    arguments: tuple[str, ...]
    outcomes: tuple[Outcome, ...] = ()


class HandStep:
    """A train step in plain torch."""

    def __init__(self, case: ModuleCase, given: GivenModule, setting: Hand) -> None:
        self._given, self._setting, self._device = given, setting, case.device
        self._model = model = given.module.to(case.device)
        self.n_parameters = sum(each.numel() for each in model.parameters())
        if setting.precision == "bf16":
            for each in (*model.parameters(), *(() if given.keeps_buffers else model.buffers())):
                if each.is_floating_point():
                    each.data = each.data.to(torch.bfloat16)
        self._loss_of = _token_loss
        if setting.scope == "blocks":
            for block in repeated_blocks(model) or [model]:
                block.compile(mode=_mode(setting))
            self._loss_of = torch.compile(_token_loss)
        elif setting.scope == "model":
            model.compile(mode=_mode(setting))
            self._loss_of = torch.compile(_token_loss)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        self._batches = None
        if given.vocab_size is not None:
            drawn = micro_batches(case.workload, given.vocab_size, case.device, n_steps=N_BATCHES)
            self._batches = [step[0] for step in drawn]
        self._count, self._last = 0, torch.zeros(())
        model.train()

    def step(self) -> None:
        """Forward, loss, backward, update."""
        if self._setting.mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        self._optimizer.zero_grad(set_to_none=True)
        with self._around():
            loss = self._loss()
        loss.backward()
        self._optimizer.step()
        self._last = loss.detach()

    def loss(self) -> float:
        """Waits for the device."""
        return float(self._last)

    def _around(self) -> AbstractContextManager[None]:
        if self._setting.precision != "autocast":
            return nullcontext()
        return torch.autocast(self._device, dtype=torch.bfloat16)

    def _loss(self) -> Tensor:
        given = self._given
        if self._batches is None:
            output = self._model(*given.args, **given.kwargs)
            return scalar(output if given.loss is None else given.loss(output))
        ids, targets = self._batches[self._count % len(self._batches)]
        self._count += 1
        return self._loss_of(main_tensor(self._model(ids, **given.kwargs)), targets)


def _mode(setting: Hand) -> str | None:
    return None if setting.mode == "default" else setting.mode


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@contextmanager
def by_hand(case: ModuleCase, setting: Hand) -> Iterator[Arm]:
    """The step, built as the source builds the module."""
    only = sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if setting.cudnn else nullcontext()
    with only:
        yield HandStep(case, module_source.build(case), setting)


def release() -> None:
    """Gives back what closed arms held."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def tried(case: ModuleCase, setting: Hand) -> TriedHand:
    """The setting alone on the device."""
    release()
    started = monotonic()
    try:
        with by_hand(case, setting) as arm:
            for _ in range(N_WARMUP):
                arm.step()
            arm.loss()
            start_s = monotonic() - started
            turns = [_turn("solo", arm, case) for _ in range(2)]
    except Exception as error:  # noqa: BLE001  a compiler, a kernel or the module may refuse
        said = str(error).strip().splitlines() or [type(error).__name__]
        return TriedHand(setting=setting, reason=said[0][:200])
    return TriedHand(setting=setting, step_s=min(turns), start_s=start_s)


def _turn(name: str, arm: Arm, case: ModuleCase, turn_s: float = 0.5) -> float:
    gpu = nvml.visible_gpu() if case.device == "cuda" else None
    return interleaved.run_turn(name, arm, clock_for(case.device), gpu, turn_s=turn_s).median_s


def subject(text: str, hands: tuple[Hand, ...], n_pairs: int) -> Outcome:
    """One of them: searched, tried by hand, in turns."""
    name, _, rest = text.partition("=")
    source, size, budget = rest.rsplit(",", 2)
    batch_size, seq_len = map(int, size.split("x"))
    case = pw.module_case(source, batch_size=batch_size, seq_len=seq_len)
    budget_s = float(budget.removesuffix("s"))
    started = monotonic()
    study = pw.run(case, budget_s=budget_s, db=f"{name}.db")
    search_s = monotonic() - started
    trials = {each.id: each for each in study.trials}
    steps = [trials[each] for each in study.steps or ()]
    found = steps[-1].candidate if steps else case
    assert isinstance(found, ModuleCase)
    outcome = Outcome(
        name=name,
        source=source,
        case=case,
        found=found.configuration,
        found_levers=tuple(each.lever for each in steps),
        baseline_s=next(
            (each.summary.median_s.estimate for each in study.measurements if each.summary), None
        ),
        budget_s=budget_s,
        search_s=search_s,
        complete=study.complete,
        hands=tuple(tried(case, each) for each in hands or HANDS[case.device]),
    )
    ran = [each for each in outcome.hands if each.step_s is not None]
    if not ran:
        return msgspec.structs.replace(outcome, reason="no setting by hand ran")
    best = min(ran, key=lambda each: each.step_s).setting
    return msgspec.structs.replace(outcome, **_in_turns(case, found, best, n_pairs))


def _in_turns(case: ModuleCase, found: ModuleCase, best: Hand, n_pairs: int) -> dict[str, object]:
    """Both resident in this process, A B B A."""
    release()
    with by_hand(case, best) as theirs, prepare(found) as ours:
        arms: dict[str, Arm] = {"A": theirs, "B": ours}
        for arm in arms.values():
            for _ in range(N_WARMUP):
                arm.step()
        losses = ours.loss(), theirs.loss()
        turns = [
            interleaved.Turn(
                arm=each, n_steps=0, median_s=_turn(each, arms[each], case), telemetry=None
            )
            for each in interleaved.order(n_pairs)
        ]
    pairs = interleaved.pairs_of(turns, base="A")
    return {
        "best_hand": best,
        "pairs": pairs,
        "hand_s": median(each.base_s for each in pairs),
        "ours_s": median(each.candidate_s for each in pairs),
        "time_ratio": ratio_interval(pairs),
        "losses": losses,
    }


def line(outcome: Outcome) -> str:
    """For the terminal."""
    if outcome.time_ratio is None:
        return f"{outcome.name}: {outcome.reason}"
    ratio = outcome.time_ratio
    assert outcome.ours_s is not None
    assert outcome.hand_s is not None
    assert outcome.best_hand is not None
    return (
        f"{outcome.name}: found {1e3 * outcome.ours_s:.2f} ms "
        f"({' + '.join(outcome.found_levers) or 'nothing'}) in {outcome.search_s:.0f} s, by hand "
        f"{1e3 * outcome.hand_s:.2f} ms ({outcome.best_hand.name}): {1 / ratio.estimate:.3f}× "
        f"({1 / ratio.high:.3f}–{1 / ratio.low:.3f}), losses {outcome.losses}"
    )


def main(arguments: list[str] | None = None) -> None:
    """Writes the report after every subject."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subject", action="append", required=True, help="NAME=SOURCE,BxS,Ns")
    parser.add_argument("--hand", action="append", choices=list(NAMED), help="default: all")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    out = str(options.out)
    report = Report(
        environment=probe.environment(probe.default_device()),
        arguments=tuple(options.out.name if each == out else each for each in sys.argv[1:]),
    )
    hands = tuple(NAMED[each] for each in options.hand or ())
    for each in options.subject:
        outcome = subject(each, hands, options.pairs)
        print(line(outcome), flush=True)
        report = msgspec.structs.replace(report, outcomes=(*report.outcomes, outcome))
        if options.out is not None:
            encoded = msgspec.json.encode(report, enc_hook=str)
            options.out.write_bytes(msgspec.json.format(encoded, indent=1))


if __name__ == "__main__":
    main()
