"""A source file is a chapter: what says nothing without its only importer lives in it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
ROOMS = (
    "api",
    "cli",
    "diagnose",
    "hardware",
    "lab",
    "models",
    "patches",
    "prediction",
    "records",
    "report",
    "stats",
    "store",
    "traces",
    "tune",
)
SMALLEST = 60
"""Lines of a file that may have a single importer in its own room."""
LONGEST = 450
ALONE = {
    "diagnose/rules/layout_copies.py": "a rule is a file",
    "lab/micro/addition.py": "a subject is a file",
    "lab/micro/cross_entropy.py": "a subject is a file",
    "lab/micro/projection.py": "a subject is a file",
    "lab/micro/rms_norm.py": "a subject is a file",
    "lab/micro/subjects.py": "the list of subjects, which imports them all",
    "lab/micro/view.py": "a subject is a file",
    "lab/numerics/beside.py": "it changes a live model and puts it back; who imports it only judges",
    "lab/quality/levers.py": "a subject is a file",
    "lab/quality/subjects.py": "the list of subjects, which imports them all",
}
"""Smaller files with a single importer in their own room, and why each is apart."""
LONGER = {
    "lab/measure/isolated.py": "the runner's one class, with every way in which a worker is lost",
}


def modules() -> dict[str, Path]:
    """The dotted name of each module of the package, with its file."""
    found = {}
    for path in sorted((SOURCE / "peakward").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str) -> set[str]:
    """The dotted names that a module may import, of modules and of what is in them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def fragments(files: dict[str, str], smallest: int) -> set[str]:
    """The modules with fewer lines than `smallest` and a single importer, which is in their room."""
    importers: dict[str, set[str]] = {name: set() for name in files}
    for name, source in files.items():
        for each in imported(source) & set(files):
            importers[each].add(name)
    return {
        name
        for name, by in importers.items()
        if len(by) == 1
        and len(files[name].splitlines()) < smallest
        and next(iter(by)).split(".")[:2] == name.split(".")[:2]
    }


def test_no_small_file_has_a_single_importer_without_a_reason():
    found = modules()
    files = {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    paths = {
        str(found[name].relative_to(SOURCE / "peakward"))
        for name in fragments(files, SMALLEST)
        if name.split(".")[1] in ROOMS and found[name].name != "__init__.py"
    }
    assert paths == set(ALONE)


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_is_too_long_to_read_alone(room):
    folder = SOURCE / "peakward" / room
    found = {
        str(path.relative_to(SOURCE / "peakward"))
        for path in folder.rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST
    }
    assert found == {each for each in LONGER if each.startswith(f"{room}/")}


def test_a_fragment_is_known_by_its_size_and_its_only_importer():
    files = {
        "p.a.whole": "from p.a import part\nfrom p.a.shared import x\n" + "y = 1\n" * 9,
        "p.a.part": "x = 1\n",
        "p.a.shared": "x = 1\n",
        "p.b.front": "from p.a.shared import x\nimport p.a.whole\n",
    }
    assert fragments(files, 5) == {"p.a.part"}
