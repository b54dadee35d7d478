"""What `--model` names, and what it refuses."""

import json
import os
from pathlib import Path

import huggingface_hub
import msgspec
import pytest

from peakward.api.cases import model
from peakward.models.hugging_face import files
from peakward.models.presets import MODELS
from peakward.models.presets import model as preset
from peakward.records.errors import PeakwardError

SETTINGS = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
REVISION = "0" * 40


def written(folder: Path, **changed) -> Path:
    """A configuration in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SETTINGS, **changed}))
    return folder


def cached(hub: Path, repository: str, **changed) -> Path:
    """A configuration in a cache of that layout, as the hub's client leaves it."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    return written(folder / "snapshots" / REVISION, **changed)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache."""
    for variable in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize("name", [shape.name for shape in MODELS])
def test_a_preset_stays_one_whatever_lies_here(name, in_tmp):
    written(in_tmp / name)
    assert model(name) == preset(name)


def test_a_file_and_its_folder_are_one_model(in_tmp):
    folder = written(in_tmp / "models" / "mine")
    shape = model(str(folder / "config.json"))
    assert (shape.name, shape.n_layers, shape.d_model, shape.vocab_size) == ("mine", 2, 64, 100)
    for name in (str(folder), "models/mine", "./models/mine/", "models/mine/config.json"):
        assert model(name) == shape


def test_a_folder_here_needs_no_slash_and_has_its_own_name_from_within(in_tmp, monkeypatch):
    shape = model(written(in_tmp / "mine").name)
    monkeypatch.chdir(in_tmp / "mine")
    (in_tmp / "mine" / "inner").mkdir()
    assert model(".") == model("./config.json") == model("config.json") == shape
    monkeypatch.chdir(in_tmp / "mine" / "inner")
    assert model("..") == shape


def test_another_file_s_name_is_taken_too(in_tmp):
    folder = written(in_tmp / "mine")
    (folder / "config.json").rename(folder / "smaller.json")
    assert model("mine/smaller.json").name == "mine"


def test_a_cached_model_is_found_where_the_client_finds_it(hub):
    snapshot = cached(hub, "org/Some-Model.1")
    shape = model("org/Some-Model.1")
    assert (shape.name, shape.d_model) == ("org/Some-Model.1", 64)
    theirs = huggingface_hub.try_to_load_from_cache("org/Some-Model.1", "config.json", hub)
    assert Path(theirs) == snapshot / "config.json"


def test_a_snapshot_s_path_is_named_as_its_repository(hub, monkeypatch):
    snapshot = cached(hub, "org/name")
    assert model(str(snapshot)) == model(str(snapshot / "config.json")) == model("org/name")
    monkeypatch.chdir(snapshot)
    assert model("config.json") == model("org/name")


def test_the_snapshot_is_the_one_of_main(hub):
    snapshot = cached(hub, "org/name")
    written(snapshot.parent / ("1" * 40), num_hidden_layers=7)
    assert model("org/name").n_layers == 2
    (snapshot.parent.parent / "refs" / "main").write_text("1" * 40)
    assert model("org/name").n_layers == 7


def test_a_folder_comes_before_the_cache(hub, in_tmp):
    cached(hub, "org/name")
    written(in_tmp / "org" / "name", num_hidden_layers=5)
    assert (model("org/name").name, model("org/name").n_layers) == ("name", 5)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("smal", "expected a model, got 'smal': perhaps small"),
        ("./none", "got './none': there is no such file or folder; give a preset's name"),
        ("none/config.json", "there is no such file or folder"),
        ("a/b/c", "got 'a/b/c': there is no such file or folder"),
        ("org/", "there is no such file or folder"),
        ("/none", "there is no such file or folder"),
        ("-org/name", "there is no such file or folder"),
        ("org/\x1b[31m", r"got 'org/\\x1b\[31m'"),
        ("org/\0", r"got 'org/\\x00'"),
        ("org/" + "x" * 300, "there is no such file or folder"),
        ("x/" * 5000, "there is no such file or folder"),
        ("org/name", r"no config.json of it in '.*hub'; get it with `hf download org/name config"),
        ("empty", r"got no such file: give a config.json, or the folder that holds one"),
        (os.devnull, "got no such file"),
    ],
    ids=lambda each: each[:20],
)
def test_a_name_of_nothing_is_refused(name, line, hub, in_tmp):
    (in_tmp / "empty").mkdir()
    with pytest.raises(PeakwardError, match=line) as caught:
        model(name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "no JSON object"),
        (b"{", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b"\xff\xfe\xfa", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "no JSON object"),
        (b" " * (files.MAX_BYTES + 1), "at most 16,777,216 bytes"),
        (b"{}", "expected a model_type of gpt2, .*, got mine without one"),
        (b'{"model_type": "llama", "vocab_size": 1e400}', "vocab_size of mine"),
    ],
    ids=lambda each: str(each[:20]),
)
def test_a_file_that_is_no_configuration_is_refused(content, line, in_tmp):
    folder = written(in_tmp / "mine")
    (folder / "config.json").write_bytes(content)
    with pytest.raises(PeakwardError, match=line) as caught:
        model("./mine")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\nb", "a\u202eb"])
def test_a_folder_s_name_must_be_fit_to_print(name, in_tmp):
    written(in_tmp / name)
    with pytest.raises(PeakwardError, match="whose name can stand in tables") as caught:
        model(f"./{name}")
    assert str(caught.value).isprintable()


def test_a_folder_with_a_preset_s_name_must_hold_that_preset(in_tmp):
    written(in_tmp / "tiny")
    with pytest.raises(PeakwardError, match="got tiny, which is a preset of another shape"):
        model("./tiny")
    (written(in_tmp / "gpt2") / "config.json").write_text('{"model_type": "gpt2"}')
    assert model("./gpt2") == preset("gpt2")


def test_a_file_that_may_not_be_read_is_named(in_tmp, monkeypatch):
    folder = written(in_tmp / "mine")

    def refused(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(PeakwardError, match="got: Permission denied"):
        model(str(folder))


def test_a_shape_of_a_configuration_is_a_record(in_tmp):
    shape = model(str(written(in_tmp / "mine")))
    assert msgspec.json.decode(msgspec.json.encode(shape), type=type(shape)) == shape
