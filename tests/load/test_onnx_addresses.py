"""Integers of ONNX models that address something, fed from outside of their range: an error, as in ONNX Runtime.

`tests/ops/test_addresses.py` does the same with each op alone.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

import ingot
from address_cases import ADDRESSED, FORMS, Address
from ingot.errors import InputError
from ingot.load.onnx.registry import DESCRIBED, RULES
from onnx_models import one_node, run_oracle

CASES = {f"{domain}.{op}-{name}": (each, each.said or name) for (domain, op, name), each in ADDRESSED.items()
         if isinstance(each, Address)}  # fmt: skip
CASES |= {str(each.case): (each, each.said) for each in FORMS}
# Ops for which ONNX Runtime computes with indices out of range.
LENIENT = {"MultiHeadAttention", "GatherBlockQuantized", "CropAndResize"}
INTEGERS = {"tensor(int32)", "tensor(int64)"}


def wrong_feeds(address: Address, feeds: dict[str, np.ndarray]) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """The nearest and farthest integers outside of the range."""
    limits = np.iinfo(feeds[address.feed].dtype)
    for bad in dict.fromkeys((address.low - 1, address.high, int(limits.min), int(limits.max))):
        if limits.min <= bad <= limits.max and not address.low <= bad < address.high:
            yield with_last(feeds, address.feed, bad), bad


def with_last(feeds: dict[str, np.ndarray], name: str, value: int) -> dict[str, np.ndarray]:
    array = feeds[name].copy()
    array.flat[array.size - 1] = value
    return feeds | {name: array}


@pytest.mark.parametrize("name", CASES)
def test_a_model_refuses_indices_out_of_range(name: str) -> None:
    address, said = CASES[name]
    proto, feeds = one_node(address.case, np.random.default_rng(0))
    data = proto.SerializeToString()
    sessions = [ingot.InferenceSession(data, executor="interpret")]
    sessions += [ingot.InferenceSession(data, threads=threads) for threads in (1, 2)]
    for edge in (address.low, min(address.high, 1 << 31) - 1):
        for session in sessions:
            session.run(None, with_last(feeds, address.feed, edge))
    for fed, bad in wrong_feeds(address, feeds):
        expected = rf"\b{said}\b.*got {bad}, expected {address.low}\.\.{address.high - 1}( \(from .*\))?$"
        for session in sessions:
            with pytest.raises(InputError, match=expected):
                session.run(None, fed)
    if address.case.op not in LENIENT:
        with pytest.raises(Exception, match=r"(?i)status|index|range"):  # its errors have no type in common
            run_oracle("ort", proto, with_last(feeds, address.feed, address.low - 1))


def test_every_operand_of_integers_is_in_the_table() -> None:
    """The schemas of the op types that have a rule, or that ONNX writes as others, against the table."""
    schemas = {}
    for schema in (*runtime.get_all_operator_schema(), *onnx.defs.get_all_schemas_with_history()):
        key = schema.domain, schema.name
        if key not in schemas or schemas[key].since_version <= schema.since_version:
            schemas[key] = schema
    wanted = set()
    for (domain, op), schema in schemas.items():
        described = isinstance(schema, onnx.defs.OpSchema) and domain in DESCRIBED
        has_body = described and (schema.has_function or schema.has_context_dependent_function)
        if (domain, op) not in RULES and not has_body:
            continue
        kinds = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}
        for formal in schema.inputs:
            type = formal.typeStr if hasattr(formal, "typeStr") else formal.type_str
            if kinds.get(type, {type}) <= INTEGERS:
                wanted.add((domain, op, formal.name))
    assert set(ADDRESSED) == wanted
