"""Certifies levers that are at work in a live model, on the user's own batch.

The loss and the gradient of each parameter are held to what the model computes without the levers; the
oracle is a copy of the model in fp64. One update is held to what the optimizer makes, in fp64, of the
gradients that were there: AdamW's first steps turn by the sign of a gradient near zero, which is rounding.
All is compared without dropout, in eval mode; with dropout, means of losses over several draws are then
compared.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from peakward.lab.levers import precision as casts
from peakward.lab.levers.fp8_layers import choose_at_first_call, rounded_by_torch
from peakward.lab.levers.in_place import Applied, Live
from peakward.lab.levers.module_step import place, widened
from peakward.lab.levers.whole_step import WholeStep
from peakward.lab.levers.whole_step import copied as copied_batch
from peakward.lab.models.copies import copied
from peakward.lab.numerics import windows
from peakward.lab.numerics.beside import beside
from peakward.lab.numerics.judge import LOSS_ROUNDOFF, UNIT_ROUNDOFF, in_double
from peakward.lab.numerics.of_module import InDouble
from peakward.lab.numerics.of_step import MOST_T, N_DRAWS, paired_t, random_states
from peakward.lab.rewriting.rewriting import left_as_it_is
from peakward.levers.precision import fp32_matmuls
from peakward.records.case import AS_WRITTEN, Configuration, Precision
from peakward.records.errors import PeakwardError
from peakward.records.lever import NumericsClass, NumericsError, NumericsVerdict

Arm = Callable[[], AbstractContextManager[Callable[[], Tensor]]]
"""Puts a form of the step in place, and gives a call of it; on leaving, the user's state is as before."""
N_PERTURBED = 2
"""Runs of the unmodified model with other last bits, beside the one without."""
N_NEIGHBOURS = 8
"""Models beside the user's at which the plain cast errs too, before a lever of precision is refused."""
FIRST_NEIGHBOURS = 2
FAR = 16
"""Behind the first ones an error of more than so many times the bound is refused at once. All eight raised a
cast's errors by at most 13 times (gpt_oss, of 125 tiny models), and each takes two steps of the model."""
OF_ROUNDING = 2
"""How many times as much is allowed of what errs by more than itself without the lever. A key's bias has no
gradient in exact arithmetic, as softmax ignores what all scores have more; what is left depends on how scores
are rounded. With transformers' own sdpa 6 of 99 tiny models were beyond the bound of eager attention there,
by up to 1.7 times."""
Quantity = tuple[str, str | None]
"""A quantity's name, with the parameter's where it is one parameter's."""
LOSS: Quantity = ("loss", None)
FORMS = ("foreach", "fused", "capturable")
"""Flags of torch's optimizers that choose how the same update is carried out."""
RESULTS: dict[Precision, Precision] = {"fp8": "bf16-mixed"}
OTHER_LOSS = 2.0**-4
"""The root of bf16's unit roundoff: a loss in fp64 that is further from the model's own is of something else,
as of a loss function that holds the live model's weights."""


class Update(NamedTuple):
    """One parameter's update, over all elements."""

    apart: float
    """The norm of its difference from the update in fp64."""
    size: float
    """The norm of the update in fp64."""
    parameter: float
    """The norm of the parameter before it."""
    roundoff: float
    """The unit roundoff of the parameter's type."""


class Numbers(NamedTuple):
    """The results of one step."""

    values: dict[Quantity, Tensor]
    """In host memory."""
    updates: dict[str, Update]


class Reference(NamedTuple):
    """The values to compare with, and the errors of the model without levers."""

    values: dict[Quantity, Tensor]
    noise: dict[Quantity, float]
    """Norms of the differences from the values; the largest where there are several models."""
    updates: dict[str, Update]
    remark: str | None
    """Why there is no oracle in fp64, where there is none."""
    n_neighbours: int = 0
    """Models beside the user's whose errors are among these."""


class Certifier:
    """Judges configurations of one live model on one batch.

    Bounds, in norms over a tensor of n elements:

    - Levers that leave the precision alone: 2 · (1 + 4/√n) times the model's own error, the root mean
      square over three runs. In two of them each parameter is multiplied by 1 + ε·r with a random r of
      [-1, 1], ε being the distance from 1 to the next number of its type: rounding then falls otherwise,
      as in a sum of another order, whatever the batch and the loss are.
    - Levers of precision: as often the error of the plain cast to that type. Under fp8 that is bf16 with
      what the chosen layers multiply rounded to fp8 by torch's own operators (`fp8_linear.reference`);
      delayed scales are those after a step of other magnitudes (`windows`). Where that is exceeded, as
      often the largest that the cast makes there and at up to eight models beside (`beside`, by the type's
      spacing; two where the bound is exceeded by far), each held to its own run without the cast.
    - The update: twice that of one run without levers, and no less than roundings of the parameter.

    One run of a cast may err by luck. A rectifier's derivative jumps, and few units that rounding turns make
    most of an error (a tiny OPT: 2 of 6,144 in one run, 8 in another, whose gradients err by 1.8% and 5.0%);
    where a scalar stands between, all elements of a gradient err by one factor (DiffLlama's λ). The plain
    cast at one model beside exceeded the bound of one run in 4 of 20 seeds of OPT and in 3 of DiffLlama; with
    GELU in none, and there the largest is 1.05 times the one.

    The class promises twice the error. The norm of n independent errors spreads by 1/√(2n) of itself, of
    which 4/√n is more than five, so that a gradient of few elements does not fail by luck. No bound is
    below one rounding of the value itself; of the loss, below the roundings of a cross-entropy. What errs by
    more than itself without levers is allowed `OF_ROUNDING` times as much.
    """

    def __init__(self, live: Live, loss: Callable[..., Tensor] | None, batch: Any, base: Arm):
        self._live, self._loss, self._batch, self._base = live, loss, batch, base
        self._references: dict[Precision | None, Reference] = {}
        self._oracle: dict[Quantity, Tensor] | None = None
        self._why: str | None = None

    def judged(
        self,
        candidate: Arm,
        configuration: Configuration,
        base: Configuration,
        declared: NumericsClass,
    ) -> NumericsVerdict:
        """Whether the step of `candidate`, which is under the configuration, computes what it must."""
        kind = configuration.precision if configuration.precision != base.precision else None
        reference = self._reference(kind)
        spread = reference.noise[LOSS] / max(float(reference.values[LOSS].abs()), 1e-30)
        if not spread <= math.sqrt(UNIT_ROUNDOFF[kind or base.precision]):
            return NumericsVerdict(
                declared=declared,
                verdict="not computed",
                reason=f"without the levers the model gives losses that differ by {spread:.1g} from one "
                "state, so that nothing can be compared",
            )
        with candidate() as step:
            if configuration.precision == "fp8":
                self._fill_windows()
            found = numbers(self._live, step)
        # Of the results, which fp8's products are given in.
        roundoff = UNIT_ROUNDOFF[RESULTS.get(configuration.precision, configuration.precision)]
        errors = _errors(found, reference, roundoff)
        if kind is not None:
            while _may_hold_beside(errors, reference.n_neighbours):
                reference = self._with_neighbour(kind, reference)
                errors = _errors(found, reference, roundoff)
        broken = [each for each in errors if each.is_broken]
        if broken:
            reason = _worst(broken)
            return NumericsVerdict(
                declared=declared, verdict="violated", reason=reason, errors=errors
            )
        verdict = NumericsVerdict(
            declared=declared, verdict="holds", reason=reference.remark, errors=errors
        )
        return self._with_dropout(verdict, candidate)

    def _fill_windows(self) -> None:
        """By a step without the optimizer, whose state a captured step has yet to set up."""
        model = self._live.model
        model.eval()
        step = WholeStep(Live(model=model), self._loss)
        windows.fill(model, partial(left_as_it_is, model), lambda: step(copied_batch(self._batch)))

    def _with_dropout(self, verdict: NumericsVerdict, candidate: Arm) -> NumericsVerdict:
        """The verdict, held to means of losses where the model draws in the mode that it is in."""
        if not self._draws():
            return verdict
        base, changed = (_losses(arm) for arm in (self._base, candidate))
        loss = next(each for each in verdict.errors if each.quantity == "loss")
        assert loss.bound is not None  # What is not finite is broken, and came this far by no way.
        t = abs(paired_t(base, changed, allowed=loss.bound * abs(base[0])))
        if t > MOST_T:
            reason = f"with dropout: means of {N_DRAWS} losses differ by {t:.1f} standard errors"
            return msgspec.structs.replace(verdict, verdict="violated", reason=reason)
        return verdict

    def _draws(self) -> bool:
        if not any(each.training for each in self._live.model.modules()):
            return False
        with self._base() as step:
            before = random_states()
            step()
            return any(not torch.equal(*each) for each in zip(before, random_states(), strict=True))

    def _reference(self, kind: Precision | None) -> Reference:
        if kind not in self._references:
            own = self._run(self._base)
            if self._oracle is None and self._why is None:
                self._oracle, self._why = self._in_double(own.values)
            # The model's own run tells a cast's error too: its own is far smaller.
            values = own.values if self._oracle is None else self._oracle
            if kind is not None:
                own = self._run(lambda: self._cast(kind))
                samples = [own.values]
            else:
                others = [self._run_beside(seed) for seed in range(N_PERTURBED)]
                samples = others if self._oracle is None else [own.values, *others]
            self._references[kind] = Reference(
                values, _noise(values, samples), own.updates, self._why
            )
        return self._references[kind]

    def _with_neighbour(self, kind: Precision, reference: Reference) -> Reference:
        """The reference with the plain cast's errors at one model more. That model's own run is the measure
        there, whose error is far smaller than a cast's."""
        seed = reference.n_neighbours
        with beside(self._live.model, seed, UNIT_ROUNDOFF[kind]):
            own = self._run(self._base).values
            there = _noise(own, [self._run(lambda: self._cast(kind)).values])
        found = reference._replace(
            noise={each: max(held, there[each]) for each, held in reference.noise.items()},
            n_neighbours=seed + 1,
        )
        self._references[kind] = found
        return found

    def _run(self, arm: Arm) -> Numbers:
        with arm() as step:
            return numbers(self._live, step)

    def _run_beside(self, seed: int) -> dict[Quantity, Tensor]:
        with beside(self._live.model, seed):
            return self._run(self._base).values

    @contextmanager
    def _cast(self, kind: Precision) -> Iterator[Callable[[], Tensor]]:
        """The unmodified model in a precision, as one would write it."""
        if kind == "bf16":
            applied = Applied(self._live, msgspec.structs.replace(AS_WRITTEN, precision=kind))
            try:
                with self._base() as step:
                    yield step
            finally:
                applied.undo()
            return
        with (
            fp32_matmuls(kind),
            self._base() as step,
            casts.autocast(kind, self._live.device),
            _rounded_layers(self._live.model) if kind == "fp8" else nullcontext(),
        ):
            yield step

    def _in_double(
        self, own: dict[Quantity, Tensor]
    ) -> tuple[dict[Quantity, Tensor] | None, str | None]:
        """The oracle, or why there is none: it does not run, or computes another loss than `own`."""
        try:
            model = copied(self._live.model)
            place(model, self._live.device, torch.float64, keeps_buffers=False)
            batch = tree_map_only(Tensor, widened, self._batch)
            live = Live(model=model)
            step = WholeStep(live, self._loss)
            with self._base(), fp32_matmuls("fp32"), InDouble():  # For the random states.
                found = numbers(live, lambda: step(batch)).values
            apart = _apart(own[LOSS], found[LOSS]) / max(float(found[LOSS].abs()), 1e-30)
            if apart > OTHER_LOSS:
                raise PeakwardError(f"expected the same loss, got one that differs by {apart:.1g}")
            return found, None
        except Exception as error:  # noqa: BLE001  a user's code may raise anything
            said = " ".join(str(error).split())[:150]
            return None, (
                "against the model's own run and others with other last bits, because it does not run in "
                f"fp64 here: {type(error).__name__}: {said}"
            )


@contextmanager
def _rounded_layers(model: nn.Module) -> Iterator[None]:
    """The layers that fp8 chooses, with its roundings and without its kernels."""
    undo = choose_at_first_call(model, trains=True, linear=rounded_by_torch)
    try:
        yield
    finally:
        undo()


def numbers(live: Live, step: Callable[[], Tensor]) -> Numbers:
    """Take one step in eval mode."""
    live.model.eval()
    named = {name: each for name, each in live.model.named_parameters() if each.requires_grad}
    twin = None if live.optimizer is None else _Twin(live.optimizer, named)
    found = {LOSS: _on_host(step())}
    for name, each in named.items():
        if each.grad is not None:
            found["gradients", name] = _on_host(each.grad)
    return Numbers(found, {} if twin is None else twin.updates(named))


class _Twin:
    """An optimizer in fp64 on the host, with the plain form of its update, beside one that steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter]) -> None:
        self._before = {name: nn.Parameter(widened(_on_host(each))) for name, each in named.items()}
        memo: dict[int, Any] = {id(each): self._before[name] for name, each in named.items()}
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    # A count of steps has no dimensions.
                    memo[id(value)] = widened(_on_host(value)) if value.dim() else _on_host(value)
        self._optimizer = copy.deepcopy(optimizer, memo)
        for group in self._optimizer.param_groups:
            group.update({flag: False for flag in FORMS if flag in group})

    def updates(self, named: dict[str, nn.Parameter]) -> dict[str, Update]:
        """Makes the update of the gradients that the parameters hold, and compares."""
        start = {name: each.detach().clone() for name, each in self._before.items()}
        for name, each in named.items():
            self._before[name].grad = None if each.grad is None else widened(_on_host(each.grad))
        self._optimizer.step()
        found = {}
        for name, each in named.items():
            after = self._before[name].detach()
            found[name] = Update(
                apart=float((widened(_on_host(each)) - after).norm()),
                size=float((after - start[name]).norm()),
                parameter=float(start[name].norm()),
                roundoff=torch.finfo(each.dtype).eps / 2,
            )
        return found


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _several(n: int) -> float:
    """How often the error of a tensor of n elements is allowed."""
    return 2 * (1 + 4 / math.sqrt(max(n, 1)))


def _noise(
    values: dict[Quantity, Tensor], samples: list[dict[Quantity, Tensor]]
) -> dict[Quantity, float]:
    return {
        each: math.sqrt(
            sum(_apart(sample.get(each), value) ** 2 for sample in samples) / len(samples)
        )
        for each, value in values.items()
    }


def _apart(found: Tensor | None, value: Tensor) -> float:
    if found is None or found.shape != value.shape:
        return math.inf
    return float((in_double(found) - in_double(value)).norm())


def _errors(found: Numbers, reference: Reference, roundoff: float) -> tuple[NumericsError, ...]:
    return (
        *(_error(each, reference, found.values.get(each), roundoff) for each in reference.values),
        *(
            _error_of_update(name, theirs, found.updates.get(name))
            for name, theirs in reference.updates.items()
        ),
    )


def _may_hold_beside(errors: tuple[NumericsError, ...], n_neighbours: int) -> bool:
    """Whether something is broken, and another error of the cast may excuse all that is."""
    broken = [each for each in errors if each.is_broken]
    if not broken or n_neighbours == N_NEIGHBOURS:
        return False
    far = math.inf if n_neighbours < FIRST_NEIGHBOURS else FAR
    return all(
        each.quantity != "updates"
        and each.candidate_error is not None
        and each.share_of_bound <= far
        for each in broken
    )


def _error(
    each: Quantity, reference: Reference, found: Tensor | None, roundoff: float
) -> NumericsError:
    quantity, parameter = each
    value = reference.values[each]
    size = float(in_double(value).norm())
    least = size * (max(roundoff, LOSS_ROUNDOFF) if quantity == "loss" else roundoff)
    noise = reference.noise[each]
    # What errs by more than itself is rounding alone.
    often = _several(value.numel()) * (OF_ROUNDING if noise > size else 1)
    bound = max(often * noise, least)
    scale = size or 1.0
    return NumericsError(
        quantity=quantity,  # type: ignore[arg-type]
        parameter=parameter,
        candidate_error=_apart(found, value) / scale,
        base_error=noise / scale,
        bound=bound / scale,
    )


def _error_of_update(name: str, theirs: Update, found: Update | None) -> NumericsError:
    """Beside the error without levers stand roundings of the parameter, and four of the update."""
    if found is None:
        found = theirs._replace(apart=math.inf)
    least = found.roundoff * (found.parameter + 4 * found.size)
    bound = max(2 * theirs.apart, least)
    scale = found.size or 1.0
    return NumericsError(
        quantity="updates",
        parameter=name,
        candidate_error=found.apart / scale,
        base_error=theirs.apart / scale,
        bound=bound / scale,
    )


def _told(error: float | None) -> str:
    return "not finite" if error is None else f"{error:.2g}"


def _worst(broken: list[NumericsError]) -> str:
    worst = max(broken, key=lambda each: each.share_of_bound)
    whose = "" if worst.parameter is None else f" of {worst.parameter}"
    more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
    return (
        f"{worst.quantity}{whose}: error {_told(worst.candidate_error)}, at most {_told(worst.bound)} is "
        f"allowed{more}"
    )


def _losses(arm: Arm) -> list[float]:
    """The losses of some steps, each after its own seed."""
    found = []
    with arm() as step:
        for seed in range(N_DRAWS):
            torch.manual_seed(seed)
            found.append(float(step()))
    return found
