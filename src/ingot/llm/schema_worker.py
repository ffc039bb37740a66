"""A separate process that compiles one grammar, with single bytes as tokens, and reports errors in it.

For some schemas compilation takes unbounded time and memory (it decides whether patterns have common strings) and
cannot be interrupted; a process can be ended. It reads {"kind", "text", "seconds", "nbytes"} and writes
{"grammar", "error"}.
"""

import json
import re
import resource
import sys

_CONTROL = re.compile(r"<\[\d+\]>")  # a control token of the model's vocabulary, which is not compiled here


class _Bytes:
    """A tokenizer whose tokens are the 256 bytes; token 256 ends the text."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [bytes([i]) for i in range(256)] + [b"<end>"]
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _compiled(kind: str, text: str) -> tuple[str, str]:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    checked = ""
    if kind == "regex":
        grammar = LLMatcher.grammar_from_regex(text)
    elif kind == "grammar":
        grammar = LLMatcher.grammar_from_lark(text)
        checked = LLMatcher.grammar_from_lark(_CONTROL.sub("<[256]>", text))
    else:
        # Without this bound a model could write white space forever.
        grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": r"[ \t\r\n]{0,40}"})
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(_Bytes())), checked or grammar, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return grammar, matcher.get_error()


def main() -> None:
    """Read {"kind", "text", "seconds", "nbytes"} and write {"grammar", "error"} as JSON; without an error it is ""."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (request["nbytes"], request["nbytes"]))
    try:
        grammar, error = _compiled(request["kind"], request["text"])
    except ValueError as failure:
        grammar, error = "", str(failure)
    json.dump({"grammar": grammar, "error": error}, sys.stdout)


if __name__ == "__main__":
    main()
