"""A browser for the tests of sites."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chromium import Chromium, Tab, served
from web_pages import BLANK, Opened


@pytest.fixture
def opened(browser: Chromium) -> Iterator[Opened]:
    """Opens a page of a site; nothing may go wrong there, and nothing may be fetched from elsewhere."""
    with ExitStack() as servers:
        tabs: list[tuple[str, Tab]] = []

        def open_page(folder: Path, page: str = "", **options: Any) -> Tab:
            if page == BLANK:
                (folder / page).write_text("<!doctype html><link rel=icon href='data:,'>")
            url = servers.enter_context(served(folder))
            tabs.append((url, Tab(browser, f"{url}/{page}", **options)))
            return tabs[-1][1]

        yield open_page
        for url, tab in tabs:
            assert tab.errors == []
            assert [each for each in tab.requests if not each.startswith((f"{url}/", "data:"))] == []
            tab.close()
