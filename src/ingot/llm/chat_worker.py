"""A separate process that renders chat templates, because a template comes with the model and may be hostile.

The process reads lines of JSON and answers each with one line. The first line is {"templates": {name: source},
"seconds", "nbytes", "output_bytes"}; each other line is {"template": name, "variables": {...}} and is answered by
{"text"} or {"error", "message"}. If a rendering exceeds its CPU time, the operating system ends the process, which no
template can prevent. After its start the process cannot open files or sockets.

The process is started as a script with the folders of jinja2 and markupsafe as arguments, and imports nothing else.
"""

import datetime
import json
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

# Exceptions that a template's computations may raise; any other ends the process with a traceback.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Refusal(Exception):
    """Raised when a template calls `raise_exception`."""


def make_environment() -> Any:
    """Return a Jinja environment set up as in transformers, without attributes that escape the sandbox."""
    import jinja2.constants
    import jinja2.debug
    import jinja2.ext
    import jinja2.sandbox

    assert jinja2.constants and jinja2.debug  # imported now, because the process cannot open files later

    class Generation(jinja2.ext.Extension):
        """The block `{% generation %}`, which marks text of the model; it renders its body."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

        def _inside(self, caller: Callable[[], str]) -> str:
            return caller()

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
            raise jinja2.sandbox.SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__}")

    class Namespace(jinja2.utils.Namespace):
        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.sandbox.SecurityError(f"attribute {name!r} of a namespace")
            super().__setitem__(name, value)

    def raise_exception(message: Any) -> None:
        raise Refusal(str(message))

    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format: str) -> str:
        return datetime.datetime.now().strftime(format)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": Namespace}
    return environment


def render(environment: Any, source: str, variables: dict[str, Any], output_bytes: int) -> dict[str, str]:
    """Render a template; return {"text"}, or an "error": syntax, security, refused (by the template), limit, failed."""
    from jinja2 import TemplateError, TemplateSyntaxError
    from jinja2.sandbox import SecurityError

    try:
        template = environment.from_string(source)
        parts, size = [], 0
        for part in template.generate(**variables):
            parts.append(part)
            size += len(part) if part.isascii() else len(part.encode("utf-8", "surrogatepass"))
            if size > output_bytes:
                return {"error": "limit", "message": f"writes more than {output_bytes} bytes"}
        return {"text": "".join(parts)}
    except TemplateSyntaxError as error:
        return {"error": "syntax", "message": f"line {error.lineno}: {error.message}"}
    except SyntaxError as error:
        return {"error": "syntax", "message": str(error)}
    except SecurityError as error:
        return {"error": "security", "message": str(error)}
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"error": "limit", "message": str(error) or f"{type(error).__name__}"}
    except TemplateError as error:
        return {"error": "failed", "message": str(error)}
    except Refusal as error:
        return {"error": "refused", "message": str(error)}
    except _FAILURES as error:
        return {"error": "failed", "message": f"{type(error).__name__}: {error}"}


def _limit(nbytes: int) -> None:
    limits = {"AS": nbytes, "CORE": 0, "FSIZE": 0, "NOFILE": 3}
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(kind, (value, value))


def _serve() -> None:
    first = json.loads(sys.stdin.readline())
    environment = make_environment()
    environment.from_string(r"{{ '\n' | tojson }}").render()  # loads the codec for escapes from its file
    _limit(first["nbytes"])
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, first["seconds"])
        answer = render(
            environment, first["templates"][request["template"]], request["variables"], first["output_bytes"]
        )
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]
    _serve()
