"""Numbers are written and read alike where the locale has a comma before decimals."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import ctypes, hashlib, locale, math, sys
import numpy as np
from ingot.emit.c import emit
from ingot.run.store import WeightStore
from ingot.session.inference import InferenceSession
from ingot.ir.text import dump, parse

folder, name = sys.argv[1:]
locale.setlocale(locale.LC_NUMERIC, name)
strtod = ctypes.CDLL(None).strtod
strtod.restype = ctypes.c_double
print(strtod(b"1,5", None), file=sys.stderr)
GRAPH = '''graph specials
input x: f32[9]
input n: i64[2]
constant c: f32[9] = [nan, inf, -inf, -0.0, 1e-45, 1.1754942e-38, 0.1, 1234567.5, -3.4028235e+38]
constant k: i64[2] = [-9223372036854775808, 9007199254740993]
e = leaky_relu(x, alpha=0.123456789): f32[9]
y = maximum(e, c): f32[9]
m = add(n, k): i64[2]
output y = y
output m = m
'''
graph = parse(GRAPH)
text = dump(graph)
session = InferenceSession(parse(text), threads=1)
feeds = {"x": np.linspace(-1, 1, 9, dtype=np.float32), "n": np.array([0, 1])}
emit(session.graph, WeightStore(), folder)
print(text, dump(session.graph), session.plan.layout(), [each.tobytes().hex() for each in session.run(None, feeds)])
"""

COMMA = 'LC_NUMERIC\ndecimal_point "<U002C>"\nthousands_sep "<U002E>"\ngrouping 3;3\nEND LC_NUMERIC\n'
ASCII = """<code_set_name> ANSI_X3.4-1968
<comment_char> %
<escape_char> /
CHARMAP
<U0000>..<U007F> /x00
END CHARMAP
"""


def comma_locale(folder: Path) -> str:
    """A locale `comma` in a folder of locales: systems have others only where somebody installed them."""
    (folder / "source").write_text(COMMA)
    (folder / "ascii").write_text(ASCII)
    command = ["localedef", "--force", "--quiet", "-i", "source", "-f", "./ascii", "./comma"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)  # which warns of what is left out
    return "comma"


def test_a_comma_before_decimals(tmp_path: Path) -> None:
    said, files = [], []
    for name, half in (("C", "1.0"), (comma_locale(tmp_path), "1.5")):
        folder = tmp_path / f"emitted {name}"
        environment = os.environ | {"LOCPATH": str(tmp_path)}
        command = [sys.executable, "-c", SCRIPT, str(folder), name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stderr.split()[-1] == half, done.stderr
        said.append(done.stdout)
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert said[0] == said[1] and files[0] == files[1]
