"""The findings as a document."""

from accuracy import tables
from accuracy.groups import SOURCES
from accuracy.records import Accuracy
from peakward.report.document import Block, Document, Items, Paragraph, Section
from peakward.report.format import format_cell

WHAT_AN_ERROR_IS = (
    "An error is the predicted step over the measured median one, less one. A case measured more "
    "than once counts once: of its measurements of the best verdict (stable, unstable, throttled) "
    "the median of their medians."
)
OF_THE_DEVICE_FITTED_TO = (
    "The factors of operators were fitted to traces of ten train steps on an H200 (five sizes and "
    "GPT-2), not to a step's time; the costs of the host to steps here that wait for it. The rows "
    "of the kind `seen` part the cases: the host's costs were fitted to its file; operators of its "
    "shape were traced; nothing of it was seen.",
    "The datasheet's predictions take shares of the peak, launch and start times from an H200 too, "
    "so that here they are no test of a device that was never measured.",
    "The factors of the intervals were chosen with all these cases in view; Generality says what "
    "others hold for a model that they were not fitted to.",
)
OF_ANOTHER_DEVICE = (
    "The calibrated predictions take this device's calibration, the datasheet's its figures; factors of "
    "operators, shares of the peak and costs of the host are those of an H200. Of an H100 nothing was "
    "fitted but two constants of products of few rows, to captured decode steps: the rows of the kind "
    "`seen` part them from the cases of which nothing was seen. What other kernels and head dimensions of "
    "attention take beside the calibrated one is from kernels that an H100 ran by themselves.",
)
GENERALITY = (
    "Each model is judged by host costs and interval factors fitted to all others. The factors of "
    "operators cannot be fitted anew: their traces are not stored. For them only the shapes tell "
    "anything that were never traced (seen: nothing, waits for the device)."
)


def document(found: Accuracy) -> Document:
    """The report."""
    return Document(
        title=f"Accuracy of predicted step times, {found.device}",
        headline=_headline(found),
        blocks=(Items(texts=(WHAT_AN_ERROR_IS, *_of_the_device(found))),),
        sections=(
            Section(title="By kind", blocks=_by_kind(found)),
            Section(
                title="The worst",
                blocks=(
                    tables.worst("Of all", found.worst, found.cases),
                    tables.worst(
                        "Of those that wait for the device", found.worst_by_device, found.cases
                    ),
                ),
            ),
            Section(
                title="How far measurements repeat",
                blocks=(
                    *((tables.repeats(found),) if found.repeats else ()),
                    tables.sessions(found),
                ),
            ),
            *_where_there_are_any(found),
            Section(title="Every case", blocks=(tables.every(found.cases),), folded=True),
        ),
    )


def _of_the_device(found: Accuracy) -> tuple[str, ...]:
    return OF_THE_DEVICE_FITTED_TO if found.fitted else OF_ANOTHER_DEVICE


def _where_there_are_any(found: Accuracy) -> tuple[Section, ...]:
    fits = (Paragraph(text=GENERALITY), *map(tables.refit, found.refits))
    sections = (
        (found.refits, Section(title="Generality", blocks=fits)),
        (found.products, Section(title="Products one by one", blocks=(tables.products(found),))),
        (found.refused, Section(title="Not predicted", blocks=(tables.refused(found),))),
    )
    return tuple(section for rows, section in sections if rows)


def _headline(found: Accuracy) -> str:
    every = next(each for each in found.groups if (each.source, each.kind) == ("calibrated", "all"))
    shares = (every.median, every.p90, every.worst, every.coverage)
    middle, p90, worst, held = (format_cell(each, "share") for each in shares)
    return (
        f"{every.n} cases from a calibration: median error {middle}, nine in ten below {p90}, "
        f"worst {worst}; the 90% interval holds {held}."
    )


def _by_kind(found: Accuracy) -> tuple[Block, ...]:
    titles = {"calibrated": "From a calibration", "datasheet": "From the datasheet alone"}
    return tuple(
        tables.kinds(titles[source], (each for each in found.groups if each.source == source))
        for source in SOURCES
    )
