"""Markup is escaped by construction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.web.html import is_local_link, tag


@given(st.text())
def test_no_text_becomes_markup(text: str) -> None:
    made = str(tag("p", {"title": text}, text))
    inner = made.removeprefix('<p title="').removesuffix("</p>")
    assert "<" not in inner
    value, _, _ = inner.partition('">')
    assert '"' not in value


@pytest.mark.parametrize("name", ["onclick", "onload", "style"])
def test_no_attribute_runs_code(name: str) -> None:
    with pytest.raises(ValueError, match="could run code"):
        tag("p", {name: "x"})


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "//evil.example/", "https://evil.example/", "/\\evil.example", "", "x"],
)
def test_no_link_leads_elsewhere(link: str) -> None:
    assert not is_local_link(link)
    with pytest.raises(ValueError, match="leads elsewhere"):
        tag("a", {"href": link}, "go")


def test_attributes_that_are_nothing_are_left_out() -> None:
    made = tag("input", {"name": "q", "value": None, "required": True, "hidden": False})
    assert str(made) == '<input name="q" required>'
