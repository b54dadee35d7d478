"""Text out of a file that another program made."""


def printable(text: str) -> str:
    """The text with what no terminal should be sent written as Python writes it: "\\x1b[2J"."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
