"""The files of ``examples/cluster`` fit the schemas of what reads them, and each other."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.trajectories.spec import BatchSpec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/cluster"
RAYJOB = Draft202012Validator(json.loads((ROOT / "tests/data/cluster/rayjob.schema.json").read_text(encoding="utf-8")))


def example(name: str) -> dict[str, Any]:
    read: dict[str, Any] = read_yaml(EXAMPLES / name)[0]
    return read


@pytest.fixture
def job() -> dict[str, Any]:
    return example("kuberay.yaml")


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_the_manifest_fits_the_parts_of_the_schema_of_kuberay(job: dict[str, Any]) -> None:
    assert [error.message for error in RAYJOB.iter_errors(job)] == []


def test_a_key_that_kuberay_does_not_know_is_found(job: dict[str, Any]) -> None:
    for part in mappings(job):
        part["unknown"] = 1
        assert not RAYJOB.is_valid(job), part
        del part["unknown"]
    assert RAYJOB.is_valid(job)


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings in a document."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(part)


def test_the_parts_of_the_manifest_fit_each_other(job: dict[str, Any]) -> None:
    for pod in pods(job):
        mounted = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
    for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    images = {container["image"] for pod in pods(job) for container in pod["containers"]}
    (image,) = images  # the same for all nodes, as manyhands and Python must be
    assert f"-t {image} ." in (EXAMPLES / "Dockerfile").read_text(encoding="utf-8")


def test_the_entrypoint_of_the_manifest_is_a_command_that_can_be_typed(job: dict[str, Any]) -> None:
    program, command, _, *options = shlex.split(job["spec"]["entrypoint"])
    assert (program, command) == ("manyhands", "batch")
    names = {option.removeprefix("--").partition("=")[0] for option in options}
    assert names <= set(BatchSpec.in_order())
    head = pods(job)[0]["containers"][0]["volumeMounts"][0]["mountPath"]
    assert [option for option in options if option.startswith("--data_dir")] == [f"--data_dir={head}/runs"]


def test_the_cluster_of_ray_up_fits_the_schema_of_ray() -> None:
    ray = find_spec("ray")  # the extra, without importing it
    assert ray is not None
    assert ray.origin is not None
    schema = json.loads((Path(ray.origin).parent / "autoscaler/ray-schema.json").read_text(encoding="utf-8"))
    cluster = example("ray.yaml")
    assert [error.message for error in Draft7Validator(schema).iter_errors(cluster)] == []
    assert {"head_ip", "worker_ips"} < cluster["provider"].keys()  # what the provider "local" needs besides


def test_all_nodes_get_the_same_version_of_ray(job: dict[str, Any]) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (EXAMPLES / "Dockerfile", EXAMPLES / "ray.yaml")]
    pinned = {version for text in texts for version in re.findall(r"ray\[default\]==([\d.]+)", text)}
    assert pinned == {job["spec"]["rayClusterSpec"]["rayVersion"]}
