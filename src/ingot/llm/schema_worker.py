"""A process that compiles one grammar, over single bytes as tokens, and says what is wrong with it.

Compiling can take any time and memory for some schemas (it decides whether patterns have strings in common), and cannot
be interrupted; the process can. It reads {"kind", "text", "seconds", "nbytes"} and writes {"grammar", "error"}.
"""

import json
import resource
import sys


class _Bytes:
    """The tokenizer in which a token is a byte, and 256 ends the text."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [bytes([i]) for i in range(256)] + [b"<end>"]
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _compiled(kind: str, text: str) -> tuple[str, str]:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    if kind == "regex":
        grammar = LLMatcher.grammar_from_regex(text)
    else:
        # Without a bound a model can write blanks for ever.
        grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": r"[ \t\r\n]{0,40}"})
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(_Bytes())), grammar, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return grammar, matcher.get_error()


def main() -> None:
    """Reads {"kind", "text", "seconds", "nbytes"} and writes {"grammar", "error"}, both as JSON; no error is ""."""
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
