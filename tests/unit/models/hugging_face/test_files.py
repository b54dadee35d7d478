"""Where configurations lie."""

import subprocess
import sys
from pathlib import Path

import pytest

from peakward.models.hugging_face.files import found, hub_cache


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


def test_a_folder_stands_for_its_configuration(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert found(str(tmp_path)) == tmp_path / "config.json"
    assert found(str(tmp_path / "config.json")) == tmp_path / "config.json"
