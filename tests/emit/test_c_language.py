"""A language model as C: the shipped one prints the tokens of Python, drawn by the same seeds, with gcc and clang."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import ingot
from hf_models import CASES as CASES_OF_HF
from hf_models import Case, save_model
from hf_recurrent_cases import RECURRENT_CASES
from ingot import LLM
from ingot.cli import commands
from ingot.emit.language.model import emit_language_model
from ingot.errors import InputError, UnsupportedError
from ingot.llm.engine import modes_of
from small_tokenizers import document, write_folder
from tiny_language_models import random_llama

SHIPPED = Path(ingot.__file__).parent / "models" / "tiny-lm"
COMPILERS = {"gcc": "-O1", "clang": "-O0"}  # clang takes its time
UNOPTIMISED = "CFLAGS=-O0"  # where commands and interfaces are tried, not what a compiler makes of the model
STRICT = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
MOST_LINES = 6000

PARTS = ("normal", "tokenizer", "language", "chat", "command")  # in addition to the model and its pool
CONTEXT = 192
GUIDE = Path(__file__).parents[2] / "docs" / "emit-c.md"
TEXT = Path(__file__).read_text()
CASES = [
    ("def f(x):", {"max_tokens": 40, "temperature": 0}),
    (TEXT[:400], {"max_tokens": 30, "temperature": 0, "repetition_penalty": 1.3}),
    ("é 東京 😀 <|endoftext|>", {"max_tokens": 60, "temperature": 1.5, "seed": 3}),
    ("class A", {"max_tokens": 50, "temperature": 0.8, "top_k": 30, "seed": -1}),
    ("import", {"max_tokens": 50, "temperature": 1.1, "top_p": 0.9, "min_p": 0.02, "seed": 2**64 - 1}),
    ("def add(a, b):", {"max_tokens": 100, "temperature": 0.5, "seed": 1, "stop": ["\n\n", "return x"]}),
    ("for", {"temperature": 1, "seed": 5}),  # to the end of the context
    ("x", {"max_tokens": 0}),
]
CONVERSATION = (
    'def f(x):\n/set top_k 40\n/system be brief\nimport os\n"""class A:\n  x"""\nuse <|endoftext|>\\\nhere\n/exit\nno\n'
)


def ingot_cli(*words: object, text: str = "") -> str:
    done = CliRunner().invoke(commands, [str(word) for word in words], input=text, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def shell(*words: object, text: str = "") -> tuple[int, str, str]:
    """Runs a program: (exit code, stdout, stderr)."""
    done = subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def options(given: dict) -> list[object]:
    rows = [(name, value) for name, values in given.items() for value in (values if name == "stop" else [values])]
    return [word for name, value in rows for word in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the guide's command writes."""
    folder = tmp_path_factory.mktemp("language") / "out"
    (words,) = re.findall(r"^ingot (emit-c tiny-lm .*) -o out/$", GUIDE.read_text(), re.MULTILINE)
    ingot_cli(*words.split(), "--context", CONTEXT, "-o", folder)
    return folder


@pytest.fixture(scope="module", params=[name for name in COMPILERS if shutil.which(name)])
def built(request: pytest.FixtureRequest, emitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make` builds in a copy of it."""
    folder = tmp_path_factory.mktemp(request.param) / "out"
    shutil.copytree(emitted, folder)
    pool = (folder / "model_pool.c").read_text()
    edited = pool.replace("pool.cpus = usable_cpus();", "pool.cpus = usable_cpus() + POOL_THREADS;")
    assert edited != pool
    (folder / "model_pool.c").write_text(edited)  # more threads than there are CPUs
    flags = f"CFLAGS={COMPILERS[request.param]} {STRICT}"
    code, _, err = shell("make", "-C", folder, f"CC={request.param}", flags)
    assert code == 0, err[:4000]
    return folder


def test_lines_fit(emitted: Path):
    """But for what is one thing: texts of a chat template, declarations with their shapes, what a file is."""
    for path in emitted.glob("*.[ch]"):
        lines = path.read_text().splitlines()[1:]
        kept = [line for line in lines if not re.match(r"#define MODEL_CHAT_|  const .*\*/$", line)]
        assert max(map(len, kept)) <= 120, path.name


def test_fields_of_a_step_end_where_a_line_does(emitted: Path):
    """None of this model's is longer than a line."""
    bodies = re.findall(r"_args s = \{\n(.*?)\n +\};", (emitted / "model.c").read_text(), re.DOTALL)
    lines = "\n".join(bodies).split("\n")
    assert len(lines) > 100 and all(line.lstrip().startswith(".") for line in lines)


def test_tokens_are_those_of_python(built: Path):
    llm = LLM(SHIPPED, context=CONTEXT, precision="f32", threads=1, sequences=1)
    for prompt, given in CASES:
        wanted = llm.complete(prompt, **given)
        for threads in (1, 2, 3):
            words = [built / "generate", *options(given), "--threads", threads, "-"]
            code, out, err = shell(*words, text=prompt)
            assert (code, err, out) == (0, "", wanted.text + "\n"), words
        code, out, _ = shell(*words, "--ids", text=prompt)
        assert [int(word) for word in out.split()] == wanted.tokens, words


def test_values_may_follow_an_equals_sign(built: Path):
    """Of every option that has one."""
    given = {"max_tokens": 9, "temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
    given |= {"presence_penalty": 0.1, "frequency_penalty": 0.1, "seed": 3, "stop": ["~"], "threads": 1}
    given |= {"folder": built}
    words = [str(word) for word in options(given)]
    signed = [f"{name}={value}" for name, value in zip(words[::2], words[1::2], strict=True)]
    for program, ways, text in (("generate", ("x",), ""), ("chat", ("--system", "be brief"), CONVERSATION)):
        wanted = shell(built / program, *words, *ways, text=text)
        assert wanted[0] == 0 and wanted[1]
        assert shell(built / program, *signed, *(["=".join(ways)] if text else ways), text=text) == wanted


def test_make_holds_it_to_its_tokens(built: Path, tmp_path: Path):
    code, out, err = shell("make", "-s", "-C", built, "check")
    assert (code, out, err) == (0, "16 tokens: those of test/tokens.txt\n", "")
    tokens = (built / "test" / "tokens.txt").read_text().split()
    (tmp_path / "prompt.txt").write_text((built / "test" / "prompt.txt").read_text())
    (tmp_path / "tokens.txt").write_text("\n".join([*tokens[:7], "5", *tokens[8:]]))
    code, out, _ = shell(built / "generate", "--check", tmp_path)
    assert (code, out) == (1, f"7 of 16 tokens, then others than in {tmp_path}/tokens.txt\n")


@pytest.mark.parametrize(
    "given", [{"temperature": 0, "max_tokens": 12}, {"temperature": 1, "seed": 4, "max_tokens": 20}]
)
def test_a_conversation_is_that_of_python(given: dict, built: Path):
    words = ["--max-tokens", 12, *options(given)]
    wanted = ingot_cli(
        "chat", SHIPPED, "--precision", "f32", "--context", CONTEXT, "--threads", 1, *words, text=CONVERSATION
    )
    code, out, err = shell(built / "chat", *words, text=CONVERSATION)
    assert (code, err, out) == (0, "", wanted)


def interrupted(program: Path, message: str, *words: object) -> tuple[int, str]:
    """A conversation that a Ctrl-C comes to once it has answered something, and that leaves then."""
    command = [str(word) for word in (program, *words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin and running.stdout
        running.stdin.write(message)
        running.stdin.flush()
        said = running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate("/exit\n", timeout=60)
        return running.returncode, said + out


def test_ctrl_c_ends_an_answer_or_drops_a_line(built: Path):
    code, out = interrupted(built / "chat", "/?\n/system a ")
    assert (code, out.count("Press Ctrl-D to leave\n")) == (0, 1)
    code, out = interrupted(built / "chat", "def f(x):\n", "--temperature", 0.5)
    assert code == 0 and out
    words = [str(built / "generate"), "--temperature", "1", "x"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout and running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        running.stdout.read()
    assert running.returncode in (0, 130)  # it may have been at its end


# The commands of the guide compile the library by `cc`, whichever compiler has made the programs.
once = pytest.mark.parametrize("built", ["gcc"], indirect=True)


@once
def test_the_guide_is_right(built: Path):
    _, _, section = GUIDE.read_text().partition("## A language model as C")
    (block,) = re.findall(r"^```\ningot emit-c tiny-lm .* -o out/\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    commands = block.splitlines()
    assert len(commands) >= 6
    environment = os.environ | {"MAKEFLAGS": UNOPTIMISED}
    for line in commands:
        done = subprocess.run(line, shell=True, cwd=built.parent, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip(), line


def shown(heading: str) -> str:
    """The program that the guide shows behind a heading."""
    _, _, section = GUIDE.read_text().partition(f"\n{heading}\n")
    program, *_ = re.findall(r"^```c\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(program)


@once
def test_a_program_goes_on_with_texts_by_the_library(built: Path):
    """The guide's program, built by the guide's command; as C and as C++ it prints the tokens of `LLM`."""
    assert shell("make", "-s", "-C", built, UNOPTIMISED, "libmodel.so")[0] == 0
    program = shown("### From text to text")
    llm = LLM(SHIPPED, context=CONTEXT, precision="f32", threads=1, sequences=1)
    given = {"temperature": 0.8, "seed": 1, "max_tokens": 40, "stop": ["class"]}
    wanted = llm.generate("def f(x):", **given) + llm.chat([{"role": "user", "content": "import os"}], **given)
    for compiler, name in (("cc", "program.c"), ("c++", "program.cpp")):
        (built.parent / name).write_text(program)
        words = [compiler, *STRICT.split(), name, "-Iout", "-Lout", "-lmodel", "-Wl,-rpath,out", "-o", "program"]
        done = subprocess.run(words, cwd=built.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        done = subprocess.run(["./program"], cwd=built.parent, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, wanted)


def test_tokens_of_ones_own_need_the_header_alone(built: Path):
    """The program that the guide shows prints what `LLM` draws."""
    program = shown("### From tokens to tokens")
    (built / "own.c").write_text(program)
    words = [*STRICT.split(), "-std=c11", built / "own.c", built / "model.o", built / "model_pool.o"]
    code, _, err = shell("cc", *words, f"-I{built}", "-lm", "-pthread", "-o", built / "own")
    assert code == 0, err
    done = subprocess.run([built / "own"], cwd=built.parent, capture_output=True, text=True)
    llm = LLM(SHIPPED, context=CONTEXT, precision="f32", threads=1, sequences=1)
    drawn = list(llm.generate_tokens([100, 200, 300], max_tokens=20, temperature=1, top_p=0.9, seed=1))
    assert done.returncode == 0 and [int(word) for word in done.stdout.split()][: len(drawn)] == drawn


@pytest.mark.slow
@once
def test_the_programs_misuse_no_memory(built: Path):
    """Nor do the steps of a checked run write where they should not, nor kernels read where nothing is."""
    sanitized = "cc -g -fsanitize=address,undefined -fno-sanitize-recover=all".split()
    strict = STRICT.replace("-Wconversion ", "").split()  # GCC's own macros convert at -O0
    model = [*sanitized, *strict, "-O0", "-DMODEL_CHECK", "-c", "model.c", "-o", "checked.o"]
    assert subprocess.run(model, cwd=built).returncode == 0
    for program in ("generate", "chat"):
        words = [*sanitized, "-std=c11", "-D_DEFAULT_SOURCE", "-O1", f"{program}.c", "checked.o", "model_pool.o"]
        words += [f"model_{part}.c" for part in PARTS]
        words += ["-lm", "-pthread", "-o", f"safe_{program}"]
        assert subprocess.run(words, cwd=built).returncode == 0
    for prompt, given in CASES[:4]:
        wanted = shell(built / "generate", *options(given), "-", text=prompt)
        assert shell(built / "safe_generate", *options(given), "-", text=prompt) == wanted
    words = ["--max-tokens", 12, "--temperature", 0]
    wanted = shell(built / "chat", *words, text=CONVERSATION)
    assert shell(built / "safe_chat", *words, text=CONVERSATION) == wanted


@pytest.mark.slow
def test_cmake_builds_the_programs(emitted: Path, tmp_path: Path):
    cmake = Path(sys.executable).with_name("cmake")
    for words in (("-S", emitted, "-B", tmp_path, "-DCMAKE_BUILD_TYPE=Debug"), ("--build", tmp_path)):
        code, out, err = shell(cmake, *words)
        assert code == 0, out + err
    code, out, _ = shell(tmp_path / "generate", "--folder", emitted, "--max-tokens", 3, "--temperature", 0, "def")
    assert code == 0 and out
    code, out, err = shell(cmake.with_name("ctest"), "--test-dir", tmp_path)
    assert code == 0 and "100% tests passed" in out, out + err


def test_errors_are_reported(built: Path, tmp_path: Path):
    program, weights = built / "generate", tmp_path / "weights"
    weights.mkdir()
    shutil.copy(built / "weights.bin", weights)
    for words, code, said in (
        ([], 2, "PROMPT: none"),
        (["a", "b"], 2, "b: a second prompt"),
        (["--what", "a"], 2, "--what: unknown option"),
        (["--temperature", "hot", "a"], 2, "temperature: got hot, expected a number, 0 to 1000"),
        (["--top-p", "0", "a"], 2, "top_p: got 0"),
        (["--seed", "1.5", "a"], 2, "seed: no 64-bit number"),
        (["--threads", "9", "a"], 2, "threads: got 9, expected an integer, 1 to 8"),
        (["--top-k"], 2, "top_k: got nothing, expected an integer, 0 to 2147483647"),
        (["--folder"], 2, "--folder: unknown option, or no value"),
        (["--stop", "a"] * 17 + ["a"], 2, "stop: given too often"),
        (["x " * 2000], 65, "prompt: got "),
        (["--folder", tmp_path, "a"], 66, f"{tmp_path}/weights.bin: cannot be opened; --folder gives its path"),
        (["--folder", weights, "a"], 66, f"{weights}/tokenizer.bin: cannot be opened; --folder gives its path"),
        (["--temperature=hot", "a"], 2, "temperature: got hot"),
        (["--top-k=", "a"], 2, "top_k: got nothing"),
        (["--temperatur=1", "a"], 2, "--temperatur=1: unknown option"),
        (["--ids=1", "a"], 2, "--ids=1: unknown option"),
        (["--folder=", "a"], 2, "--folder: nothing behind it"),
        (["--check", "test", "a"], 2, "--check: takes no prompt"),
        (["--check", tmp_path], 66, f"{tmp_path}/prompt.txt: cannot be opened"),
    ):
        got = shell(program, *words)
        assert got[0] == code and said in got[2] and got[2].count("\n") == 1, (words, got)
    for name in ("weights.bin", "tokenizer.bin"):
        whole = (built / name).read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for place, content in enumerate((whole[:-1], whole + b"0", bytes(flipped), whole[::-1])):
            folder = tmp_path / f"{name} {place}"
            folder.mkdir()
            for other in ("weights.bin", "tokenizer.bin"):
                (folder / other).write_bytes(content if other == name else (built / other).read_bytes())
            code, _, err = shell(program, "--folder", folder, "a")
            assert code == 65 and name in err
    for program, said in ((built / "generate", "--repetition-penalty"), (built / "chat", "/reset")):
        code, out, _ = shell(program, "--help")
        assert code == 0 and said in out and shell(program, "-h") == (0, out, "")
    for line in (
        "./generate a --max-tokens 1 >/dev/full",
        "./generate - <.",
        "echo a | ./chat --max-tokens 1 >/dev/full",
    ):
        done = subprocess.run(line, shell=True, cwd=built, capture_output=True, text=True)
        assert done.returncode == 74 and re.search("^std(in|out): cannot be ", done.stderr), line


STRAYS = """\
#include "model.h"
model_state *model_init(void *memory, const void *weights, int threads) { return (void)weights, (void)threads, memory; }
void model_watch(model_state *state, const volatile int *stop) { (void)state, (void)stop; }
void model_sampler(void *sampler, const model_sampling *options) { (void)sampler, (void)options; }
void model_seen(void *sampler, int32_t token) { (void)sampler, (void)token; }
int32_t model_sample(void *sampler, const float *logits) { return (void)sampler, (void)logits, 100; }
#define RUN(mode, code) \\
  int model_##mode(model_state *s, const model_##mode##_inputs *in, const model_##mode##_outputs *out) { \\
    return (void)s, (void)in, (void)out, code; \\
  }
RUN(prefill, PREFILL) RUN(decode, DECODE)
"""


@pytest.mark.parametrize("codes", [("-1", "0"), ("0", "-7")])
def test_a_checked_run_reports_errors(built: Path, tmp_path: Path, codes: tuple[str, str]):
    (tmp_path / "strays.c").write_text(STRAYS)
    objects = [built / "generate.o", *(built / f"model_{part}.o" for part in PARTS)]
    flags = [f"-I{built}", f"-DPREFILL={codes[0]}", f"-DDECODE={codes[1]}"]
    code, _, err = shell("cc", *flags, tmp_path / "strays.c", *objects, "-lm", "-o", tmp_path / "strays")
    assert code == 0, err
    code, _, err = shell(tmp_path / "strays", "--folder", built, "a")
    assert (code, err) == (70, "model: a step wrote outside of its results\n")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a random model with a tokenizer."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    random_llama(folder, vocab_size=512, hidden_size=128, intermediate_size=192, num_hidden_layers=4)
    return write_folder(folder, document("byte_level"))


def expect_python(model: Path, folder: Path, given: dict) -> None:
    """Builds a model of a folder as C, and compares tokens with `LLM`. given: options of both."""
    emit_language_model(model, folder, **given, context=64, threads=2)
    # GCC's own macros convert at -O0.
    flags = STRICT.replace("-Wconversion ", "")
    code, _, err = shell("make", "-C", folder, "generate", f"CFLAGS=-O0 {flags}")
    assert code == 0, err[:4000]
    (most,) = re.findall(r"^#define MODEL_THREADS (\d+)", (folder / "model.h").read_text(), re.MULTILINE)
    llm = LLM(model, **given, context=64, threads=1, sequences=1)
    for place, seed in enumerate((None, 1)):
        options_of_both = {"temperature": 0} if seed is None else {"temperature": 1, "seed": seed}
        wanted = llm.complete("def f(x):\n    return x" * (1 + place), max_tokens=24, **options_of_both)
        words = [*options(options_of_both), "--max-tokens", 24, "--threads", min(1 + place, int(most)), "--ids"]
        code, out, err = shell(folder / "generate", *words, "def f(x):\n    return x" * (1 + place))
        assert (code, err, [int(word) for word in out.split()]) == (0, "", wanted.tokens), words


FORMATS = [
    {"precision": "bf16"},
    {"precision": "int4"},
    *(
        pytest.param(given, marks=pytest.mark.slow)
        for given in (
            {"precision": "bf16w"},
            {"precision": "int8"},
            {"precision": "int8w"},
            {"precision": "int4w"},
            {"precision": "f32", "cache_dtype": "int8"},
            {"precision": "bf16", "cache_dtype": "int4"},
        )
    ),
]


@pytest.mark.parametrize("given", FORMATS, ids=lambda given: " ".join(given.values()))
def test_formats_give_the_tokens_of_python(given: dict, tiny: Path, tmp_path: Path):
    expect_python(tiny, tmp_path / "out", given)


CASES_BY_TYPE = {case.type: case for case in reversed(CASES_OF_HF) if case.context is None}
RECURRENT = {case.type for case in RECURRENT_CASES}
ARCHITECTURES = [case for case in CASES_BY_TYPE.values() if case.type not in RECURRENT]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.type == "mixtral" else pytest.mark.slow) for case in ARCHITECTURES],
    ids=lambda case: case.type,
)
def test_architectures_give_the_tokens_of_python(case: Case, tmp_path: Path):
    """Windows that slide, experts, and all else that a template may say."""
    save_model(replace(case, config={**case.config, "vocab_size": 720}), tmp_path / "model")
    write_folder(tmp_path / "model", document("byte_fallback"))
    expect_python(tmp_path / "model", tmp_path / "out", {"precision": "f32"})


def test_a_model_with_recurrent_state_is_refused(tmp_path: Path):
    save_model(RECURRENT_CASES[0], tmp_path / "model")
    write_folder(tmp_path / "model", document("byte_fallback"))
    with pytest.raises(UnsupportedError, match="a language model with recurrent state"):
        emit_language_model(tmp_path / "model", tmp_path / "out", precision="f32")


def test_layers_are_emitted_once(tmp_path: Path):
    """However many there are."""
    lines = []
    for layers in (6, 12):
        folder = tmp_path / str(layers)
        random_llama(folder, vocab_size=512, num_hidden_layers=layers)
        write_folder(folder, document("gemma"))
        emit_language_model(folder, folder / "out", precision="f32", prefix="small")
        text = (folder / "out" / "small.c").read_text()
        assert not re.search(r"\bmodel_(prefill|decode|sample|memory)\b", text)
        lines.append(len(text.splitlines()))
        assert not (folder / "out" / "small-chat.c").exists()
    assert lines[1] - lines[0] <= 6 * len(modes_of(1)) and lines[1] < MOST_LINES  # a row of offsets for each layer


TWO = """\
#include "first_chat.h"
#include "Second_chat.h"
#include "first_check.h"
#include "Second_check.h"

#include <stdio.h>
#include <string.h>

static void show(void *given, int32_t token) { fprintf((FILE *)given, "%d ", (int)token); }

int main(int argc, char **argv) {
  int errors[2] = {argc, 0};
  first_language *one = first_language_open(argv[1], 2, &errors[0]);
  Second_language *two = Second_language_open(argv[2], 1, &errors[1]);
  if (errors[0] || errors[1]) return 1;
  first_request asked;
  Second_request also;
  first_request_begin(&asked);
  Second_request_begin(&also);
  asked.take_token = also.take_token = show, asked.given = also.given = stdout;
  asked.max_tokens = also.max_tokens = 20, asked.sampling.temperature = 0;
  also.sampling.temperature = 1, also.sampling.seed = 4;
  for (int i = 3; i < argc; i++) {
    if (first_language_continue(one, argv[i], strlen(argv[i]), &asked) < 0) return 2;
    printf("\\n");
    if (Second_language_continue(two, argv[i], strlen(argv[i]), &also) < 0) return 3;
    printf("\\n");
  }
  const char *broken = "\\xff";
  if (strcmp(first_language_error(first_language_continue(one, broken, 1, &asked)), "prompt: not UTF-8")) return 4;
  first_message said = {"hi", 2}, bad = {broken, 1};
  first_token_list ids = {NULL, 0, 0};
  if (first_chat_tokens(one, NULL, &said, 1, &ids) || !ids.count) return 5;
  if (first_chat_tokens(one, NULL, &bad, 1, &ids) != FIRST_NO_TEXT) return 6;
  if (first_language_answer(one, &ids, &asked) < 0) return 7;
  printf("\\n");
  first_language_close(one);
  Second_language_close(two);
}
"""


def test_a_prefix_changes_no_text_of_a_conversation(tmp_path: Path):
    random_llama(tmp_path / "model", vocab_size=512)
    write_folder(tmp_path / "model", document("gemma"))
    template = "{% for m in messages %}{{ 'model_' + m['role'] + ':' + m['content'] }}{% endfor %}|"
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    emit_language_model(tmp_path / "model", tmp_path / "out", precision="f32", prefix="small")
    facts = (tmp_path / "out" / "small_facts.h").read_text()
    assert '#define SMALL_CHAT_TO_MODEL "model_assistant:"' in facts


def test_two_models_link_into_one_program(tiny: Path, tmp_path: Path):
    """From text to text, in C and in C++; each gives what it gives alone, and every name begins with its prefix."""
    template = {"chat_template": "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{% endfor %}|"}
    other = tmp_path / "other"
    random_llama(other, vocab_size=512, hidden_size=64, num_hidden_layers=3)
    write_folder(other, document("byte_fallback"))
    objects: list[Path] = []
    strict = STRICT.replace("-Wconversion ", "")  # GCC's own macros convert at -O0
    for prefix, model in (("first", tiny), ("Second", other)):
        shutil.copytree(model, tmp_path / f"model {prefix}")
        (tmp_path / f"model {prefix}" / "tokenizer_config.json").write_text(json.dumps(template))
        folder = tmp_path / prefix
        emit_language_model(tmp_path / f"model {prefix}", folder, precision="f32", context=64, threads=2, prefix=prefix)
        code, _, err = shell("make", "-C", folder, f"CFLAGS=-O0 {strict}")
        assert code == 0, err[:4000]
        for path in sorted(folder.glob("*.o")):
            _, out, _ = shell("nm", "-g", "--defined-only", path)
            names = {line.split()[-1] for line in out.splitlines()}
            assert all(name.startswith(f"{prefix}_") for name in names - {"main"}), path
            objects += [] if "main" in names else [path]
    (tmp_path / "two.c").write_text(TWO)
    (tmp_path / "two.cpp").write_text(TWO)
    prompts = ["def f(x):", "é 東京", "class A:\n  pass"]
    wanted = ""
    for prompt in prompts:
        for prefix, *words in (("first", "--temperature", 0), ("Second", "--temperature", 1, "--seed", 4)):
            _, out, _ = shell(tmp_path / prefix / f"{prefix}-generate", "--ids", "--max-tokens", 20, *words, prompt)
            wanted += "".join(f"{word} " for word in out.split()) + "\n"
    _, out, _ = shell(tmp_path / "first" / "first-chat", "--ids", "--max-tokens", 20, "--temperature", 0, text="hi\n")
    wanted += "".join(f"{word} " for word in out.split()) + "\n"
    for compiler, source in (("cc", "two.c"), ("c++", "two.cpp")):
        words = [*strict.split(), "-O0", tmp_path / source, *(f"-I{tmp_path / p}" for p in ("first", "Second"))]
        code, _, err = shell(compiler, *words, *objects, "-lm", "-pthread", "-o", tmp_path / "two")
        assert code == 0, err
        assert shell(tmp_path / "two", tmp_path / "first", tmp_path / "Second", *prompts) == (0, wanted, "")


def test_what_c_does_not_have_is_refused(tmp_path: Path):
    random_llama(tmp_path, vocab_size=512)
    write_folder(tmp_path, document("unigram"))
    with pytest.raises(UnsupportedError, match="emit has no such tokenizer, got Unigram"):
        emit_language_model(tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="option prefix"):
        emit_language_model(tmp_path, tmp_path / "out", prefix="a b")
    with pytest.raises(InputError, match=r"option prefix: generate\.c is another file here, got 'generate'"):
        emit_language_model(SHIPPED, tmp_path / "out", context=64, precision="f32", prefix="generate")
    assert not (tmp_path / "out").exists()
    for words, said in (
        (["--dim", "batch=1"], "--dim"),
        (["--input", "x.npy"], "--input"),
    ):
        done = CliRunner().invoke(commands, ["emit-c", str(SHIPPED), *words, "-o", str(tmp_path / "out")])
        assert done.exit_code == 2 and said in done.output
