"""Checks that a candidate computes what its numerics class promises, by one step against an oracle.

The oracle is the plain model in fp64 with the same weights and tokens. The check runs at the case's
full width but on few layers and tokens: rounding shows there, and no second model of full size has to
fit.

In a mixture of experts all experts are active. The choice of experts is not a continuous function:
where two are nearly as likely, rounding sends a token through the other one, whose result is unrelated,
and no bound on rounding holds. (On a CPU, bf16, 4 layers of d_model 256, 8 experts of which 2 active: 1
to 3 tokens in a hundred took other experts than in fp64, and gradients erred by 4.9e-2; with all 8
active by 0.7e-2, with one, dense, by 0.8e-2.) With all experts active the same operations run and the
choice decides nothing. The check therefore covers the arithmetic, and not the experts that a narrower
type chooses.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import msgspec
import torch
from torch import Tensor

from peakward.kernels.ops.decode_attention.reference import quantized
from peakward.kernels.ops.quantized_matmul import reference
from peakward.lab.inference.cache import KVCache
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.prepare import prepare
from peakward.lab.models import module_source
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.layers import KINDS
from peakward.lab.numerics import training
from peakward.lab.numerics.judge import Outputs, Subject, judge, outputs
from peakward.lab.numerics.of_module import MAX_LAYERS, few_tokens, of_module
from peakward.levers import kv_cache
from peakward.levers.precision import fp32_matmuls
from peakward.records.case import (
    Configuration,
    ConfiguredCase,
    ModelCase,
    ModuleCase,
    StoredWeights,
)
from peakward.records.lever import Claim, NumericsClass, NumericsVerdict


def verify(
    base: ConfiguredCase, candidate: ConfiguredCase, declared: NumericsClass
) -> NumericsVerdict:
    """The verdict on one claim, as `verify_all` gives it."""
    (verdict,) = verify_all((Claim(base=base, candidate=candidate, declared=declared),))
    return verdict


def verify_all(claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
    """Compares logits, or loss and gradients, of the decoder or of a user's module, as `judge` does. All
    claims are of one model and workload, whose oracle they share.

    Raises:
        PeakwardError: a module that does not run in fp64, or has other weights each time it is built.
    """
    first = claims[0].base
    if isinstance(first, ModelCase):
        return judge(_of_decoder(first), claims)
    assert isinstance(first, ModuleCase)
    return judge(of_module(first, module_source.build), claims)


def reduced(case: ModelCase) -> ModelCase:
    """The case at full width on at most 4 layers and 2 × 256 tokens, with all experts active."""
    return msgspec.structs.replace(
        case,
        model=msgspec.structs.replace(
            case.model,
            n_layers=min(case.model.n_layers, MAX_LAYERS),
            n_active_experts=case.model.n_experts,
        ),
        workload=msgspec.structs.replace(few_tokens(case.workload), varying_seq_lens=()),
        memory_limit_bytes=None,
    )


def _of_decoder(base: ModelCase) -> Subject:
    case = reduced(base)
    numbers: list[int | None] = []

    def oracle() -> Outputs:
        with fp32_matmuls("fp32"):
            step = _plain(case)
            numbers[:] = training.numbers(step)
            return outputs(step, None)

    return Subject(
        oracle=oracle,
        outputs=partial(_decoder_outputs, _earlier(case)),
        n_layers=case.model.n_layers,
        rounded=_rounded,
        numbers=lambda: numbers,
        erring=_erring,
    )


def _earlier(case: ModelCase) -> Callable[[], KVCache | None]:
    """Returns a function that gives the oracle's keys and values of the tokens before a decode step's; None
    of another pass."""
    return lru_cache(maxsize=1)(
        lambda: _plain(case).cache if case.workload.pass_ == "decode" else None
    )


def _decoder_outputs(
    earlier: Callable[[], KVCache | None], case: ConfiguredCase, n_trained: int
) -> Outputs:
    assert isinstance(case, ModelCase)
    with prepare(reduced(case)) as step:
        assert isinstance(step, ModelStep)
        if step.cache is not None and (held := earlier()) is not None:
            step.cache.take(held)
        return outputs(step, n_trained)


def _erring(candidate: ConfiguredCase, error: float) -> Outputs:
    assert isinstance(candidate, ModelCase)
    step = _plain(reduced(candidate))
    training.err(step, error=error, in_bf16=candidate.configuration.precision == "bf16")
    return outputs(step, training.N_STEPS)


def _rounded(candidate: ConfiguredCase) -> Outputs | None:
    """The oracle with its weights, or the cache that it reads, rounded at random in the candidate's
    steps."""
    assert isinstance(candidate, ModelCase)
    weights, seed = candidate.configuration.weights, candidate.workload.seed
    stored = kv_cache.STORED.get(candidate.configuration.kv_cache)
    if weights == "dense" and stored is None:
        return None
    step = _plain(reduced(candidate))
    if stored is not None and step.cache is not None:
        perturb_cache(step.cache, getattr(torch, stored), seed=seed)
    if weights != "dense":
        perturb(step.model, weights, seed=seed)
    return outputs(step)


def _plain(case: ModelCase) -> ModelStep:
    """The step in fp64; a decode step holds the tokens before its newest, which it has read."""
    plain = msgspec.structs.replace(case, configuration=Configuration())
    step = ModelStep(plain, torch.float64)
    if case.workload.pass_ == "decode":
        step.read_earlier()
    return step


def perturb(model: Decoder, weights: StoredWeights, *, seed: int) -> None:
    """Adds to each weight of the blocks, in place, a random error as large as rounding to its group's
    step makes.

    An element of a group lies anywhere between two multiples of the group's step. Its error is therefore
    as good as drawn: uniform, half a step to either side, whatever the other errors are (Widrow & Kollár
    2008, "Quantization Noise", chapter 5). With such an error added to each weight, the oracle errs as
    much as the quantised model should, at this width and depth. The estimate does not depend on how the
    quantised model stores or multiplies its weights.
    """
    generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
    for module in model.blocks.modules():
        if type(module) is torch.nn.Linear:
            weight = module.weight.data
            drawn = torch.rand(
                weight.shape, generator=generator, device=weight.device, dtype=weight.dtype
            )
            weight.add_(drawn.sub_(0.5).mul_(_steps(weight, weights)))


def perturb_cache(cache: KVCache, stored: torch.dtype, *, seed: int) -> None:
    """Adds to each element that the cache holds a random error as large as storing it in a byte makes: half
    a step of the stored type to either side, in units of its scale."""
    generator = torch.Generator(cache.device).manual_seed(seed)
    for layer in cache.layers:
        for held in layer.held(0, cache.length):
            elements, scale = quantized(held, stored)
            drawn = torch.rand(
                held.shape, generator=generator, device=held.device, dtype=held.dtype
            )
            steps = spacing(elements) * scale.to(held.dtype)[..., None]
            held.add_(drawn.sub_(0.5).mul_(steps))


def spacing(stored: Tensor) -> Tensor:
    """The distance in fp64 from each number of a type of one byte to its neighbours, the larger one where
    these differ."""
    if not stored.dtype.is_floating_point:
        return torch.ones(stored.shape, device=stored.device, dtype=torch.float64)
    found = torch.finfo(stored.dtype)
    exponent = stored.double().abs().clamp(min=found.tiny).log2().floor()
    return exponent.exp2() * found.eps


def _steps(weight: Tensor, weights: StoredWeights) -> Tensor:
    """The distance between the numbers that each element is rounded to, (n, k)."""
    _, scale = KINDS[weights].quantised(weight)
    return reference.by_column(scale, weight.shape[1], weight.dtype)
