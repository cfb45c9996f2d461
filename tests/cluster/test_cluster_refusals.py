"""What is wrong with a cluster, or with what is to go there, is said in one line before any model is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batches import ServerThread
from tests.support.commands import PROGRAM, Ended, environment, one_line, run, write_prompts
from tests.support.ports import held_port
from tests.support.ray_clusters import check_installed, required

WITHOUT_RAY = '''
import sys


class Without:
    """A finder of modules that does not find one."""

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, *others):
        return None if name.partition(".")[0] == "ray" else self._finder.find_spec(name, *others)

    def __getattr__(self, name):
        return getattr(self._finder, name)


sys.meta_path[:] = map(Without, sys.meta_path)
'''


class Place:
    """A folder in which batches are begun that must not get as far as asking a model."""

    def __init__(self, folder: Path, server: ServerThread) -> None:
        self.folder = folder
        self._server = server
        self.listening = server.base_url.removeprefix("http://").partition("/")[0]
        """An address at which something listens, though no cluster."""
        write_prompts(folder / "d.jsonl", ["one"])

    def batch(self, *words: str, path: str = "", **environ: str) -> Ended:
        """``path``: what is put before PYTHONPATH."""
        usual = ("--batch_size=1", "--run_name=r", "--model=m", f"--base_url={self._server.base_url}", "--api_key=k")
        if path:
            environ["PYTHONPATH"] = os.pathsep.join([path, environment()["PYTHONPATH"]])
        ended = run(
            *("batch", "d.jsonl", *usual, "--executor=ray", *words),
            folder=self.folder,
            program=PROGRAM if path else (),
            environ=environ,
        )
        assert self._server.requests == []
        return ended


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with required(), ServerThread() as server:
        check_installed()
        yield Place(tmp_path, server)


def refused(ended: Ended) -> str:
    assert ended.code in (1, 2)
    return one_line(ended).partition("error: ")[2]


def test_an_address_without_a_cluster(place: Place) -> None:
    with held_port() as port:
        said = refused(place.batch("--quiet", f"--ray_address=127.0.0.1:{port}"))
    assert said.startswith(f"--ray_address=127.0.0.1:{port}: there is no Ray cluster (")


def test_an_address_without_a_cluster_in_the_environment(place: Place) -> None:
    with held_port() as port:
        said = refused(place.batch("--quiet", RAY_ADDRESS=f"127.0.0.1:{port}"))
    assert f"127.0.0.1:{port}: there is no Ray cluster (" in said


def test_an_address_of_rays_client(place: Place) -> None:
    said = refused(place.batch("--quiet", "--ray_address=ray://127.0.0.1:10001"))
    assert said.startswith("--ray_address=ray://127.0.0.1:10001: ")
    assert "HOST:PORT" in said


def test_a_python_without_ray(place: Place, tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook/sitecustomize.py").write_text(WITHOUT_RAY)
    said = refused(place.batch("--quiet", f"--ray_address={place.listening}", path=str(tmp_path / "hook")))
    assert said == "--executor=ray needs Ray: pip install 'manyhands[ray]'"


def test_a_module_that_can_not_be_copied(place: Place, tmp_path: Path) -> None:
    for half in ("a", "b"):
        (tmp_path / half / "split").mkdir(parents=True)
    (tmp_path / "a/split/tools.py").write_text('def look(text: str) -> str:\n    """Look."""\n    return text\n')
    path = os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")])
    words = ("--quiet", f"--ray_address={place.listening}", "--tools=split.tools:look")
    assert refused(place.batch(*words, path=path)) == (
        "split.tools: can't be copied to the nodes, as it is neither one folder nor one file of Python source"
    )


@pytest.mark.slow
def test_something_else_than_a_cluster(place: Place) -> None:
    """Ray itself would try for longer."""
    said = refused(place.batch("--quiet", f"--ray_address={place.listening}"))
    assert place.listening in said or "Ray can't be used" in said
