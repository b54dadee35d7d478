"""What the numbers of `scaling` say."""

from collections.abc import Sequence

from peakward.models.scaling_fits import (
    CHINCHILLA_PARAMETERS,
    HOFFMANN_UNROUNDED,
    OTHER_APPROACHES_PARAMETERS,
    scaling_fit,
)
from peakward.prediction.scaling_laws.training import compute_optimal
from peakward.records.study import Conclusion, Evidence
from peakward.studies.parts import evidence, say
from peakward.studies.power_law import exponent
from peakward.studies.scaling.budgets import (
    CHINCHILLA_FLOPS,
    COMPUTE_TYPE,
    TRAINING_MFU,
    Allocation,
    devices,
    fits,
)
from peakward.studies.scaling.experts import BATCHES, Served, on
from peakward.studies.scaling.lives import SERVING_MFUS, Life, Overtrained, smallest


def growth(allocations: Sequence[Allocation]) -> tuple[Conclusion, ...]:
    """How the optimum's size and tokens grow with the budget, by fit."""
    said = []
    for name, fit in fits().items():
        best = [each for each in allocations if each.is_optimum and each.plan.fit == name]
        flops = [each.budget_flops for each in best]
        sizes = exponent(flops, [each.plan.n_parameters for each in best])
        tokens = exponent(flops, [each.plan.n_tokens for each in best])
        if sizes is None or tokens is None:
            continue
        ends = [each.plan.tokens_per_parameter for each in (best[0], best[-1])]
        said.append(
            say(
                "By {fit}, the best size grows as the budget to the power of {sizes}, its tokens to "
                "that of {tokens}: {first} tokens a parameter at {low}, {last} at {high}.",
                fit=name,
                sizes=evidence("exponent of the parameters", sizes, "count", fit),
                tokens=evidence("exponent of the tokens", tokens, "count", fit),
                first=evidence("tokens a parameter", ends[0], "count", fit),
                low=evidence("smallest budget", flops[0], "flops", fit),
                last=evidence("tokens a parameter", ends[1], "count", fit),
                high=evidence("largest budget", flops[-1], "flops", fit),
            )
        )
    return tuple(said)


def chinchilla(allocations: Sequence[Allocation]) -> Conclusion:
    """What each rule makes of Chinchilla's budget, and what that takes."""
    texts, fields = [], {}
    own = [each for each in allocations if each.budget_flops == CHINCHILLA_FLOPS]
    for i, each in enumerate(own):
        fit = fits()[each.plan.fit]
        rule = f"by {each.plan.fit}" if each.is_optimum else f"at {each.plan.rule}"
        texts.append(f"{{size{i}}} parameters on {{tokens{i}}} tokens {rule}")
        fields[f"size{i}"] = evidence("parameters", each.plan.n_parameters, "large_count", fit)
        fields[f"tokens{i}"] = evidence("tokens", each.plan.n_tokens, "large_count", fit)
    hours = []
    for i, (on_device, taken) in enumerate(zip(devices(), own[0].device_hours, strict=True)):
        hours.append(f"{{hours{i}}} hours of an {on_device.name}")
        fields[f"hours{i}"] = evidence(f"hours, {on_device.name}", taken, "count", on_device)
    return say(
        "Chinchilla's budget of {budget} is that of "
        + ", ".join(texts)
        + "; at an MFU of {mfu} in {type} it takes "
        + " or ".join(hours)
        + ".",
        budget=evidence("budget", CHINCHILLA_FLOPS, "flops", fits()["hoffmann-2022"]),
        mfu=evidence("MFU, assumed", TRAINING_MFU, "share", *devices()),
        type=COMPUTE_TYPE,
        **fields,
    )


def disagreement() -> Conclusion:
    """Why Hoffmann's parametric fit names another size for Chinchilla's budget than was trained."""
    printed, refitted = scaling_fit("hoffmann-2022"), scaling_fit("besiroglu-2024")
    size, unrounded, refit = (
        compute_optimal(CHINCHILLA_FLOPS, fit).n_parameters
        for fit in (printed, HOFFMANN_UNROUNDED, refitted)
    )
    first, second = OTHER_APPROACHES_PARAMETERS
    return say(
        "The {size} parameters by hoffmann-2022 are {share} of the {trained} that were trained: the fit is "
        "the paper's approach 3 with its constants as printed, and disagrees with the paper's "
        "approaches 1 ({first}) and 2 ({second}). Its exponents before rounding give {unrounded}; "
        "Besiroglu et al. (2024), who fitted the same formula to the same runs anew, find {refit}.",
        first=evidence("parameters by approach 1", first, "large_count", printed),
        second=evidence("parameters by approach 2", second, "large_count", printed),
        size=evidence("parameters, as printed", size, "large_count", printed),
        share=evidence("over Chinchilla's", size / CHINCHILLA_PARAMETERS, "share", printed),
        trained=evidence("parameters trained", CHINCHILLA_PARAMETERS, "large_count", printed),
        unrounded=evidence(
            "parameters, unrounded exponents", unrounded, "large_count", HOFFMANN_UNROUNDED
        ),
        refit=evidence("parameters, fitted anew", refit, "large_count", refitted),
    )


def smaller(rows: Sequence[Overtrained]) -> tuple[Conclusion, ...]:
    """Of each fit, the smallest of the sizes that the loss is in reach of: its price and its payback."""
    said = []
    for fit in dict.fromkeys(each.fit for each in rows):
        reached = [each for each in rows if each.fit == fit and each.plan and each.size < 1]
        if not reached:
            continue
        least = min(reached, key=lambda each: each.size)
        plan, dear = least.plan, least.break_even_tokens[-1]
        assert plan is not None and dear is not None
        said.append(
            say(
                "By {fit}, {size} of the compute-optimal parameters reach its loss with {flops} its "
                "training FLOPs ({each} tokens a parameter), and cost less over a life of {served} "
                "served tokens or more, served at an MFU of {mfu}; under {bound} parameters no data "
                "reach it.",
                fit=fit.name,
                size=evidence("parameters over the optimum's", least.size, "share", fit),
                flops=evidence(
                    "training FLOPs over the optimum's",
                    plan.training_flops / least.optimum.training_flops,
                    "ratio",
                    fit,
                ),
                each=evidence("tokens a parameter", plan.tokens_per_parameter, "count", fit),
                served=evidence("break-even", dear, "large_count", fit, devices()[0]),
                mfu=_serving_mfu(),
                bound=evidence("least parameters", smallest(fit), "large_count", fit),
            )
        )
    return tuple(said)


def whole_lives(lives: Sequence[Life]) -> tuple[Conclusion, ...]:
    """Of each fit at the dearer serving: what a long life asks for, and what it saves."""
    said = []
    for fit in dict.fromkeys(each.fit for each in lives):
        dear = [each for each in lives if each.fit == fit and each.serving_mfu == SERVING_MFUS[-1]]
        first, last = dear[0], dear[-1]
        plan, optimum = last.plan.training, last.optimum
        said.append(
            say(
                "By {fit}, a model that serves {served} tokens at an MFU of {mfu} is cheapest with "
                "{size} of the compute-optimal parameters and {tokens} the tokens, and saves {saved} "
                "of the device-hours; one that serves {few}, {little}.",
                fit=fit.name,
                served=evidence("served tokens", last.plan.served_tokens, "large_count", fit),
                mfu=_serving_mfu(),
                size=evidence(
                    "parameters over the optimum's",
                    plan.n_parameters / optimum.n_parameters,
                    "share",
                    fit,
                ),
                tokens=evidence(
                    "tokens over the optimum's", plan.n_tokens / optimum.n_tokens, "ratio", fit
                ),
                saved=evidence("device-hours saved", last.saved, "share", fit, devices()[0]),
                few=evidence("served tokens", first.plan.served_tokens, "large_count", fit),
                little=evidence("device-hours saved", first.saved, "share", fit, devices()[0]),
            )
        )
    return tuple(said)


def _serving_mfu() -> Evidence:
    return evidence("MFU of serving, assumed", SERVING_MFUS[-1], "share", devices()[0])


def experts(rows: Sequence[Served]) -> tuple[Conclusion, ...]:
    """The mixture against each dense model: arithmetic, traffic and memory as ratios."""
    mixture, *dense = rows
    return tuple(_against(mixture, each) for each in dense)


def _against(mixture: Served, dense: Served) -> Conclusion:
    both = (mixture.shape, dense.shape)
    traffic = {
        batch: mine.cost.decode.bytes / theirs.cost.decode.bytes
        for batch, mine, theirs in zip(BATCHES, mixture.floors, dense.floors, strict=True)
    }
    memory = [each.floors[-1].cost.memory.weights_bytes for each in (mixture, dense)]
    return say(
        "{mixture} against {dense} ({parameters} parameters): {flops} the FLOPs a token, {one} the "
        "bytes of a decode step at batch {few}, {many} at batch {lots} and {time} the least time "
        "there on the {device}, {memory} the weights.",
        mixture=mixture.shape.name,
        dense=dense.shape.name,
        parameters=evidence("parameters", dense.n_parameters, "large_count", dense.shape),
        flops=evidence(
            "FLOPs a token",
            mixture.decoding_flops_per_token / dense.decoding_flops_per_token,
            "ratio",
            *both,
        ),
        one=evidence("bytes of a step", traffic[BATCHES[0]], "ratio", *both),
        few=evidence("batch", BATCHES[0], "count", *both),
        many=evidence("bytes of a step", traffic[BATCHES[-1]], "ratio", *both),
        lots=evidence("batch", BATCHES[-1], "count", *both),
        memory=evidence("weights", memory[0] / memory[1], "ratio", *both),
        time=evidence(
            "least time of a step",
            mixture.floors[-1].decode.floor_s / dense.floors[-1].decode.floor_s,
            "ratio",
            *both,
            on(),
        ),
        device=on().name,
    )
