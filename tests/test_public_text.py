"""What clients read of the operator's disk: names of models and files, no folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicorn_async.public_text import PublicText, printable

PLACES = [
    (Path("/srv/the models"), ""),
    (Path("/srv/the models/given one"), "mine"),
    (Path("/home/u/hub"), ""),
    (Path("/home/u/.cache/unicorn_async/weights"), "weight cache"),
    (Path("some/where"), "here"),
]
SAID = [
    ("/srv/the models/given one/model.safetensors: ends too early", "mine/model.safetensors: ends too early"),
    ("/srv/the models/given one: no config.json", "mine: no config.json"),
    ("/srv/the models/given ones/a.gguf: is no GGUF file", "given ones/a.gguf: is no GGUF file"),
    ("/srv/the models/sub/a-00001-of-00002.gguf: big-endian", "sub/a-00001-of-00002.gguf: big-endian"),
    ("no snapshot in /srv/the models.", "no snapshot in the models."),
    ("/home/u/hub/models--org--m/snapshots/0a1/config.json: not JSON", "org/m/config.json: not JSON"),
    ("damaged: /home/u/.cache/unicorn_async/weights/ab12/tensors: x", "damaged: weight cache/ab12/tensors: x"),
    ("some/where/config.json: 5 layers", "here/config.json: 5 layers"),
    ("elsome/where/config.json", "elsome/where/config.json"),
    ("made from /mnt/disk/m by llvmpipe (LLVM, 256 bits)", "made from m by llvmpipe (LLVM, 256 bits)"),
    ("two: '/mnt/a/b.gguf' and ../up/c.gguf, ~/d/e.gguf", "two: 'b.gguf' and c.gguf, e.gguf"),
    ("tensor 'model/x/y': expected F16/BF16, 1 / 2", "tensor 'model/x/y': expected F16/BF16, 1 / 2"),
    ("see https://example.com/a/b", "see https://example.com/a/b"),
]


@pytest.mark.parametrize(("text", "public"), SAID)
def test_folders_go_and_names_stay(text: str, public: str) -> None:
    assert PublicText(PLACES).of(text) == public


def test_a_link_to_a_place_is_the_place(tmp_path: Path) -> None:
    (tmp_path / "real one").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real one")
    texts = PublicText([(tmp_path / "link", "mine")])
    for path in (tmp_path / "real one", tmp_path / "link"):
        assert texts.of(f"{path}/config.json: gone") == "mine/config.json: gone"


def test_without_known_places_paths_lose_their_folders() -> None:
    assert PublicText().of("/a/b/c.so: cannot open") == "c.so: cannot open"


def test_what_is_printable_stays_and_what_moves_the_cursor_or_can_not_be_written_does_not() -> None:
    assert printable("Mesa 22.3 — µs “é”") == "Mesa 22.3 — µs “é”"
    assert printable("a\x1b[2Jb\r\n\x07\x9b1m\u202e\ud800") == "a?[2Jb????1m??"
