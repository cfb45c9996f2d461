"""Which errors say that a disk is full, wherever they were met: these stop the run."""

from __future__ import annotations

import errno

import pytest

from manyhands.core.errors import ItemError, StorageError
from manyhands.core.failures import Cause
from manyhands.engine.attempt import Failed, classify


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_behind_other_errors(number: int) -> None:
    error = ItemError(Cause.SANDBOX_LOST, "can't make the sandbox's folder")
    error.__cause__ = OSError(number, "no room", "/place")
    with pytest.raises(StorageError, match=r"can't make the sandbox's folder \("):
        classify(ExceptionGroup("", [error]))


def test_an_error_that_is_its_own_cause() -> None:
    error = ItemError(Cause.GRADER_ERROR, "broke")
    error.__cause__ = error
    result = classify(error)
    assert isinstance(result, Failed)
    assert result.failure.cause is Cause.GRADER_ERROR
