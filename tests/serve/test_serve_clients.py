"""Programs of others against one server: Anthropic's and OpenAI's clients, LangChain, llm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ingot
from ingot.cli.demo_language import FOLDER
from serve_clients import CLIENTS, MOST, QUESTION

SCRIPT = Path(__file__).parents[1] / "kit" / "serve_clients.py"
FOLDER_OF_CLIENTS = Path(sys.prefix) / "clients"  # see the Makefile


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_answers_calls_and_documents(address, client):
    path = ":".join([*sys.path, str(FOLDER_OF_CLIENTS)])  # at the end: it has older versions of other packages
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), client, address],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout)
    want = ingot.LLM(FOLDER, precision="f32", sequences=1).chat(
        [{"role": "user", "content": QUESTION}], max_tokens=MOST, temperature=0
    )
    assert found["whole"] == found["streamed"] == want
    assert found["document"]["city"] in ("Oslo", "Rome")
    assert found.get("call", {"city": "Oslo"})["city"] in ("Oslo", "Rome")
    assert found["after"] in ("stop", "length", "max_tokens", "end_turn", MOST)
    assert found.get("embeddings", 2) == 2 and found.get("refused", "invalid_request_error") == "invalid_request_error"
