from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from report.reading_html import read
from tacit.report.markup import Markup, coordinate, element, escaped, joined

# What no parser hands back as it came: the parser's own line ends, and characters that HTML does not have.
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\x00"))


@given(TEXT)
def test_text_comes_back_as_text(text: str) -> None:
    found = read(element("p", text, title=text, data_x=text)).one("p")
    assert found.text == text
    assert found.attributes == {"title": text, "data-x": text}


def test_only_markup_is_markup() -> None:
    assert element("p", "<b>", Markup("<b></b>")) == "<p>&lt;b&gt;<b></b></p>"
    assert element("p", [1, None, ["&", 2.5]]) == "<p>1&amp;2.5</p>"
    assert isinstance(joined("a"), Markup)
    assert escaped("\ud800") == "?", "a name that is not Unicode does not break the page"


def test_attributes() -> None:
    made = element("input", class_="a b", aria_label='x"y', hidden=True, disabled=False, id=None, x=1.0)
    assert made == '<input class="a b" aria-label="x&quot;y" hidden x="1">'
    assert element("line", x1=0.126) == '<line x1="0.13"/>'


def test_coordinates_are_short() -> None:
    assert [coordinate(value) for value in (0.001, -0.001, 12.0, 12.345678, 100.0, -3.5)] == [
        "0",
        "0",
        "12",
        "12.35",
        "100",
        "-3.5",
    ]
