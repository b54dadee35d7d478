"""Published fits of the loss to model size and data, by name.

Coefficients are as printed, and the choice matters: for Chinchilla's budget of 5.76e23 FLOPs
Hoffmann's optimum has 93 tokens a parameter (59 with the exponents before rounding), where its
authors trained at 20; Besiroglu's, fitted to the same runs as read off their figure, has 18.
"""

import msgspec

from peakward.records.errors import look_up
from peakward.records.plan import ScalingFit

SCALING_FITS: tuple[ScalingFit, ...] = (
    ScalingFit(
        name="besiroglu-2024",
        source="Besiroglu, Erdil, Barnett, You, Chinchilla Scaling: A replication attempt (2024)",
        irreducible_loss=1.8172,
        parameter_coefficient=482.01,
        parameter_exponent=0.3478,
        token_coefficient=2085.43,
        token_exponent=0.3658,
    ),
    ScalingFit(
        name="hoffmann-2022",
        source="Hoffmann et al., Training Compute-Optimal Large Language Models (2022), approach 3",
        irreducible_loss=1.69,
        parameter_coefficient=406.4,
        parameter_exponent=0.34,
        token_coefficient=410.7,
        token_exponent=0.28,
    ),
)

HOFFMANN_UNROUNDED = msgspec.structs.replace(
    SCALING_FITS[-1],
    name="hoffmann-2022, unrounded",
    source="the TeX source of Hoffmann et al. (2022), quoted by Besiroglu et al. (2024)",
    irreducible_loss=1.6934,
    parameter_exponent=0.3392,
    token_exponent=0.2849,
)
"""The unrounded fit shows the effect of rounding: a budget that is split by it has 1.25 times the
parameters."""
CHINCHILLA_PARAMETERS = 70e9
"""Chinchilla's parameters; it was trained on 1.4e12 tokens (Hoffmann et al. 2022)."""
OTHER_APPROACHES_PARAMETERS = (67e9, 63e9)
"""The parameters that approaches 1 and 2 of the same authors give for this budget (figures 2 and 3)."""


def scaling_fit(name: str) -> ScalingFit:
    """The published fit of that name.

    Raises:
        PeakwardError: no such fit; names those there are.
    """
    return look_up("a scaling fit", name, {each.name: each for each in SCALING_FITS})
