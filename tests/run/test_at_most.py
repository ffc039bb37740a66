"""`ingot.at_most`: one program for every size of a dim, with the bits of a session that is bound to the size alone."""

import threading

import numpy as np
import pytest
import torch
import transformers
from torch.export import Dim
from torch.nn import functional as F

import ingot
from ingot.ir.text import parse
from onnx_export import export_onnx

pytestmark = [pytest.mark.native, pytest.mark.checked]

EAGER, SDPA = ({"attn_implementation": name} for name in ("eager", "sdpa"))
SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 72, "vocab_size": 99}
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 25, 31, 33, 40, 47, 48)
LIMIT = 48


class Texts(torch.nn.Module):
    """An encoder of texts with padding."""

    def __init__(self, **attention) -> None:
        super().__init__()
        self.model = transformers.BertModel(transformers.BertConfig(**SMALL, **attention), add_pooling_layer=False)

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


class Words(torch.nn.Module):
    """A causal language model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=LIMIT, vocab_size=99, use_cache=False)
        )

    def forward(self, ids):
        return self.model(input_ids=ids).logits


class Sounds(torch.nn.Module):
    """Whisper's encoder, for any number of frames."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.WhisperConfig(
            num_mel_bins=16, d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48,
            max_source_positions=LIMIT // 2, decoder_layers=1, decoder_attention_heads=4, vocab_size=99,
            pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=0,
        )  # fmt: skip
        self.encoder = transformers.WhisperModel(config).encoder

    def forward(self, x):
        encoder = self.encoder
        x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(x)))).permute(0, 2, 1)
        x = x + encoder.embed_positions.weight[: x.shape[1]]
        for layer in encoder.layers:
            x = layer(x, None)
        return encoder.layer_norm(x)


class Rolled(torch.nn.Module):
    """Rotary positions, computed in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.LlamaModel(
            transformers.LlamaConfig(
                num_hidden_layers=1,
                hidden_size=32,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=48,
                vocab_size=99,
                use_cache=False,
            )
        )

    def forward(self, ids):
        return self.model(input_ids=ids).last_hidden_state


class Waves(torch.nn.Module):
    """Convolutions that keep, halve and lengthen a signal, with a norm over all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv1d(5, 16, 3, padding=1)
        self.second = torch.nn.Conv1d(16, 16, 4, stride=2, padding=2)
        self.norm = torch.nn.GroupNorm(4, 16)

    def forward(self, x):
        x = self.norm(torch.relu(self.first(x)))
        return self.second(x), F.pad(x, (2, 3)).mean(-1)


def ids(batch, length, rng):
    return rng.integers(0, 99, (batch, length))


def mask(batch, length, rng):
    return (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype(np.int64)


def channels(count):
    return lambda batch, length, rng: rng.standard_normal((batch, count, length)).astype(np.float32)


MODELS = {  # module, its inputs, and the axis of them that is the length
    "texts, eager": (lambda: Texts(**EAGER), {"ids": ids, "mask": mask}, 1),
    "texts, fused": (lambda: Texts(**SDPA), {"ids": ids, "mask": mask}, 1),
    "words": (Words, {"ids": ids}, 1),
    "rolled": (Rolled, {"ids": ids}, 1),
    "sounds": (Sounds, {"x": channels(16)}, 2),
    "waves": (Waves, {"x": channels(5)}, 2),
}


def exported(name):
    """The program of a model, its symbols for batch and length, and a function that makes feeds."""
    module, inputs, axis = MODELS[name]
    torch.manual_seed(1)
    rng = np.random.default_rng(2)
    dims = {0: Dim.AUTO, axis: Dim.AUTO}
    if len(inputs) > 1:  # which torch takes for dims of their own
        dims = {0: Dim("batch", min=1, max=9), axis: Dim("length", min=1, max=LIMIT)}
    example = {key: torch.from_numpy(make(2, 6, rng)) for key, make in inputs.items()}
    program = torch.export.export(module().eval(), (), example, dynamic_shapes=dict.fromkeys(example, dims))

    def feeds(batch, length):
        return {key: make(batch, length, rng) for key, make in inputs.items()}

    return program, feeds


def same(got, expected):
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_bits_of_a_session_for_each_length(name):
    program, feeds = exported(name)
    each = ingot.InferenceSession(program, threads=2, dims={})
    batch, length = each.graph.symbols
    planned = ingot.InferenceSession(program, threads=2, dims={length: ingot.at_most(LIMIT)})
    both = ingot.InferenceSession(program, threads=1, dims={batch: ingot.at_most(3), length: ingot.at_most(LIMIT)})
    cases = [(1, length) for length in LENGTHS] + [(3, 1), (2, 9), (3, LIMIT), (2, 33), (3, 5)]
    for case in np.random.default_rng(3).permutation(cases):
        given = feeds(*case)
        expected = each.run(None, given)
        assert same(planned.run(None, given), expected), case
        assert same(both.run(None, given), expected), case
    assert (both.bindings.hits, both.bindings.misses, both.bindings.kept) == (len(cases), 1, 1)
    assert (planned.bindings.misses, planned.bindings.unplanned) == (3, "")  # one for each batch
    assert planned.bindings.arena_bytes > 0 and planned.bindings.weight_bytes > 0
    assert f"dim {length}, at most {LIMIT}: one program for every size" in str(planned.explain())


def test_through_onnx(tmp_path):
    """A dim's name, positions cut to a length, and a file that is loaded twice, the second time from the cache."""
    program, feeds = exported("texts, fused")
    export_onnx(program, file=tmp_path / "texts.onnx")
    each = ingot.InferenceSession(tmp_path / "texts.onnx", dims={})
    _, length = each.get_inputs()[0].shape
    for _ in range(2):
        planned = ingot.InferenceSession(
            tmp_path / "texts.onnx", dims={length: ingot.at_most(LIMIT)}, cache=tmp_path / "cache"
        )
        for size in (4, LIMIT, 1, 19):
            given = feeds(1, size)
            assert same(planned.run(None, given), each.run(None, given))
        assert not planned.bindings.unplanned


MEAN = """graph mean
input x: f32[n, 8]
sizes = dims(values=[n]): i64[1]
count = cast(sizes, dtype=@f32): f32[1]
total = reduce_sum(x, axes=[0], keepdims=false): f32[8]
y = div(total, count): f32[8]
output y = y
"""
FOLDED = """graph folded
input x: f32[2*n, 8]
r = reshape(x, shape=[n, 16]): f32[n, 16]
t = permute(r, axes=[1, 0]): f32[16, n]
y = cumsum(t, axis=1): f32[16, n]
output y = y
"""
PADDED = """graph padded
input x: f32[n, 8]
y = pad(x, low=[0, 0], high=[20-n, 0], value=0.0): f32[20, 8]
output y = y
"""
SHORT = """graph short
input x: f32[n, 8]
y = slice(x, starts=[2, 0], stops=[n, 8], steps=[1, 1]): f32[n-2, 8]
output y = y
"""
IMAGES = """graph images
input x: f32[n, {channels}, 8, 8]
weight w: f32[{out}, {channels}, 3, 3]
y = conv(x, w, strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], groups=1): f32[n, {out}, 8, 8]
output y = y
"""
GROUPED = """graph grouped
input x: f32[1, n, 5, 8]
q = slice(x, starts=[0, 0, 0, 0], stops=[1, 1, 5, 8], steps=[1, 1, 1, 1]): f32[1, 1, 5, 8]
r = concat(q, q, q, q, axis=1): f32[1, 4, 5, 8]
y = attention(r, x, x, scale=0.5, causal=false, causal_offset=0, safe=false, zero_nan=false): f32[1, 4, 5, 8]
output y = y
"""
LONG = """graph long
input q: f32[1, 2, n, 16]
k = mul(q, q): f32[1, 2, n, 16]
y = attention(q, k, q, scale=0.25, causal=false, causal_offset=0, safe=false, zero_nan=false): f32[1, 2, n, 16]
output y = y
"""
DRAWN = """graph drawn
input x: f64[n, 3]
input d: i64[2]
u = draw_uniform(d, shape=[n, 3], stream=5): f64[n, 3]
y = add(x, u): f64[n, 3]
output y = y
output u = u
"""
ROUNDED = """graph rounded
input x: f32[n, 3]
y, s, z = dynamic_quantize(x): u8[n, 3], f32[], u8[]
output y = y
output s = s
"""
CHECKED = """graph checked
input x: i64[n, 3]
y = checked_index(x, limit=9, what="places"): i64[n, 3]
output y = y
"""
LOSSES = """graph losses
input x: f32[n, 5]
input t: i64[n]
y = cross_entropy(x, t): f32[n]
output y = y
"""


@pytest.mark.parametrize("text", [DRAWN, ROUNDED, CHECKED, LOSSES])
def test_what_counts_elements_counts_those_of_a_run(text):
    """Kernels with an element count: after the elements of a run there are those of a larger run."""
    graph = parse(text)
    planned, each = (ingot.InferenceSession(graph, dims=dims) for dims in ({"n": ingot.at_most(64)}, {}))
    for size in (64, 3, 1, 9):
        rng = np.random.default_rng(size)
        feeds = {}
        for given in each.get_inputs():
            shape = [size if d == "n" else d for d in given.shape]
            dtype = {"tensor(int64)": np.int64, "tensor(float)": np.float32, "tensor(double)": np.float64}[given.type]
            feeds[given.name] = rng.uniform(0, 5 if dtype is np.int64 else 1 + size, shape).astype(dtype)
        got, exact = planned.run(None, feeds), each.run(None, feeds)
        assert same(got, exact)
        if text is CHECKED:
            feeds["x"].flat[-1] = 9
            with pytest.raises(ingot.InputError, match=r"places.*got 9, expected 0\.\.8"):
                planned.run(None, feeds)
    assert not planned.bindings.unplanned and planned.bindings.kept == 1


@pytest.mark.parametrize(
    ("text", "limit", "sizes", "reason"),
    [
        (MEAN, 20, (1, 5, 20), "dims computes from sizes only"),
        (PADDED, 20, (3, 5, 20), "20 is not largest at the largest values of its symbols"),
        (LONG, 5000, (1, 30, 4500), "2048"),
        (GROUPED, 4, (1, 2, 4), "heads do not group, got 4 over n"),
    ],
)
def test_where_no_one_program_serves(text, limit, sizes, reason):
    """Each size has a program of its own; the session reports it, with the reason."""
    graph = parse(text)
    planned = ingot.InferenceSession(graph, dims={"n": ingot.at_most(limit)})
    each = ingot.InferenceSession(graph, dims={})
    (name,) = graph.inputs
    for size in sizes:
        shape = [size if d == "n" else d for d in each.get_inputs()[0].shape]
        x = np.random.default_rng(size).standard_normal(shape).astype(np.float32)
        assert same(planned.run(None, {name: x}), each.run(None, {name: x}))
    assert reason in planned.bindings.unplanned
    assert planned.bindings.misses == planned.bindings.kept == len(sizes)
    assert "a program for each size" in str(planned.explain()) and reason in str(planned.bindings)
    assert planned.bindings.to_json()["limits"] == {"n": limit}


ROWS = """graph rows
input x: f32[n, 8]
weight w: f32[8, 8]
m = matmul(x, w): f32[n, 8]
y = relu(m): f32[n, 8]
output y = y
"""


@pytest.fixture
def rows():
    return parse(ROWS, {"w": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)})


def test_a_size_that_the_model_cannot_have():
    """It gets the error that a session gives that knows no limit."""
    graph = parse(SHORT)
    session = ingot.InferenceSession(graph, dims={"n": ingot.at_most(9)})
    for n in (9, 2, 3):
        x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        assert same(session.run(None, {"x": x}), [x[2:]])
    assert (session.bindings.unplanned, session.bindings.misses) == ("", 1)
    for one in (session, ingot.InferenceSession(graph)):
        with pytest.raises(ingot.InputError, match="cannot have these sizes, got n = 1: slice: out of range"):
            one.run(None, {"x": np.ones((1, 8), np.float32)})


def test_halves_of_a_length():
    """A dim that is a multiple of the symbol, seen in another shape."""
    graph = parse(FOLDED)
    session, each = ingot.InferenceSession(graph, dims={"n": ingot.at_most(9)}), ingot.InferenceSession(graph, dims={})
    for n in (9, 1, 4):
        x = np.random.default_rng(n).standard_normal((2 * n, 8)).astype(np.float32)
        assert same(session.run(None, {"x": x}), each.run(None, {"x": x}))
    assert not session.bindings.unplanned


@pytest.mark.parametrize(("out", "channels"), [(8, 1), (16, 16), (512, 512)])
def test_batches_of_images(out, channels):
    """How a filter is multiplied, Winograd's way or not, follows from the filter, not from the batch."""
    weight = np.random.default_rng(0).standard_normal((out, channels, 3, 3)).astype(np.float32)
    graph = parse(IMAGES.format(out=out, channels=channels), {"w": weight})
    session, each = ingot.InferenceSession(graph, dims={"n": ingot.at_most(5)}), ingot.InferenceSession(graph)
    for n in (5, 1, 2):
        x = np.random.default_rng(n).standard_normal((n, channels, 8, 8)).astype(np.float32)
        assert same(session.run(None, {"x": x}), each.run(None, {"x": x}))
    assert (session.bindings.unplanned, session.bindings.misses) == ("", 1)


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "4", None, np.float32(3)])
def test_bad_limits(bad):
    with pytest.raises(ingot.InputError, match=r"at_most: bad size, got .*, expected a whole number of at least 1"):
        ingot.at_most(bad)


@pytest.mark.parametrize("executor", ["native", "interpret"])
def test_too_large_a_size(rows, executor):
    session = ingot.InferenceSession(rows, dims={"n": ingot.at_most(np.int64(6))}, executor=executor)
    for n in (6, 0, 1):
        assert session.run(None, {"x": np.ones((n, 8), np.float32)})[0].shape == (n, 8)
    with pytest.raises(ingot.InputError, match="input 'x': dim 'n' is too large, got 7, expected at most 6"):
        session.run(None, {"x": np.ones((7, 8), np.float32)})
    with pytest.raises(ingot.InputError, match=r"no such dim, got \['m'\], expected \['n'\]"):
        ingot.InferenceSession(rows, dims={"m": ingot.at_most(6)})


@pytest.mark.parametrize("bad", [-1, True, 2.5, "7", None])
def test_bad_values_of_dims(rows, bad):
    with pytest.raises(ingot.InputError, match=r"option dims: bad value of 'n', got .*, expected a whole number"):
        ingot.InferenceSession(rows, dims={"n": bad})


def test_bindings_profiles_and_saved_programs(rows, tmp_path):
    session = ingot.InferenceSession(rows, dims={"n": ingot.at_most(30)})
    each = ingot.InferenceSession(rows, dims={})
    assert session.bindings.misses == 1  # planned before the first run
    for n in (30, 2):
        x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        binding, y = session.io_binding(), np.full((n, 8), np.nan, np.float32)
        binding.bind_input("x", x)
        binding.bind_output("y", y)
        session.run_with_iobinding(binding)
        assert same([y], each.run(None, {"x": x}))
        assert session.profile({"x": x}).steps
        binding.bind_output("y", np.empty((n + 1, 8), np.float32))
        with pytest.raises(ingot.InputError, match=rf"got float32\[{n + 1}, 8\], expected float32\[{n}, 8\]"):
            session.run_with_iobinding(binding)
    session.save(tmp_path / "program")
    loaded = ingot.InferenceSession(tmp_path / "program", dims={"n": ingot.at_most(12)})
    x = np.ones((5, 8), np.float32)
    assert same(loaded.run(None, {"x": x}), each.run(None, {"x": x})) and not loaded.bindings.unplanned


def test_runs_of_several_threads_have_sizes_of_their_own(rows):
    session = ingot.InferenceSession(rows, dims={"n": ingot.at_most(64)}, threads=1)
    rng = np.random.default_rng(5)
    feeds = [rng.standard_normal((n, 8)).astype(np.float32) for n in (1, 64, 7, 30)]
    expected = [session.run(None, {"x": x})[0] for x in feeds]
    wrong: list[int] = []

    def work(which: int) -> None:
        for _ in range(300):
            if not np.array_equal(session.run(None, {"x": feeds[which]})[0], expected[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
