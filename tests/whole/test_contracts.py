"""The contracts: each is whole, its gate runs, and the gate sees what does not hold."""

import dataclasses
import json

import numpy as np
import pytest

import ingot.contracts.check
from ingot.cli import main
from ingot.contracts import STATUSES, gate, load, names
from ingot.contracts.check import CHECKS, SUBJECTS, Feeds, Subject
from ingot.errors import InputError

NAMES = names()


@pytest.mark.parametrize("name", NAMES)
def test_a_contract_is_whole(name: str) -> None:
    contract = load(name)
    assert contract.id == name and contract.author == "Ingot" and contract.references and contract.bounds
    wanted = [f"FALSIFY-{name.upper()}-{i + 1:03}" for i in range(len(contract.invariants))]
    assert [row.id for row in contract.invariants] == wanted
    assert all(row.check in CHECKS and row.status in STATUSES for row in contract.invariants)
    assert name in SUBJECTS and contract.tolerance < 1e-4


def test_every_check_is_of_a_contract() -> None:
    assert {row.check for name in NAMES for row in load(name).invariants} == set(CHECKS)


@pytest.mark.parametrize("name", NAMES)
def test_the_statements_of_a_contract_hold(name: str) -> None:
    found = gate(load(name), shapes=3, seed=1)
    assert {each.found for each in found if each.status == "active"} == {"holds"}, found


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_result_is_falsified(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By results that are off in every way that a check looks at, for each check anew."""
    run, calls = Subject.run, [0]

    def wrong(self: Subject, shape: tuple[int, ...], feeds: Feeds, threads: int = 1) -> np.ndarray:
        calls[0] += 1
        y = run(self, shape, feeds, threads)
        off = np.random.default_rng(calls[0]).choice([9.0, -25.0], y.shape).astype(np.float32)
        large = any(np.abs(each[np.isfinite(each)]).max(initial=0) > 9e3 for each in feeds.values())
        return np.full_like(y, np.nan) if large else y + off

    monkeypatch.setattr(ingot.contracts.check.Subject, "run", wrong)
    found = gate(load(name), shapes=4)
    assert {each.found for each in found if each.status == "active"} == {"falsified"}, found


def test_the_command_prints_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    main(["contract", "gemm"])
    assert "FALSIFY-GEMM-001" in capfd.readouterr().out
    main(["contract", "norms", "--json"])
    found = json.loads(capfd.readouterr().out)
    assert [each["id"] for each in found["contracts"]] == ["norms"]
    assert {each["found"] for each in found["findings"]} == {"holds", "not run"}


def test_a_falsified_contract_is_an_error(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    strict = dataclasses.replace(load("conv"), tolerance=0.0)
    monkeypatch.setattr("ingot.contracts.load", lambda name: strict)
    with pytest.raises(SystemExit) as error:
        main(["contract", "conv"])
    assert error.value.code == 70 and "FALSIFY-CONV-001" in capfd.readouterr().err


def test_an_unknown_contract_is_an_input_error() -> None:
    with pytest.raises(InputError, match="unknown name, got 'none', expected one of attention"):
        load("none")
