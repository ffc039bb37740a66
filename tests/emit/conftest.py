"""A browser for the tests of sites."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import chromium
from chromium import Chromium, Tab, served
from web_pages import BLANK, Opened


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for all tests of a process. CI has it."""
    if chromium.PROGRAM is None and not os.environ.get("CI"):
        pytest.skip("chromium is not installed: web pages are not tried; .ci/run installs it")
    found = Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


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
