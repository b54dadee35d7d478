"""A causal language model of transformers, with the weights beside its configuration or with random
ones."""

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from peakward.lab.models.given_module import GivenModule
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.lab.models.transformers_weights import tensors_of
from peakward.models.hugging_face import files
from peakward.models.hugging_face.files import refuse_impossible_sizes, weights
from peakward.records.case import Attention
from peakward.records.errors import PeakwardError, quoted

NO_TRANSFORMERS = (
    "expected transformers, whose models hf: names, got none: run `pip install 'transformers>=5.0'`"
)
IMPLEMENTATIONS: dict[Attention, str | None] = {"as-written": None, "naive": "eager"}
"""The names that transformers gives to these; every other one is a backend of "sdpa"."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
"""The number and size of the pieces of a weight file that its fingerprint reads: 4 MiB, however large
the file is."""


def fingerprint(name: str) -> str:
    """16 digits that depend on the configuration's content, on the version of transformers, and on the
    names, the sizes and 64 pieces of each file of weights that is loaded. Training changes every piece.

    Raises:
        PeakwardError: No such configuration, no transformers, or weights that cannot be read.
    """
    if importlib.util.find_spec("transformers") is None:
        raise PeakwardError(NO_TRANSFORMERS)
    path, _ = _configuration(name)
    version = importlib.metadata.version("transformers")
    digest = hashlib.sha256(path.read_bytes() + version.encode())
    for file in weights(path):
        digest.update(_sampled(file))
    return digest.hexdigest()[:16]


def _configuration(name: str) -> tuple[Path, dict[str, object]]:
    """The path of the configuration, and its content.

    Raises:
        PeakwardError: There is none, it has sizes that no model has, or it names code from elsewhere.
    """
    path = files.found(name)
    held = files.configuration(path)
    refuse_impossible_sizes(held, Path(name).name)
    for key, value in held.items():
        if key.endswith("_implementation") and "/" in str(value):
            raise PeakwardError(
                f"expected {key[:40]!r} of {Path(name).name} to be a part of transformers, got "
                f"{str(value)[:80]!r}, a kernel that would be fetched and run: take the key out"
            )
    return path, held


def _sampled(file: Path) -> bytes:
    size = file.stat().st_size
    step = max(SAMPLE_BYTES, size // SAMPLES)
    pieces = [f"{file.name} {size}".encode()]
    with file.open("rb") as opened:
        for at in range(0, size, step):
            opened.seek(at)
            pieces.append(opened.read(SAMPLE_BYTES))
    return b"".join(pieces)


def build(
    name: str,
    attention: Attention,
    *,
    device: str,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> GivenModule:
    """The model in that type on the device, with the weights beside the configuration, else as
    `AutoModelForCausalLM.from_config` initialises it; on the meta device it has none.

    Raises:
        PeakwardError: No such configuration, no transformers, none of its causal language models, or
        weights of another model.
    """
    if importlib.util.find_spec("transformers") is None:
        raise PeakwardError(NO_TRANSFORMERS)
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    path, held = _configuration(name)
    # auto_map names code that would be loaded and run.
    held.pop("auto_map", None)
    kind = str(held.pop("model_type", None))
    if kind not in CONFIG_MAPPING:
        raise PeakwardError(
            f"expected a model_type that transformers {importlib.metadata.version('transformers')} has in "
            f"{Path(name).name}, got {quoted(kind)}: give the config.json of a model, or update transformers"
        )
    chosen = IMPLEMENTATIONS.get(attention, "sdpa")
    wanted: dict[str, Any] = {"dtype": dtype, "trust_remote_code": False}
    if chosen is not None:
        wanted["attn_implementation"] = chosen
    found = weights(path)
    torch.manual_seed(seed)
    try:
        # from_dict takes any key; as arguments, "cls" and "self" would be given twice.
        with silently():
            config = CONFIG_MAPPING[kind].from_dict(held)
            if found and device != "meta":
                model = _with_weights(found, config, wanted).to(device)
            else:
                with torch.device(device):
                    model = AutoModelForCausalLM.from_config(config, **wanted)
        embedding = model.get_input_embeddings()
    except Exception as error:  # noqa: BLE001  a configuration may be wrong in any way
        raise_as_bad_input(error, f"a causal language model of transformers in {Path(name).name}")
    vocab_size = getattr(embedding, "num_embeddings", None)
    if not isinstance(vocab_size, int):
        raise PeakwardError(
            f"expected a model that embeds token ids in {Path(name).name}, got {type(model).__name__}, "
            "which does not: give a module of your own (py:)"
        )
    return GivenModule(
        module=model, kwargs={"use_cache": False}, vocab_size=vocab_size, keeps_buffers=True
    )


@contextmanager
def silently() -> Iterator[None]:
    """Keeps transformers' own words out of the output: its bar, which a second of work does not need;
    its table of weights that do not fit, of which an error names one; its advice on keys of a configuration
    and to install other kernels."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _with_weights(found: tuple[Path, ...], config: Any, wanted: dict[str, Any]) -> Any:
    """The model with the tensors of these files, which transformers is handed. Given a folder, it would
    follow every file that is named there, also adapters and pickles.

    Raises:
        PeakwardError: As `tensors_of`; or the files lack weights of the model, or hold others or some of
            other sizes.
    """
    from transformers import AutoModelForCausalLM

    state = tensors_of(found)
    with torch.device("meta"):
        kind: Any = type(AutoModelForCausalLM.from_config(config, **wanted))
    loaded: Any = kind.from_pretrained(
        None,
        config=config,
        state_dict=state,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # They are refused below, by name.
        **wanted,
    )
    model, report = loaded
    for name, stored, planned in sorted(report["mismatched_keys"]):
        raise PeakwardError(
            f"expected weights of the sizes that the model's configuration says, got {name} of "
            f"{tuple(stored)} for {tuple(planned)}: take both from one model"
        )
    wrong = [*report["missing_keys"], *report["unexpected_keys"]]
    if wrong:
        raise PeakwardError(
            f"expected the weights of {type(model).__name__}, got files without or beyond {len(wrong)} of "
            f"them, {sorted(map(str, wrong))[0]} among them"
        )
    return model
