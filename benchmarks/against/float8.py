"""torchao's float8 training, by its own recipes (github.com/pytorch/ao, torchao/float8).

`tensorwise` is its fastest recipe, `rowwise` a more accurate one. `tensorwise-fast` is the first with fast
accumulation in all three products, as Peakward's have it; torchao's recipe has it in the forward one alone.
The head stays as it is, and so do layers that torchao's own filter finds too small to gain.
"""

import importlib.metadata
import importlib.util
from dataclasses import replace

from torch import nn

from peakward.records.errors import PeakwardError

RECIPES = ("tensorwise", "tensorwise-fast", "rowwise")
HEAD = "lm_head"


def version() -> str | None:
    """torchao's; None where it is not installed."""
    return importlib.metadata.version("torchao") if importlib.util.find_spec("torchao") else None


def convert(model: nn.Module, recipe: str, *, emulate: bool) -> None:
    """Puts torchao's layers in the place of a model's linear ones; their parameters stay.

    Args:
        recipe: one of `RECIPES`.
        emulate: the products of the rounded operands in their own type, for a device without fp8.

    Raises:
        PeakwardError: torchao's filter leaves every layer as it is.
    """
    from torchao.float8 import (
        Float8GemmConfig,
        Float8LinearConfig,
        _auto_filter_for_recipe,
        convert_to_float8_training,
    )

    kind = recipe.removesuffix("-fast")
    config = replace(Float8LinearConfig.from_recipe_name(kind), emulate=emulate)
    if recipe.endswith("-fast"):
        fast = Float8GemmConfig(use_fast_accum=True)
        config = replace(config, gemm_config_grad_input=fast, gemm_config_grad_weight=fast)
    chosen = _auto_filter_for_recipe(kind, filter_fqns=[HEAD])
    convert_to_float8_training(model, config=config, module_filter_fn=chosen)
    if not converted(model):
        raise PeakwardError(
            f"expected layers that gain by float8 {recipe}, got none: all are too small by torchao's filter"
        )


def converted(model: nn.Module) -> list[str]:
    """The names of the layers that compute in float8."""
    from torchao.float8.float8_linear import Float8Linear

    return [name for name, each in model.named_modules() if isinstance(each, Float8Linear)]
