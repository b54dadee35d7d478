"""A causal language model of transformers: with the weights that lie beside its configuration, or random."""

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import torch

from peakward.catalogue.hugging_face import files
from peakward.lab.models.given_module import GivenModule
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.records.case import Attention
from peakward.records.errors import PeakwardError

NO_TRANSFORMERS = (
    "expected transformers, whose models hf: names, got none: run `pip install 'transformers>=5.0'`"
)
IMPLEMENTATIONS: dict[Attention, str | None] = {"as-written": None, "naive": "eager"}
"""transformers' names; every other is a backend of "sdpa"."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
"""Of a file of weights, what its fingerprint reads: 4 MiB, however large it is."""


def fingerprint(name: str) -> str:
    """16 digits, of the configuration's content, of the version of transformers, and of the weights
    beside it their names, sizes and 64 pieces of each: training changes every piece.

    Raises:
        PeakwardError: no such configuration, or no transformers.
    """
    if importlib.util.find_spec("transformers") is None:
        raise PeakwardError(NO_TRANSFORMERS)
    path = files.found(name)
    files.configuration(path)
    version = importlib.metadata.version("transformers")
    digest = hashlib.sha256(path.read_bytes() + version.encode())
    for file in weights(path):
        digest.update(_sampled(file))
    return digest.hexdigest()[:16]


def weights(config: Path) -> tuple[Path, ...]:
    """The files of weights beside a configuration; of safetensors alone, which hold numbers and no code."""
    return tuple(sorted(config.parent.glob("model*.safetensors")))


def _sampled(file: Path) -> bytes:
    size = file.stat().st_size
    step = max(SAMPLE_BYTES, size // SAMPLES)
    pieces = [f"{file.name} {size}".encode()]
    with file.open("rb") as opened:
        for at in range(0, size, step):
            opened.seek(at)
            pieces.append(opened.read(SAMPLE_BYTES))
    return b"".join(pieces)


def build(name: str, attention: Attention, *, device: str, seed: int) -> GivenModule:
    """The model, in fp32 on the device, with its weights where they lie beside the configuration, else
    as `AutoModelForCausalLM.from_config` initialises it; on the meta device it has none.

    Raises:
        PeakwardError: no such configuration, no transformers, none of its causal language models, or
            weights that are not the model's.
    """
    if importlib.util.find_spec("transformers") is None:
        raise PeakwardError(NO_TRANSFORMERS)
    from transformers import AutoConfig, AutoModelForCausalLM

    path = files.found(name)
    held = files.configuration(path)
    kind = str(held.pop("model_type", None))
    chosen = IMPLEMENTATIONS.get(attention, "sdpa")
    wanted: dict[str, Any] = {} if chosen is None else {"attn_implementation": chosen}
    torch.manual_seed(seed)
    try:
        config = AutoConfig.for_model(kind, **held)
        if weights(path) and device != "meta":
            model = _with_weights(path.parent, config, wanted).to(device)
        else:
            with torch.device(device):
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **wanted)
    except Exception as error:  # noqa: BLE001  a configuration may be wrong in any way
        raise_as_bad_input(error, f"a causal language model of transformers in {Path(name).name}")
    vocab_size = model.get_input_embeddings().num_embeddings
    return GivenModule(
        module=model, kwargs={"use_cache": False}, vocab_size=vocab_size, keeps_buffers=True
    )


def _with_weights(folder: Path, config: Any, wanted: dict[str, Any]) -> Any:
    """
    Raises:
        PeakwardError: the files lack weights of the model, or hold others.
    """
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
        **wanted,
    )
    model, report = loaded
    wrong = [*report["missing_keys"], *report["unexpected_keys"]]
    if wrong:
        raise PeakwardError(
            f"expected the weights of {type(model).__name__}, got files without or beyond {len(wrong)} of "
            f"them, {sorted(map(str, wrong))[0]} among them"
        )
    return model
