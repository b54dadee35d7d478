"""The tables of README and docs/ are those that the stored results give."""

import re
import sys

import msgspec
import pytest

import docs_tables
from docs_tables import ROOT, TABLES, current, pages
from peakward import kernels
from stored_results import index
from tables import against, speed

EVERY_PAGE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURE = re.compile(r"\d ?(ms|µs|s|TFLOP/s|GB/s|MiB|GiB)\b|\d×")
SOURCED = ("how-to/trace.md", "scope.md", "design.md", "log.md")
"""Pages of docs/ whose tables are written by hand: the first says of which files and versions its figures
are, the others state goals and limits."""


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_page_is_current(page):
    assert page.read_text(encoding="utf-8") == current(page), (
        "expected `make tables` to change nothing"
    )


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.stem)
def test_no_table_shows_a_figure_that_no_result_holds(page):
    if page in [ROOT / "docs" / each for each in SOURCED]:
        return
    by_hand = docs_tables.MADE.sub("", page.read_text(encoding="utf-8"))
    shown = [each for each in by_hand.splitlines() if each.startswith("|") and FIGURE.search(each)]
    assert shown == []


def test_every_table_is_asked_for():
    asked = {
        found.split()[0]
        for page in pages()
        for found in re.findall(r"<!-- made: ([^>]*) -->", page.read_text(encoding="utf-8"))
    }
    assert asked == TABLES.keys()


def test_every_public_operator_has_a_page_with_all_that_is_asked_of_one():
    found = {}
    for page in sorted((ROOT / "docs" / "kernels").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for part in ("When it wins", "When torch's is better", "Numerics", "How to call it"):
            assert f"\n## {part}\n" in text, f"{page.name}: {part}"
        called = re.search(r"<!-- made: calls ([^>]*) -->", text)
        found |= dict.fromkeys(called[1].split(), page)
    assert sorted(found) == sorted(kernels.__all__)


def test_what_was_timed_has_its_table():
    timed = {each.subject for each in index().of("kernel-speed")}
    assert timed == speed.OPERATORS.keys()


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of two results of one operator, the later with one of the earlier's two shapes."""
    entries = []
    for name, times in (("earlier", {8: 2.0, 16: 4.0}), ("later", {8: 1.0})):
        outcomes = [
            {
                "operator": "a",
                "shape": {"rows": rows, "pass": "forward"},
                "arms": [
                    {"name": "peakward", "median_s": seconds},
                    {"name": "eager", "median_s": 3.0},
                ],
                "best_peer": "eager",
                "speed_over_best": {
                    "estimate": 3.0 / seconds,
                    "low": 3.0 / seconds,
                    "high": 3.0 / seconds,
                    "level": 0.95,
                },
            }
            for rows, seconds in times.items()
        ]
        told = {"device": "H100", "torch": "2", "triton": "3", "cudnn": 9, "outcomes": outcomes}
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(told))
        entries.append(
            f'[[results]]\nname = "{name}"\nkind = "kernel-speed"\ndevice = "h100-sxm-80"\n'
            'subject = "a"\nprotocol = "cold-read"\ncommit = ""\nfiles = ["json"]\n'
        )
    (tmp_path / "index.toml").write_text("protocols = {}\n" + "".join(entries))
    monkeypatch.setattr(speed, "index", lambda: index(tmp_path))


@pytest.mark.usefixtures("results")
def test_of_a_shape_the_last_measurement_counts():
    found = {each.outcome.shape["rows"]: each for each in speed.last("a")}
    assert {rows: each.ours.median_s for rows, each in found.items()} == {8: 1.0, 16: 4.0}
    assert [each.result.name for each in found.values()] == ["later", "earlier"]


@pytest.mark.usefixtures("results")
def test_shapes_are_counted_as_won_and_lost():
    assert speed.verdicts("a").splitlines()[-1] == "| forward | 2 | 1 | 0 | 1 | 0.75 to 3.00× |"


def test_a_step_beside_float8_has_a_row_of_its_own(tmp_path, monkeypatch):
    pairs = {"estimate": 0.5, "low": 0.5, "high": 0.5, "level": 0.95}
    outcomes = [
        {
            "name": "2.7B:8x1024:train_step",
            "case": {"configuration": {"precision": "fp8"}},
            "peer": {"scope": "layers", **recipe},
            "turns": [{"arm": "A", "median_s": seconds}, {"arm": "B", "median_s": 0.1}],
            "time_ratio": pairs,
        }
        for recipe, seconds in (({}, 0.3), ({"float8": "tensorwise"}, 0.2))
    ]
    (tmp_path / "duel.json").write_bytes(msgspec.json.encode({"outcomes": outcomes}))
    (tmp_path / "index.toml").write_text(
        'protocols = {}\n[[results]]\nname = "duel"\nkind = "against-transformers"\n'
        f'device = "{against.DEVICE}"\nsubject = "a"\nprotocol = "duel"\ncommit = ""\nfiles = ["json"]\n'
    )
    monkeypatch.setattr(against, "index", lambda: index(tmp_path))
    rows = [line.split(" | ")[:3] for line in against.transformers().splitlines()[2:]]
    assert rows == [
        ["| `2.7B`, 8 × 1024, ours in fp8", "100 ms", "300 ms"],
        ["| `2.7B`, 8 × 1024, ours in fp8, theirs in torchao's float8", "100 ms", "200 ms"],
    ]


def test_a_stale_page_is_named_and_written_anew(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- made: operators -->\nold\n<!-- end -->\nb\n")
    monkeypatch.setattr(docs_tables, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["docs_tables.py", "--check"])
    with pytest.raises(SystemExit, match="1"):
        docs_tables.main()
    assert capsys.readouterr().out == "README.md\n"
    monkeypatch.setattr(sys, "argv", ["docs_tables.py"])
    with pytest.raises(SystemExit, match="0"):
        docs_tables.main()
    assert speed.operators() in page.read_text()
    assert page.read_text().startswith("a\n<!-- made: operators -->\n| operator |")


def test_an_unknown_table_is_refused():
    with pytest.raises(KeyError, match=r"expected one of against-transformers, .*, got nothing"):
        docs_tables._made("nothing")


def test_of_two_variants_one_is_the_fastest_of_ours():
    rows = [line.split(" | ") for line in speed.variants().splitlines()[2:]]
    shapes = {row[0]: int(row[2]) for row in rows}
    fastest = {name: sum(int(row[3]) for row in rows if row[0] == name) for name in shapes}
    assert fastest == shapes
    assert all(int(row[4].strip(" |")) <= int(row[3]) for row in rows)
