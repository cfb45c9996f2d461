"""Making the tests of a configuration, before any agent is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from manyhands.agents.setup import Notice
from manyhands.core.errors import RunError, UserError
from manyhands.core.version import VERSION
from manyhands.engine.files import written_aside
from manyhands.engine.folders import is_made, open_reader
from manyhands.engine.run import create_run
from manyhands.memory.benchmark import datasets_of, generated_alone
from manyhands.memory.configuration import read_configuration
from manyhands.memory.definition_files import read_definitions
from manyhands.memory.generation import SOURCE, GenerationWorkload
from manyhands.memory.keys import keys_of
from manyhands.memory.opening import check_same_tests, put_aside, refuse_if_performed, write_tests
from manyhands.memory.places import CONFIGURATION, DEFINITIONS, run_folder, writing
from manyhands.memory.spec import MemorySpec
from manyhands.memory.tokens import counter_named


@dataclass(frozen=True, slots=True)
class Generated:
    """``folder``: of the definitions; ``tests``: how many there are; ``workload``: what has yet to be performed for them, None if they
    are made."""

    folder: Path
    tests: int
    workload: GenerationWorkload | None


def generated_tests(options: MemorySpec, *, environ: Mapping[str, str], notice: Notice) -> Generated:
    """Make the tests that no model has to write, or a run in which a model writes them.

    Raises UserError, RunError, StorageError.
    """
    options = options.resolved()
    configuration = read_configuration(Path(options.configuration))
    datasets = datasets_of(configuration, counter_named(options.tokenizer))
    whole = run_folder(Path(options.data_dir), configuration.run_name, isolated=options.isolated)
    folder = whole / DEFINITIONS
    refuse_if_performed(whole)
    refuse_if_performed(folder)
    if (folder / CONFIGURATION).is_file() and not options.regenerate:
        check_same_tests(folder, configuration, notice)
        return Generated(folder, len(read_definitions(folder)), None)
    tests = generated_alone(configuration, datasets)
    if tests is None:
        _check_writer(options)
    if options.regenerate and whole.is_dir():  # only now that nothing can be wrong with the new ones
        put_aside(whole, notice)
    if tests is not None:
        write_tests(folder, configuration, tests)
        return Generated(folder, len(tests), None)
    return Generated(folder, 0, _workload(options, folder, configuration.text, environ, notice))


def _check_writer(options: MemorySpec) -> None:
    if options.judge_model is None:
        raise UserError(f"{options.configuration}: some tests have to be written by a model; give --judge_model")


def _workload(
    options: MemorySpec, folder: Path, text: str, environ: Mapping[str, str], notice: Notice
) -> GenerationWorkload:
    keys = keys_of(options, (), environ)
    spec = json.loads(json.dumps({"options": options.recorded()}))
    if is_made(folder):
        with closing(open_reader(folder)) as reader:
            if reader.meta("workload") != GenerationWorkload.name:
                raise RunError(f"{folder}: a run of another kind ({reader.meta('workload')})")
            spec = reader.meta("spec")
        workload = GenerationWorkload(spec, folder)
    else:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with written_aside(folder / SOURCE) as handle:
            handle.write(text)
        workload = GenerationWorkload(spec, folder)
        create_run(folder, workload.name, workload, version=VERSION, notice=notice)
    workload.set_secrets(keys)
    return workload
