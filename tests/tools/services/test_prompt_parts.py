"""Content parts of prompts: the forms in which datasets have pictures, and what is refused by name."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.tools.services.artifacts import ArtifactStore, name_of
from manyhands.tools.services.prompt_parts import MAX_TOGETHER, BadPart, RowPictures
from tests.support.picture_files import data_address, huge, picture

PNG = picture()
CODED = base64.b64encode(PNG).decode()
DATA = data_address(PNG)
NAME = name_of(PNG, "image/png")
SHOWN: dict[str, Any] = {"type": "image_url", "image_url": {"url": f"artifact:{NAME}"}}
WEB = "https://pictures.test/a.png?b=c#d"


def read(part: Any, folder: Path | None = None) -> Any:
    return RowPictures(folder).parts([part], "prompt")[0]


def problem(part: Any, folder: Path | None = None) -> str:
    with pytest.raises(BadPart) as raised:
        read(part, folder)
    assert str(raised.value).startswith('part 1 of "prompt": ')
    return str(raised.value).removeprefix('part 1 of "prompt": ')


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "set"
    (folder / "pictures").mkdir(parents=True)
    (folder / "pictures" / "a.png").write_bytes(PNG)
    (folder / "pictures" / "wrong.jpg").write_bytes(PNG)
    (folder / "beside.png").symlink_to("pictures/a.png")
    (folder / "out.png").symlink_to("../outside.png")
    (folder / "all").symlink_to("..")
    (folder / "round.png").symlink_to("round.png")
    (folder.parent / "outside.png").write_bytes(PNG)
    (folder / "text.png").write_text("no picture")
    (folder / "empty.png").touch()
    (folder / "huge.png").write_bytes(huge(10_000, 5_001))
    (folder / "drawing.svg").write_text("<svg/>")
    with (folder / "large.png").open("wb") as file:
        file.truncate(20_000_001)
    os.mkfifo(folder / "pipe.png")
    return folder


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": DATA}},
        {"type": "image_url", "image_url": DATA},
        {"type": "image_url", "image_url": {"url": DATA, "detail": None}, "text": None},
        {
            "type": "image_url",
            "image_url": {"url": f"DATA:application/octet-stream;x=y;BASE64,{CODED[:9]}\n{CODED[9:]}"},
        },
        {"type": "input_image", "image_url": DATA},
        {"type": "image", "image": DATA},
        {"type": "image", "image": {"bytes": CODED, "path": "anything.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": CODED}},
        {"type": "image", "source": {"type": "url", "url": DATA}},
        {"type": "image", "data": CODED, "mimeType": "image/png"},
        {"type": "image", "image": "pictures/a.png"},
        {"type": "image", "path": "./pictures/../pictures/a.png"},
        {"type": "image", "url": "beside.png"},
        {"type": "image", "image": {"bytes": None, "path": "pictures/wrong.jpg"}},
        {"type": "image_url", "image_url": {"url": "pictures/a.png"}},
    ],
)
def test_every_form_of_a_picture_becomes_the_same_part(part: Any, folder: Path) -> None:
    assert read(part, folder) == SHOWN


def test_what_else_a_part_says_stays() -> None:
    closer = {"type": "image_url", "image_url": {"url": DATA, "detail": "high"}, "cache_control": {"type": "ephemeral"}}
    assert read(closer) == {**closer, "image_url": {**SHOWN["image_url"], "detail": "high"}}
    assert read({"type": "input_image", "image_url": WEB, "detail": "low"}) == {
        "type": "image_url",
        "image_url": {"url": WEB, "detail": "low"},
    }
    assert read({"type": "input_text", "text": "a", "cache_control": {}}) == {
        "type": "text",
        "text": "a",
        "cache_control": {},
    }
    sound = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
    assert read(sound) == sound


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "imge_url"}, "the type 'imge_url' is not known; did you mean image_url?"),
        ({"type": "x" * 1000}, f"the type '{'x' * 40}' is not known"),
        ({"type": "text"}, '"text" is null, expected text'),
        ({"type": "image"}, "a picture is missing"),
        ({"type": "image", "image": 5}, "image: a number, expected text"),
        ({"type": "image", "image": ""}, "image: empty, expected text"),
        ({"type": "image_url", "image_url": {}}, 'image_url: expected "url", "path" or "data" in it'),
        ({"type": "image_url", "image_url": {"url": ["x"]}}, "image_url.url: a list, expected text"),
        ({"type": "image_url", "image_url": {"url": WEB, "detail": 1}}, "detail: a number, expected text"),
        ({"type": "input_image", "file_id": "file-1"}, "a picture is missing"),
        ({"type": "image", "source": {"type": "base64", "data": "?"}}, "source.data: this is no base64"),
        ({"type": "image", "image": "data:image/png;base64,é"}, "image: this is no base64"),
        ({"type": "image", "image": "data:image/png;base64"}, "image: a broken data address"),
        ({"type": "image", "image": "data:image/svg+xml,%3Csvg/%3E"}, "image: a broken data address"),
        ({"type": "image", "image": "data:image/png;base64,"}, "image: this file is empty"),
        ({"type": "image", "image": "data:image/png;base64,PHN2Zy8+"}, "image: SVG is not taken"),
        ({"type": "image", "image": "https://"}, "image: https: is not taken"),
        ({"type": "image", "image": "https://x.test/a b"}, "image: this is no address of the web"),
        ({"type": "image", "image": "https://x.test/" + "a" * 9000}, "image: this is no address of the web"),
        ({"type": "image", "image": "file:///etc/passwd"}, "image: file: is not taken"),
        ({"type": "image", "image": f"artifact:{NAME}"}, "image: artifact: is not taken"),
        (
            {"type": "image", "image": "/etc/passwd"},
            "image: /etc/passwd: expected a path that starts from the dataset's folder",
        ),
        ({"type": "image", "image": "a\0b"}, "image: 'a\\x00b': expected a path"),
        ({"type": "image", "image": "../outside.png"}, "image: ../outside.png: outside of the dataset's folder"),
        ({"type": "image", "image": "all/outside.png"}, "image: all/outside.png: outside of the dataset's folder"),
        ({"type": "image", "image": "out.png"}, "image: out.png: outside of the dataset's folder"),
        ({"type": "image", "image": "round.png"}, "image: round.png: "),
        ({"type": "image", "image": "none.png"}, "image: none.png: there is no such file in the dataset's folder"),
        ({"type": "image", "image": "text.png/a"}, "image: text.png/a: there is no such file in the dataset's folder"),
        (
            {"type": "image", "image": "\ud800.png"},
            "image: '\\ud800.png': there is no such file in the dataset's folder",
        ),
        ({"type": "image", "image": "a" * 3000}, f"image: {'a' * 200}…: "),
        ({"type": "image", "image": "pictures"}, "image: pictures: not a plain file"),
        ({"type": "image", "image": "pipe.png"}, "image: pipe.png: not a plain file"),
        ({"type": "image", "image": "text.png"}, "image: text.png: this is no picture: PNG, JPEG, GIF and WebP are"),
        ({"type": "image", "image": "drawing.svg"}, "image: drawing.svg: SVG is not taken"),
        ({"type": "image", "image": "empty.png"}, "image: empty.png: this file is empty"),
        ({"type": "image", "image": "huge.png"}, "image: huge.png: the picture has 10,000 × 5,001 pixels"),
        ({"type": "image", "image": "large.png"}, "image: large.png: has more than 20,000,000 bytes"),
    ],
)
def test_what_cant_be_used_is_refused_by_name(part: Any, said: str, folder: Path) -> None:
    assert problem(part, folder).startswith(said)


def test_without_a_folder_there_are_no_paths() -> None:
    assert problem({"type": "image", "image": "a.png"}).startswith("image: a.png: there is no folder of a dataset")


def test_the_pictures_of_a_row_have_a_bound_together() -> None:
    pictures = RowPictures(left=2 * len(PNG))
    assert pictures.parts([{"type": "image", "image": DATA}], "prompt")
    with pytest.raises(BadPart, match=f'part 2 of "content": image: .* more than {MAX_TOGETHER:,} bytes'):
        pictures.parts([{"type": "image", "image": DATA}] * 2, "content")


def test_a_picture_is_kept_once_and_shown_as_it_was(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path)
    parts = RowPictures(None, artifacts).parts([{"type": "image", "image": DATA}] * 2, "prompt")
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == [NAME]
    message = artifacts.with_pictures({"role": "user", "content": parts})
    assert message["content"] == [{"type": "image_url", "image_url": {"url": DATA}}] * 2


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=20)
    | st.sampled_from([DATA, WEB, CODED, "pictures/a.png", "out.png"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["url", "data", "bytes", "path", "detail", "type"]) | st.text(max_size=5), inner, max_size=4
        )
    ),
    max_leaves=8,
)
_PARTS = st.dictionaries(
    st.sampled_from(["image", "image_url", "source", "url", "path", "data", "text", "detail"]), _VALUES, max_size=4
)


@given(
    kind=st.sampled_from(["text", "image", "image_url", "input_image", "input_text", "file"]) | st.text(max_size=8),
    part=_PARTS,
)
def test_a_part_is_read_or_refused_and_nothing_else(kind: str, part: dict[str, Any], folder: Path) -> None:
    try:
        found = read({"type": kind, **part}, folder)
    except BadPart:
        return
    if kind in ("image", "image_url", "input_image"):
        url = found["image_url"]["url"]
        assert found["type"] == "image_url"
        assert url == SHOWN["image_url"]["url"] or url.startswith("http")
    elif kind == "input_text":
        assert found["type"] == "text"
    else:
        assert found["type"] == kind
