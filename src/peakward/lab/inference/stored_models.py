"""Models as they are stored: in a folder of Hugging Face transformers with safetensors, or in a .gguf file.

Files hold numbers and no code: pickles are refused.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from peakward.lab.data import tokenizer
from peakward.lab.data.tokenizer import BytePairs
from peakward.lab.models import gguf_file, transformers_weights
from peakward.lab.models.gguf_file import GgufFile
from peakward.models.hugging_face import files
from peakward.models.hugging_face import shape as hugging_face
from peakward.records.errors import PeakwardError, quoted
from peakward.records.model_shape import ModelShape

LLAMAS = ("llama", "mistral", "qwen2")
"""The model types that the reference decoder reads from a folder."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class Found(NamedTuple):
    """A model whose numbers are not in a decoder yet."""

    path: Path
    shape: ModelShape
    state: Mapping[str, Tensor]
    """By the names of transformers."""
    words: Callable[[], BytePairs]
    ends: frozenset[int]
    stored: str


def of_folder(config: Path) -> Found:
    shape = expressed(config)
    ends = ends_of(config, shape.vocab_size)
    state = transformers_weights.tensors_of(weights_of(config))
    return Found(config, shape, state, partial(words_of, config.parent), ends, "safetensors")


def expressed(config: Path) -> ModelShape:
    """The shape of the model that the reference decoder computes.

    Raises:
        PeakwardError: no configuration, one of quantised weights, or one of a model that the decoder cannot
            express.
    """
    held = _sound(config)
    kind = held.get("model_type")
    if kind not in LLAMAS:
        raise PeakwardError(
            f"expected a model of type {', '.join(LLAMAS)}, got {quoted(kind)} in {str(config)!r}: "
            "Peakward's decoder reads no other"
        )
    transformers_weights.refuse_scaled_angles(held)
    return hugging_face.shape_of(held, files.title(config))


def _sound(config: Path) -> dict[str, object]:
    """
    Raises:
        PeakwardError: as `beyond`.
    """
    held = files.configuration(config)
    files.refuse_impossible_sizes(held, config.name)
    if (how := held.get("quantization_config")) is not None:
        method = how.get("quant_method", how) if isinstance(how, dict) else how
        raise PeakwardError(
            f"expected weights of floating-point numbers, got a quantization_config ({quoted(method)}) in "
            f"{str(config)!r}: {transformers_weights.BEFORE}"
        )
    return held


def beyond(config: Path) -> str | None:
    """Why the reference decoder cannot express a model, or None where it can.

    Raises:
        PeakwardError: no configuration, one with sizes that no model has, or one of quantised weights.
    """
    _sound(config)
    try:
        expressed(config)
    except PeakwardError as error:
        return str(error)
    return None


def weights_of(config: Path) -> tuple[Path, ...]:
    folder, weights = config.parent, files.weights(config)
    if not weights:
        pickles = [each.name for pattern in PICKLES for each in sorted(folder.glob(pattern))]
        got = f"the pickle {pickles[0]}, which may run any code" if pickles else "no weights"
        raise PeakwardError(
            f"expected weights in safetensors in {str(folder)!r}, got {got}: convert or download them"
        )
    return weights


def words_of(folder: Path) -> BytePairs:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise PeakwardError(
            f"expected a tokenizer.json beside the weights in {str(folder)!r}, got none: download it"
        )
    return tokenizer.of_file(path, tokenizer.file_digest(path))


def ends_of(config: Path, vocab_size: int) -> frozenset[int]:
    """The tokens that end a text, which transformers' generation takes from its own file first.

    Raises:
        PeakwardError: that file is damaged, or an end is no token of the model.
    """
    source, given = config.parent / "generation_config.json", None
    if source.is_file():
        given = files.configuration(source, "download it again, or delete it").get("eos_token_id")
    if given is None:
        source, given = config, files.configuration(config).get("eos_token_id")
    if given is None:
        return frozenset()
    return _tokens(
        given if isinstance(given, list) else [given],
        vocab_size,
        f"eos_token_id in {source.name}",
        "give the token that ends a text, a list of some, or null",
    )


def _tokens(given: Iterable[object], vocab_size: int, what: str, advice: str) -> frozenset[int]:
    """
    Raises:
        PeakwardError: one is no token of the model.
    """
    found = set()
    for each in given:
        # True is an int too, and would be the token 1.
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < vocab_size:
            raise PeakwardError(
                f"expected a token from 0 to {vocab_size - 1:,} for {what}, got {quoted(each)}: {advice}"
            )
        found.add(each)
    return frozenset(found)


NAMES_IN_GGUF = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""A block's tensors in transformers, by their names in a file of the architecture `llama`."""
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SIZES_IN_GGUF = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
"""Fields of transformers' configuration, by their names in a file behind `llama.`."""
ENDS_IN_GGUF = ("eos", "eot", "eom")
"""The ends of a text, of a turn and of a message, at each of which llama.cpp stops."""
SCALING_FACTORS = ("llama.rope.scaling.factor", "llama.rope.scale_linear")
"""The names of RoPE's factor in a file, the newer one first."""


def of_gguf(path: Path) -> Found:
    file = gguf_file.read(path)
    if (architecture := file.fields.get("general.architecture")) != "llama":
        raise PeakwardError(
            f"expected a .gguf file of the architecture llama, got {quoted(architecture)} in {path.name}: "
            "no other is read"
        )
    _refuse_scaled_angles(file)
    own = {field: f"llama.{name}" for field, name in SIZES_IN_GGUF.items()}
    config = {field: file.fields[name] for field, name in own.items() if name in file.fields}
    tied = "output.weight" not in file.tensors
    words = file.fields.get("tokenizer.ggml.tokens")
    if "vocab_size" not in config and isinstance(words, list):
        config["vocab_size"] = len(words)
    given = {"model_type": "llama", "tie_word_embeddings": tied, **config}
    shape = hugging_face.shape_of(given, path.stem)
    for name in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if (size := file.fields.get(name, shape.head_dim)) != shape.head_dim:
            raise PeakwardError(
                f"expected {name} as the {shape.head_dim} of a head, got {quoted(size)} in {path.name}: the "
                "decoder turns and sums whole heads"
            )
    kinds = sorted({each.kind.name for each in file.tensors.values() if len(each.shape) > 1})
    names = [f"tokenizer.ggml.{name}_token_id" for name in ENDS_IN_GGUF]
    ends = [file.fields[name] for name in names if name in file.fields]
    return Found(
        path,
        shape,
        _state_of_gguf(file, shape),
        lambda: _words_of_gguf(file),
        _tokens(ends, shape.vocab_size, f"an end of text in {path.name}", "the file is damaged"),
        " and ".join(kinds),
    )


def _refuse_scaled_angles(file: GgufFile) -> None:
    """As llama.cpp reads a file: a factor without a type is linear, and one of 0 or 1 scales nothing.

    Raises:
        PeakwardError: the file scales the angles of RoPE.
    """
    given = (file.fields[name] for name in SCALING_FACTORS if name in file.fields)
    factor = next(given, 1.0)
    kind = file.fields.get("llama.rope.scaling.type", "none" if factor in (0.0, 1.0) else "linear")
    if kind != "none":
        raise PeakwardError(
            f"expected angles of RoPE that are not scaled, got {quoted(kind)} by a factor of "
            f"{quoted(factor)} in {file.path.name}: take a model without it"
        )


def _state_of_gguf(file: GgufFile, shape: ModelShape) -> dict[str, Tensor]:
    """The tensors by transformers' names. Query and key rows are put back in transformers' order: the file
    has the two that RoPE turns together as neighbours."""
    state = {}
    for name in file.tensors:
        part, _, kind = name.rpartition(".")
        block = part.split(".")
        if part in OUTSIDE:
            theirs = OUTSIDE[part]
        elif len(block) == 3 and block[0] == "blk" and block[2] in NAMES_IN_GGUF:
            theirs = f"model.layers.{block[1]}.{NAMES_IN_GGUF[block[2]]}"
        else:
            raise PeakwardError(
                f"expected the tensors of a llama, got {quoted(name)} in {file.path.name}: "
                "the decoder has no such part"
            )
        numbers = file.tensor(name)
        if part.endswith(("attn_q", "attn_k")):
            heads = shape.n_heads if part.endswith("attn_q") else shape.n_kv_heads
            if numbers.shape[0] != heads * shape.head_dim:
                raise PeakwardError(
                    f"expected {heads * shape.head_dim} rows of {name}, got {numbers.shape[0]} in "
                    f"{file.path.name}: the file contradicts itself"
                )
            numbers = numbers.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        state[f"{theirs}.{kind}"] = numbers
    return state


def _words_of_gguf(file: GgufFile) -> BytePairs:
    fields: Mapping[str, Any] = {
        name.removeprefix("tokenizer.ggml."): value for name, value in file.fields.items()
    }
    if (fields.get("model"), fields.get("pre")) != ("gpt2", "smollm"):
        raise PeakwardError(
            f"expected a tokenizer of byte pairs as SmolLM's, got {quoted(fields.get('model'))} "
            f"{quoted(fields.get('pre'))} in {file.path.name}: take its folder with a tokenizer.json"
        )
    needed = ["tokens", "merges", "token_type", "eos_token_id"]
    if fields.get("add_bos_token", False):
        needed.append("bos_token_id")
    if lacking := [name for name in needed if name not in fields]:
        raise PeakwardError(
            f"expected the tokenizer's {', '.join(needed)}, got {file.path.name} without "
            f"{', '.join(lacking)}: take its folder with a tokenizer.json"
        )
    return tokenizer.of_merges(*(fields[name] for name in needed))
