"""`python -m fuzz [--seconds S] [TARGET ...]`: fuzz each target for so long; write the ledger and its page.

A target runs in a process of its own, which is started again after an input has ended it. The corpus is made smaller
afterwards, and kept. `--replay` tries the kept inputs once, and closes findings that are mended. The exit code is 1
when a finding is open.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from forked import batch
from fuzz import corpus, ledger
from fuzz.one import COUNTS
from fuzz.targets import TARGETS
from places import KIT

TIMEOUT_SECONDS = 120  # of an input, after which its process is ended from outside
_EDGES = re.compile(rb"cov: (\d+) ft: \d+")


def process(target: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[bytes]:
    """Run a target in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(KIT), *sys.path]), "INGOT_CHECK": "1"}
    environment["TMPDIR"] = str(folder / "files")
    command = [sys.executable, "-m", "fuzz.one", target, str(folder), *flags]
    return subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Run:
    """A run of a target in a folder of its own."""

    def __init__(self, target: str, folder: Path):
        self.target, self.folder = target, folder
        for name in ("corpus", "kept", "artifacts", "findings", "files"):
            (folder / name).mkdir()
        (folder / "counts").write_bytes(bytes(COUNTS.size))
        words = TARGETS[target].words
        (folder / "words").write_text("".join(f'"{word}"\n' for word in words))
        self.dictionary = [f"-dict={folder}/words"] if words else []  # libFuzzer takes no empty one
        self.totals, self.edges = (0,) * len(ledger.KINDS), 0
        inputs = corpus.kept(target)
        if not inputs:
            self._expect(process(target, folder, "--seeds"))
        for content in inputs:
            self._keep(content)

    def _keep(self, content: bytes) -> None:
        (self.folder / "corpus" / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)

    def _expect(self, done: subprocess.CompletedProcess[bytes]) -> None:
        if done.returncode:
            raise SystemExit(f"{self.target}: {done.stderr.decode(errors='replace')[-4000:]}")

    def fuzz(self, seconds: float) -> None:
        """Call the target for so long. Ends the program when its process ends without having called it."""
        end = time.monotonic() + seconds
        while (left := int(end - time.monotonic())) > 0:
            before = self.totals
            done = process(
                self.target, self.folder, f"-max_total_time={left}", f"-timeout={TIMEOUT_SECONDS}", "-rss_limit_mb=0",
                f"-report_slow_units={TIMEOUT_SECONDS}",
                f"-artifact_prefix={self.folder}/artifacts/", "-reload=0", *self.dictionary,
            )  # fmt: skip
            counted = COUNTS.unpack((self.folder / "counts").read_bytes())
            (self.folder / "counts").write_bytes(bytes(COUNTS.size))
            self.totals = tuple(a + b for a, b in zip(self.totals, counted, strict=True))
            self.edges = max([self.edges, *(int(each) for each in _EDGES.findall(done.stderr))])
            self._note_artifacts(done)
            if self.totals == before:
                self._expect(done)
            if done.returncode == 0:
                break

    def _note_artifacts(self, done: subprocess.CompletedProcess[bytes]) -> None:
        """What ended the process is a finding by its kind and the last lines that it wrote."""
        for path in (self.folder / "artifacts").iterdir():
            kind = path.name.partition("-")[0]
            lines = re.findall(rb"\n *#\d+ .*| in (\w+ .*)", done.stderr)
            at = hashlib.sha256(b"".join(lines[:4]) or path.read_bytes()).hexdigest()[:10]
            (self.folder / "findings" / at).write_bytes(path.read_bytes())
            said = done.stderr.decode(errors="replace")[-3000:]
            (self.folder / "findings" / f"{at}.txt").write_text(f"the process ends: {kind}\n{said}")
            path.unlink()

    def reduce(self) -> int:
        """Keep the inputs that together take all branches; return how many."""
        self._expect(process(self.target, self.folder, "--reduce"))
        return corpus.keep(self.target, [path.read_bytes() for path in (self.folder / "kept").iterdir()])

    def findings(self) -> dict[str, str]:
        """Keep the inputs of findings; return what each is, by its name."""
        found = {}
        for path in (self.folder / "findings").glob("*.txt"):
            name = f"{self.target}-{path.stem}"
            kept = corpus.HERE / "findings" / name
            kept.parent.mkdir(exist_ok=True)
            shutil.copyfile(path.with_suffix(""), kept)
            found[name] = path.read_text().partition("\n")[0]
            print(f"{name}:\n{path.read_text()}", flush=True)
        return found


def run(target: str, seconds: float) -> None:
    """Fuzz a target, and add what was done to the ledger."""
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{target}-", dir="/dev/shm") as folder:
        one, begin = Run(target, Path(folder)), time.monotonic()
        one.fuzz(seconds)
        spent = time.monotonic() - begin
        found, inputs = one.findings(), one.reduce()
        ledger.add(target, one.totals, spent, one.edges, inputs)
        for name, what in found.items():
            ledger.found(target, name, what)
        counts = ", ".join(f"{count:,} {kind}" for count, kind in zip(one.totals, ledger.KINDS, strict=True))
        print(f"{target}: {counts}; {one.edges} edges, {inputs} inputs kept, {len(found)} findings", flush=True)


def replay(target: str, most: int = corpus.MAX_INPUTS) -> dict[str, str]:
    """What becomes of each finding of a target and of its corpus, at most so many; wrong ones begin with `!`."""
    from fuzz.one import accepted_by

    found = corpus.findings(target)
    inputs = [*found.values(), *corpus.kept(target)[:most]]
    made = cache(lambda: accepted_by(TARGETS[target]))  # in the child: a fork would leave a server without its threads
    outcomes = batch(range(len(inputs)), lambda number, say: made()(inputs[number], say))
    names = [*found, *(f"input {number}" for number in range(len(inputs) - len(found)))]
    return {name: outcomes[number] for number, name in enumerate(names)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seconds", type=float, default=60, help="for each target, 60 if not given")
    parser.add_argument("--replay", action="store_true", help="try the kept inputs, and close findings that are mended")
    options = parser.parse_args()
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    wrong = 0
    for target in options.targets or TARGETS:
        if options.replay:
            outcomes = replay(target)
            ledger.close(name for name, outcome in outcomes.items() if not outcome.startswith("!"))
            for name, outcome in outcomes.items():
                wrong += outcome.startswith("!")
                if outcome.startswith("!"):
                    print(f"{target}, {name}: {outcome}")
        else:
            run(target, options.seconds)
    ledger.PAGE.write_text(ledger.page(), encoding="utf-8")
    return int(bool(wrong) or any(each["is_open"] for each in ledger.read()["findings"].values()))


if __name__ == "__main__":
    sys.exit(main())
