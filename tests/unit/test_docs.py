"""The pages under docs/: those made from the code hold all of it, and every link leads somewhere."""

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import peakward as pw
from peakward.cli.main import COMMANDS
from peakward.diagnose.examine import PARTS, RULES
from peakward.hardware.devices import devices
from peakward.levers.catalogue import LEVERS
from peakward.studies.registry import STUDIES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def of_docs(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made():
    return {path: page() for path, page in of_docs("reference").PAGES.items()}


def test_the_reference_holds_all_that_the_code_declares(made):
    said = {
        "commands": [f"## peakward {name}" for name in COMMANDS],
        "python": [f"## pw.{name}\n" for name in pw.__all__ if name != "__version__"],
        "levers": [f"| `{lever.name}` |" for lever in LEVERS],
        "findings": [f"## {rule.code}: {rule.title}" for rule in RULES],
        "studies": [f"| `{name}` |" for name in STUDIES],
        "devices": [f"| `{device.key}` |" for device in devices()],
    }
    for page, lines in said.items():
        missing = [line for line in lines if line not in made[f"reference/{page}.md"]]
        assert not missing, page


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_says_every_part(rule):
    assert list(rule.told) == list(PARTS)
    assert rule.title
    assert not rule.title.endswith(".")


def test_the_picture_has_every_room_once_above_what_it_imports(made):
    architecture = of_docs("architecture")
    rooms = architecture.imports()
    packages = {each.parent.name for each in (ROOT / "src" / "peakward").glob("*/__init__.py")}
    assert packages <= set(rooms)
    rows = architecture.levels(rooms)
    assert sorted(room for row in rows for room in row) == sorted(rooms)
    level = {room: number for number, row in enumerate(rows) for room in row}
    assert all(level[room] < level[below] for room, found in rooms.items() for below in found)
    boxes = ElementTree.fromstring(made["images/architecture.svg"]).iter(
        "{http://www.w3.org/2000/svg}text"
    )
    assert sorted(each.text for each in boxes) == sorted(rooms)


def test_only_imports_that_others_imply_are_not_drawn():
    rooms = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert of_docs("architecture").without_detours(rooms) == {("a", "b"), ("b", "c")}


@pytest.mark.parametrize(
    "page",
    [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_link_leads_somewhere(page, made):
    generated = {(DOCS / path).resolve() for path in made}
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path = (page.parent / target).resolve()
        assert path.exists() or path in generated, f"{page.name}: {target}"


def test_every_figure_of_the_tutorial_is_in_the_report_that_it_names():
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    (report,) = re.findall(r"\(\.\./(results/[^)]+\.md)\)", page)
    stored = (ROOT / report).read_text(encoding="utf-8")
    figures = re.findall(r"\d[\d.,]*(?: ?(?:ms|GiB|GB/s|TFLOP/s|s)\b|×|%)|\b0\.\d{4}\b", page)
    assert len(figures) > 40
    assert not [each for each in figures if each not in stored]
