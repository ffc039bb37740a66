"""Targets that read texts: tokenizers, chat templates, configurations, templates of architectures, requests."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from fuzz.files import SEPARATOR, _memory, json_mutant
from fuzz.target import Accept, Target

# -- tokenizers -------------------------------------------------------------------------------------------------------

TEXT = "Ab ba<|im_start|> 12\n\u00fc\u6771\U0001f600 <0x0A>"


def _tokenizer() -> Accept:
    from ingot.llm.tokenizer import Tokenizer

    folder = _memory()

    def read(content: bytes) -> None:
        (folder / "tokenizer.json").write_bytes(content)
        tokenizer = Tokenizer.read(folder)
        tokenizer.decode(tokenizer.encode(TEXT))
        tokenizer.encode(TEXT, special=True)

    return read


def _tokenizer_seeds() -> list[bytes]:
    """Documents of each kind with as few tokens as they can have."""
    split = {"type": "Split", "pattern": {"Regex": r"\s+(?!\S)|\s+"}, "behavior": "Isolated", "invert": False}
    special = {"id": 4, "content": "<|im_start|>", "special": True} | dict.fromkeys(
        ("single_word", "lstrip", "rstrip", "normalized"), False
    )
    models: list[dict[str, Any]] = [
        {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": [["a", "b"]]},
        {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0], ["▁", -2.0], ["b", -1.5]], "unk_id": 0},
        {
            "type": "WordPiece",
            "vocab": {"[UNK]": 0, "a": 1, "##b": 2, "b": 3},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1, "ba": 2, "x": 3}, "unk_token": "[UNK]"},
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    parts: list[dict[str, Any]] = [
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "decoder": byte_level},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "▁"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                ],
            },
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        },
        {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
        },
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}},
            }
        },
    ]
    empty = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    documents = [empty | {"version": "1.0", "model": model, "added_tokens": [special]} for model in models]
    documents += [documents[i % 2] | part for i, part in enumerate(parts)]
    return [json.dumps(document, ensure_ascii=False).encode() for document in documents]


def _pattern() -> Accept:
    """Regular expressions that are taken for linear: such a one is tried on long texts that make others slow."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    from ingot.errors import LoadError
    from ingot.llm.patterns import check_linear
    from ingot.llm.tokenizer import _guarded

    texts = [c * 20_000 for c in (" ", "a", "A", "1", "\n", "'")]

    def read(content: bytes) -> None:
        pattern = content.decode("utf-8", "replace")
        check_linear(pattern, "tokenizer.json")
        split = _guarded(lambda: Split(Regex(pattern), "isolated"), LoadError, "tokenizer.json")
        for text in texts:
            split.pre_tokenize_str(text)

    return read


def _pattern_seeds() -> list[bytes]:
    from small_tokenizers import LLAMA_3

    gpt_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return [
        each.encode() for each in (LLAMA_3, gpt_2, r"\p{Lu}*\p{Ll}+|\p{Lu}+\p{Ll}*|\s+", r"[^a-z&&[b]]{1,3}|\x{1F600}")
    ]


# -- chat templates ---------------------------------------------------------------------------------------------------


def _chat() -> Accept:
    """What the worker process does with a template: it answers, or the limits of its process end it."""
    from ingot.errors import LoadError
    from ingot.llm import chat_worker

    environment = chat_worker.make_environment()
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
    ]
    variables = {"messages": messages, "tools": None, "bos_token": "<s>", "add_generation_prompt": True}

    def read(content: bytes) -> None:
        answer = chat_worker.render(environment, content.decode("utf-8", "replace"), variables, 1 << 16)
        if set(answer) not in ({"text"}, {"error", "message"}):
            raise AssertionError(f"an answer of another form: {answer}")
        json.dumps(answer)
        if "error" in answer:
            raise LoadError(answer["error"])

    return read


def _chat_seeds() -> list[bytes]:
    from attacks.hostile_templates import ESCAPES
    from chat_templates import TEMPLATES

    return [each.encode() for each in (*ESCAPES, *TEMPLATES.values()) if isinstance(each, str)]


# -- configurations and templates of architectures --------------------------------------------------------------------

CONTEXT = 16


def _config(name: str = "config.json") -> Accept:
    from attacks.hostile_configs import write_llama
    from ingot.load.hf import load_language_model, longest_context, read_folder

    folder = _memory() / "model"
    write_llama(folder)

    def read(content: bytes) -> None:
        (folder / name).write_bytes(content)
        model = read_folder(folder)
        load_language_model(model, context=min(CONTEXT, longest_context(model))).graph.validate()

    return read


def _config_seeds() -> list[bytes]:
    from attacks.hostile_configs import CONFIG

    scaled = {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    others: list[dict[str, Any]] = [
        {},
        {"rope_parameters": scaled},
        {"tie_word_embeddings": True},
        {"model_type": "qwen2"},
        {"model_type": "mistral"},
        {"model_type": "gemma"},
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}},
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8, "model_type": "qwen3"},
    ]
    return [json.dumps(CONFIG | other).encode() for other in others]


def _template() -> Accept:
    return _config("ingot.yaml")


def _template_seeds() -> list[bytes]:
    from ingot.load.hf.template_file import FOLDER

    names = ("llama", "qwen2", "gemma", "mamba", "deepseek_v3", "bert", "gpt2", "phi")
    texts = [path.read_bytes() for name in names if (path := FOLDER / f"{name}.yaml").exists()]
    return [b"extends: llama\n", *texts]


def _yaml_mutant(content: bytes, chance: Random) -> bytes:
    """Repeat, remove or exchange lines, or change a word."""
    lines = content.decode("utf-8", "replace").split("\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            words = lines[at].split(" ")
            donor = [word for word in lines[other].split(" ") if word] or ["0"]
            words[chance.randrange(len(words))] = chance.choice(
                (*donor, "-1", "0", "1e400", "*", "&a", "[", "{", "true")
            )
            lines[at] = " ".join(words)
    return "\n".join(lines).encode()


# -- requests ---------------------------------------------------------------------------------------------------------


def _with_path(paths: list[str], bodies: list[Any]) -> list[bytes]:
    return [bytes([i]) + json.dumps(body).encode() for i in range(len(paths)) for body in bodies]


def _request_mutant(content: bytes, chance: Random) -> bytes:
    return content[:1] + json_mutant(content[1:], chance)


def _server() -> Accept:
    """The application of a language model: the first byte chooses the path, the others are the body."""
    import ingot
    from fuzz.application import Application
    from ingot.serve import app

    llm = ingot.LLM("tiny-lm", precision="f32", sequences=2, context=64, threads=1)
    application = Application(app(llm, "tiny-lm"))

    def read(content: bytes) -> None:
        path = PATHS[content[0] % len(PATHS)] if content else PATHS[0]
        application.post(path, content[1:], "application/json")

    return read


PATHS = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
]


def _server_seeds() -> list[bytes]:
    chat = [{"role": "user", "content": "a"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    bodies = {
        "/v1/completions": [
            {"prompt": "a", "max_tokens": 1},
            {"prompt": [1, 2], "max_tokens": 1, "logprobs": 1, "stop": ["x"]},
        ],
        "/v1/chat/completions": [
            {"messages": chat, "max_tokens": 1},
            {"messages": chat, "max_tokens": 1, "stream": True, "seed": 1},
            {"messages": chat, "max_tokens": 1, "tools": [tool], "tool_choice": "auto", "logit_bias": {"1": 1}},
            {"messages": chat, "max_tokens": 1, "response_format": {"type": "json_object"}},
        ],
        "/v1/responses": [
            {"input": "a", "max_output_tokens": 1},
            {"input": chat, "max_output_tokens": 1, "stream": True},
        ],
        "/v1/messages": [{"messages": chat, "max_tokens": 1, "model": "tiny-lm", "system": "s"}],
        "/v1/embeddings": [{"input": "a"}, {"input": ["a", "b"], "encoding_format": "base64"}],
        "/tokenize": [{"prompt": "a"}, {"messages": chat}],
        "/detokenize": [{"tokens": [1, 2]}],
        "/v1/messages/count_tokens": [{"messages": chat}],
        "/v1/responses/input_tokens": [{"input": "a"}],
    }
    return [bytes([PATHS.index(path)]) + json.dumps(body).encode() for path in bodies for body in bodies[path]]


def _infer() -> Accept:
    """The application of a plain model: JSON, and binary tensors behind it."""
    import ingot
    from fuzz.application import Application
    from ingot.serve import app
    from onnx_models import text_model

    model = text_model("dense (float[batch,2] x, int64[batch] k) => (float[batch,2] y) { y = Exp(x) }", 21)
    session = ingot.InferenceSession(model, threads=1)
    application = Application(app(session, "m"))

    def read(content: bytes) -> None:
        body, _, data = content.partition(SEPARATOR)
        extra = {"inference-header-content-length": str(len(body))} if data else {}
        application.post("/v2/models/m/infer", body + data, "application/json", extra)

    return read


def _infer_seeds() -> list[bytes]:
    x = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
    k = {"name": "k", "shape": [1], "datatype": "INT64", "data": [3]}
    binary = {key: x[key] for key in ("name", "shape", "datatype")} | {"parameters": {"binary_data_size": 8}}
    output = {"name": "y", "parameters": {"binary_data": True}}
    return [
        json.dumps({"inputs": [x, k], "id": "1"}).encode(),
        json.dumps({"inputs": [k, binary], "outputs": [output]}).encode() + SEPARATOR + bytes(8),
    ]


def _infer_mutant(content: bytes, chance: Random) -> bytes:
    body, separator, data = content.partition(SEPARATOR)
    return json_mutant(body, chance) + separator + data


def _connection() -> Accept:
    """The bytes of a connection."""
    from fuzz.application import Bytes

    connection = Bytes()
    return connection.receive


def _connection_seeds() -> list[bytes]:
    head = b"Host: a\r\nContent-Type: application/json\r\n"
    return [
        b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\n" + head + b"Content-Length: 2\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\n" + head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nUpgrade: websocket\r\n\r\n",
    ]


TEXTS = {
    "tokenizer": Target(
        "tokenizer.json",
        _tokenizer,
        _tokenizer_seeds,
        json_mutant,
        ("Regex", "String", "Sequence", "type", "\\\\s", "\\\\p{L}"),
    ),
    "pattern": Target("regular expressions of tokenizers", _pattern, _pattern_seeds, most=256),
    "chat": Target(
        "chat templates",
        _chat,
        _chat_seeds,
        None,
        ("{{", "}}", "{%", "%}", "for", "endfor", "if", "endif", "set", "macro", "|attr", "__class__", "namespace"),
        packages=("ingot", "jinja2"),
        seconds=1,
        is_limited=True,
    ),
    "config": Target("config.json of models", _config, _config_seeds, json_mutant),
    "template": Target("templates of architectures", _template, _template_seeds, _yaml_mutant, most=8192),
    "server": Target("bodies of requests to a language model", _server, _server_seeds, _request_mutant),
    "infer": Target("bodies of requests for inference", _infer, _infer_seeds, _infer_mutant),
    "connection": Target("bytes of a connection to the server", _connection, _connection_seeds),
}
