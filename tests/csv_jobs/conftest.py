"""What holds for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.forked import forked_runners


@pytest.fixture(scope="module", autouse=True)
def _runners() -> Iterator[None]:
    """Runners are forked, which is quick; those of ``tests/crash`` and ``tests/docs`` start as they do for a person."""
    with forked_runners():
        yield
