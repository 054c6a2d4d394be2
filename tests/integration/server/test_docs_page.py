"""The documentation page in a browser, as wide as a phone and as a desk; skipped where no Chromium is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import BrowserPage, browser_page

if TYPE_CHECKING:
    from tests.running import Node

pytestmark = pytest.mark.sqlite_only  # a page cannot tell which store the engine has

READY = "document.querySelectorAll('#main .operation[data-words]').length"
LIST_IS_SHOWN = "document.getElementById('index').checkVisibility()"
SHOWN_LINKS = "[...document.querySelectorAll('#index li')].filter((item) => item.checkVisibility()).length"
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


async def operations(page: BrowserPage) -> int:
    await page.until(READY)
    count: int = await page.run(READY)
    return count


async def box(page: BrowserPage, selector: str) -> dict[str, Any]:
    found: dict[str, Any] = await page.run(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
    return found


async def test_on_a_phone_the_menu_leads_to_an_operation(node: Node, tmp_path: Path) -> None:
    async with browser_page(f"{node.url}/docs", tmp_path / "profile", width=390, height=844, phone=True) as page:
        count = await operations(page)
        assert not await page.run(LIST_IS_SHOWN)
        button = await box(page, "#menu")
        assert min(button["width"], button["height"]) >= 44, "large enough for a finger"
        await page.click("#menu")
        assert await page.run(SHOWN_LINKS) == count + 2, "each operation, the error codes and the schemas"
        panel = await box(page, "#index")
        assert panel["bottom"] <= 844, "the list scrolls inside the screen"
        await page.click('#index a[href="#start_flow"]')
        await page.until("document.getElementById('start_flow').open")
        assert not await page.run(LIST_IS_SHOWN)
        await page.until("document.getElementById('start_flow').getBoundingClientRect().top < 300")
        bar, card = await box(page, "nav"), await box(page, "#start_flow")
        assert bar["top"] == 0, "the bar stays"
        assert bar["bottom"] <= card["top"], "the bar does not cover the operation"
        await page.click("#menu")
        await page.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
        assert not await page.run(LIST_IS_SHOWN)
        assert await page.run("document.activeElement.id") == "menu"


async def test_on_a_phone_nothing_is_wider_than_the_screen(node: Node, tmp_path: Path) -> None:
    async with browser_page(f"{node.url}/docs", tmp_path / "profile", width=390, height=844, phone=True) as page:
        await operations(page)
        assert not await page.run(TOO_WIDE)
        await page.run("document.querySelectorAll('details.operation').forEach((card) => { card.open = true; })")
        await page.until("document.querySelectorAll('details.operation > .body').length > 100")
        assert not await page.run(TOO_WIDE)


async def test_a_search_narrows_the_menu_and_the_page(node: Node, tmp_path: Path) -> None:
    async with browser_page(f"{node.url}/docs", tmp_path / "profile", width=390, height=844, phone=True) as page:
        await operations(page)
        await page.click("#menu")
        await page.run("document.getElementById('find').value = '/redeliver'")
        await page.run("document.getElementById('find').dispatchEvent(new Event('input'))")
        assert await page.run(SHOWN_LINKS) == 1 + 2
        assert await page.run("document.getElementById('tag-subscriptions').checkVisibility()")
        assert not await page.run("document.getElementById('tag-steps').checkVisibility()")


async def test_on_a_desk_the_list_is_beside_the_page(node: Node, tmp_path: Path) -> None:
    async with browser_page(f"{node.url}/docs", tmp_path / "profile", width=1440, height=900, phone=False) as page:
        count = await operations(page)
        assert await page.run(SHOWN_LINKS) == count + 2
        assert not await page.run("document.getElementById('menu').checkVisibility()")
        index, main = await box(page, "#index"), await box(page, "#main")
        assert index["right"] <= main["left"]
        assert not await page.run(TOO_WIDE)
