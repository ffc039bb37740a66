"""What most tests of the server have: a server of tiny-lm, a client of it, and the model without a server."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import chat_templates
import ingot
from ingot.cli.demo_language import FOLDER
from serving import served, with_template

if TYPE_CHECKING:
    import openai


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> "openai.OpenAI":
    import openai

    return openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)


@pytest.fixture(scope="module")
def llm() -> ingot.LLM:
    return ingot.LLM(FOLDER, precision="f32", sequences=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny-lm with the chat template of Qwen."""
    return with_template(tmp_path_factory.mktemp("qwen") / "model", chat_templates.QWEN)
