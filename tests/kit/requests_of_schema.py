"""Requests that follow an OpenAPI document, and requests that are almost right, drawn by hypothesis."""

from typing import Any

from hypothesis import strategies as st

NAMES = st.text("abcdefgh_$", min_size=1, max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-1, 0, 1, 2, 16, 17, 511, 512, 513, 2**31, 2**63, 2**64]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "text", "json_object", "user", "a" * 5000, "\u2028\n\ndata: [DONE]\n\n", "\ud800", "<|im_end|>"]
    ),
    st.text(max_size=8),
)
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "king"])
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": st.text(max_size=20)}), min_size=1, max_size=3)
# Small numbers and short texts, so that most requests are answered, and soon.
LIKELY = {
    "messages": MESSAGES,
    "prompt": st.text("def f(a):\n", min_size=1, max_size=20) | st.lists(st.integers(0, 300), min_size=1, max_size=9),
    "input": st.text(max_size=20) | st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=3),
    "tokens": st.lists(st.integers(0, 300), max_size=9),
    "model": st.sampled_from([None, "tiny-lm"]),
    "max_tokens": st.integers(0, 12),
    "max_completion_tokens": st.integers(0, 12),
    "max_output_tokens": st.integers(0, 12),
    "n": st.integers(1, 3),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "top_k": st.integers(0, 40),
    "min_p": st.floats(0, 1),
    "seed": st.integers(0, 99),
    "logit_bias": st.dictionaries(st.integers(0, 300).map(str), st.floats(-100, 100), max_size=3),
    "tools": st.none(),
    "chat_template_kwargs": st.none(),
    "response_format": st.sampled_from([None, {"type": "text"}, {"type": "json_object"}]),
}


def values(schema: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that follow a JSON schema, of the kinds that msgspec writes."""
    if "$ref" in schema:
        return values(components[schema["$ref"].rpartition("/")[2]], components)
    if "anyOf" in schema:
        return st.one_of([values(each, components) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return objects(schema, components)
    if kind == "object":
        inner = schema.get("additionalProperties")
        return st.dictionaries(NAMES, values(inner, components) if isinstance(inner, dict) else ANYTHING, max_size=3)
    if kind == "array":
        return st.lists(values(schema.get("items") or {}, components), max_size=3)
    simple = {
        "string": st.text(max_size=9),
        "integer": st.integers(-9, 999),
        "number": st.floats(-99, 99),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return simple[kind] if kind else ANYTHING


@st.composite
def objects(draw: st.DrawFn, schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Objects with the required fields, and some others."""
    required, others = schema.get("required", []), sorted(schema["properties"].keys() - set(schema.get("required", [])))
    chosen = draw(st.lists(st.sampled_from(others), unique=True, max_size=6)) if others else []
    return {name: draw(field(name, schema["properties"][name], components)) for name in [*required, *chosen]}


def field(name: str, schema: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a field: likely ones where they are known."""
    any_values = values(schema, components)
    return st.one_of(LIKELY[name], LIKELY[name], any_values) if name in LIKELY else any_values


@st.composite
def requests(draw: st.DrawFn, document: dict[str, Any], paths: list[str]) -> tuple[str, Any]:
    """One of some paths of a document and a body for it; one body of three has a field that is wrong in some way."""
    path = draw(st.sampled_from(sorted(paths)))
    components = document["components"]["schemas"]
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body = draw(values(schema, components))
    change = draw(st.sampled_from(["none", "none", "none", "none", "value", "missing", "added"]))
    if change == "value" and body:
        body[draw(st.sampled_from(sorted(body)))] = draw(ANYTHING)
    elif change == "missing" and body:
        del body[draw(st.sampled_from(sorted(body)))]
    elif change == "added":
        body[draw(NAMES)] = draw(ANYTHING)
    return path, body
