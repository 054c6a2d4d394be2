"""The files of the documentation page fit together: what its script and its styles name is in its markup.

What only a browser can show is in ``tests/integration/server/test_docs_page.py``.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

STATIC = files("counterfoil.server").joinpath("static")
MARKUP, STYLES, SCRIPT = (STATIC.joinpath(f"docs.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))

Rules = dict[str, dict[str, str]]


class Elements(HTMLParser):
    """Every element with its attributes and the elements that it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), tuple(self._open)))
        if tag not in ("meta", "link", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def by_id(self, name: str) -> tuple[str, dict[str, str | None], tuple[str, ...]]:
        (one,) = (each for each in self.found if each[1].get("id") == name)
        return one


@pytest.fixture(scope="module")
def elements() -> Elements:
    parser = Elements()
    parser.feed(MARKUP)
    return parser


def rules_of(text: str) -> Rules:
    found: Rules = {}
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)):
        declared = dict(re.findall(r"([a-z-]+):\s*([^;]+);", body))
        for selector in selectors.split(","):
            found.setdefault(" ".join(selector.split()), {}).update(declared)
    return found


def block_of(condition: str) -> str:
    """The inside of a media query."""
    start = STYLES.index("{", STYLES.index(f"@media ({condition})")) + 1
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(STYLES[end], 0)
        end += 1
    return STYLES[start : end - 1]


NARROW = rules_of(block_of("max-width: 52rem"))
WIDE = rules_of(re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", STYLES))


def test_the_menu_has_a_button_that_names_what_it_opens(elements: Elements) -> None:
    tag, attributes, inside = elements.by_id("menu")
    assert (tag, attributes.get("type"), attributes.get("aria-expanded")) == ("button", "button", "false")
    assert "nav" in inside
    _, _, inside = elements.by_id(str(attributes.get("aria-controls")))
    assert "nav" in inside, "the list of operations is in the same part of the page"


def test_on_a_narrow_screen_the_button_is_shown_and_the_list_can_be_opened() -> None:
    assert NARROW["#menu"]["display"] == "block"
    assert NARROW["#index"]["display"] == "none"
    assert NARROW["nav.open #index"]["display"] == "block"
    assert "overflow-y" in NARROW["#index"], "the list is longer than a screen"


def test_on_a_wide_screen_the_list_is_shown_without_a_button() -> None:
    assert WIDE["#menu"]["display"] == "none"
    assert "display" not in WIDE.get("#index", {})


def test_the_bar_stays_at_the_top_of_both() -> None:
    assert (WIDE["nav"]["position"], WIDE["nav"]["top"]) == ("sticky", "0")
    assert "position" not in NARROW["nav"]


def test_the_script_opens_what_the_styles_show() -> None:
    assert 'classList.toggle("open"' in SCRIPT
    assert 'setAttribute("aria-expanded"' in SCRIPT


def test_the_script_uses_ids_of_the_markup(elements: Elements) -> None:
    used = set(re.findall(r'getElementById\("([\w-]+)"\)', SCRIPT))
    assert used
    assert used <= {attributes["id"] for _, attributes, _ in elements.found if "id" in attributes}
