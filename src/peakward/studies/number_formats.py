"""Number formats by their bits: what each can hold, by arithmetic, and what it is used for."""

from math import log2
from typing import NamedTuple

from peakward.studies.setting import Setting


class Format(NamedTuple):
    """A number format by its bits."""

    name: str
    bits: int
    """The bits that are computed with; tf32's lie in 32."""
    exponent_bits: int
    """0 of an integer."""
    mantissa_bits: int
    """Without the leading 1; of an integer all but the sign."""
    purpose: str
    top: float | None = None
    """The largest number, where the format gives its highest exponent to numbers too."""

    @property
    def bias(self) -> int:
        """The number that is taken from the stored exponent."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def largest(self) -> float:
        """The largest number: with the highest exponent that is not of infinities, and a mantissa of ones."""
        if not self.exponent_bits:
            return float(2**self.mantissa_bits - 1)
        return self.top or (2.0 - 2.0**-self.mantissa_bits) * 2.0**self.bias

    @property
    def smallest_normal(self) -> float:
        """The smallest number with all digits of the mantissa; of an integer 1."""
        return 2.0 ** (1 - self.bias) if self.exponent_bits else 1.0

    @property
    def smallest(self) -> float:
        """The smallest number above 0, with one digit left."""
        return self.smallest_normal * 2.0**-self.mantissa_bits if self.exponent_bits else 1.0

    @property
    def unit_roundoff(self) -> float | None:
        """Half the distance from 1 to the next number; None of an integer, whose steps are all alike."""
        return 2.0 ** -(self.mantissa_bits + 1) if self.exponent_bits else None

    @property
    def doublings(self) -> float:
        """How often the smallest normal number can be doubled up to the largest."""
        return log2(self.largest / self.smallest_normal)


FORMATS = (
    Format("fp32", 32, 8, 23, "parameters and states of an optimizer; sums of narrower products"),
    Format("tf32", 19, 8, 10, "fp32 operands of products, rounded as tensor cores read them"),
    Format("fp16", 16, 5, 10, "operands and activations; gradients under a scaled loss"),
    Format("bf16", 16, 8, 7, "operands, activations and gradients: fp32's range without a scale"),
    Format("fp8 e4m3", 8, 4, 3, "activations and weights in products, with a scale", top=448.0),
    Format("fp8 e5m2", 8, 5, 2, "gradients in products, with a scale"),
    Format("int8", 8, 0, 7, "weights, caches and activations for inference, with a scale"),
    Format("int4", 4, 0, 3, "weights for inference, with a scale for each group"),
)
"""IEEE 754 (fp32, fp16); NVIDIA A100 whitepaper (tf32); Micikevicius et al. 2022, "FP8 formats for deep
learning": e4m3 has no infinities, and one NaN of a sign."""
FP8_NEEDS, TF32_NEEDS = (8, 9), (8, 0)
"""The compute capabilities of the first tensor cores that multiply them."""


def obstacle(name: str, setting: Setting) -> str | None:
    """Why the format is not multiplied here; None where it is."""
    if name == "int4":
        return "torch has no product of int4 operands: int4 weights are widened, see study quantization"
    needed = FP8_NEEDS if name.startswith("fp8") else TF32_NEEDS if name == "tf32" else None
    if setting.device == "cpu":
        return "a CPU's cores have no tf32" if name == "tf32" else None
    if needed is None or (setting.compute_capability or (0, 0)) >= needed:
        return None
    return f"its tensor cores come with compute capability {'.'.join(map(str, needed))}"
