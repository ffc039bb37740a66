"""Every template against transformers: whole prompts, chunks over a carried cache, several sequences in one call."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import ingot
from hf_dense_cases import MISTRAL3
from hf_models import CASES, Case, config_of, expected_logits, parameters, save_model
from hf_recurrent_cases import RECURRENT_CASES
from ingot.ir.dtype import bf16, i4, i8
from ingot.ir.graph import Graph
from ingot.load.hf import LanguageModel, load_dense, load_language_model, longest_context, read_folder
from ingot.load.hf.recurrent import SLOTS
from ingot.load.hf.template_file import template_names
from ingot.run.interpret import interpret

pytestmark = pytest.mark.checked

LENGTH = 37
TOLERANCE = 5e-5
POSITIONS_AFTER_PADDING = {
    "camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl",
}  # fmt: skip
ABSENT = "absent"  # the value of a field that is taken out


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a case, its logits by transformers, and the prompt; made once for all tests."""
    made = {}

    def make(case: Case) -> tuple[Path, np.ndarray, np.ndarray]:
        if case.name not in made:
            folder = tmp_path_factory.mktemp("model")
            model = save_model(case, folder)
            ids = np.random.default_rng(0).integers(3, 99, LENGTH).astype(np.int32)
            made[case.name] = folder, expected_logits(model, ids), ids
        return made[case.name]

    return make


def run(graph: Graph, states: dict[str, np.ndarray], ids, positions, owners, blocks) -> np.ndarray:
    """Logits of all rows; `states` are read and replaced."""
    feeds = {"ids": ids, "positions": positions, "owners": owners, "take": np.arange(len(ids))}
    feeds = {name: np.asarray(array, np.int32) for name, array in feeds.items()}
    feeds |= {"blocks": np.asarray(blocks, np.int32), **slots_of(graph, len(blocks))}
    results = interpret(graph, feeds | states)
    states.update({name: results[f"state:{name}"] for name in graph.states})
    assert results["hidden"].shape[0] == len(ids)
    return results["logits"]


def slots_of(graph: Graph, sequences: int) -> dict[str, np.ndarray]:
    """The input of a model with recurrent state: slots that are no identity."""
    return {SLOTS: np.arange(sequences, dtype=np.int32)[::-1]} if SLOTS in graph.inputs else {}


def blocks_of(model: LanguageModel, sequences: int) -> np.ndarray:
    """A block table that is no identity."""
    count = sequences * model.blocks_per_sequence
    return np.random.default_rng(1).permutation(count).reshape(sequences, -1)


ENCODERS = {
    "bert": (transformers.BertConfig, transformers.BertModel, transformers.BertForMaskedLM),
    "roberta": (transformers.RobertaConfig, transformers.RobertaModel, transformers.RobertaForMaskedLM),
    "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel, transformers.XLMRobertaForMaskedLM),
}
for name in ("Camembert", "Data2VecText", "Ernie", "MegatronBert", "RobertaPreLayerNorm", "XLMRobertaXL"):
    config, *models = (getattr(transformers, f"{name}{part}") for part in ("Config", "Model", "ForMaskedLM"))
    ENCODERS[config.model_type] = (config, *models)


def test_all_templates_have_a_case():
    inner = {"gemma3", "gemma3n", "mistral3", "qwen3_5", "qwen3_5_moe"}  # of models with images
    others = {"emu3_text_model", "mllama_text_model"}
    assert {case.type for case in CASES} | {*ENCODERS, *inner, *others} == set(template_names())


@pytest.mark.parametrize("case", parameters(CASES))
def test_logits(case: Case, saved):
    """The whole prompt at once."""
    folder, expected, ids = saved(case)
    model = load_language_model(read_folder(folder), context=case.context)
    model.graph.validate()
    got = run(model.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(model, 1))
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


@pytest.mark.parametrize("case", parameters(case for case in CASES if case not in RECURRENT_CASES))
def test_whole_sequences_need_no_cache(case: Case, saved):
    """The form that is trained, on two sequences, one of which is the other with another end."""
    folder, expected, ids = saved(case)
    model = load_dense(read_folder(folder), case.context or 128)
    model.graph.validate()
    two = np.stack([ids, np.concatenate([ids[:-1], ids[:1]])]).astype(np.int64)
    got = interpret(model.graph.bind({"batch": 2, "length": LENGTH}), {"ids": two})["logits"]
    np.testing.assert_allclose(got[0], expected, atol=TOLERANCE)
    np.testing.assert_allclose(got[1, :-1], expected[:-1], atol=TOLERANCE)


@pytest.mark.parametrize("case", parameters(CASES))
def test_native(case: Case, saved):
    """The whole prompt by kernels alone: nothing of a template falls back to the reference."""
    folder, expected, ids = saved(case)
    model = load_language_model(read_folder(folder), context=case.context)
    session = ingot.InferenceSession(model.graph, strict=True, dims={"rows": LENGTH, "taken": 2, "sequences": 1})
    feeds = {"ids": ids, "positions": range(LENGTH), "owners": [0] * LENGTH, "take": [5, LENGTH - 1]}
    feeds = {name: np.asarray(array, np.int32) for name, array in feeds.items()}
    feeds |= {"blocks": blocks_of(model, 1).astype(np.int32), **slots_of(model.graph, 1)}
    (got,) = session.run(["logits"], feeds)
    np.testing.assert_allclose(got, expected[[5, -1]], atol=TOLERANCE)


def greedy_tokens(model: transformers.PreTrainedModel, prompt: np.ndarray) -> list[int]:
    """The tokens of transformers: the largest logit of each step."""
    type, options = model.config.model_type, {}
    if type == "mamba2":  # its steps with a cache do not limit the time step, unlike its runs without
        options["use_cache"] = False
    if type in POSITIONS_AFTER_PADDING:  # generate counts from 0, unlike the models
        first = model.config.pad_token_id + 1
        options["position_ids"] = torch.arange(first, first + len(prompt))[None]
    model.generation_config.forced_eos_token_id = None  # instead of the last token, whatever its logit
    with torch.no_grad():
        found = model.generate(torch.from_numpy(prompt)[None], max_new_tokens=64, do_sample=False, **options)
    return found[0, len(prompt) :].tolist()


@pytest.mark.parametrize("case", parameters({case.type: case for case in reversed(CASES)}.values()))
def test_greedy_tokens(case: Case, tmp_path: Path):
    """64 tokens are those of transformers, by the engine that serves users: prefill, then one by one."""
    model = save_model(case, tmp_path)
    prompt = np.random.default_rng(0).integers(3, 99, LENGTH)
    expected = greedy_tokens(model, prompt)
    llm = ingot.LLM(tmp_path, precision="f32", context=case.context, sequences=1)
    assert list(llm.generate_tokens(prompt.tolist(), max_tokens=64)) == expected


@pytest.mark.parametrize("case", parameters(CASES))
def test_chunks_of_two_sequences(case: Case, saved):
    """The prompt in chunks, together with another sequence that starts elsewhere in it."""
    folder, expected, ids = saved(case)
    model = load_language_model(read_folder(folder), context=case.context, sequences=2)
    blocks, states, got = blocks_of(model, 2), {}, []
    for start, stop, others in ((0, 20, 1), (20, 21, 5), (21, LENGTH, 2)):
        before = sum(others for first, _, others in ((0, 0, 1), (20, 0, 5), (21, 0, 2)) if first < start)
        count = stop - start
        positions = [*range(before, before + others), *range(start, stop)]
        rows = np.concatenate([ids[before : before + others], ids[start:stop]])
        logits = run(model.graph, states, rows, positions, [1] * others + [0] * count, blocks)
        np.testing.assert_allclose(logits[:others], expected[before : before + others], atol=TOLERANCE)
        got.append(logits[others:])
    np.testing.assert_allclose(np.concatenate(got), expected, atol=TOLERANCE)


def test_int8_and_bf16_caches(saved):
    """A narrower cache changes logits by its rounding only."""
    folder, expected, ids = saved(CASES[0])
    for cache_dtype, tolerance in ((bf16, 0.05), (i8, 0.05), (i4, 0.3)):
        model = load_language_model(read_folder(folder), context=None, cache_dtype=cache_dtype)
        got = run(model.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(model, 1))
        assert np.abs(got - expected).max() < tolerance * np.abs(expected).max()


def test_matrices_rounded_to_bf16(saved):
    """weights=bf16 on f32 files is what a file in bf16 gives, but for norms, biases and tables."""
    folder, expected, ids = saved(CASES[0])
    model = load_language_model(read_folder(folder), context=None, weights=bf16)
    casts = [node for node in model.graph.nodes if node.op.name == "cast" and node.dtype is bf16]
    matrices = [name for name, value in model.graph.values.items() if name.endswith(".weight") and value.type.rank == 2]
    assert len(casts) == len(matrices)
    got = run(model.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(model, 1))
    assert 0 < np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_experts_in_two_tensors(saved, tmp_path: Path):
    """Published folders of Qwen 3.5 store all experts of a layer as two tensors, those of transformers as many."""
    folder, expected, ids = saved(next(case for case in CASES if case.name == "qwen3_5_moe_text"))
    tensors, found = load_file(folder / "model.safetensors"), {}
    for name, tensor in tensors.items():
        before, _, expert = name.partition(".mlp.experts.")
        if expert.startswith("0.down"):
            parts = {
                what: [tensors[f"{before}.mlp.experts.{i}.{what}_proj.weight"] for i in range(6)]
                for what in ("gate", "up", "down")
            }
            both = [np.concatenate(pair) for pair in zip(parts["gate"], parts["up"], strict=True)]
            found |= {f"{before}.mlp.experts.gate_up_proj": np.stack(both)}
            found |= {f"{before}.mlp.experts.down_proj": np.stack(parts["down"])}
        elif not expert:
            found[name] = tensor
    save_file(found, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    model = load_language_model(read_folder(tmp_path), context=None)
    got = run(model.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(model, 1))
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


def test_gemma3_with_vision(tmp_path: Path):
    """The text model out of a folder that has a vision part too."""
    text = config_of(next(case for case in CASES if case.name == "gemma3_text"))
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**sizes, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=1)
    model = transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(3, 90, LENGTH).astype(np.int32)
    loaded = load_language_model(read_folder(tmp_path), context=None)
    got = run(loaded.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(loaded, 1))
    np.testing.assert_allclose(got, expected_logits(model, ids), atol=TOLERANCE)


WITH_ANGLES = [
    case
    for case in CASES
    if isinstance(angles := getattr(config_of(case), "rope_parameters", None), dict)
    and "rope_theta" in angles
    and not {"alpha", "llama_4_scaling_beta"} & set(angles)
]


@pytest.mark.parametrize("case", parameters(WITH_ANGLES))
def test_configs_of_earlier_releases(case: Case, saved, tmp_path: Path):
    """Their angles are fields of the config itself, except for the scaling."""
    folder, expected, ids = saved(case)
    config = json.loads((folder / "config.json").read_text())
    angles = config.pop("rope_parameters")
    kind = angles.pop("rope_type")
    config |= {key: angles.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in angles}
    if kind != "default":
        config["rope_scaling"] = {"type": kind, **angles}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").hardlink_to(folder / "model.safetensors")
    model = load_language_model(read_folder(tmp_path), context=case.context)
    got = run(model.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(model, 1))
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
EDITED: list[tuple[str, dict[str, Any]]] = [
    ("mixtral", {"rope_parameters": ABSENT}),
    ("mixtral", {"rms_norm_eps": ABSENT}),
    ("qwen3_moe", {"head_dim": ABSENT}),
    ("qwen3", {"rope_scaling": _YARN}),
    ("llama, linear rope", {"rope_scaling": _YARN}),
    ("llama, linear rope", {"rope_scaling": {"type": "linear", "factor": 3.0, "rope_theta": 77.0}}),
    ("llama, linear rope", {"rope_scaling": {}}),
    ("gpt_neox", {"rope_parameters": ABSENT, "rotary_emb_base": 77, "rope_scaling": {"type": "linear", "factor": 3.0}}),
    ("phi3, partial", {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
    ("gemma3_text, scaled", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("gemma3_text", {"rope_parameters": ABSENT, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("olmo3", {"rope_parameters": ABSENT, "rope_theta": 77.0, "rope_scaling": _YARN}),
    ("smollm3", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}),
]


@pytest.mark.parametrize("name, change", EDITED)
def test_edited_config(name: str, change: dict[str, Any], tmp_path: Path):
    """Fields that are taken out or added by hand mean what they mean to transformers."""
    case = next(case for case in CASES if case.name == name)
    save_model(replace(case, config=case.config | ({"head_dim": 8} if "head_dim" in change else {})), tmp_path)
    file = tmp_path / "config.json"
    changed = json.loads(file.read_text()) | change
    file.write_text(json.dumps({key: value for key, value in changed.items() if value != ABSENT}))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    loaded = load_language_model(read_folder(tmp_path), context=case.context)
    ids = np.random.default_rng(0).integers(3, 90, LENGTH).astype(np.int32)
    got = run(loaded.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(loaded, 1))
    np.testing.assert_allclose(got, expected_logits(model, ids), atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["yarn", "linear"])
@pytest.mark.parametrize("name", ["qwen2", "gemma3_text"])
def test_scaling_beyond_the_context_of_the_config(name: str, kind: str, tmp_path: Path):
    """A scaling that was added by hand reaches factor times as many positions; transformers has no limit."""
    case = next(case for case in CASES if case.name == name)
    save_model(replace(case, config=case.config | {"max_position_embeddings": 32}), tmp_path)
    file = tmp_path / "config.json"
    scaling = {"rope_type": kind, "factor": 4.0} | ({"original_max_position_embeddings": 32} if kind == "yarn" else {})
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_parameters": None, "rope_scaling": scaling}))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    loaded = load_language_model(read_folder(tmp_path), context=128)
    ids = np.random.default_rng(0).integers(3, 90, 100).astype(np.int32)
    got = run(loaded.graph, {}, ids, range(100), [0] * 100, blocks_of(loaded, 1))
    np.testing.assert_allclose(got, expected_logits(model, ids), atol=TOLERANCE)
    assert longest_context(read_folder(tmp_path)) == 32
    with pytest.raises(ingot.InputError, match=r"got 129, expected 1\.\.128 .*max_position_embeddings = 32"):
        load_language_model(read_folder(tmp_path), context=129)


TIED = ["qwen2", "gpt2", "gemma2", "llama, biases and tied"]


@pytest.mark.parametrize("stored", ["another head", "the same head", "the head alone"])
@pytest.mark.parametrize("name", TIED)
def test_tied_head_that_is_stored(name: str, stored: str, tmp_path: Path):
    """A fine-tuned model may have a head of its own although its config ties it; transformers then keeps both."""
    model = save_model(next(case for case in CASES if case.name == name), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    table = next(key for key, array in weights.items() if array.shape == (99, 32) and "wpe" not in key)
    other = np.random.default_rng(3).standard_normal((99, 32)).astype(np.float32)
    weights["lm_head.weight"] = other if stored == "another head" else weights[table].copy()
    if stored == "the head alone":
        del weights[table]
    save_file(weights, file, metadata={"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    loaded = load_language_model(read_folder(tmp_path), context=None)
    ids = np.random.default_rng(0).integers(3, 90, LENGTH).astype(np.int32)
    got = run(loaded.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(loaded, 1))
    np.testing.assert_allclose(got, expected_logits(model, ids), atol=TOLERANCE)
    named = (name for name in loaded.graph.values if name.endswith(".weight"))
    matrices = [name for name in named if loaded.graph.type(name).shape == (99, 32)]
    assert len(matrices) == (2 if stored == "another head" else 1)


@pytest.mark.slow
def test_mistral3_with_its_other_parts(saved):
    """A folder of Mistral 3 is loaded as its text model."""
    folder, expected, ids = saved(MISTRAL3)
    loaded = load_language_model(read_folder(folder), context=None)
    got = run(loaded.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(loaded, 1))
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("type, name", [("emu3", "Emu3"), ("llama4", "Llama4"), ("mllama", "Mllama")])
def test_text_models_with_their_other_parts(type: str, name: str, tmp_path: Path):
    """Folders of models of images and text are loaded as their text models."""
    config = config_of(next(case for case in CASES if case.type == type))
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}ForConditionalGeneration")
    model = kind._from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(3, 90, LENGTH).astype(np.int32)
    loaded = load_language_model(read_folder(tmp_path), context=None)
    got = run(loaded.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(loaded, 1))
    text = model.language_model if type == "llama4" else model  # whose other parts of transformers need an image
    np.testing.assert_allclose(got, expected_logits(text, ids), atol=TOLERANCE)


@pytest.mark.slow
def test_gemma3n_with_its_other_parts(saved, tmp_path: Path):
    """A folder of Gemma 3n is loaded as its text model. transformers builds the other parts with timm only."""
    folder, expected, ids = saved(next(case for case in CASES if case.name == "gemma3n_text"))
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    save_file(renamed | {"model.vision_tower.part": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3n", "text_config": text}))
    loaded = load_language_model(read_folder(tmp_path), context=None)
    got = run(loaded.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(loaded, 1))
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


@pytest.mark.parametrize("executor", ["interpret", "native"])
@pytest.mark.parametrize("prefixed", [False, True])
@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders(kind: str, prefixed: bool, executor: str, tmp_path: Path):
    """An encoder is a model without state: an InferenceSession runs it, padding masked."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"type_vocab_size": 2, "intermediate_size": 48, "max_position_embeddings": 64}
    config, plain, masked = ENCODERS[kind]
    model = (masked if prefixed else plain)(config(**sizes)).eval()
    model.save_pretrained(tmp_path)
    feeds = {name: torch.randint(3, 99, (2, 11)) for name in ("input_ids", "token_type_ids")}
    feeds["token_type_ids"] %= 2
    feeds["attention_mask"] = torch.tensor([[1] * 11, [1] * 7 + [0] * 4])
    feeds["input_ids"][1, 7:] = config().pad_token_id  # of which RoBERTa's positions depend
    with torch.no_grad():
        expected = (model.base_model if prefixed else model)(**feeds).last_hidden_state.numpy()
    session = ingot.InferenceSession(tmp_path, executor=executor, strict=True)
    (got,) = session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()})
    kept = feeds["attention_mask"].numpy() == 1
    np.testing.assert_allclose(got[kept], expected[kept], atol=TOLERANCE)
    assert longest_context(read_folder(tmp_path)) == (62 if kind in POSITIONS_AFTER_PADDING else 64)


def test_decoders_are_no_sessions(saved):
    folder, _, _ = saved(CASES[0])
    with pytest.raises(ingot.InputError, match=r"use ingot\.LLM"):
        ingot.InferenceSession(folder)


def test_layers_for_later_tokens_are_left_out(tmp_path: Path):
    """Folders of DeepSeek V3 and GLM 4.5 have layers of multi-token prediction behind the last one."""
    case = next(case for case in CASES if case.name == "llama")
    save_model(case, tmp_path)
    weights, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    last = config["num_hidden_layers"]
    weights |= {f"model.layers.{last}.eh_proj.weight": np.zeros((2, 2), np.float32)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ingot.LoadError, match="eh_proj"):
        load_language_model(read_folder(tmp_path), context=None)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert load_language_model(read_folder(tmp_path), context=None).graph
