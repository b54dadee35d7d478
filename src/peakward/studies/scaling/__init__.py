"""Study `scaling`: which size for a training budget, for a life of serving, and with experts.

It is arithmetic on published fits, catalogued shapes and datasheets: nothing is measured, and no torch
is needed. Its rows are the same in every scope.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from peakward.hardware.devices import device
from peakward.models.scaling_fits import (
    CHINCHILLA_PARAMETERS,
    HOFFMANN_UNROUNDED,
    OTHER_APPROACHES_PARAMETERS,
    SCALING_FITS,
    scaling_fit,
)
from peakward.prediction.scaling_laws import (
    SERVING_FLOPS,
    bill,
    break_even_tokens,
    compute_optimal,
    least_parameters,
    lifetime_bill,
    lifetime_optimal,
    relative_price,
    trained_to,
    twenty_tokens_a_parameter,
)
from peakward.records.device import Device
from peakward.records.plan import LifetimePlan, ScalingFit, Tariff, TrainingPlan
from peakward.records.study import Conclusion
from peakward.report.format import format_cell
from peakward.studies.claims import Sentence, least, listed
from peakward.studies.engine import Study, View
from peakward.studies.power_law import exponent
from peakward.studies.scaling import experts
from peakward.studies.values import Value, given, groups, label, plot, table

CHINCHILLA_FLOPS = 5.76e23
"""Gopher's budget, with which Chinchilla was trained: Hoffmann et al. (2022)."""
BUDGETS_FLOPS = tuple(sorted((*(10.0**exponent for exponent in range(18, 26)), CHINCHILLA_FLOPS)))
DEVICES = tuple(map(device, ("h100-sxm-80", "a100-sxm-80")))
COMPUTE_TYPE = "bf16"
RULES: tuple[tuple[Callable[[float, ScalingFit], TrainingPlan], ScalingFit], ...] = (
    *((compute_optimal, fit) for fit in SCALING_FITS),
    (twenty_tokens_a_parameter, SCALING_FITS[0]),
)
"""Each fit's optimum; then the rule of thumb, whose loss the first fit gives."""
LIFE_FLOPS = 1e23
"""The budget of a life's compute-optimal model, of 14 to 30 billion parameters. Its loss is what every
other model must reach."""
SERVED_TOKENS = tuple(10.0**exponent for exponent in range(9, 14))
TRAINING_MFU = 0.4
"""Assumed, and said beside every device-hour."""
SERVING_MFUS = (0.4, 0.1)
"""Assumed: the training's own, and a quarter of it, for decoding is bound by memory."""
SIZES = (1.0, 0.75, 0.5, 0.25)
"""Shares of the compute-optimal model's parameters."""
TRAINING_AT = format_cell(TRAINING_MFU, "share")


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """A budget as one rule splits it."""

    budget_flops: float
    training: TrainingPlan
    is_optimum: bool
    """Whether the rule is the optimum of its fit; a rule of thumb is none."""

    def hours(self, on: Device) -> float:
        """Device-hours of the budget on one device."""
        return bill(self.budget_flops, tariff(TRAINING_MFU, on)).device_hours


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest model of a loss over its life, beside the compute-optimal one of that loss."""

    fit: ScalingFit
    serving_mfu: float
    plan: LifetimePlan
    optimum: TrainingPlan

    @property
    def training(self) -> TrainingPlan:
        """The cheapest model and the tokens that it is trained on."""
        return self.plan.training

    @property
    def hours(self) -> float:
        """Device-hours of training and serving."""
        tariffs = {"training": tariff(TRAINING_MFU), "serving": tariff(self.serving_mfu)}
        return lifetime_bill(self.plan, **tariffs).device_hours

    @property
    def optimum_hours(self) -> float:
        """Device-hours of training the compute-optimal model and of serving as many tokens with it."""
        trained = bill(self.optimum.training_flops, tariff(TRAINING_MFU))
        serving_flops = SERVING_FLOPS * self.optimum.n_parameters * self.plan.served_tokens
        return trained.device_hours + bill(serving_flops, tariff(self.serving_mfu)).device_hours

    @property
    def saved(self) -> float:
        """Share of the compute-optimal model's device-hours."""
        return 1 - self.hours / self.optimum_hours


class Overtrained(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the compute-optimal size, trained to the same loss."""

    fit: ScalingFit
    size: float
    n_parameters: float
    optimum: TrainingPlan
    training: TrainingPlan | None
    """None where no data bring so few parameters to the loss."""

    @property
    def tokens(self) -> float | str:
        """The tokens of the plan."""
        return "out of reach" if self.training is None else self.training.n_tokens

    @property
    def tokens_per_parameter(self) -> float | None:
        """The plan's."""
        return None if self.training is None else self.training.tokens_per_parameter

    @property
    def flops(self) -> float | None:
        """Training FLOPs over the optimum's."""
        plan = self.training
        return None if plan is None else plan.training_flops / self.optimum.training_flops

    def break_even_tokens(self, serving_mfu: float) -> float | None:
        """Served tokens from which it is cheaper; None of the optimum itself, and out of reach."""
        if self.training is None or self.size == 1:
            return None
        return break_even_tokens(self.training, self.optimum, relative_price=price(serving_mfu))


def tariff(mfu: float, on: Device = DEVICES[0]) -> Tariff:
    """A price of 1 an hour, so that a price is a number of hours."""
    peak = on.peak_flops_per_s[COMPUTE_TYPE].value
    return Tariff(peak_flops_per_s=peak, mfu=mfu, price_per_device_hour=1.0)


def price(serving_mfu: float) -> float:
    """A FLOP of serving over one of training."""
    return relative_price(training=tariff(TRAINING_MFU), serving=tariff(serving_mfu))


def smallest(fit: ScalingFit) -> float:
    """Parameters below which nothing reaches the loss of the compute-optimal model."""
    return least_parameters(compute_optimal(LIFE_FLOPS, fit).loss, fit)


def allocations(_view: View[Any]) -> Iterator[Allocation]:
    """Every budget by every rule."""
    for budget in BUDGETS_FLOPS:
        for rule, fit in RULES:
            is_optimum = rule is compute_optimal
            plan = rule(budget, fit)
            yield Allocation(budget_flops=budget, training=plan, is_optimum=is_optimum)


def overtrained(_view: View[Any]) -> Iterator[Overtrained]:
    """Every fit and size."""
    for fit in SCALING_FITS:
        optimum = compute_optimal(LIFE_FLOPS, fit)
        for size in SIZES:
            n_parameters = size * optimum.n_parameters
            reached = n_parameters > smallest(fit)
            yield Overtrained(
                fit=fit,
                size=size,
                n_parameters=n_parameters,
                optimum=optimum,
                training=trained_to(optimum.loss, n_parameters, fit) if reached else None,
            )


def lives(_view: View[Any]) -> Iterator[Life]:
    """Every fit, MFU of serving and number of served tokens."""
    for fit in SCALING_FITS:
        optimum = compute_optimal(LIFE_FLOPS, fit)
        for mfu in SERVING_MFUS:
            for served in SERVED_TOKENS:
                plan = lifetime_optimal(optimum.loss, served, fit, relative_price=price(mfu))
                yield Life(fit=fit, serving_mfu=mfu, plan=plan, optimum=optimum)


def growth(view: View[Any]) -> Iterator[Conclusion]:
    """How the optimum's size and tokens grow with the budget, by fit."""
    optima = [each for each in allocations(view) if each.is_optimum]
    for best in groups(optima, lambda each: each.training.fit):
        fit, flops = scaling_fit(best[0].training.fit), [each.budget_flops for each in best]
        if (sizes := exponent(flops, [each.training.n_parameters for each in best])) is None:
            continue
        tokens = exponent(flops, [each.training.n_tokens for each in best])
        ends = (best[0], "smallest"), (best[-1], "largest")
        figures = (
            given("exponent of the parameters", "count", sizes),
            given("exponent of the tokens", "count", tokens),
            *(given(f"{end} budget", "flops", each.budget_flops) for each, end in ends),
            *(
                given(f"tokens a parameter at the {end}", "count", EACH.number(each))
                for each, end in ends
            ),
        )
        subject = f"By {fit.name}, the best size and its tokens grow as powers of the budget"
        yield from listed(subject, figures, best[0], fit)


def chinchilla(view: View[Any]) -> Iterator[Conclusion]:
    """Says how each rule splits Chinchilla's budget into parameters and tokens, and how many hours that
    takes."""
    own = [each for each in allocations(view) if each.budget_flops == CHINCHILLA_FLOPS]
    told = Sentence()

    def split(each: Allocation) -> str:
        plan, fit = each.training, scaling_fit(each.training.fit)
        return (
            f"{told('parameters', plan.n_parameters, 'large_count', fit)} parameters on "
            f"{told('tokens', plan.n_tokens, 'large_count', fit)} tokens "
            + (f"by {plan.fit}" if each.is_optimum else f"at {plan.rule}")
        )

    budget = told("budget", CHINCHILLA_FLOPS, "flops", scaling_fit("hoffmann-2022"))
    mfu = told("MFU, assumed", TRAINING_MFU, "share", *DEVICES)
    splits = ", ".join(map(split, own))
    hours = " or ".join(
        f"{told(f'hours, {on.name}', own[0].hours(on), 'count', on)} hours of an {on.name}"
        for on in DEVICES
    )
    yield from told.end(
        f"Chinchilla's budget of {budget} is that of {splits}; at an MFU of {mfu} in {COMPUTE_TYPE} "
        f"it takes {hours}."
    )


def disagreement(_view: View[Any]) -> Iterator[Conclusion]:
    """Why Hoffmann's parametric fit names another size for Chinchilla's budget than was trained."""
    printed, refitted, told = (
        scaling_fit("hoffmann-2022"),
        scaling_fit("besiroglu-2024"),
        Sentence(),
    )

    def parameters(what: str, found: float, fit: ScalingFit = printed) -> str:
        return told(f"parameters{what}", found, "large_count", fit)

    size, unrounded, refit = (
        compute_optimal(CHINCHILLA_FLOPS, fit).n_parameters
        for fit in (printed, HOFFMANN_UNROUNDED, refitted)
    )
    first, second = (
        parameters(f" by approach {i}", found)
        for i, found in enumerate(OTHER_APPROACHES_PARAMETERS, 1)
    )
    share = told("over Chinchilla's", size / CHINCHILLA_PARAMETERS, "share", printed)
    yield from told.end(
        f"The {parameters(', as printed', size)} parameters by hoffmann-2022 are {share} of the "
        f"{parameters(' trained', CHINCHILLA_PARAMETERS)} that were trained: the fit is the paper's "
        "approach 3 with its constants as printed, and disagrees with the paper's approaches 1 "
        f"({first}) and 2 ({second}). Its exponents before rounding give "
        f"{parameters(', unrounded exponents', unrounded, HOFFMANN_UNROUNDED)}; Besiroglu et al. "
        "(2024), who fitted the same formula to the same runs anew, find "
        f"{parameters(', fitted anew', refit, refitted)}."
    )


def smaller(view: View[Any]) -> Iterator[Conclusion]:
    """The price and the payback of each fit's smallest size that the loss is in reach of."""
    reached = [each for each in overtrained(view) if each.training is not None and each.size < 1]
    for rows in groups(reached, lambda each: each.fit):
        fit, (_, row) = rows[0].fit, least((each.size, each) for each in rows)
        figures = (
            *OVERTRAINED,
            pays_from(SERVING_MFUS[-1]),
            given("parameters under which no data reach it", "large_count", smallest(fit)),
        )
        subject = f"By {fit.name}, the smallest size that reaches the loss of the optimum"
        yield from listed(subject, figures, row, fit, DEVICES[0])


def whole_lives(view: View[Any]) -> Iterator[Conclusion]:
    """Says what the lives with the most and the fewest served tokens ask for and what they save, by fit at
    the dearer serving."""
    dear = [each for each in lives(view) if each.serving_mfu == SERVING_MFUS[-1]]
    for rows in groups(dear, lambda each: each.fit):
        subject = f"By {rows[0].fit.name}, the cheapest model over a life, beside the optimum"
        for row in (rows[-1], rows[0]):
            figures = (
                SERVED,
                SERVING_MFU,
                given("size", "share", row.training.n_parameters / row.optimum.n_parameters),
                given("tokens", "ratio", row.training.n_tokens / row.optimum.n_tokens),
                SAVED,
            )
            yield from listed(subject, figures, row, row.fit, DEVICES[0])


def hours(on: Device) -> Value:
    """Device-hours of a budget on one device."""
    return Value(f"hours, {on.key}", "count", lambda row: row.hours(on))


def pays_from(mfu: float) -> Value:
    """Served tokens from which a smaller model is cheaper."""
    name = f"pays from, served at {format_cell(mfu, 'share')}"
    return Value(name, "large_count", lambda row: row.break_even_tokens(mfu))


FIT = label("fit", lambda row: row.fit.name)
EACH = Value("tokens a parameter", "count", lambda row: row.training.tokens_per_parameter)
SIZE = (
    Value("parameters", "large_count", lambda row: row.training.n_parameters),
    Value("tokens", "large_count", lambda row: row.training.n_tokens),
    EACH,
)
OVERTRAINED = (
    Value("size", "ratio", lambda row: row.size),
    Value("tokens a parameter", "count", lambda row: row.tokens_per_parameter),
    Value("training FLOPs", "ratio", lambda row: row.flops),
)
SERVING_MFU = Value("serving MFU", "share", lambda row: row.serving_mfu)
SAVED = Value("saved", "share", lambda row: row.saved)
SERVED = Value("served tokens", "large_count", lambda row: row.plan.served_tokens)
STUDY: Study[Any] = Study(
    title="Which size for a budget, for a life of serving, and with experts?",
    tables=(
        table(
            "A training budget, split by each rule",
            (
                Value("budget", "flops", lambda row: row.budget_flops),
                label("rule", lambda row: row.training.rule),
                *SIZE,
                Value("loss, nats a token", "count", lambda row: row.training.loss),
                *map(hours, DEVICES),
            ),
            allocations,
            note=f"Device-hours of one device, at an assumed MFU of {TRAINING_AT} in bf16. A loss is "
            "compared within its fit alone.",
        ),
        table(
            "A smaller model, trained to the loss of the compute-optimal one",
            (
                FIT,
                OVERTRAINED[0],
                Value("parameters", "large_count", lambda row: row.n_parameters),
                Value("tokens", "large_count", lambda row: row.tokens),
                *OVERTRAINED[1:],
                *map(pays_from, SERVING_MFUS),
            ),
            overtrained,
            note="Pays from: served tokens from which training and serving together take less device "
            f"time than of the compute-optimal model; training at an MFU of {TRAINING_AT}.",
        ),
        table(
            "The cheapest model of that loss over its life",
            (
                FIT,
                SERVED,
                SERVING_MFU,
                *SIZE,
                Value("training", "flops", lambda row: row.training.training_flops),
                Value("serving", "flops", lambda row: row.plan.serving_flops),
                Value("hours", "count", lambda row: row.hours),
                Value("hours, compute-optimal", "count", lambda row: row.optimum_hours),
                SAVED,
            ),
            lives,
            note=f"Device-hours of an {DEVICES[0].name}, training at an MFU of {TRAINING_AT}. A served "
            "token, of prompt or output, takes 2·N FLOPs.",
        ),
        experts.TABLE,
    ),
    plots=(
        plot(
            "Parameters by training budget",
            Value("training FLOPs", "flops", lambda row: row.budget_flops),
            SIZE[0],
            lambda row: row.training.rule,
            allocations,
            log="xy",
        ),
        plot(
            "Tokens a parameter of the cheapest model over its life",
            SERVED,
            EACH,
            lambda row: f"{row.fit.name}, served at {row.serving_mfu:.0%}",
            lives,
            log="xy",
        ),
        experts.PLOT,
    ),
    claims=(growth, chinchilla, disagreement, smaller, whole_lives, experts.against),
    notes=lambda _view: (
        *(f"{each.name}: {each.source}." for each in (*SCALING_FITS, HOFFMANN_UNROUNDED)),
        "Training takes 6 FLOPs a parameter and token, serving 2: attention's products are left out, as "
        "the fits leave them out. Of the mixture they are counted.",
        "The fits are of dense models: what loss a mixture of experts reaches, they do not say.",
        "Both fits rest on the same runs, of 70 million to 16 billion parameters on 5 to 500 billion "
        "tokens (Hoffmann et al. 2022): what lies beyond is extrapolated.",
    ),
)
