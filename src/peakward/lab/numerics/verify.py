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

import msgspec
import torch
from torch import Tensor

from peakward.kernels.ops.quantized_matmul import reference
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.prepare import prepare
from peakward.lab.models import module_source
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.layers import KINDS
from peakward.lab.numerics.judge import UNIT_ROUNDOFF, Outputs, Subject, judge, outputs
from peakward.lab.numerics.of_module import MAX_LAYERS, few_tokens, of_module
from peakward.levers.precision import fp32_matmuls
from peakward.records.case import (
    Configuration,
    ConfiguredCase,
    ModelCase,
    ModuleCase,
    StoredWeights,
)
from peakward.records.lever import NumericsClass, NumericsVerdict


def verify(
    base: ConfiguredCase, candidate: ConfiguredCase, declared: NumericsClass
) -> NumericsVerdict:
    """Compares logits, or loss and gradients, of the decoder or of a user's module, as `judge` does.

    Raises:
        PeakwardError: a module that does not run in fp64, or has other weights each time it is built.
    """
    if isinstance(base, ModelCase) and isinstance(candidate, ModelCase):
        return judge(_of_decoder(base, candidate), declared)
    assert isinstance(base, ModuleCase)
    assert isinstance(candidate, ModuleCase)
    return judge(of_module(base, candidate, module_source.build), declared)


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


def _of_decoder(base: ModelCase, candidate: ModelCase) -> Subject:
    base, candidate = reduced(base), reduced(candidate)
    return Subject(
        oracle=lambda: _oracle(base),
        base=lambda: _decoder_outputs(base),
        candidate=lambda: _decoder_outputs(candidate),
        roundoff=UNIT_ROUNDOFF[candidate.configuration.precision],
        n_layers=candidate.model.n_layers,
        rounded=None if candidate.configuration.weights == "dense" else lambda: _rounded(candidate),
    )


def _decoder_outputs(case: ModelCase) -> Outputs:
    with prepare(case) as step:
        assert isinstance(step, ModelStep)
        return outputs(step)


def _oracle(case: ModelCase) -> Outputs:
    with fp32_matmuls("fp32"):
        return outputs(_plain(case))


def _rounded(candidate: ModelCase) -> Outputs:
    """The oracle with its weights rounded at random in the candidate's steps."""
    step = _plain(candidate)
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
