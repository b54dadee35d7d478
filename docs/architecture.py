"""The picture of the rooms and what each imports, drawn from the imports of the code."""

from collections.abc import Mapping

import grimp

ROOT = "peakward"
BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN, LANE = 104, 30, 22, 40, 16, 7
WHEN_CALLED = {"levers": {"kernels", "lab"}}
"""What a lever's `apply` imports when it is called, which the import law excepts; drawn, it would make the
rooms a circle."""
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222;text-anchor:middle;dominant-baseline:central}"
    "rect{fill:#eef3fa;stroke:#4a6a9a;rx:5}.torch rect{fill:#fdeee2;stroke:#b4632a}"
    "path{fill:none;stroke:#9aa7b8;stroke-width:1.1}"
)


def imports() -> dict[str, set[str]]:
    """The rooms, each with those that it imports directly."""
    graph = grimp.build_graph(ROOT, exclude_type_checking_imports=True)
    rooms: dict[str, set[str]] = {}
    packages = {name.split(".")[1] for name in graph.modules if name.count(".") >= 2}

    def room(module: str) -> str | None:
        """None of the package itself and of what pytest and `python -m` load: they are in no room."""
        return next((part for part in module.split(".")[1:2] if part in packages), None)

    for module in graph.modules:
        here = room(module)
        if here is None:
            continue
        found = {room(each) for each in graph.find_modules_directly_imported_by(module)}
        rooms.setdefault(here, set()).update(each for each in found if each not in (None, here))
    for here, later in WHEN_CALLED.items():
        rooms[here] -= later
    return rooms


def levels(rooms: Mapping[str, set[str]]) -> list[list[str]]:
    """The rooms in rows: each above all that it imports, as low as that allows."""
    depth: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in depth:
            depth[room] = 1 + max(map(of, rooms[room]), default=-1)
        return depth[room]

    top = max(map(of, rooms))
    return [sorted(each for each in rooms if depth[each] == level) for level in range(top, -1, -1)]


def without_detours(rooms: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """The imports that no chain of others implies: the lines worth drawing."""

    def reached(room: str) -> set[str]:
        return rooms[room].union(*map(reached, rooms[room]))

    return {
        (above, below)
        for above, found in rooms.items()
        for below in found
        if not any(below in reached(other) for other in found - {below})
    }


def picture() -> str:
    """An SVG: a box a room, those that need torch in another colour, a line to what each imports."""
    rooms = imports()
    rows = levels(rooms)
    level = {room: number for number, row in enumerate(rows) for room in row}
    right = max(map(len, rows)) * (BOX_W + GAP_X) + MARGIN
    place: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        left = (right - len(row) * (BOX_W + GAP_X) + GAP_X) / 2
        for i, room in enumerate(row):
            place[room] = (left + i * (BOX_W + GAP_X), MARGIN + number * (BOX_H + GAP_Y))
    drawn = sorted(without_detours(rooms), key=lambda each: (level[each[0]], level[each[1]]))
    far = [each for each in drawn if level[each[1]] - level[each[0]] > 1]
    lines = [
        _around(place[above], place[below], far.index((above, below)), right)
        if (above, below) in far
        else _straight(place[above], place[below])
        for above, below in drawn
    ]
    width = right + len(far) * LANE + MARGIN
    height = len(rows) * (BOX_H + GAP_Y) - GAP_Y + 2 * MARGIN
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            f"<title>The rooms of Peakward</title><style>{STYLE}</style>",
            *(f'<path d="{line}"/>' for line in lines),
            *(_box(room, *place[room]) for room in sorted(place)),
            "</svg>",
        )
    )


def _straight(above: tuple[float, float], below: tuple[float, float]) -> str:
    """From one row to the next."""
    x1, y1 = above[0] + BOX_W / 2, above[1] + BOX_H
    x2, y2 = below[0] + BOX_W / 2, below[1]
    middle = (y1 + y2) / 2
    return f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"


def _around(
    above: tuple[float, float], below: tuple[float, float], number: int, right: float
) -> str:
    """Over several rows, in a lane of its own beside them, so that it passes behind no box."""
    x1, x2 = above[0] + BOX_W * 0.75, below[0] + BOX_W * (0.6 + 0.3 * (number % 4) / 3)
    y1, y2 = above[1] + BOX_H, below[1]
    out, back = y1 + 6 + 3 * (number % 5), y2 - 6 - 3 * (number % 5)
    lane = right + number * LANE
    return f"M{x1:g} {y1:g}V{out:g}H{lane:g}V{back:g}H{x2:g}V{y2:g}"


def _box(room: str, x: float, y: float) -> str:
    kind = ' class="torch"' if room in ("lab", "kernels") else ""
    return (
        f'<g{kind}><rect x="{x:g}" y="{y:g}" width="{BOX_W}" height="{BOX_H}"/>'
        f'<text x="{x + BOX_W / 2:g}" y="{y + BOX_H / 2:g}">{room}</text></g>'
    )
