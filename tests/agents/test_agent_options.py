"""Settings of a workload of agents: what a subclass says is what files are read, checked and named in refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from manyhands.agents.options import AgentOptions
from manyhands.agents.run_settings import check_prices, warn_of_budget
from manyhands.agents.toolbox import RunTools, with_functions
from manyhands.core.errors import RunError, UserError
from manyhands.core.settings import OptionalPath, optional_whole, setting
from manyhands.runs.making import keep_files, kept_file
from manyhands.runs.options import LIMITS, ResumeSettings, read_text, resume_spec
from manyhands.tools.toolsets import Toolset


class Resumed(AgentOptions, ResumeSettings):
    """The shared settings, of a run that is continued."""


class Guided(AgentOptions, ResumeSettings):
    """Agents with a guide."""

    contents: ClassVar = {"guide": ("guide_text", read_text)}
    files = ("map",)

    guide: OptionalPath = setting(None, "A text.", recorded=False)
    guide_text: str | None = setting(None, "What guide holds.", typed=False, identity=True)
    map: OptionalPath = setting(None, "A file.")
    max_attempts: Annotated[int | None, optional_whole(1)] = setting(2, "How often.", group=LIMITS)


def made(**values: Any) -> Guided:
    return Guided.make(values)


def test_every_shared_setting_has_a_default_help_and_a_heading() -> None:
    options = AgentOptions.make({})
    assert options.max_attempts is None
    for name, field in AgentOptions.fields.items():
        assert (field.description or "").endswith("."), name
        assert AgentOptions.about(name).group in AgentOptions.headings or not AgentOptions.about(name).typed, name


def test_a_subclass_may_change_a_default_and_reads_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "guide").write_text("Turn left.")
    options = made(guide=tmp_path / "guide").resolved()
    assert (options.guide_text, options.max_attempts) == ("Turn left.", 2)
    with pytest.raises(UserError, match="--map: no such file"):
        made(map=tmp_path / "none").resolved()


def test_changed_contents_are_refused_and_accepted_by_the_name_of_the_file_setting(tmp_path: Path) -> None:
    (tmp_path / "guide").write_text("Turn left.")
    recorded = Guided.make(made(guide=tmp_path / "guide").resolved().recorded())
    (tmp_path / "guide").write_text("Turn right.")
    with pytest.raises(RunError, match=r"guide was 'Turn left.' and is now 'Turn right.'; .* --override=guide"):
        resume_spec(recorded, made(guide=tmp_path / "guide").resolved())
    accepted = resume_spec(recorded, made(guide=tmp_path / "guide", override="guide").resolved())
    assert accepted.guide_text == "Turn right."
    with pytest.raises(UserError, match="no setting that a resume refuses"):
        Resumed.make({"override": "guide"})


def test_a_price_table_is_checked_kept_and_then_no_longer_needed(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("own/model: {input: 1, output: oops}\n")
    options = AgentOptions.make({"model": "own/model", "prices": str(prices), "max_cost": 1, "max_tokens": 9})
    with pytest.raises(UserError, match=r"prices\.yaml"):
        check_prices(options)
    prices.write_text("own/model: {input: 1, output: 2}\n")
    check_prices(options)
    keep_files(options, tmp_path / "run")
    assert kept_file(tmp_path / "run", str(prices)).read_text() == prices.read_text()
    said: list[str] = []
    warn_of_budget(options, [options], said.append)
    assert said == []
    prices.unlink()
    check_prices(options)
    keep_files(options, tmp_path / "run")
    assert kept_file(tmp_path / "run", str(prices)).is_file()
    warn_of_budget(options, [options], said.append)
    assert "no price is known for own/model" in said[0]


def test_tools_are_offered_by_names_of_toolsets_also_recorded_and_own_ones() -> None:
    schema = {"type": "object", "properties": {}}
    mcp = {
        "tools": [{"name": "maps__find", "description": "Find.", "parameters": schema}],
        "groups": {"maps": ["maps__find"]},
    }
    offer = RunTools.recorded(mcp, [Toolset("travel", "Travelling.", ("todo",), ("maps",))])
    assert [tool.name for tool in offer.tools(["travel"])] == ["maps__find", "todo"]
    assert offer.tools(["web"]) == []
    assert offer.toolbox(["travel"]) is offer.toolbox(("travel",))
    with pytest.raises(UserError, match=r"no toolset is called 'travle'; did you mean travel\?"):
        offer.tools(["travle"])


def test_a_file_of_functions_does_not_take_the_toolset_of_a_server_with_its_name(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {}}
    tool = {"name": "maps__find", "description": "Find.", "parameters": schema}
    servers = {"config": {"servers": {}}, "tools": [tool], "groups": {"maps": ["maps__find"]}}
    (tmp_path / "maps.py").write_text("def price(city: str) -> str:\n    'The price.'\n    return city\n")
    record = with_functions(servers, [str(tmp_path / "maps.py")])
    assert record["groups"] == {"maps": ["maps__find"], "own_maps": ["price"]}
    assert [each.name for each in RunTools.recorded(record).tools(["maps"])] == ["maps__find", "price"]
    assert with_functions(record, [str(tmp_path / "maps.py")]) == record  # as on a resume
    assert with_functions(record, []) == servers
