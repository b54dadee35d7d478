"""Scaling laws: their coefficients, the sizes that they recommend, and the price of these."""

import msgspec


class ScalingFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loss in nats a token of N parameters trained on D tokens: E + A / N^alpha + B / D^beta."""

    name: str
    source: str
    irreducible_loss: float
    """E: the loss that no model size and no amount of data removes."""
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
    """The source of both numbers: a fit's optimum, or a rule of thumb."""
    n_parameters: float
    n_tokens: float
    tokens_per_parameter: float
    training_flops: float
    """6·N·D."""
    fit: str
    """The name of the fit that gives the loss."""
    loss: float
    """The predicted loss, in nats a token."""


class LifetimePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model size that reaches a loss with the least work for training and serving together."""

    training: TrainingPlan
    served_tokens: float
    """Tokens that go through the model over its life, prompts and outputs together."""
    serving_flops: float
    """2·N for each served token."""
    lifetime_flops: float
    relative_price: float
    """The price of a FLOP of serving over one of training, by which the two were weighed."""


class Tariff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of arithmetic on one device."""

    peak_flops_per_s: float
    """The datasheet's dense peak, which MFU refers to."""
    mfu: float
    """The share of that peak that model FLOPs reach: above 0, at most 1."""
    price_per_device_hour: float
    """In any currency."""


class Bill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device time and its price."""

    flops: float
    device_hours: float
    price: float
    """In the tariff's currency."""
