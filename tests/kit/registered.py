"""What tests register goes when they end."""

from collections.abc import Iterator

import pytest

import ingot
from ingot.ops.custom import CUSTOM
from ingot.passes import REGISTERED


@pytest.fixture
def registering() -> Iterator[None]:
    """A test that registers ops and passes; nothing is registered before."""
    assert not CUSTOM and not REGISTERED
    yield
    for name in list(CUSTOM):
        ingot.unregister_op(name)
    for name in list(REGISTERED):
        ingot.unregister_pass(name)
