"""Turns a configuration of Hugging Face transformers into the shape of the model that it describes.

It is read as transformers' own class of its type reads it. The dtype and the quantisation of the stored
weights are not part of a shape: a case states its precision. Nor is dropout (`dropped`).
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import msgspec

from peakward.models import presets
from peakward.models.hugging_face import families
from peakward.models.hugging_face.families import (
    Gpt2,
    GptBigCode,
    Llama,
    Mistral,
    Mixtral,
    Phi3,
    Qwen2,
    Rotary,
    Starcoder2,
)
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

TYPES: dict[str, type[Gpt2] | type[Rotary]] = {
    "gpt2": Gpt2,
    "gpt_bigcode": GptBigCode,
    "llama": Llama,
    "mistral": Mistral,
    "mixtral": Mixtral,
    "phi3": Phi3,
    "qwen2": Qwen2,
    "starcoder2": Starcoder2,
}
"""The classes that read a configuration, by its `model_type`."""

ALIASES: Mapping[str, Mapping[str, str]] = {
    "gpt2": families.ALIASES,
    "gpt_bigcode": families.ALIASES,
    "mixtral": {"num_experts": "num_local_experts"},
}

BEYOND = {
    "bloom": "a norm on its embeddings",
    "cohere": "attention and feed-forward network side by side",
    "deepseek_v2": "multi-head latent attention",
    "deepseek_v3": "multi-head latent attention",
    "falcon": "attention and feed-forward network side by side",
    "gemma": "scaled embeddings",
    "gemma2": "soft-capped logits",
    "gemma3_text": "norms on queries and keys",
    "glm": "partial rotation",
    "gpt_neox": "attention and feed-forward network side by side",
    "gpt_oss": "attention sinks",
    "granite": "a scaled residual stream",
    "olmo2": "norms on queries and keys",
    "opt": "more rows of positions than it accepts tokens",
    "phi": "attention and feed-forward network side by side",
    "qwen2_moe": "shared experts",
    "qwen3": "norms on queries and keys",
    "qwen3_moe": "norms on queries and keys",
    "smollm3": "layers without positions",
    "stablelm": "partial rotation",
}
"""The parts of other well-known types that no shape can express."""

HEADS = ("ForCausalLM", "LMHeadModel")


def shape_of(config: Mapping[str, object], name: str) -> ModelShape:
    """The shape of the model that a configuration describes.

    Dropout and a router's noise are left out: the reference decoder has none.

    Args:
        config: The object in a `config.json`.
        name: The name of the shape, also used in errors.

    Raises:
        PeakwardError: No `model_type` of `TYPES`, an impossible field, or one that no shape can
        express.
    """
    kind = _known_type(config, name)
    aliases = ALIASES.get(kind, {}).items()
    # Where both names are given, transformers takes the alias.
    given = {**config, **{field: config[alias] for alias, field in aliases if alias in config}}
    read = TYPES[kind](**_fields(TYPES[kind], given, name))
    beyond = next(itertools.chain(_headless(given, name), read.beyond()), None)
    if beyond is not None:
        raise PeakwardError(
            f"expected a {kind} model that a shape can express, got {name} with {beyond}: "
            f"{families.ITSELF}"
        )
    shape = read.shape(name)
    presets.validate(shape)
    return shape


_DROPOUT = {
    "gpt2": {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
    "gpt_bigcode": {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
    "phi3": {"embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "starcoder2": {"embedding_dropout": 0.0, "residual_dropout": 0.0},
}
"""The shares that each type drops in training, with what its class in transformers has by default; beside
`attention_dropout`, by default 0."""


def dropped(config: Mapping[str, object]) -> float:
    """The largest share that the model drops at random while it trains; 0 where it drops nothing."""
    known = {"attention_dropout": 0.0, **_DROPOUT.get(str(config.get("model_type")), {})}
    said = (config.get(name, default) for name, default in known.items())
    return max(each for each in said if isinstance(each, int | float))


def _known_type(config: Mapping[str, object], name: str) -> str:
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in TYPES:
        return kind
    if kind is None:
        got = f"{name} without one: take the config.json of a model"
    else:
        said = str(kind)
        reason = f", which has {BEYOND[said]}" if said in BEYOND else ""
        got = f"{said[:40]!r} in {name}{reason}: {families.ITSELF}"
    raise PeakwardError(f"expected a model_type of {', '.join(TYPES)}, got {got}")


def _fields(kind: type, given: Mapping[str, object], name: str) -> dict[str, Any]:
    """The fields of the type, each checked, so that an error names the field and its value."""
    return {
        field: _converted(given[field], hint, f"{field} of {name}")
        for field, hint in get_type_hints(kind, include_extras=True).items()
        if field in given
    }


def _converted(value: object, hint: Any, what: str) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise PeakwardError(
            f"expected {what} to be usable, got {str(value)[:40]!r}: {error}"
        ) from None


def _headless(given: Mapping[str, object], name: str) -> Iterator[str]:
    """The heads of the configuration that are not a language model's, and so have another cost."""
    listed = _converted(
        given.get("architectures"), tuple[str, ...] | None, f"architectures of {name}"
    )
    if listed and not any(each.endswith(HEADS) for each in listed):
        yield f"no language-model head (architectures {str(listed[0])[:40]!r})"
