"""Only safetensors files in the folder, or among the blobs of a repository in the cache, are weights."""

import json
import pickle

import pytest

from peakward.models.hugging_face.weights import INDEX, weights
from peakward.records.errors import PeakwardError

TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def safetensors(header: object = None) -> bytes:
    data = json.dumps({"a": TENSOR} if header is None else header).encode()
    return len(data).to_bytes(8, "little") + data + bytes(4)


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "folder"
    found.mkdir()
    (found / "config.json").write_text("{}")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "w.safetensors").write_bytes(safetensors())
    return found


def refused(folder):
    with pytest.raises(PeakwardError) as caught:
        weights(folder / "config.json")
    assert str(caught.value).isprintable()
    return str(caught.value)


def index(folder, *named):
    weight_map = {f"t{number}": name for number, name in enumerate(named)}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_a_configuration_alone_has_none(folder):
    assert weights(folder / "config.json") == ()


def test_the_whole_before_the_index_before_the_parts(folder):
    parts = [folder / f"model-{n}.safetensors" for n in (1, 2)]
    for each in parts:
        each.write_bytes(safetensors())
    assert weights(folder / "config.json") == tuple(parts)
    index(folder, "model-2.safetensors", "model-2.safetensors")
    assert weights(folder / "config.json") == (parts[1],)
    (folder / "model.safetensors").write_bytes(safetensors())
    assert weights(folder / "config.json") == (folder / "model.safetensors",)


def test_a_file_by_any_name_is_told_by_its_header(folder):
    (folder / "w.bin").write_bytes(safetensors())
    index(folder, "w.bin")
    assert weights(folder / "config.json") == (folder / "w.bin",)


@pytest.mark.parametrize("up", ["../outside/w.safetensors", "x/../../outside/w.safetensors", None])
def test_a_file_outside_is_refused(up, folder):
    (folder / "x").mkdir()
    index(folder, up or str(folder.parent / "outside" / "w.safetensors"))
    assert "which lies outside: no file from elsewhere is read" in refused(folder)


@pytest.mark.parametrize("by", ["file", "folder", "whole"])
def test_a_link_that_leads_outside_is_refused(by, folder):
    outside = folder.parent / "outside"
    name = {"file": "w", "folder": "sub/w.safetensors", "whole": "model.safetensors"}[by]
    if by == "folder":
        (folder / "sub").symlink_to(outside)
    else:
        (folder / name).symlink_to(outside / "w.safetensors")
    if by != "whole":
        index(folder, name)
    assert "which lies outside" in refused(folder)


def test_a_link_to_nothing_or_to_itself_is_refused(folder):
    (folder / "model.safetensors").symlink_to("gone.safetensors")
    assert "got no such file" in refused(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    assert "expected" in refused(folder)


@pytest.mark.parametrize("repository", ["models--org--name", "other"])
def test_a_snapshot_of_the_cache_leads_to_its_blobs_alone(repository, folder):
    held = folder.parent / repository
    snapshot, blobs = held / "snapshots" / "abc", held / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "0123").write_bytes(safetensors())
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    if repository == "other":
        assert "which lies outside" in refused(snapshot)
        return
    assert weights(snapshot / "config.json") == (blobs / "0123",)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(folder.parent / "outside" / "w.safetensors")
    assert "which lies outside" in refused(snapshot)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"a": 1}),
        b"",
        b"\x02",
        (2).to_bytes(8, "little") + b"[]",
        (1 << 40).to_bytes(8, "little") + b"{}",
        safetensors({"a": 1}),
        safetensors({"a": {"dtype": "F32"}}),
        (2).to_bytes(8, "little") + b"{]",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
    ],
)
@pytest.mark.parametrize("name", ["model.safetensors", "w.bin"])
def test_what_is_no_safetensors_file_is_refused(content, name, folder):
    (folder / name).write_bytes(content)
    if name != "model.safetensors":
        index(folder, name)
    assert "whose header is not theirs" in refused(folder)


def test_a_name_that_a_terminal_would_obey_is_of_no_file(folder):
    (folder / "\x1b[2Jw.bin").write_bytes(safetensors())
    index(folder, "\x1b[2Jw.bin")
    assert "got no such file" in refused(folder)


@pytest.mark.parametrize(
    "named", [None, [], {}, {"a": 1}, {"a": "x\0y"}, {"a": "n" * 5000}, {"a": "."}]
)
def test_an_index_of_anything_else_is_refused(named, folder):
    (folder / INDEX).write_text(json.dumps({"weight_map": named}))
    assert refused(folder).startswith("expected")
