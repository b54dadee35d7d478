"""The index of results/ and the folder say the same, and whoever names a result names one that is there."""

import json
import re
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from stored_results import FOLDER, STUDIES, index

ROOT = FOLDER.parent
INDEX = index()
NAMES = {each.name for each in INDEX.results}
OF_THE_PAST = {each.formerly for each in INDEX.results if each.formerly} | {
    gone.partition(":")[2] for each in INDEX.results for gone in each.supersedes
}
PLAIN = re.compile(r"20\d\d-\d\d-\d\d-(all|cpu|h100|h200)-[\w.-]+?")
SHORT = {"h100-sxm-80": "h100", "h200-141": "h200", "cpu": "cpu", "all": "all"}
QUOTED = re.compile(r"20\d\d-\d\d-\d\d-[a-z0-9][\w.-]*[a-z0-9B](?![\w*…-])")
"""A result's name in prose or code; what ends in a hyphen, a star or an ellipsis stands for several."""


def test_every_file_is_listed_and_every_listed_file_is_there():
    listed = [f"{each.name}.{ending}" for each in INDEX.results for ending in each.files]
    assert Counter(listed) == Counter(
        each.name for each in FOLDER.iterdir() if each.name != "index.toml"
    )


def test_every_result_has_its_json():
    assert all("json" in each.files for each in INDEX.results)


@pytest.mark.parametrize("result", INDEX.results, ids=lambda each: each.name)
def test_a_name_is_date_device_and_subject(result):
    found = PLAIN.fullmatch(result.name)
    assert found, f"expected DATE-DEVICE-SUBJECT, got {result.name}"
    assert found[1] == SHORT[result.device]


def device_of(record):
    """The GPU's name that a stored record says, or "cpu"; None where it is of no device."""
    environment = record.get("environment") or record.get("record", {}).get("environment")
    if environment is None:
        return record.get("device")
    return environment["device_name"] if environment["device_type"] == "cuda" else "cpu"


@pytest.mark.parametrize("result", INDEX.results, ids=lambda each: each.name)
def test_the_device_is_the_one_that_the_file_names(result):
    said = device_of(json.loads(result.read()))
    if result.device == "all":
        assert said is None
    else:
        assert SHORT[result.device] in said.lower()


def test_every_protocol_is_used_and_every_used_one_is_described():
    assert {each.protocol for each in INDEX.results} == INDEX.protocols.keys()


def test_within_a_kind_the_oldest_is_first():
    for kind in {each.kind for each in INDEX.results}:
        assert all(a.name[:10] <= b.name[:10] for a, b in pairwise(INDEX.of(kind)))


def test_of_what_is_measured_whole_the_newest_alone_is_kept():
    """Kernels are measured in parts: of theirs `newest contest` decides, shape by shape."""
    whole = (*STUDIES, "accuracy", "peak-memory", "planted-faults", "calibration", "own-cost")
    seen = Counter((each.kind, each.device, each.subject) for each in INDEX.of(*whole))
    assert [each for each, n in seen.items() if n > 1] == []


def test_what_is_superseded_is_not_there():
    """A name may be had again, by what took its place or by a later commit's result."""
    standing = {f"{each.commit}:{each.name}" for each in INDEX.results}
    gone = [one for each in INDEX.results for one in each.supersedes]
    assert len(gone) == len(set(gone))
    assert not standing & set(gone)
    left = {one.partition(":")[2] for one in gone} - NAMES
    assert not [each for each in left if (FOLDER / f"{each}.json").exists()]


def git(*arguments):
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository").stdout.strip() != "false",
    reason="needs the project's whole history",
)
def test_history_has_what_is_superseded():
    wanted = [
        f"{commit}:results/{name}.json"
        for each in INDEX.results
        for commit, _, name in (one.partition(":") for one in each.supersedes)
    ] + [f"{each.commit}:results/{each.formerly or each.name}.json" for each in INDEX.results]
    found = subprocess.run(
        ["git", "cat-file", "--batch-check"],
        cwd=ROOT,
        input="\n".join(wanted),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert [each for each in found if each.endswith("missing")] == []
    # A commit that was amended away is still in the checkout that made it, and in no clone.
    ours = git("rev-list", "HEAD").stdout.split()
    named = {each.partition(":")[0] for each in wanted}
    assert sorted(named - {commit[:8] for commit in ours}) == []


OF_A_RESULT = re.compile(
    r"-(all|cpu|h100|h200)-|cli-startup|timer-overhead|trace-speed|peak-memory"
)


def quoting():
    """Files of the project that may name a result."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.*")]
    found += [*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.toml"), *ROOT.glob("tests/**/*.py")]
    return [each for each in found if each.suffix in (".md", ".py", ".toml")]


def named_in(path: Path):
    """Of each name without its ending."""
    for each in QUOTED.findall(path.read_text(encoding="utf-8")):
        if OF_A_RESULT.search(each):
            yield re.sub(r"\.(json|md)$", "", each)


def test_whoever_names_a_result_names_one_that_is_there():
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in quoting()
        if path != Path(__file__)
        for name in named_in(path)
        if name not in NAMES
        # The log tells of its day: the index says what became of a name.
        and not (path.name == "log.md" and name in OF_THE_PAST)
        and not name.endswith(("-NAME", "-h200"))
    }
    assert missing == set()


def test_an_entry_with_a_field_that_is_no_field_is_refused(tmp_path):
    (tmp_path / "index.toml").write_text('results = [{name = "a"}]\n[protocols]\n')
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        index(tmp_path)


def test_a_name_that_is_not_there_is_told():
    with pytest.raises(KeyError, match=r"expected a name of results/index\.toml, got 2026-a"):
        INDEX["2026-a"]
