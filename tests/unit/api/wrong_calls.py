"""Every public function of `import peakward`, a call of it that is right, and what is wrong in each place.

`right` makes a call's arguments; `wrong` names for each parameter the values that it must refuse.
"""

import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace

import peakward as pw
from gguf_files import small_model
from peakward.pytest_plugin import Gate
from peakward.records.case import Configuration

DATA = Path(__file__).parents[2] / "data"
TRACE = DATA / "traces" / "h200_decoder_compiled.json.gz"


class Started(BaseException):
    """The call was accepted: what it asks for has begun. No `except Exception` takes it for a failure."""


class Odd:
    """Of no type that anything asks for, with a repr of two lines."""

    def __repr__(self) -> str:
        return "two\nlines"


def begun(*_args: object, **_kwargs: object) -> Any:
    raise Started


class NoProcess(subprocess.Popen):
    """In the place of Popen: no worker is started."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        raise Started

    def __del__(self, *_args: object) -> None:
        pass


class Begins(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, *_given: object) -> torch.Tensor:
        raise Started


NAN, INF = math.nan, math.inf
HUGE = 10**30
ENDLESS = 10**5000
"""Python refuses to write it."""
LONG = "x" * 100_000
NOTHING = (None,)

_NO_TEXT = (b"tiny", 5, 2.5, NAN, True, [], ("tiny",), {}, Odd())
_NO_NUMBER = ("2", b"2", NAN, INF, -INF, -1, ENDLESS, True, [], (1,), {}, Path("2"), Odd())

WHOLE = (*_NO_NUMBER, 2.5, 0, HUGE)
ABOVE_0 = (*_NO_NUMBER, 0)
SECONDS = (*_NO_NUMBER, 0, 0.5, HUGE)
SHARE = (*_NO_NUMBER, 1, 1.5, HUGE)
PRICE = (*_NO_NUMBER, HUGE)
FLAG = (None, "yes", "", b"x", 5, NAN, [], Odd())
TEXT = (*_NO_TEXT, Path("tiny"), "", "\0", "a\nb", LONG)
NAME = (*TEXT, "no such thing")
CHOICE = (*NAME, "TRAIN")
PLACE = (*_NO_TEXT, "", "\0", Path("\0"), LONG, ".")
"""A path, whatever is to be done there."""
FILE = (*PLACE, "no such file", Path("no such file"))
NEW_FILE = (*PLACE, "no/such/folder.db")
FUNCTION = ("x", b"x", 5, NAN, [], {}, Odd())
NAMES = (
    *("sdpa", b"sdpa", 5, NAN, True, Path("sdpa"), Odd(), [5], [None], [b"sdpa"], [Path("sdpa")]),
    *([Odd()], ["no such thing"], [""], [LONG], [["sdpa"]]),
)
RECORD = ("tiny", b"tiny", 5, NAN, True, {}, [], Path("tiny"), Odd(), Configuration(), object)

_TINY = pw.case("tiny", batch_size=1, seq_len=8, pass_="forward", device="cpu")
_ON_GPU = replace(_TINY, device="cuda")
_ON_GPU_IN_BF16 = pw.case(
    "tiny", batch_size=1, seq_len=128, levers=("bf16", "sdpa", "fused-optimizer"), device="cuda"
)
_SERVED = pw.ServingWorkload(batch_size=1, prompt_len=8, output_len=2)
_SIZES = (None, "2", b"2", NAN, 2.5, 0, -1, HUGE, True)

SHAPES = (
    *(replace(_TINY.model, n_layers=size) for size in _SIZES),
    *(replace(_TINY.model, vocab_size=size) for size in _SIZES),
    *(replace(_TINY.model, window=size) for size in _SIZES[1:]),
    *(replace(_TINY.model, norm_eps=size) for size in (None, "2", NAN, INF, 0.0, -1.0)),
    *(replace(_TINY.model, name=name) for name in (None, 5, b"x", "", "a\nb", LONG)),
    replace(_TINY.model, norm="x"),
    replace(_TINY.model, gated=None),
)
CASES = (
    *(replace(_TINY, model=shape) for shape in SHAPES),
    *(replace(_TINY, workload=replace(_TINY.workload, batch_size=size)) for size in _SIZES),
    *(replace(_TINY, workload=replace(_TINY.workload, seq_len=size)) for size in _SIZES),
    *(replace(_TINY, workload=replace(_TINY.workload, accumulate=size)) for size in _SIZES),
    *(replace(_TINY, memory_limit_bytes=size) for size in _SIZES[1:]),
    *(replace(_TINY, model=each) for each in (None, "tiny")),
    *(replace(_TINY, workload=each) for each in (None, _SERVED)),
    *(replace(_TINY, configuration=each) for each in (None, "sdpa")),
    *(replace(_TINY, device=each) for each in (None, "gpu", 0)),
    replace(_TINY, configuration=Configuration(attention="x")),
    replace(_TINY, workload=replace(_TINY.workload, pass_="train")),
    replace(_TINY, workload=replace(_TINY.workload, seed="x")),
)
CASES_ON_GPU = tuple(
    replace(each, device="cuda") if each.device == "cpu" else each for each in CASES
)
PROTOCOLS = (
    *(pw.Protocol(min_steps=size) for size in _SIZES),
    *(pw.Protocol(max_steps=size) for size in _SIZES),
    *(pw.Protocol(warmup_steps=size) for size in ("2", NAN, -1, HUGE, 2.5)),
    *(pw.Protocol(timeout_s=size) for size in (None, "2", NAN, INF, 0, -1)),
    *(pw.Protocol(max_timed_s=size) for size in (None, "2", NAN, INF, -1)),
    *(pw.Protocol(relative_half_width=size) for size in (None, "2", NAN, INF, -1)),
    pw.Protocol(phases="yes"),
    pw.Protocol(min_steps=5, max_steps=4),
)
WORKLOADS = (
    *(replace(_SERVED, batch_size=size) for size in _SIZES),
    *(replace(_SERVED, prompt_len=size) for size in _SIZES),
    *(replace(_SERVED, output_len=size) for size in (*_SIZES, 1)),
    *(replace(_SERVED, weights=each) for each in (None, "bf16", _TINY)),
    *(replace(_SERVED, cache_type=each) for each in (None, "x", 5)),
    *(replace(_SERVED, compute_type=each) for each in (None, "x", 5)),
    replace(_SERVED, speculation="x"),
    _TINY.workload,
)


class Call(NamedTuple):
    """A function, a call of it that is right, and by parameter what is not."""

    function: Callable[..., object]
    right: dict[str, Any]
    wrong: dict[str, tuple[Any, ...]]
    variant: str = ""


def _small_model() -> Path:
    return small_model(Path(tempfile.mkdtemp()) / "small.gguf")


def of_module(study: Any) -> Any:
    """A run of a live nn.Linear(2, 2) that found nothing."""
    from peakward.lab.measure.live_module import live_case
    from peakward.lab.models.given_module import given
    from peakward.tune.costs import HEADLINE

    case = live_case(given((torch.nn.Linear(2, 2), torch.ones(1, 2))), "forward_backward")
    measured = pw.Measurement(
        id="m",
        case=case,
        protocol=HEADLINE,
        environment=study.environment,
        started_at=study.started_at,
        wall_s=1.0,
        status="ok",
        n_parameters=6,
    )
    return replace(study, name="run", measurements=(measured,), steps=())


def calls(study: Any, calibration: Any, trace: Any) -> tuple[Call, ...]:
    """All; the results that some functions take are made by the test."""
    module = Begins()
    optimized = of_module(study)
    batch = torch.ones(1, 2)
    work = {"batch_size": WHOLE + NOTHING, "seq_len": WHOLE + NOTHING, "pass_": CHOICE + NOTHING}
    where = {"memory_limit_bytes": WHOLE, "device": (*CHOICE, "gpu")}
    db = {"db": NEW_FILE + NOTHING}
    steps = {"batch_size": 1, "seq_len": 8, "device": "cpu"}
    levers = (*NAMES, None)
    sought = {
        "levers": NAMES,
        "budget_s": SECONDS,
        "objective": CHOICE + NOTHING,
        "max_memory_bytes": WHOLE,
        "numerics": CHOICE + NOTHING,
        **db,
    }
    cases = ("tiny", b"tiny", 5, NAN, None, True, {}, [], Path("tiny"), Odd(), _TINY)
    of_live = {
        "model": (*RECORD, torch.nn.Linear),
        "optimizer": (*RECORD, torch.optim.SGD, module),
        "tokens_per_step": ABOVE_0,
    }
    prices = (*PRICE, b"22", (NAN,), ["2"], [None], (1.0, 2.0, 3.0), {1.0: 1.0}, [-1.0])
    priced = tuple(
        each for each in prices if not (isinstance(each, tuple | list) and each in ([], (1,)))
    )
    devices = (*NAMES, [], (), None, "h200", ["h100", None])
    return (
        Call(
            pw.case,
            {"shape": "tiny", **steps},
            {
                "shape": (*NAME, None, *RECORD[9:], *SHAPES),
                **work,
                "levers": levers,
                "accumulate": WHOLE + NOTHING,
                **where,
            },
        ),
        Call(
            pw.module_case,
            {"source": "py:somewhere:model", **steps},
            {"source": (*NAME, None, "py:", "py:a", "hf:"), **work, "levers": levers, **where},
        ),
        Call(pw.model, {"name": "tiny"}, {"name": NAME + NOTHING}),
        Call(pw.device, {"text": "h200"}, {"text": NAME + NOTHING}),
        Call(pw.lever, {"name": "sdpa"}, {"name": NAME + NOTHING}),
        Call(
            pw.floor,
            {"case": _ON_GPU, "on": "h200"},
            {"case": (*RECORD, None, *CASES_ON_GPU), "on": NAME},
        ),
        Call(
            pw.floor,
            {"case": replace(_TINY, device="cpu"), "on": None},
            {"case": (*RECORD, None, *CASES), **db},
            "here",
        ),
        Call(
            pw.predict,
            {"case": _ON_GPU, "on": "h200"},
            {
                "case": (*RECORD, None, *CASES_ON_GPU),
                "on": NAME + NOTHING,
                "inputs": (None, "x", b"x", 5, NAN, batch, [batch], Odd()),
                "calibration": RECORD,
                "price_per_gpu_hour": (*PRICE, (1.0, 2.0)),
                "gpus": (*WHOLE, 9, None),
                "parallel": (*CHOICE, "ddp"),
                "nothing": (1,),
            },
        ),
        Call(
            pw.predict,
            {"case": torch.nn.Linear(2, 2), "on": "h200", "inputs": (batch,)},
            {
                "on": NAME + NOTHING,
                "inputs": (
                    None,
                    "x",
                    b"x",
                    5,
                    NAN,
                    batch,
                    (),
                    {},
                    ["x"],
                    {"x": batch},
                    {1: batch},
                    Odd(),
                ),
                "calibration": RECORD,
                "price_per_gpu_hour": (*PRICE, (1.0, 2.0)),
                "pass_": CHOICE + NOTHING,
                "loss": FUNCTION,
                "autocast": ("bf16", b"x", 5, NAN, True, [], Odd(), torch.float32),
                "tokens": ABOVE_0,
                "nothing": (1,),
            },
            "module",
        ),
        Call(
            pw.plan,
            {"case": _ON_GPU, "devices": ["h200"]},
            {
                "case": (*RECORD, None, *CASES_ON_GPU),
                "devices": devices,
                "calibration": RECORD,
                "gpus": (*WHOLE, 9, None),
                "parallel": (*CHOICE, "ddp"),
                "price_per_gpu_hour": priced,
            },
        ),
        Call(
            pw.plan_layouts,
            {"case": _ON_GPU_IN_BF16, "device": "h200", "gpus": 8},
            {
                "case": (*RECORD, None, *CASES_ON_GPU),
                "device": NAME + NOTHING,
                "gpus": (*WHOLE, 1, None),
                "tensor": (*WHOLE, 3, 16),
                "context": (*WHOLE, 3, 16),
                "expert": (*WHOLE, 3, 16),
                "pipeline": (*WHOLE, 3, 16),
                "data": (*CHOICE, "flat"),
                "micro_batch_size": (*WHOLE, 3),
                "reduce_type": (*CHOICE, None, "fp16"),
                "gpus_per_node": (*WHOLE, 16),
                "network_bytes_per_s": (*ABOVE_0, "x"),
                "oversubscription": (0.5, NAN, "x", None),
                "calibration": RECORD,
            },
        ),
        Call(
            pw.plan_serving,
            {"shape": "tiny", "workload": _SERVED, "devices": ["h200"]},
            {
                "shape": (*NAME, None, *RECORD[9:], *SHAPES),
                "workload": (*RECORD, None, *WORKLOADS),
                "devices": devices,
                "calibration": RECORD,
                "price_per_gpu_hour": priced,
                "memory_limit_bytes": WHOLE,
            },
        ),
        Call(
            pw.measure,
            {"case": _TINY},
            {"case": (*RECORD, None, *CASES), "protocol": (*RECORD, *PROTOCOLS)},
        ),
        Call(
            pw.measure_step,
            {"step": begun, "name": "step"},
            {
                "step": FUNCTION + NOTHING,
                "name": TEXT + NOTHING,
                **of_live,
                "device": (
                    *_NO_TEXT,
                    "gpu",
                    "",
                    "\0",
                    LONG,
                    "meta",
                    torch.device("meta"),
                    "cuda:99",
                ),
                "protocol": (*RECORD, *PROTOCOLS, pw.Protocol(fresh_process=True)),
                "nothing": (1,),
            },
        ),
        Call(
            pw.calibrate,
            {"device": "cpu"},
            {"device": (*CHOICE, "gpu"), "gpus": (*WHOLE, None, 0, 65), **db},
        ),
        Call(pw.findings, {"trace": trace}, {"trace": (*RECORD, None, study)}),
        Call(pw.trace, {"path": TRACE}, {"path": FILE + NOTHING, "device": (*NAME, "a100")}),
        Call(pw.memory, {"path": None}, {"path": (*FILE, None, TRACE)}),
        Call(
            pw.watch,
            {},
            {
                "every": (*WHOLE, None, 3),
                "n_steps": (*WHOLE, None, 21),
                "on_findings": FUNCTION,
                "with_stack": FLAG,
            },
        ),
        Call(
            pw.run,
            {"case": _TINY},
            {
                "case": (*RECORD, None, *CASES),
                "batch": (5, "x", b"x", batch, [], Odd()),
                "loss": (5, "x", begun, Odd()),
                "real_model": (*FILE, "smollm2"),
                "gpus": (*WHOLE, None, 65),
                **sought,
            },
        ),
        Call(
            pw.run,
            {"case": module, "batch": batch, "pass_": "forward"},
            {
                "batch": (
                    5,
                    "x",
                    b"x",
                    NAN,
                    None,
                    True,
                    [],
                    {},
                    Path("x"),
                    Odd(),
                    torch.tensor(3),
                    [5],
                ),
                "loss": FUNCTION,
                "pass_": CHOICE + NOTHING,
                "real_model": FILE,
                **sought,
            },
            "module",
        ),
        Call(
            pw.optimize,
            {"model": module, "batch": batch},
            {
                "model": (*RECORD, None, torch.nn.Linear),
                "batch": (5, "x", b"x", None, [], {}, Odd(), torch.tensor(3), [5]),
                "loss": FUNCTION,
                "optimizer": (*RECORD, torch.optim.SGD, module),
                "levers": NAMES,
                "budget": (*SECONDS[1:], "", "x", "0s", "4 minutes", "4d", LONG),
                "objective": CHOICE + NOTHING,
                "max_memory_bytes": WHOLE,
                "numerics": CHOICE + NOTHING,
                **db,
            },
        ),
        Call(
            pw.optimize,
            {"model": module, "loader": [batch]},
            {"loader": (None, 5, NAN, True, Odd(), iter([batch]), "x", b"x", Path("x"), [])},
            "fed",
        ),
        Call(
            pw.apply,
            {"study": optimized, "model": torch.nn.Linear(2, 2)},
            {
                "study": (*FILE, None, study, _TINY),
                "model": (*RECORD, None, torch.nn.Linear, module, torch.nn.Linear(2, 3)),
                "optimizer": (*RECORD, torch.optim.SGD, module),
                "batch": (5, "x", b"x", [], {}, Odd(), [5]),
                "loss": FUNCTION,
                "loader": (5, NAN, True, Odd(), iter([1]), "x", b"x", Path("x"), [batch]),
            },
        ),
        Call(
            pw.investigate,
            {"step": begun},
            {
                "step": (*FUNCTION, None, lambda _batch: None),
                "name": TEXT,
                **of_live,
                "loader": (5, NAN, True, Odd(), iter([1]), "x", b"x", Path("x")),
                "budget_s": SECONDS,
                **db,
            },
        ),
        Call(
            pw.debug,
            {"step": begun, "model": torch.nn.Linear(2, 2)},
            {
                "step": FUNCTION + NOTHING,
                "model": (*of_live["model"], None),
                "optimizer": of_live["optimizer"],
                "batches": (5, NAN, True, Odd(), "x", b"x"),
                "stateful": (5, NAN, None, True, "x", [5], Odd()),
                "n_steps": (*WHOLE, None),
                "snapshot_every": (*WHOLE, None),
                "check_every": (*WHOLE, None),
                "folder": (*(each for each in FILE if each != "."), TRACE),
                "name": TEXT,
            },
        ),
        Call(
            pw.bench,
            {"cases": [_TINY]},
            {
                "cases": (*cases, [None], ["tiny"], [5], [_TINY, "x"], *([each] for each in CASES)),
                "protocols": (
                    *(
                        "x",
                        b"x",
                        5,
                        NAN,
                        None,
                        True,
                        {},
                        [],
                        Odd(),
                        pw.Protocol(),
                        [None],
                        ["x"],
                        [5],
                    ),
                    *([each] for each in PROTOCOLS),
                ),
                **db,
            },
        ),
        Call(
            pw.study,
            {"name": "scaling"},
            {"name": NAME + NOTHING, "full": FLAG, "device": (*CHOICE, "gpu"), **db},
        ),
        Call(
            pw.generate,
            {"model": _small_model(), "prompt": "hello", "device": "cpu", "max_new_tokens": 2},
            {
                "model": FILE + NOTHING,
                "prompt": (None, b"x", 5, NAN, True, {}, [], Odd(), "", "\ud800", ["x", ""], LONG),
                "max_new_tokens": (*WHOLE, None, 64),
                "temperature": (*_NO_NUMBER, None, 101),
                "top_k": WHOLE,
                "top_p": (*_NO_NUMBER, 0, 1.5),
                "seed": (*(each for each in WHOLE if each != 0), None),
                "guesses": (*(each for each in WHOLE if each != 0), None, 65),
                "draft": FILE + NOTHING,
                "decode_step": (*CHOICE, "fused", "eager"),
                "precision": (*(each for each in CHOICE if each is not None), "fp16", "tf32"),
                "weights": (*CHOICE, "int4", "int4:128"),
                "calibration_text": FILE,
                "kv_cache": (*CHOICE, "int4", "none"),
                "device": (*CHOICE, "gpu"),
                "db": NEW_FILE,
            },
        ),
        Call(
            pw.serve,
            {"model": _small_model(), "prompts": ["hello"], "device": "cpu", "max_new_tokens": 2},
            {
                "model": FILE + NOTHING,
                "prompts": (
                    None,
                    b"x",
                    5,
                    NAN,
                    True,
                    {},
                    [],
                    Odd(),
                    "hello",
                    ["\ud800"],
                    ["x", ""],
                    [LONG],
                ),
                "rows": (*WHOLE, None, 4097),
                "max_new_tokens": (
                    *(each for each in WHOLE if each != (1,)),
                    None,
                    [1, 2],
                    [0],
                    [],
                ),
                "temperature": (*_NO_NUMBER, None, 101),
                "top_k": WHOLE,
                "top_p": (*_NO_NUMBER, 0, 1.5),
                "seed": (*(each for each in WHOLE if each != 0), None),
                "decode_step": (*CHOICE, "fused", "eager"),
                "precision": (*(each for each in CHOICE if each is not None), "fp16", "tf32"),
                "weights": (*CHOICE, "int4", "int4:128"),
                "calibration_text": FILE,
                "kv_cache": (*CHOICE, "int4", "none"),
                "device": (*CHOICE, "gpu"),
            },
        ),
        Call(pw.patch, {"study": None}, {"study": (*RECORD, None, _TINY, study)}),
        Call(
            pw.compare,
            {"before": study, "after": study},
            {
                "before": (*RECORD, None, _TINY),
                "after": (*RECORD, None, _TINY),
                "threshold": SHARE + NOTHING,
                "across": FLAG,
            },
        ),
        Call(pw.markdown, {"found": study}, {"found": (*RECORD[:9], None, object)}),
        Call(pw.html, {"found": study}, {"found": (*RECORD[:9], None, object)}),
        Call(pw.load, {"path": None}, {"path": (*FILE, None, TRACE)}),
        Call(
            study.save,
            {"path": "saved.json"},
            {"path": (*NEW_FILE, None, str(TRACE)), "force": FLAG},
        ),
        Call(
            Gate(DATA, update=True).__call__,
            {"step": begun, "name": "step", "baseline": "new.json"},
            {
                "step": FUNCTION + NOTHING,
                "name": TEXT + NOTHING,
                "threshold": SHARE,
                "across": FLAG,
            },
        ),
        Call(
            Gate(DATA, update=False).__call__,
            {"step": begun, "name": "step", "baseline": "new.json"},
            {"baseline": FILE + NOTHING},
            variant="judging",
        ),
        Call(pw.Store.open, {"path": "saved.db"}, {"path": (*NEW_FILE, None, str(TRACE))}),
        Call(pw.Store.open_read_only, {"path": None}, {"path": (*FILE, None, str(TRACE))}),
    )


def wrong_calls(known: tuple[Call, ...]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each wrong call with its name."""
    for call in known:
        for parameter, values in call.wrong.items():
            for i, value in enumerate(values):
                said = f"{call.function.__qualname__}{call.variant and '-' + call.variant}"
                arguments = call.right | {parameter: value}
                yield (
                    f"{said}({parameter}=#{i} {named(value)})",
                    lambda function=call.function, given=arguments: function(**given),
                )


def named(value: object) -> str:
    try:
        return " ".join(repr(value).split())[:60]
    except ValueError:
        return type(value).__name__
