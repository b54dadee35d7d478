"""SVG elements. The page's style sheet sets colours and type by class."""

from typing import Literal
from xml.etree import ElementTree as ET

Anchor = Literal["start", "middle", "end"]
Pixel = tuple[float, float]
"""Pixels across and down."""

CHARACTER = 7.6
"""The width of a label's character in pixels at 12 pixels: that of a digit in DejaVu Sans, a wide font. With
6.7, the mean of common system fonts, "300 ms" lost its first digit in DejaVu."""
LINE = 16
"""The height of a line of labels in pixels."""
N_COLOURS = 6


def canvas(width: float, height: float, title: str, description: str) -> ET.Element:
    """An empty drawing with a title and a description for screen readers."""
    root = ET.Element(
        "svg",
        {
            "viewBox": f"0 0 {width:g} {height:g}",
            "width": f"{width:g}",
            "height": f"{height:g}",
            "role": "img",
            "class": "chart",
        },
    )
    ET.SubElement(root, "title").text = title
    ET.SubElement(root, "desc").text = description
    return root


def text(
    parent: ET.Element,
    x: float,
    y: float,
    content: str,
    *,
    anchor: Anchor = "start",
    style: str = "label",
) -> None:
    """Draw words whose baseline is at y."""
    attributes = {"x": _px(x), "y": _px(y), "text-anchor": anchor, "class": style}
    ET.SubElement(parent, "text", attributes).text = content


def line(parent: ET.Element, start: Pixel, end: Pixel, style: str) -> None:
    """Draw a straight line."""
    ends = {"x1": _px(start[0]), "y1": _px(start[1]), "x2": _px(end[0]), "y2": _px(end[1])}
    ET.SubElement(parent, "line", {**ends, "class": style})


def path(parent: ET.Element, points: list[Pixel], style: str) -> None:
    """Draw straight lines from point to point."""
    steps = " L".join(f"{_px(x)} {_px(y)}" for x, y in points)
    ET.SubElement(parent, "path", {"d": f"M{steps}", "class": style})


def box(parent: ET.Element, corner: Pixel, size: Pixel, style: str) -> None:
    """Draw a filled rectangle from its upper left corner, at least a pixel wide."""
    (x, y), (width, height) = corner, size
    sides = {"x": _px(x), "y": _px(y), "width": _px(max(width, 1)), "height": _px(height)}
    ET.SubElement(parent, "rect", {**sides, "rx": "2", "class": style})


def marker(parent: ET.Element, x: float, y: float, index: int, hover: str) -> None:
    """Draw the mark of series `index` in its colour and shape, with words on hovering."""
    shapes = (_circle, _square, _diamond, _triangle)
    mark = shapes[index % len(shapes)](parent, x, y)
    mark.set("class", f"mark {colour(index)}")
    ET.SubElement(mark, "title").text = hover


def colour(index: int) -> str:
    """The style class of series `index`."""
    return f"c{index % N_COLOURS}"


def stroke(index: int) -> str:
    """The style classes of the line of series `index`. It is dashed where its colour repeats."""
    return f"line {colour(index)}" + (" again" if index >= N_COLOURS else "")


def width_of(label: str) -> float:
    """The approximate width of a label in pixels. A per cent sign is half as wide again as a digit."""
    return (len(label) + label.count("%") / 2) * CHARACTER


def legend(
    parent: ET.Element, names: list[tuple[int, str]], x: float, y: float, width: float
) -> float:
    """Draw marks with their names on as many lines as needed; returns the used height."""
    left, top = x, y
    for index, name in names:
        needed = 18 + width_of(name)
        if left > x and left + needed > x + width:
            left, top = x, top + LINE
        marker(parent, left + 5, top - 4, index, name)
        text(parent, left + 15, top, name)
        left += needed + 12
    return top - y + LINE if names else 0


def _circle(parent: ET.Element, x: float, y: float) -> ET.Element:
    return ET.SubElement(parent, "circle", {"cx": _px(x), "cy": _px(y), "r": "4.5"})


def _square(parent: ET.Element, x: float, y: float) -> ET.Element:
    corner = {"x": _px(x - 4), "y": _px(y - 4), "width": "8", "height": "8"}
    return ET.SubElement(parent, "rect", corner)


def _diamond(parent: ET.Element, x: float, y: float) -> ET.Element:
    return _polygon(parent, [(x, y - 5.5), (x + 5.5, y), (x, y + 5.5), (x - 5.5, y)])


def _triangle(parent: ET.Element, x: float, y: float) -> ET.Element:
    return _polygon(parent, [(x, y - 5.5), (x + 5, y + 4), (x - 5, y + 4)])


def _polygon(parent: ET.Element, points: list[Pixel]) -> ET.Element:
    corners = " ".join(f"{_px(x)},{_px(y)}" for x, y in points)
    return ET.SubElement(parent, "polygon", {"points": corners})


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
