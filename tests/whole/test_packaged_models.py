"""Trained models that packages ship, from sound, bytes and pixels to their meaning, compared with ONNX Runtime."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest

import ingot
from ingot.errors import InputError
from packaged_models import (
    RATE,
    Feeds,
    Run,
    conversation,
    ends_of,
    files,
    keys_heard,
    line_image,
    log_spectrum,
    model_path,
    notes,
    page,
    read_line,
    speech,
    speech_at_once,
    speech_by_steps,
    text_boxes,
    told,
)

TOLERANCE = 1e-4  # relative to max(1, |expected|), after all steps of a recording too


class Both:
    """One model in both engines; no step of it runs on the reference."""

    def __init__(self, package: str, file: str):
        self.path = model_path(package, file)
        self.ours = ingot.InferenceSession(self.path, strict=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self.theirs = onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])

    @property
    def runs(self) -> tuple[Run, Run]:
        return lambda feeds: self.ours.run(None, feeds), lambda feeds: self.theirs.run(None, feeds)

    def run(self, feeds: Feeds) -> list[np.ndarray]:
        """What Ingot gives, once it has been compared."""
        ours, theirs = (run(feeds) for run in self.runs)
        for got, expected in zip(ours, theirs, strict=True):
            expect_close(got, expected)
        return ours


def expect_close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    np.testing.assert_array_less(np.abs(got - expected), TOLERANCE * np.maximum(1, np.abs(expected)))


BY_STEPS = [
    ("silero_vad", True),
    ("silero_vad_16k_op15", True),
    ("silero_vad_half", False),
    ("silero_vad_op18_ifless", True),
    ("silero_vad_openvino_16k", False),
]


@pytest.mark.parametrize(("model", "has_rate"), BY_STEPS)
def test_speech_is_found_step_by_step(model: str, has_rate: bool) -> None:
    audio, is_speech = conversation()
    rate = {"sr": np.array(RATE)} if has_rate else {}
    both = Both("silero_vad", f"data/{model}.onnx")
    ours, theirs = (speech_by_steps(run, audio, 512, **rate) for run in both.runs)
    expect_close(ours, theirs)
    expect_speech(ours, told(is_speech, 512))


AT_ONCE = [("silero_vad", "data/silero_vad_16k_sequence.onnx"), ("faster_whisper", "assets/silero_vad_v6.onnx")]


@pytest.mark.parametrize(("package", "file"), AT_ONCE)
def test_speech_is_found_in_a_whole_recording(package: str, file: str) -> None:
    audio, is_speech = conversation()
    ours, theirs = (speech_at_once(run, audio, 512) for run in Both(package, file).runs)
    expect_close(ours, theirs)
    expect_speech(ours, told(is_speech, 512))


def expect_speech(found: np.ndarray, expected: np.ndarray) -> None:
    """Speech has a high probability where it is, in most windows, and a low one where it is not, in all."""
    assert np.median(found[expected == 1]) > 0.9
    assert (found[expected == 1] > 0.5).mean() > 0.8
    assert found[expected == 0].max() < 0.3


@pytest.mark.parametrize("model", ["silero_vad", "silero_vad_op18_ifless"])
def test_the_other_branch_takes_the_other_rate(model: str) -> None:
    """Every second sample, at 8 kHz: both branches fit windows of 256 samples, and the rate that is fed decides."""
    audio, is_speech = conversation()
    both = Both("silero_vad", f"data/{model}.onnx")
    ours, theirs = (speech_by_steps(run, audio[::2], 256, sr=np.array(RATE // 2)) for run in both.runs)
    expect_close(ours, theirs)
    expect_speech(ours, told(is_speech[::2], 256)[: len(ours)])


def test_a_branch_that_does_not_fit_is_an_error_when_it_is_taken() -> None:
    session = ingot.InferenceSession(model_path("silero_vad", "data/silero_vad.onnx"))
    feeds = {"input": np.zeros((1, 576), np.float32), "state": np.zeros((2, 1, 128), np.float32)}
    session.run(None, feeds | {"sr": np.array(16000)})
    with pytest.raises(InputError, match=r"does not fit these dims, onnx node .*LSTM"):
        session.run(None, feeds | {"sr": np.array(8000)})


def test_types_of_files_are_detected() -> None:
    both = Both("magika", "models/standard_v3_3/model.onnx")
    names = json.loads((both.path.parent / "config.min.json").read_text())["target_labels_space"]
    contents = files()
    (scores,) = both.run({"bytes": np.stack([ends_of(content) for content in contents.values()])})
    assert [names[i] for i in scores.argmax(1)] == list(contents)
    assert scores.max(1).min() > 0.5


LINES = ("Ingot compiles models", "Total: 1,234.56 EUR", "the quick brown fox")
UNSPACED = str.maketrans("", "", " ")  # the model reads few of the spaces next to digits


def test_printed_text_is_read() -> None:
    find, turn, read = (
        Both("rapidocr_onnxruntime", f"models/{name}_infer.onnx")
        for name in ("ch_PP-OCRv4_det", "ch_ppocr_mobile_v2.0_cls", "ch_PP-OCRv4_rec")
    )
    (characters,) = (p.value.splitlines() for p in onnx.load(read.path).metadata_props if p.key == "character")
    image = page(LINES)
    boxes, _ = text_boxes(find.run, image)
    assert len(boxes) == len(LINES)
    for (rows, columns), line in zip(boxes, LINES, strict=True):
        cut = image[rows, columns]
        (upright,), (transposed,) = (turn.run({"x": line_image(each, 192)}) for each in (cut, cut[::-1, ::-1]))
        assert upright.argmax() == 0 and transposed.argmax() == 1
        (scores,) = read.run({"x": line_image(cut)})
        assert read_line(scores[0], characters).translate(UNSPACED) == line.translate(UNSPACED)


def test_notes_are_heard() -> None:
    both = Both("basic_pitch", "saved_models/icassp_2022/nmp.onnx")
    sound = notes([(0.0, 0.8, 60), (1.0, 1.9, 64), (1.0, 1.9, 67)])
    names = [output.name for output in both.ours.get_outputs()]
    heard = both.run({"serving_default_input_2:0": sound})[names.index("StatefulPartitionedCall:1")][0]
    assert keys_heard(heard, 0.1, 0.6) == {60}
    assert keys_heard(heard, 1.1, 1.6) == {64, 67}


def test_noise_is_heard_behind_speech() -> None:
    """DNSMOS rates speech, background and the whole; more noise leaves a worse background and a worse whole."""
    both = Both("speechmos", "dnsmos_models/sig_bak_ovr.onnx")
    clean = speech(9.01, 3)
    noise = np.random.default_rng(4).standard_normal(len(clean)).astype(np.float32)
    (scores,) = both.run({"input_1": np.stack([clean, clean + 0.05 * noise])})
    assert (scores[1, 1:] < scores[0, 1:]).all()


def test_lost_packets_are_heard() -> None:
    """PLCMOS rates what is left of a call: worse where every fifth packet of 20 ms is silence."""
    both = Both("speechmos", "plcmos_models/plcmos_v2.onnx")
    whole = speech(3, 5)
    lost = whole * (np.arange(len(whole)) // 320 % 5 != 0)
    rater = np.random.default_rng(6).standard_normal((1, 64)).astype(np.float32)
    scores = [both.run({"degraded_audio": log_spectrum(audio), "rater_embed": rater})[0] for audio in (whole, lost)]
    assert scores[0] > scores[1]


OTHERS = {
    "dnsmos_models/bak_ovr.onnx": {"input_1": (1, 901, 161)},
    "dnsmos_models/model_v8.onnx": {"input_1": (1, 900, 120)},
    "dnsmos_models/sig.onnx": {"input_1": (1, 901, 161)},
    "pdnsmos_models/sig_bak_ovr.onnx": {"input_1": (1, 144160)},
    "aecmos_models/Run_1663829550_Stage_0.onnx": {"input": (1, 3, 250, 160), "h0": (4, 1, 64)},
    "aecmos_models/Run_1663915512_Stage_0.onnx": {"input": (1, 3, 250, 160), "h0": (4, 1, 64)},
    "aecmos_models/Run_1668423760_Stage_0.onnx": {"input": (1, 3, 250, 160), "h0": (4, 1, 96)},
}


@pytest.mark.slow
@pytest.mark.parametrize("file", OTHERS)
def test_the_other_judges_of_sound_agree(file: str) -> None:
    """The other models of speechmos, on numbers with the range of spectra."""
    rng = np.random.default_rng(7)
    both = Both("speechmos", file)
    feeds = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in OTHERS[file].items()}
    assert all(np.isfinite(scores).all() for scores in both.run(feeds))
