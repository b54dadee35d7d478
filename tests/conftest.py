"""What every test may lean on."""

import gc
import importlib
import json
import os
import shlex
import shutil
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import settings

import slow_torch

os.environ["PEAKWARD_CACHE"] = os.devnull  # What a test computes, no other one finds.
if not torch.cuda.is_available():
    slow_torch.adapt()
    # Read when Triton is imported, by its own functions too: before any test can import it.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if find_spec("triton") is not None:
        import interpreting

        interpreting.adapt()

# A shared two-core machine stalls for longer than any deadline worth setting: count, never time.
settings.register_profile("peakward", deadline=None)
# `make test` draws the same examples every time: a bound that one draw in ten thousand misses is found by
# who looks for it (`--hypothesis-profile=peakward`, the default), not by who changed something else.
settings.register_profile("same", settings.get_profile("peakward"), derandomize=True)
settings.load_profile("peakward")


# In the background of a shell Ctrl-C is ignored, by what the tests start too: those that a test ends by
# Ctrl-C would measure all 400 of their cases, or never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """To look for garbage among 10,000 tests took 6 s of 26."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What the tests' own imports made is no garbage: measuring collects before every timed loop, which
    with all modules loaded took 10 s of a test of 1.4 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def imports_of_earlier_modules_are_no_garbage():
    """Nor is what tests import as they run: collecting around them took 120 s of a core of 1,200."""
    gc.collect()
    gc.freeze()
    slow_torch.leave_guards_untimed()


@pytest.fixture
def nothing_frozen(monkeypatch):
    """As in a program that froze nothing, unlike this suite."""
    monkeypatch.setattr(gc, "get_freeze_count", slow_torch.count_frozen)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture
def micro() -> tuple[str, ...]:
    """Options of a model that builds and steps in milliseconds."""
    return tuple(
        shlex.split(
            "--model tiny --n-layers 1 --d-model 32 --d-ff 64 --n-heads 2 "
            "--batch-size 1 --seq-len 16 --device cpu"
        )
    )


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """An empty working directory, where the default database goes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def spare_workers():
    """Worker processes that tests have left to one another."""
    left = []
    yield left
    for each in left:
        each.kill()


@pytest.fixture
def handed_on(spare_workers, monkeypatch):
    """Commands of this test go on with the worker process that the last such test left, and leave theirs: to
    import torch takes one five seconds of a core. For tests that look at no memory of a step, and whose
    working directory no worker needs."""
    from peakward.lab.measure.isolated import WORKER, Workers

    start, leave = Workers._start, Workers.__exit__

    def take(self, tell, *, cold):
        if not spare_workers or cold or self._argv != WORKER:
            return start(self, tell, cold=cold)
        self._process = spare_workers.pop()
        return self._process

    def hand_on(self, *error):
        process = self._process
        if (
            process is not None
            and self._argv == WORKER
            and not (self._attached or process.has_ended)
        ):
            spare_workers.append(process)
            self._process = None
        leave(self, *error)

    monkeypatch.setattr(Workers, "_start", take)
    monkeypatch.setattr(Workers, "__exit__", hand_on)


USER_MODULES = Path(__file__).parent / "data" / "modules"
TINY_CONFIGURATIONS = {
    "llama": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


@pytest.fixture
def at_user_modules(in_tmp, monkeypatch):
    """A working directory with a module of a user's, `tiny_gpt`, and configurations of transformers."""
    shutil.copy(USER_MODULES / "tiny_gpt.py", in_tmp)
    for kind, sizes in TINY_CONFIGURATIONS.items():
        (in_tmp / kind).mkdir()
        content = {"model_type": kind, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
        (in_tmp / kind / "config.json").write_text(json.dumps(content | sizes))
    monkeypatch.setattr(sys, "path", [*sys.path, str(in_tmp)])
    monkeypatch.delitem(sys.modules, "tiny_gpt", raising=False)
    yield in_tmp
    sys.modules.pop("tiny_gpt", None)


@pytest.fixture
def tiny_gpt(at_user_modules):
    """That module of Python, imported."""
    return importlib.import_module("tiny_gpt")


@pytest.fixture
def make_step(tiny_gpt):
    """make_step(fed=, device=, **parts of `Given`): that module with an optimizer and the step of a script
    around them, of a batch where it is fed."""
    import torch

    from peakward.lab.levers.given_step import Given

    def make(*, fed=False, device="cpu", sdpa=True, **parts):
        torch.manual_seed(0)
        model = tiny_gpt.GPT(sdpa=sdpa).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = torch.randint(tiny_gpt.VOCAB_SIZE, (2, 16), device=device)

        def train(batch):
            loss = tiny_gpt.scored(model(batch.to(device)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        def step():
            return train(ids)

        made = {"step": train if fed else step, "model": model, "optimizer": optimizer}
        return Given(**(made | parts))

    return make


@pytest.fixture
def make_module_case(at_user_modules):
    """make_module_case(source, pass_=, workload=, device=, **configuration's fields)"""
    from peakward.api.cases import case_of_source as module_case
    from peakward.records.case import AS_WRITTEN, Workload

    def make(source, *, pass_="train_step", workload=None, device="cpu", **settings):
        work = Workload(**{"batch_size": 2, "seq_len": 16, **(workload or {})}, pass_=pass_)
        configuration = msgspec.structs.replace(AS_WRITTEN, **settings)
        return module_case(source, work, configuration=configuration, device=device)

    return make
