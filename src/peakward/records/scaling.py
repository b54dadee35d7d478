"""What a scaling law says: its coefficients, the sizes that it finds best, and their price."""

import msgspec


class ScalingFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loss in nats a token of N parameters trained on D tokens: E + A / N^alpha + B / D^beta."""

    name: str
    source: str
    irreducible_loss: float
    """E: what no model and no data remove."""
    parameter_coefficient: float
    """A."""
    parameter_exponent: float
    """alpha."""
    token_coefficient: float
    """B."""
    token_exponent: float
    """beta."""


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model size and the tokens to train it on."""

    rule: str
    """What chose the two: a fit's optimum, or a rule of thumb."""
    n_parameters: float
    n_tokens: float
    tokens_per_parameter: float
    training_flops: float
    """6·N·D."""
    fit: str
    """The name of the fit that gives the loss."""
    loss: float
    """Predicted, in nats a token."""


class LifetimePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size that reaches a loss with the least work of training and serving together."""

    training: TrainingPlan
    served_tokens: float
    """Tokens that go through the model over its life, of prompts and of outputs."""
    serving_flops: float
    """2·N for each served token."""
    lifetime_flops: float
    relative_price: float
    """Of a FLOP of serving over one of training, by which the two were weighed."""


class Tariff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What arithmetic costs on one device."""

    peak_flops_per_s: float
    """The datasheet's dense peak, which MFU is against."""
    mfu: float
    """Share of that peak that model FLOPs reach: above 0, at most 1."""
    price_per_device_hour: float
    """In any currency."""


class Bill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device time and its price."""

    flops: float
    device_hours: float
    price: float
    """In the tariff's currency."""
