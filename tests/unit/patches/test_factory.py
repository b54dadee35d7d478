"""Lines in factories of every shape: each patched file is run, and computes as levers that are applied in
place."""

import ast
import copy
import subprocess

import msgspec
import pytest
import torch

from peakward.lab.levers.in_place import Applied, Live
from peakward.lab.models.given_module import given_as_is, keeps_buffers
from peakward.levers.in_code import in_module
from peakward.patches.call import at_call
from peakward.patches.factory import Lines, Place, first_line, in_factory
from peakward.patches.source import Source, unified_diff
from peakward.records.case import AS_WRITTEN
from peakward.records.errors import PeakwardError

HEAD = '''\
"""Builds a model."""

from types import SimpleNamespace

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        return x + self.outer(nn.functional.scaled_dot_product_attention(y, y, y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


X = torch.ones(2, 3, 8)


'''
SHAPES = """
## a name: module
def build():
    model = Model()
    return model
## a call: module
def build():
    return Model()  # here
## names that are taken: module
faster = 1


def build(faster_2=0):
    forward = model = Model()
    return(model)
## nested returns: module
def build(small=True):
    def inner():
        return 5

    inner()
    if small: return Model()
    try:
        return (
            Model()  # large
        )
    finally:
        inner()
## a tuple: tuple
def build():
    return Model(), X
## a tuple in brackets: tuple
def build():
    return (
        (Model()), X,  # a batch
        lambda y: y.sum(),
    )
## a tuple with a name: tuple
def build():
    made = Model(), X
    return made
## two tuples: tuple
def build(a=False):
    made = [Model(), X]
    if a:
        return Model(), X
    return *made,
## an object: object
def build():
    return SimpleNamespace(module=Model(), batch=X)
## a static method: module
class Maker:
    kind = Model

    @staticmethod
    def build():
        return Maker.kind()
## a decorator: module
import functools


@functools.cache
@functools.cache
def build():
    return Model()
## a coroutine: module
import asyncio
import functools


def ran(function):
    return functools.wraps(function)(lambda: asyncio.run(function()))


async def model():
    return Model()


@ran
async def build():
    return await model()
## a lambda: module
build = lambda: Model()
## a class: module
class build(Model):
    def __init__(self):
        super().__init__()
        self.kind = 'ü'
## not of ASCII: tuple
def build():
    größe = 'λ', Model()
    return größe[1], X  # ✓
"""
FACTORIES = {
    head.partition(": ")[0]: (head.partition(": ")[2], text)
    for head, _, text in (each.partition("\n") for each in SHAPES.split("## ")[1:])
}
FACTORIES |= {
    f"{name} without an end": (FACTORIES[name][0], FACTORIES[name][1].rstrip("\n"))
    for name in ("a name", "a class", "a tuple in brackets")
}
SETTINGS = {
    "bf16-mixed and checkpoints": {"precision": "bf16-mixed", "checkpointing": "every-block"},
    "bf16": {"precision": "bf16"},
    "a backend": {"attention": "sdpa-math", "checkpointing": "every-block"},
}


def place(source):
    """Where Python finds `build`."""
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name == "build"
        ):
            return Place(name="build", line=first_line(node))
        if isinstance(node, ast.Assign) and node.targets[0].id == "build":
            return Place(name="<lambda>", line=node.lineno)
    raise AssertionError


def patched(text, made, settings, blocks="model.blocks", *, keeps_buffers=False):
    source = Source("m.py", text)
    best = msgspec.structs.replace(AS_WRITTEN, **settings)
    lines = in_module(best, AS_WRITTEN, "cpu", blocks, keeps_buffers=keeps_buffers)
    given = Lines(imports=lines.imports, body=lines.body, said="Faster.")
    return source.edited(in_factory(source, place(source), made, given))


def module_of(text):
    space = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    build = space["Maker"].build if "Maker" in space else space["build"]
    torch.manual_seed(0)
    return given_as_is(with_batch(build())).module


def with_batch(made):
    return (made, torch.ones(2)) if isinstance(made, torch.nn.Module) else made


def computed(model):
    model.zero_grad()
    result = model(torch.linspace(-1, 1, 48).view(2, 3, 8))
    result.square().mean().backward()
    return result, [each.grad for each in model.parameters()]


def same(one, other):
    (y, gradients), (y_, gradients_) = computed(one), computed(other)
    assert y.dtype == y_.dtype
    return torch.equal(y, y_) and all(map(torch.equal, gradients, gradients_))


@pytest.mark.parametrize("shape", FACTORIES)
def test_a_patched_factory_computes_as_levers_in_place(shape):
    made, text = FACTORIES[shape]
    text, settings = (HEAD + text).encode(), SETTINGS["bf16-mixed and checkpoints"]
    applied = module_of(text)
    Applied(Live(model=applied), msgspec.structs.replace(AS_WRITTEN, **settings))
    changed = module_of(patched(text, made, settings))
    assert "forward" in vars(changed)
    assert same(changed, applied)


@pytest.mark.parametrize("name", SETTINGS)
def test_so_do_other_settings_and_a_deep_copy(name):
    text = (HEAD + FACTORIES["a name"][1]).encode()
    model = module_of(text)
    changed = module_of(patched(text, "module", SETTINGS[name]))
    copied = copy.deepcopy(changed)
    applied = Applied(Live(model=model), msgspec.structs.replace(AS_WRITTEN, **SETTINGS[name]))
    try:
        assert same(changed, model)
        for each in changed.parameters():
            each.data.zero_()
        assert same(copied, model)
    finally:
        applied.undo()


def test_buffers_of_a_model_of_transformers_stay_in_fp32():
    """Rotary angles at long sequences are computed from one."""
    of_transformers = """
class OfTransformers(Model):
    __module__ = "transformers.models.made"  # As a model of transformers has.

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 1 / torch.arange(1.0, 9))

    def forward(self, x):
        return super().forward(x * (1000 * self.frequencies).sin().to(x.dtype))


def build():
    return OfTransformers()
"""
    text = (HEAD + of_transformers).encode()
    given, changed = (
        module_of(text),
        module_of(patched(text, "module", SETTINGS["bf16"], keeps_buffers=True)),
    )
    live = Live(model=given, keeps_buffers=keeps_buffers(given))
    applied = Applied(live, msgspec.structs.replace(AS_WRITTEN, **SETTINGS["bf16"]))
    try:
        assert changed.frequencies.dtype == given.frequencies.dtype == torch.float32
        assert same(changed, given)
    finally:
        applied.undo()


@pytest.mark.parametrize("shape", ["a tuple in brackets", "a name without an end", "not of ASCII"])
@pytest.mark.parametrize("form", ["CRLF", "tabs", "BOM", "plain"])
@pytest.mark.parametrize("tool", [("patch", "-p1", "--binary", "-s"), ("git", "apply")])
def test_the_diff_applies_and_leaves_other_bytes(shape, form, tool, tmp_path):
    made, text = FACTORIES[shape]
    text = HEAD + text
    if form == "tabs":
        text = text.replace("    ", "\t")
    before = text.replace("\n", "\r\n" if form == "CRLF" else "\n").encode()
    before = b"\xef\xbb\xbf" + before if form == "BOM" else before
    after = patched(before, made, SETTINGS["bf16"])
    module_of(after)
    (tmp_path / "m.py").write_bytes(before)
    diff = unified_diff("m.py", before, after)
    subprocess.run(tool, input=diff, cwd=tmp_path, check=True)
    assert (tmp_path / "m.py").read_bytes() == after
    taken = [line for line in diff.splitlines(keepends=True) if line.startswith(b"-")][1:]
    assert len(taken) == 1
    assert (b"\r\n" in after) == (form == "CRLF")
    assert form != "CRLF" or b"\n" not in after.replace(b"\r\n", b"")
    assert form != "tabs" or b"\n    " not in after


def test_blocks_are_compiled():
    text = (HEAD + FACTORIES["a name"][1]).encode()
    model = module_of(patched(text, "module", {"compile": "default"}))
    assert all(each._compiled_call_impl is not None for each in model.blocks)
    whole = module_of(patched(text, "module", {"compile": "default"}, blocks=None))
    assert whole._compiled_call_impl is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch = 1\n\n\ndef build():\n    return Model()\n", "torch in m.py"),
        ("def build():\n    Model()\n", "got no return"),
        ("class build(Model):\n    pass\n", "__init__"),
        ("build = lambda: [lambda: Model()][0]()\n", "2 times"),
    ],
)
def test_what_no_line_can_be_added_to_is_refused(text, said):
    with pytest.raises(PeakwardError, match=said):
        patched((HEAD + text).encode(), "module", SETTINGS["bf16"])


@pytest.mark.parametrize(
    "text", [b"def f(:\n", b"# coding: latin-1\nx = '\xfc'\n", b"x = '\xfc'\n"]
)
def test_a_file_that_is_no_python_in_utf8_is_refused(text):
    with pytest.raises(PeakwardError, match="expected Python in UTF-8"):
        Source("m.py", text)


def called(text, line, function="run", body=("model.eval()",)):
    source = Source("m.py", text.encode())
    lines = Lines(imports=("import torch",) if body else (), body=body, said="Faster.")
    return source.edited(at_call(source, line, function, lines)).decode()


def test_a_call_whose_result_is_unused_makes_room_for_the_lines():
    text = "import peakward as pw\nmodel = make()\nif model:\n    found = pw.run(model, batch)\n"
    assert called(text, 4).endswith("if model:\n    faster(model)\n")


def test_lines_stand_behind_a_call_whose_result_is_used():
    text = "import peakward as pw\nfound = pw.run(\n    self.model, batch)\nprint(found)"
    changed = called(text, 3)
    assert changed.endswith("batch)\nfaster(self.model)\nprint(found)")
    assert "def faster(model):\n" in changed


def test_a_model_without_a_name_is_refused():
    with pytest.raises(PeakwardError, match="to be a name"):
        called("import peakward as pw\npw.run(make(), batch)\n", 2)


def test_a_handle_that_is_only_read_goes_with_its_call():
    text = "import peakward as pw\nhandle = pw.optimize(model, batch)\nprint(handle.patch())\ntrain(model)\n"
    changed = called(text, 2, "optimize")
    assert changed.endswith("faster(model)\npass\ntrain(model)\n")


@pytest.mark.parametrize(
    "use",
    [
        'handle.report.save("found.json")',
        'open("speed.patch", "w").write(handle.patch())',
        'Path("speed.patch").write_text(handle.patch())',
        'print(pw.markdown(handle.report), f"{len(handle.levers)} levers", sep=end)',
    ],
)
def test_a_handle_that_is_told_or_saved_goes_with_its_call(use):
    changed = called(f"handle = pw.optimize(model, batch)\n{use}\ntrain(model)\n", 1, "optimize")
    assert changed.endswith("faster(model)\npass\ntrain(model)\n")


def test_a_call_that_no_line_takes_the_place_of_goes_without_a_function():
    text = "handle = pw.optimize(model, batch)\nprint(handle)\ntrain(model)\n"
    assert called(text, 1, "optimize", body=()) == "pass\npass\ntrain(model)\n"


@pytest.mark.parametrize(
    "use",
    [
        "loss = handle.step(batch)",
        "handle.undo()",
        "keep(handle)",
        "print(train(model, handle.levers))",
        "print(handle.step(batch))",
        "train(model, handle.report)",
    ],
)
def test_a_handle_that_does_something_is_refused(use):
    with pytest.raises(PeakwardError, match="another use in line 3"):
        called(f"import peakward as pw\nhandle = pw.optimize(model, batch)\n{use}\n", 2, "optimize")
