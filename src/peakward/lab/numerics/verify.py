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

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from peakward.kernels.ops.quantized_matmul import reference
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.prepare import prepare
from peakward.lab.models import module_source
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.layers import KINDS
from peakward.lab.numerics.judge import Outputs, Subject, judge, outputs
from peakward.lab.numerics.of_module import MAX_LAYERS, few_tokens, of_module
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
    return Subject(
        oracle=lambda: _oracle(reduced(base)),
        outputs=_decoder_outputs,
        n_layers=reduced(base).model.n_layers,
        rounded=_rounded,
    )


def _decoder_outputs(case: ConfiguredCase) -> Outputs:
    assert isinstance(case, ModelCase)
    with prepare(reduced(case)) as step:
        assert isinstance(step, ModelStep)
        return outputs(step)


def _oracle(case: ModelCase) -> Outputs:
    with fp32_matmuls("fp32"):
        return outputs(_plain(case))


def _rounded(candidate: ConfiguredCase) -> Outputs | None:
    """The oracle with its weights rounded at random in the candidate's steps."""
    assert isinstance(candidate, ModelCase)
    if candidate.configuration.weights == "dense":
        return None
    step = _plain(reduced(candidate))
    perturb(step.model, candidate.configuration.weights, seed=candidate.workload.seed)
    return outputs(step)


def _plain(case: ModelCase) -> ModelStep:
    plain = msgspec.structs.replace(case, configuration=Configuration())
    return ModelStep(plain, torch.float64)


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


def _steps(weight: Tensor, weights: StoredWeights) -> Tensor:
    """The distance between the numbers that each element is rounded to, (n, k)."""
    _, scale = KINDS[weights].quantised(weight)
    return reference.by_column(scale, weight.shape[1], weight.dtype)
