"""The arithmetic that a roofline counts: of products their FLOPs, of all else one an element and step.

Model FLOPs leave out all that is no product, and would put every other operator at intensity 0. Here
such an operator has one operation for each element of its largest operand and each step of its
formula; exp, square root and division are one each. What they are to show does not hang on it: they
came out at 0.1 to 4 operations a byte, their ridges at 5.5 (fp32 on two cores), 12 (fp32 on an H200)
and 186 (bf16 there), and four times as many would have moved none of them across.
"""

from peakward.prediction.operators.category import category
from peakward.records.op_graph import Operator

MOVES = frozenset(("copy", "embedding"))
"""Categories that compute nothing."""
STEPS = {
    "_softmax": 5,  # maximum, difference, exp, sum, division
    "_safe_softmax": 5,
    "_log_softmax": 5,  # maximum, difference, exp, sum, difference of the logarithm
    "_softmax_backward_data": 4,  # y (g - Σ g y)
    "_log_softmax_backward_data": 4,  # g - exp(y) Σ g
    "_fused_rms_norm": 4,  # square, sum, times its root, times the weight
    "_fused_rms_norm_backward": 9,
    "native_layer_norm": 7,
    "native_layer_norm_backward": 11,
    "silu": 4,  # x / (1 + exp(-x))
    "silu_backward": 7,
    "lerp_": 3,
    "addcmul_": 3,
    "addcdiv_": 3,
    "_foreach_lerp_": 3,
    "_foreach_addcmul_": 3,
    "_foreach_addcdiv_": 3,
    "_fused_adamw_": 14,  # decay 1, two moments 3 and 4, root, correction, epsilon, update 3
    "peakward.adamw": 14,
}
"""Operations an element, by the formula of each; of what is not named, one."""
MODEL_SHARE_BACKWARD = 4 / 5
"""Of fused attention's five products backward one makes the scores anew, which is never counted."""


def operations(operator: Operator) -> float:
    """Of one call. Fused attention counts half under a causal mask, as model FLOPs do."""
    if operator.flops:
        return operator.flops * _needed(operator)
    names = operator.fused or (operator.name,)
    steps = sum(STEPS.get(each.removeprefix("aten."), 1) for each in names if _computes(each))
    written = sum(each.n_elements for each in operator.outputs)
    return float(steps * max((written, *(each.n_elements for each in operator.inputs))))


def _computes(name: str) -> bool:
    return category(name) not in MOVES


def _needed(operator: Operator) -> float:
    """The share of a kernel's products that the maths needs; of plain products all that are computed."""
    if category(operator.name) != "attention":
        return 1.0
    causal = 0.5 if operator.causal else 1.0
    return causal * (MODEL_SHARE_BACKWARD if "backward" in operator.name else 1.0)
