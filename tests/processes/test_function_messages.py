"""What is said of a person's module that can't be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.processes.python_functions import load_function


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax (broken.py, line 1)"),
        (
            "\nimport no_such_module\n",
            "ModuleNotFoundError: No module named 'no_such_module' (in <module>, broken.py:2)",
        ),
        ("def f():\n    g()\nf()\n", "NameError: name 'g' is not defined (in f, broken.py:2)"),
    ],
)
def test_the_place_is_in_the_persons_own_file(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(written)
    with pytest.raises(UserError) as caught:
        load_function("broken.py:f", tmp_path, UserError)
    assert str(caught.value) == f"broken.py can't be imported: {said}"
