"""Serves a language model from two replicas on a local cluster of Ray, and asks them.

    pip install 'ingot-compiler[ray]'
    python examples/ray_serve/server.py [--model FOLDER] [--stay]

With --stay the server goes on until Ctrl-C; clients use http://127.0.0.1:8000/v1 as their base URL.
"""

import argparse
import json
import time
import urllib.request

import ray
from ray import serve

import ingot.ray
from ingot.cli.demo_language import FOLDER


def main() -> None:
    """Start the server and print an answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(FOLDER))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--stay", action="store_true")
    asked = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": asked.port})
    serve.run(ingot.ray.deployment(asked.model, "my-model", replicas=(2, 2)), route_prefix="/")
    body = {"messages": [{"role": "user", "content": "def add(a, b):"}], "max_tokens": 24}
    request = urllib.request.Request(f"http://127.0.0.1:{asked.port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})  # fmt: skip
    with urllib.request.urlopen(request) as answer:
        print(json.load(answer)["choices"][0]["message"]["content"])
    while asked.stay:
        time.sleep(1)
    serve.shutdown()


if __name__ == "__main__":
    main()
