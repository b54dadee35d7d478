"""Every command's report at 60, 80 and 120 columns: no word is broken, no heading and no figure is gone."""

import re
from pathlib import Path

import pytest

from peakward.cli.main import main
from tiers import in_full

DATA = Path(__file__).parents[1] / "data"
TRACES, SNAPSHOTS = DATA / "traces", DATA / "snapshots"
COMPILED = str(TRACES / "h200_decoder_compiled.json.gz")
SHOWN = (
    ("study",),
    ("report",),
    ("devices",),
    ("devices", "--sources"),
    ("devices", "probe", "--device", "cpu"),
    ("trace", COMPILED),
    ("trace", COMPILED, "--kernels"),
    ("trace", COMPILED, str(TRACES / "h200_decoder_cuda_graphs.json.gz")),
    ("trace", str(TRACES / "cpu_decoder.json.gz"), "--kernels"),
    ("memory", str(SNAPSHOTS / "oom.pickle.gz")),
    ("memory", str(SNAPSHOTS / "train.pickle.gz"), "--all"),
    ("plan", "--model", "tiny"),
    ("plan", "--model", "tiny", "--operators", "--device", "h100-sxm,rtx-4090"),
    ("plan", "--model", "llama-3-8b", "--output-len", "16"),
    ("bench", "--model", "tiny,small", "--precision", "fp32,tf32", "--dry-run", "--device", "cpu"),
    ("run", "--model", "tiny", "--dry-run", "--device", "cpu"),
)


def words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", text))


QUICK = (("report",), ("devices",), SHOWN[6], SHOWN[10], SHOWN[13], SHOWN[14], SHOWN[15])


@pytest.mark.parametrize(
    "argv",
    [*QUICK, *in_full(each for each in SHOWN if each not in QUICK)],
    ids=lambda argv: " ".join(map(str, argv[:3]))[-40:],
)
def test_a_narrow_terminal_shows_the_words_of_a_wide_one(argv, in_tmp, monkeypatch, capsys):
    if argv == ("report",):
        assert main(["study", "scaling"]) == 0
        capsys.readouterr()
    shown = {}
    for width in (60, 80, 120, 400):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(list(argv)) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= width
        shown[width] = words(text)
    for width in (60, 80, 120):
        assert shown[width] - shown[400] == set(), f"broken at {width}"
        assert shown[400] - shown[width] == set(), f"gone at {width}"
