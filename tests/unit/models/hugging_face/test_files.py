"""Where configurations lie."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from peakward.models.hugging_face.files import (
    INDEX,
    found,
    hub_cache,
    refuse_impossible_sizes,
    title,
    weights,
)
from peakward.records.errors import PeakwardError


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "/xdg"},
        {"XDG_CACHE_HOME": "/xdg", "HF_HOME": "~/home"},
        {"HF_HOME": "$ROOT/home", "ROOT": "/root"},
        {"HF_HOME": "/home", "HUGGINGFACE_HUB_CACHE": "/old"},
        {"HF_HOME": "/home", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "~/new"},
    ],
    ids=str,
)
def test_the_cache_is_where_the_client_has_it(variables, monkeypatch):
    for variable in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    program = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert hub_cache() == Path(said.stdout.decode().strip())


@pytest.mark.parametrize(
    "name",
    ["org", "org/name/more", "org/config.json", "../name", "/no/such", "org/na me", "\n/name"],
)
def test_what_is_no_file_and_no_name_of_a_repository_is_not_looked_for(name, in_tmp):
    with pytest.raises(PeakwardError, match="there is no such file or folder"):
        found(name)


def test_a_repository_that_is_not_in_the_cache_says_how_to_get_it(in_tmp, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(in_tmp))
    with pytest.raises(PeakwardError, match="get it with `hf download org/name "):
        found("org/name")


def test_a_folder_stands_for_its_configuration(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert found(str(tmp_path)) == tmp_path / "config.json"
    assert found(str(tmp_path / "config.json")) == tmp_path / "config.json"


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


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("models--org--tiny-llama/snapshots/7ae5", "org/tiny-llama"),
        ("other/snapshots/7ae5", "7ae5"),
        ("models--org--tiny-llama/other/mine", "mine"),
    ],
)
def test_a_model_has_the_name_of_its_repository_or_folder(place, expected, tmp_path):
    assert title(tmp_path / place / "config.json") == expected


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


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"num_hidden_layers": 10**7}, "num_hidden_layers"),
        ({"num_labels": 10**8}, "num_labels"),
        ({"n_layer": 1001}, "n_layer"),
        ({"encoder_layers": 10**5}, "encoder_layers"),
        ({"num_local_experts": 10**6}, "num_local_experts"),
        ({"text_config": {"deep": [{"num_blocks": 10**6}]}}, "num_blocks"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"vocab_size": 10**5000}, "vocab_size"),
        ({"layer_types": ["full_attention"] * 2000}, "layer_types"),
        ({"hybrid_override_pattern": "M*" * 2000}, "hybrid_override_pattern"),
        ({"intermediate_size": [10**9]}, "intermediate_size"),
        ({"anything": [0] * 100_000}, "anything"),
    ],
)
def test_a_size_that_no_model_has_is_refused(config, key):
    with pytest.raises(PeakwardError, match=f"expected '{key}' of here to be at most"):
        refuse_impossible_sizes(config, "here")


def test_numbers_that_are_no_sizes_pass():
    refuse_impossible_sizes(
        {"rope_theta": 10**12, "seed": 2**63, "eos_token_id": 10**9, "tie": True, "eps": 1e300},
        "here",
    )


def test_no_default_of_transformers_is_refused_and_every_size_in_them_can_be():
    transformers = pytest.importorskip("transformers")
    kinds = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    n_seen, sizes = 0, set()
    for kind in kinds:
        try:
            config = transformers.CONFIG_MAPPING[kind]().to_dict()
        except Exception:  # noqa: BLE001  a few have no defaults that fit one another
            continue
        refuse_impossible_sizes(config, kind)
        n_seen += 1
        sizes |= {key for key, value in config.items() if type(value) is int and "theta" not in key}
    assert n_seen > 100 and len(sizes) > 200
    for key in sizes:
        if not key.endswith(("_id", "_index")) and "seed" not in key:
            with pytest.raises(PeakwardError, match=f"expected '{key}' of here"):
                refuse_impossible_sizes({key: 10**8}, "here")
