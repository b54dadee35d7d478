"""Numbers of a .gguf file are those of ggml's definition; damaged files end in one line."""

import struct

import pytest
import torch

from gguf_files import Blocks, gguf, q4_0, q4_1, q8_0
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
    path.write_bytes(gguf({}, {"x": (16, torch.zeros(64))}))
    with pytest.raises(PeakwardError, match="ggml's type 16"):
        read(path)


def q5(low, high, at, number):
    return (low[number % 16] >> 4 * (number // 16) & 15) | (high >> number & 1) << at


def of_q5_0(block):
    """As dequantize_row_q5_0 of ggml-quants.c, number by number."""
    step, high = struct.unpack("<eI", block[:6])
    return [step * (q5(block[6:], high, 4, n) - 16) for n in range(32)]


def of_q5_1(block):
    step, least, high = struct.unpack("<eeI", block[:8])
    return [step * q5(block[8:], high, 4, n) + least for n in range(32)]


def steps_of(group, scales):
    """As get_scale_min_k4 of ggml-quants.c."""
    if group < 4:
        return scales[group] & 63, scales[group + 4] & 63
    low = scales[group + 4] & 15 | (scales[group - 4] >> 6) << 4
    return low, scales[group + 4] >> 4 | (scales[group] >> 6) << 4


def of_k(block, high, quants):
    step, least = struct.unpack("<ee", block[:4])
    found = []
    for n in range(256):
        group = n // 32
        by, beneath = steps_of(group, block[4:16])
        four = quants[32 * (group // 2) + n % 32] >> 4 * (group % 2) & 15
        fifth = high[n % 32] >> group & 1 if high else 0
        found.append(step * by * (four | fifth << 4) - least * beneath)
    return found


def of_q6_k(block):
    low, high, scales = block[:128], block[128:192], struct.unpack("<16b", block[192:208])
    (step,) = struct.unpack("<e", block[208:])
    found = []
    for n in range(256):
        half, within = divmod(n, 128)
        four = low[64 * half + within % 64] >> 4 * (within // 64) & 15
        two = high[32 * half + within % 32] >> 2 * (within // 32) & 3
        found.append(step * scales[n // 16] * ((four | two << 4) - 32))
    return found


@pytest.mark.parametrize(
    ("number", "n_bytes", "halves", "told"),
    [
        (6, 22, (0,), of_q5_0),
        (7, 24, (0, 2), of_q5_1),
        (12, 144, (0, 2), lambda block: of_k(block, None, block[16:])),
        (13, 176, (0, 2), lambda block: of_k(block, block[16:48], block[48:])),
        (14, 210, (208,), of_q6_k),
    ],
    ids=["Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"],
)
def test_numbers_of_any_bytes(number, n_bytes, halves, told, tmp_path):
    generator = torch.Generator().manual_seed(number)
    blocks = torch.randint(256, (3, n_bytes), generator=generator, dtype=torch.uint8)
    for at in halves:  # Any bytes may be NaN.
        drawn = torch.randn((3, 1), generator=generator).half()
        blocks[:, at : at + 2] = drawn.view(torch.uint8)
    expected = torch.tensor([told(bytes(each.tolist())) for each in blocks], dtype=torch.float64)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(FIELDS, {"x": (number, Blocks(expected.shape, blocks))}))
    found = read(path).tensor("x")
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5)
