"""A causal language model of transformers from a configuration alone, with random weights."""

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


def fingerprint(name: str) -> str:
    """16 digits, of the configuration's content and of the version of transformers.

    Raises:
        PeakwardError: no such configuration, or no transformers.
    """
    if importlib.util.find_spec("transformers") is None:
        raise PeakwardError(NO_TRANSFORMERS)
    path = files.found(name)
    files.configuration(path)
    version = importlib.metadata.version("transformers")
    return hashlib.sha256(path.read_bytes() + version.encode()).hexdigest()[:16]


def build(name: str, attention: Attention, *, device: str, seed: int) -> GivenModule:
    """The model, in fp32 on the device, as `AutoModelForCausalLM.from_config` initialises it.

    Raises:
        PeakwardError: no such configuration, no transformers, or none of its causal language models.
    """
    if importlib.util.find_spec("transformers") is None:
        raise PeakwardError(NO_TRANSFORMERS)
    from transformers import AutoConfig, AutoModelForCausalLM

    held = files.configuration(files.found(name))
    kind = str(held.pop("model_type", None))
    chosen = IMPLEMENTATIONS.get(attention, "sdpa")
    wanted: dict[str, Any] = {} if chosen is None else {"attn_implementation": chosen}
    torch.manual_seed(seed)
    try:
        config = AutoConfig.for_model(kind, **held)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **wanted)
    except Exception as error:  # noqa: BLE001  a configuration may be wrong in any way
        raise_as_bad_input(error, f"a causal language model of transformers in {Path(name).name}")
    vocab_size = model.get_input_embeddings().num_embeddings
    return GivenModule(
        module=model, kwargs={"use_cache": False}, vocab_size=vocab_size, keeps_buffers=True
    )
