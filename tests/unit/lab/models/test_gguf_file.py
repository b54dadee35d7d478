"""Numbers of a .gguf file are those of ggml's definition; damaged files end in one line."""

import struct

import pytest
import torch

from gguf_files import gguf, q4_0, q4_1, q8_0
from peakward.lab.models.gguf_file import read
from peakward.records.errors import PeakwardError

FIELDS = {"general.architecture": "llama", "a.number": 7, "a.share": 0.5, "words": ["a", "ü", ""]}


@pytest.fixture
def whole(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 64, generator=generator)
    path = tmp_path / "model.gguf"
    tensors = {
        "plain": (0, x),
        "half": (1, x.half()),
        "bf": (30, x.bfloat16()),
        "four": (2, q4_0(x)),
        "four.least": (3, q4_1(x)),
        "eight": (8, q8_0(x)),
    }
    path.write_bytes(gguf({**FIELDS, "list": [1, -2, 3]}, tensors))
    return path, x


def test_fields_and_numbers(whole):
    path, x = whole
    found = read(path)
    assert found.fields == {**FIELDS, "list": [1, -2, 3]}
    assert torch.equal(found.tensor("plain"), x)
    assert torch.equal(found.tensor("half"), x.half().float())
    assert torch.equal(found.tensor("bf"), x.bfloat16().float())
    blocks = x.view(-1, 32)
    spread = (blocks.amax(1) - blocks.amin(1)).max()
    for name, steps in (("four", 8), ("four.least", 15), ("eight", 127)):
        widest = spread if name == "four.least" else x.abs().max()
        error = (found.tensor(name) - x).abs().max()
        # Half a step of the widest block, or a whole one where the last step is cut off (Q4_0).
        assert 0 < error <= widest / steps * (1.01 if name == "four" else 0.51)


def test_every_truncation_is_told(whole):
    path, _ = whole
    data = path.read_bytes()
    for n in [*range(0, len(data) - 1, 7), len(data) - 1]:
        path.write_bytes(data[:n])
        with pytest.raises(PeakwardError, match=r"^expected a .*\.gguf file, got model.gguf"):
            read(path)


def test_no_changed_byte_does_harm(whole):
    path, _ = whole
    data = path.read_bytes()
    head = data.index(b"eight") + 40
    for at in range(head):
        for value in (0, 128, 255):
            path.write_bytes(data[:at] + bytes((value,)) + data[at + 1 :])
            try:
                found = read(path)
                for name in found.tensors:
                    found.tensor(name)
            except PeakwardError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 2**40], ids=["2**63", "2**64 - 1", "2**40"])
def test_huge_counts_make_nothing(tmp_path, count):
    path = tmp_path / "model.gguf"
    for at in (8, 16):  # Of tensors, of fields.
        data = bytearray(gguf(FIELDS, {"x": (0, torch.zeros(4))}))
        struct.pack_into("<Q", data, at, count)
        path.write_bytes(data)
        with pytest.raises(PeakwardError, match="damaged"):
            read(path)


def test_tensors_that_share_bytes_are_refused(tmp_path):
    """Read one after another, many of them would take many times the file's size."""
    path = tmp_path / "model.gguf"
    data = bytearray(gguf({}, {"x": (0, torch.zeros(64)), "other": (0, torch.zeros(64))}))
    offset = data.index(b"other") + len("other") + 4 + 8 + 4
    data[offset : offset + 8] = struct.pack("<Q", 128)
    path.write_bytes(data)
    with pytest.raises(PeakwardError, match="'x' and 'other' share bytes"):
        read(path)


def test_other_files(tmp_path):
    path = tmp_path / "model.gguf"
    with pytest.raises(PeakwardError, match="No such file"):
        read(path)
    path.write_bytes(b"")
    with pytest.raises(PeakwardError, match="empty"):
        read(path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(PeakwardError, match="does not begin as one"):
        read(path)
    path.write_bytes(gguf({}, {"x": (14, torch.zeros(64))}))
    with pytest.raises(PeakwardError, match="ggml's type 14"):
        read(path)
