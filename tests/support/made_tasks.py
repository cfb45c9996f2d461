"""Task folders that tests make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PASS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"


def make_task(
    folder: Path,
    *,
    toml: str = "",
    instruction: str = "Write hello to hello.txt.\n",
    test: str | None = PASS,
    solve: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A task in a folder. ``toml``: its ``task.toml``; ``test``: ``tests/test.sh``; ``solve``: ``solution/solve.sh``; ``files``: further
    files by their paths."""
    written = {"task.toml": toml, "instruction.md": instruction, **(files or {})}
    if test is not None:
        written["tests/test.sh"] = test
    if solve is not None:
        written["solution/solve.sh"] = solve
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "environment").mkdir(exist_ok=True)
    return folder


def twenty_tasks(folder: Path, image: str, user: str) -> dict[str, object]:
    """Twenty tasks of all kinds that are taken, with solutions, in a folder. Returns what each comes to with its solution: the rewards, or
    the words of the error without which there is no score. ``image``: one with bash and Python; ``user``: one of its users."""
    named = f'[environment]\ndocker_image = "{image}"\n'
    built = {"environment/Dockerfile": f"FROM {image}\nRUN echo built > /built.txt\nWORKDIR /srv\n"}
    reward = "/logs/verifier/reward.txt"
    wanted: dict[str, object] = {}

    def add(name: str, outcome: object, script: str | None, **parts: object) -> None:
        text = None if script is None else f"#!/bin/bash\n{script}\n"
        make_task(folder / name, **{"test": text, "solve": "#!/bin/bash\ntrue\n", **parts})  # type: ignore[arg-type]
        wanted[name] = outcome

    add("image", {"reward": 1.0}, f"[ -e /made ] && echo 1 > {reward}", toml=named, solve="touch /made\n")
    add("dockerfile", {"reward": 1.0}, f"[ $PWD = /srv ] && [ -e /built.txt ] && echo 1 > {reward}", files=built)
    add(
        "json",
        {"reward": 0.5, "speed": 2},
        'echo \'{"reward": 0.5, "speed": 2}\' > /logs/verifier/reward.json',
        toml=named,
    )
    add("both", {"reward": 0.25}, f"echo 1 > {reward}; echo 0.25 > /logs/verifier/reward.json", toml=named)
    add("no-reward", "neither", "true", toml=named)
    add("empty", "is empty", f": > {reward}", toml=named)
    add("words", "not a number", f"echo good > {reward}", toml=named)
    add("not-finite", "not a finite number", f"echo nan > {reward}", toml=named)
    add("negative", {"reward": -1.0}, f"echo -1 > {reward}", toml=named)
    add("exit-code", {"reward": 1.0}, f"echo 1 > {reward}; exit 9", toml=named)
    add(
        "agent-time-limit",
        {"reward": 1.0},
        f"[ -e /began ] && [ ! -e /ended ] && echo 1 > {reward}",
        toml=f"[agent]\ntimeout_sec = 1\n{named}",
        solve="touch /began; sleep 60; touch /ended\n",
    )
    add("verifier-time-limit", "took longer", "sleep 60", toml=f"{named}[verifier]\ntimeout_sec = 1\n")
    add(
        "no-network",
        {"reward": 1.0},
        f"[ -z \"$(tail -n +3 /proc/net/dev | grep -v ' *lo:')\" ] && echo 1 > {reward}",
        toml=f'{named}network_mode = "no-network"\n',
    )
    separate = f'{named}[verifier]\nenvironment_mode = "separate"\n'
    add(
        "separate",
        {"reward": 1.0},
        f"[ -e /root/kept ] && [ ! -e /root/lost ] && echo 1 > {reward}",
        toml=f'artifacts = ["/root/kept"]\n{separate}',
        solve="touch /root/kept /root/lost\n",
    )
    add(
        "separate-dockerfile",
        {"reward": 1.0},
        None,
        toml=f'{named}[verifier]\nenvironment_mode = "separate"\n',
        files={
            "tests/Dockerfile": f"FROM {image}\nCOPY run.sh /tests/test.sh\n",
            "tests/run.sh": f"#!/bin/bash\n[ -e /logs/artifacts/out ] && echo 1 > {reward}\n",
        },
        solve="touch /logs/artifacts/out\n",
    )
    add(
        "collect",
        {"reward": 1.0},
        f'[ "$(cat /logs/artifacts/state)" = state ] && echo 1 > {reward}',
        toml=f'{separate}collect = [{{command = "echo state > /logs/artifacts/state"}}]\n',
    )
    add(
        "environment",
        {"reward": 1.0},
        f'[ "$A$B" = onetwo ] && echo 1 > {reward}',
        toml=f'{named}env = {{A = "one"}}\n[verifier.env]\nB = "${{SURELY_NOT_SET_HERE:-two}}"\n',
    )
    add(
        "users",
        {"reward": 1.0},
        f'[ "$(whoami)" = root ] && [ "$(stat -c %U /tmp/who)" = {user} ] && echo 1 > {reward}',
        toml=f'[agent]\nuser = "{user}"\n{named}[verifier]\nuser = "root"\n',
        solve="touch /tmp/who\n",
    )
    add(
        "files",
        {"reward": 1.0},
        f'[ "$(cat data.txt)" = data ] && [ ! -e Dockerfile ] && echo 1 > {reward}',
        toml=f'{named}workdir = "/tmp"\n',
        files={"environment/data.txt": "data\n", "environment/Dockerfile": "FROM nothing\n"},
    )
    add(
        "left-running",
        {"reward": 1.0},
        f"cat < /tmp/served > {reward}",
        toml=f"{named}[verifier]\ntimeout_sec = 20\n",
        solve="mkfifo /tmp/served; (echo began; echo 1 > /tmp/served) &\nsleep 0.5\n",
    )
    return wanted
