"""Trained models that well-known packages ship, and what they are for: speech, file types, printed text, notes.

Of the packages only the model files are used, so none of them is imported. Everything is told from arrays by a `Run`,
an engine's run of one model, so that two engines can be asked the same.
"""

import gzip
import importlib.util
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.ndimage import find_objects, label
from scipy.signal import lfilter

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], list[np.ndarray]]

RATE = 16000


def model_path(package: str, file: str) -> Path:
    """A file of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations, f"{package} is not installed: see the Makefile"
    return Path(found.submodule_search_locations[0]) / file


# -- speech -------------------------------------------------------------------------------------------------------

_VOWELS = {
    "a": (730, 1090, 2440),
    "e": (530, 1840, 2480),
    "i": (270, 2290, 3010),
    "o": (570, 840, 2410),
    "u": (300, 870, 2240),
}  # fmt: skip


def speech(seconds: float, seed: int, pitch: float = 120.0) -> np.ndarray:
    """Syllables of a hiss and a vowel: f32, 16 kHz. Formants of Peterson and Barney, 1952, driven by glottal pulses."""
    rng = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < seconds * RATE:
        hiss = np.diff(rng.standard_normal(rng.integers(640, 1440)))
        parts.append(0.05 * hiss * np.hanning(len(hiss)))
        parts.append(_vowel(rng.choice(list(_VOWELS)), rng.integers(1440, 3520), pitch * rng.uniform(0.85, 1.2), rng))
    sound = np.concatenate(parts)[: int(seconds * RATE)]
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


def _vowel(name: str, length: int, pitch: float, rng: np.random.Generator) -> np.ndarray:
    time = np.arange(length) / RATE
    phase = np.cumsum(pitch * (1 + 0.15 * np.sin(2 * np.pi * 1.3 * time)) / RATE)
    pulses = np.diff(np.floor(phase), prepend=0) + 0.01 * rng.standard_normal(length)
    made = sum(
        gain * _resonance(pulses, formant, width)
        for formant, width, gain in zip(_VOWELS[name], (80, 100, 150), (1, 0.6, 0.3), strict=True)
    )
    return made * np.minimum(1, np.minimum(np.arange(length), np.arange(length)[::-1]) / 320)


def _resonance(x: np.ndarray, frequency: float, width: float) -> np.ndarray:
    radius = np.exp(-np.pi * width / RATE)
    a, b = 2 * radius * np.cos(2 * np.pi * frequency / RATE), -(radius**2)
    return lfilter([1 - a - b], [1, -a, -b], x)


def conversation() -> tuple[np.ndarray, np.ndarray]:
    """Silence, a low voice, silence, a high voice, silence, over faint noise; and whether each sample is speech."""
    pause = np.zeros(RATE, np.float32)
    sound = [pause, speech(2, 0), pause, speech(1.5, 1, pitch=210), pause]
    spoken = np.concatenate([np.full(len(part), i % 2 == 1) for i, part in enumerate(sound)])
    noise = 0.001 * np.random.default_rng(2).standard_normal(len(spoken)).astype(np.float32)
    return np.concatenate(sound) + noise, spoken


def windows(audio: np.ndarray, size: int) -> np.ndarray:
    """Windows of `size` samples behind the eighth before them, as the silero models take them: f32[n, size * 9 / 8]."""
    before = np.concatenate([np.zeros(size // 8, np.float32), audio])
    starts = range(0, len(audio) - size + 1, size)
    return np.stack([before[start : start + size + size // 8] for start in starts])


def told(is_speech: np.ndarray, size: int) -> np.ndarray:
    """For each window, whether it is speech; a fourth of a second around a border is NaN, as either would be right."""
    of_window = is_speech[: len(is_speech) // size * size].reshape(-1, size).mean(1)
    border = np.flatnonzero(np.diff(of_window.round()))
    near = np.abs(np.arange(len(of_window))[:, None] - border - 0.5).min(1) * size < RATE / 4
    return np.where(near | (of_window % 1 != 0), np.nan, of_window)


def speech_by_steps(run: Run, audio: np.ndarray, size: int, **more: np.ndarray) -> np.ndarray:
    """The probability of speech in each window, by a model that is given its own state again: f32[n]."""
    state, found = np.zeros((2, 1, 128), np.float32), []
    for window in windows(audio, size):
        probability, state = run({"input": window[None], "state": state, **more})
        found.append(probability.item())
    return np.array(found)


def speech_at_once(run: Run, audio: np.ndarray, size: int) -> np.ndarray:
    """The same by a model that takes all windows of a recording."""
    zeros = np.zeros((1, 1, 128), np.float32)
    return run({"input": windows(audio, size), "h": zeros, "c": zeros})[0].ravel()


# -- files --------------------------------------------------------------------------------------------------------


def _png() -> bytes:
    rows = b"".join(b"\0" + bytes((x * y + 3 * x) % 256 for x in range(192)) for y in range(64))
    parts = {b"IHDR": struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    chunks = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("readme.txt", "notes/today.txt", "notes/tomorrow.txt"):
            archive.writestr(name, f"what {name} says, " * 30)
    return file.getvalue()


def _pdf() -> bytes:
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R >>",
        "<< /Length 44 >>\nstream\nBT /F1 24 Tf 100 700 Td (Hello, world) Tj ET\nendstream",
    ]
    body = "".join(f"{i} 0 obj\n{text}\nendobj\n" for i, text in enumerate(objects, 1))
    tail = "xref\n0 5\n0000000000 65535 f \ntrailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n420\n%%EOF\n"
    return f"%PDF-1.4\n{body}{tail}".encode()


_C = """#include <stdio.h>
#include <stdlib.h>

struct node { int value; struct node *next; };

static struct node *push(struct node *head, int value) {
  struct node *made = malloc(sizeof *made);
  if (!made) return NULL;
  made->value = value;
  made->next = head;
  return made;
}

int main(int argc, char **argv) {
  struct node *list = NULL;
  for (int i = 1; i < argc; i++) list = push(list, atoi(argv[i]));
  while (list) { printf("%d\\n", list->value); list = list->next; }
  return 0;
}
"""
_HTML = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Notes</title>\n'
    '<link rel="stylesheet" href="style.css">\n</head>\n<body>\n<div class="menu"><ul>\n'
    + "".join(f'<li><a href="/page{i}.html" title="Page {i}">Page {i}</a></li>\n' for i in range(9))
    + '</ul></div>\n<h1>Notes</h1>\n<p>Some text with <b>bold</b> words.</p>\n<img src="a.png" alt="">\n'
    + "<script>document.title = 'Notes';</script>\n</body>\n</html>\n"
)
_JSON = json.dumps(
    {"version": 2, "items": [{"id": i, "name": f"item {i}", "tags": ["a", "b"]} for i in range(9)]}, indent=2
)
_SQL = "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL);\n" + "".join(
    f"INSERT INTO users (id, name) VALUES ({i}, 'user {i}');\n" for i in range(12)
)


def files() -> dict[str, bytes]:
    """Contents of files by the name of their type, as magika calls it."""
    python = Path(importlib.util.find_spec("zipfile").origin).read_bytes()  # type: ignore[union-attr, arg-type]
    text = {"python": python, "c": _C.encode(), "html": _HTML.encode(), "json": _JSON.encode(), "sql": _SQL.encode()}
    return text | {"png": _png(), "zip": _zip(), "pdf": _pdf(), "gzip": gzip.compress(python, mtime=0)}


def ends_of(content: bytes) -> np.ndarray:
    """The first and the last 1024 bytes of a file, filled up with 256, as magika takes them: i32[2048]."""
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    missing = 1024 - len(first), 1024 - len(last)
    return np.array([*first, *[256] * (missing[0] + missing[1]), *last], np.int32)


# -- printed text -------------------------------------------------------------------------------------------------


def page(lines: Sequence[str]) -> np.ndarray:
    """Lines of text as dark print on paper: u8[height, 640, 3]."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (640, 32 * -(-(72 * len(lines) + 40) // 32)), (250, 248, 240))
    draw = ImageDraw.Draw(image)
    for i, line in enumerate(lines):
        draw.text((40, 30 + 72 * i), line, fill=(20, 20, 40), font=ImageFont.load_default(36))
    return np.asarray(image)


def _normalised(image: np.ndarray) -> np.ndarray:
    """u8[h, w, 3] as f32[1, 3, h, w] in -1..1, blue first."""
    return (image[..., ::-1].transpose(2, 0, 1)[None] / np.float32(127.5) - 1).astype(np.float32)


def text_boxes(run: Run, image: np.ndarray) -> tuple[list[tuple[slice, slice]], np.ndarray]:
    """The positions of text, from top to bottom, and the map that they are read from. The map's areas are shrunk: boxes
    are grown.
    """
    (found,) = run({"x": _normalised(image)})
    boxes = []
    for rows, columns in find_objects(label(found[0, 0] > 0.3)[0]):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        margin = round(1.6 * height * width / (2 * (height + width)))
        if height > 4:
            boxes.append(
                (
                    slice(max(rows.start - margin, 0), rows.stop + margin),
                    slice(max(columns.start - margin, 0), columns.stop + margin),
                )
            )
    return sorted(boxes, key=lambda box: box[0].start), found


def line_image(image: np.ndarray, width: int | None = None) -> np.ndarray:
    """A line of text at height 48, as wide as it comes or padded to a width: f32[1, 3, 48, width]."""
    from PIL import Image

    scaled = Image.fromarray(image).resize((round(48 * image.shape[1] / image.shape[0]), 48), Image.Resampling.BILINEAR)
    made = _normalised(np.asarray(scaled))
    return made if width is None else np.pad(made[..., :width], [(0, 0)] * 3 + [(0, max(width - made.shape[3], 0))])


def read_line(scores: np.ndarray, characters: Sequence[str]) -> str:
    """The text of f32[steps, classes]: the best class of each step, repeats and blanks (0) left out."""
    best = scores.argmax(-1)
    kept = best[(best != 0) & (best != np.concatenate([[-1], best[:-1]]))]
    return "".join([*characters, " "][i - 1] for i in kept)


# -- notes and quality --------------------------------------------------------------------------------------------

NOTES_RATE, NOTES_LENGTH = 22050, 43844


def notes(played: Sequence[tuple[float, float, int]]) -> np.ndarray:
    """Tones with four overtones, from and to seconds, of MIDI keys: f32[1, 43844, 1], as basic-pitch takes it."""
    sound = np.zeros(NOTES_LENGTH)
    for start, stop, key in played:
        time = np.arange(int((stop - start) * NOTES_RATE)) / NOTES_RATE
        frequency = 440 * 2 ** ((key - 69) / 12)
        tone = sum(np.sin(2 * np.pi * n * frequency * time) / n**2 for n in range(1, 6))
        sound[int(start * NOTES_RATE) :][: len(time)] += tone * np.exp(-1.5 * time) * np.minimum(1, time / 0.01)
    return (0.3 * sound).astype(np.float32)[None, :, None]


def keys_heard(activations: np.ndarray, start: float, stop: float) -> set[int]:
    """The MIDI keys whose notes, f32[172, 88] from A0 on, are on for most of a time."""
    frames = activations[int(start * 86) : int(stop * 86)]
    return {21 + int(key) for key in np.flatnonzero(frames.mean(0) > 0.4)}


def log_spectrum(audio: np.ndarray) -> np.ndarray:
    """Windows of 512 samples, hop 256, as plcmos takes them: f32[1, 1, frames, 257]."""
    padded = np.concatenate([np.zeros(256), audio, np.zeros(256 - len(audio) % 256)])
    frames = np.lib.stride_tricks.sliding_window_view(padded, 512)[::256] * np.hamming(513)[:-1]
    power = np.abs(np.fft.rfft(frames)) ** 2
    return (np.log(np.maximum(power, 1e-12)) / 20).astype(np.float32)[None, None]


# -- one run of each ----------------------------------------------------------------------------------------------


def workloads() -> dict[str, tuple[Path, Feeds]]:
    """Every model that is tested, with what it is given in one run, by what is timed."""
    audio, _ = conversation()
    step = {"input": windows(audio, 512)[40][None], "state": np.zeros((2, 1, 128), np.float32)}
    rate, zeros = {"sr": np.array(RATE)}, np.zeros((1, 1, 128), np.float32)
    recording = {"input": windows(audio, 512), "h": zeros, "c": zeros}
    image = page(["Ingot compiles models", "Total: 1,234.56 EUR", "the quick brown fox"])
    line = image[20:84, 30:420]
    ocr = "rapidocr_onnxruntime"
    rows: dict[str, tuple[str, str, Feeds]] = {
        "silero-vad, a window of 32 ms": ("silero_vad", "data/silero_vad.onnx", step | rate),
        "silero-vad, opset 15": ("silero_vad", "data/silero_vad_16k_op15.onnx", step | rate),
        "silero-vad, half": ("silero_vad", "data/silero_vad_half.onnx", step),
        "silero-vad, opset 18": ("silero_vad", "data/silero_vad_op18_ifless.onnx", step | rate),
        "silero-vad, fixed dims": ("silero_vad", "data/silero_vad_openvino_16k.onnx", step),
        "silero-vad, 6.5 s at once": ("silero_vad", "data/silero_vad_16k_sequence.onnx", recording),
        "faster-whisper's VAD, 6.5 s": ("faster_whisper", "assets/silero_vad_v6.onnx", recording),
        "magika, a file": ("magika", "models/standard_v3_3/model.onnx", {"bytes": ends_of(files()["python"])[None]}),
        "rapidocr, where text is": (ocr, "models/ch_PP-OCRv4_det_infer.onnx", {"x": _normalised(image)}),
        "rapidocr, which way up": (ocr, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": line_image(line, 192)}),
        "rapidocr, a line read": (ocr, "models/ch_PP-OCRv4_rec_infer.onnx", {"x": line_image(line)}),
        "basic-pitch, 2 s": (
            "basic_pitch", "saved_models/icassp_2022/nmp.onnx", {"serving_default_input_2:0": notes([(0, 1.9, 60)])},
        ),
        "speechmos, DNSMOS of 9 s": ("speechmos", "dnsmos_models/sig_bak_ovr.onnx", {"input_1": speech(9.01, 3)[None]}),
        "speechmos, PLCMOS of 3 s": (
            "speechmos", "plcmos_models/plcmos_v2.onnx",
            {"degraded_audio": log_spectrum(speech(3, 5)), "rater_embed": np.ones((1, 64), np.float32)},
        ),
    }  # fmt: skip
    return {name: (model_path(package, file), feeds) for name, (package, file, feeds) in rows.items()}
