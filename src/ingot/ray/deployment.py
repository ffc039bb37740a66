"""The server of a language model as a deployment of Ray Serve."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ingot.llm.service import MAX_WAITING

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.applications import Starlette


def deployment(
    model: str,
    name: str = "ingot",
    *,
    sequences: int = 8,
    threads: int = 1,
    replicas: tuple[int, int] = (1, 4),
    api_keys: Collection[str] = (),
    max_waiting: int = MAX_WAITING,
    load: Mapping[str, Any] | None = None,
) -> Application:
    """Return an application of Ray Serve: replicas of `ingot.serve.app`, for `ray.serve.run`.

    model: a model folder or GGUF file, under this path on every machine. name: the model's name for clients. sequences:
    answers that a replica draws together. threads: of a replica, which are the CPUs that Ray reserves. replicas: the
    fewest and the most; Ray starts another one when a replica has more than twice its sequences of requests, drawn and
    waiting. api_keys, max_waiting: see `ingot.serve.app`. load: further options of `ingot.LLM`.

    Ray's proxy listens and has its own limits of connections.
    """
    from ray import serve

    def build() -> Starlette:
        from ingot.llm.model import LLM
        from ingot.serve import app

        llm = LLM(model, sequences=sequences, threads=threads, **(load or {}))
        return app(llm, name, api_keys=api_keys, max_waiting=max_waiting)

    least, most = replicas
    served = serve.deployment(
        serve.ingress(build)(),
        name="ingot",
        ray_actor_options={"num_cpus": threads},
        max_ongoing_requests=sequences + max_waiting,
        autoscaling_config={"min_replicas": least, "max_replicas": most, "target_ongoing_requests": 2 * sequences},
    )
    return served.bind()
