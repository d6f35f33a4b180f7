"""Elements of HTML. What is not markup already is text, and is escaped without being asked."""

from __future__ import annotations

from html import escape


class Markup(str):
    """A text that is HTML."""

    __slots__ = ()


def element(name: str, *content: object, **attributes: object) -> Markup:
    """Make an element.

    content     markup as it is, all else as text
    attributes  an underscore at the end is dropped, others stand for hyphens; True has no value,
                False and None leave it out
    """
    written = "".join(
        _attribute(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}>{joined(*content)}</{name}>")


def joined(*content: object) -> Markup:
    """Join content."""
    return Markup(
        "".join(each if isinstance(each, Markup) else escape(str(each)) for each in content)
    )


def _attribute(name: str, value: object) -> str:
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
