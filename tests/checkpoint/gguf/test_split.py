"""Models in several GGUF files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unicorn_async.checkpoint.gguf.header import read_header
from unicorn_async.checkpoint.gguf.split import check_parts, model_stem, part_paths
from unicorn_async.errors import CheckpointError

from .builders import U32, array, write, write_parts

ONE = array("F32", np.ones((2, 2), np.float32))


def check(path: Path) -> None:
    paths = part_paths(path)
    check_parts(paths, [read_header(part) for part in paths])


def test_any_part_stands_for_all_in_order(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, "m", {}, [{"a": ONE}, {"b": ONE, "c": ONE}, {}])
    for path in paths:
        assert part_paths(path) == tuple(paths)
        check(path)


def test_a_file_with_a_plain_name_is_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {}, {"a": ONE})
    assert part_paths(path) == (path,)
    check(path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, "m", {}, [{"a": ONE}, {"b": ONE}, {"c": ONE}])
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 parts are missing, first m-00002-of-00003\.gguf"):
        part_paths(paths[0])


def test_a_number_beyond_the_count_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="part 4 of 3"):
        part_paths(tmp_path / "m-00004-of-00003.gguf")


def test_parts_that_were_renamed_are_refused(tmp_path: Path) -> None:
    first, second = write_parts(tmp_path, "m", {}, [{"a": ONE}, {"b": ONE}])
    other = first.rename(tmp_path / "other")
    second.rename(first)
    other.rename(second)
    with pytest.raises(CheckpointError, match=r"split\.no 1 of split\.count 2 in its metadata") as caught:
        check(first)
    assert "part 0 (from 0) of 2" in str(caught.value)


def test_a_part_under_a_plain_name_is_refused(tmp_path: Path) -> None:
    first, _ = write_parts(tmp_path, "m", {}, [{"a": ONE}, {"b": ONE}])
    with pytest.raises(CheckpointError, match=r"split\.count 2"):
        check(first.rename(tmp_path / "m.gguf"))


def test_a_tensor_too_few_is_noticed(tmp_path: Path) -> None:
    first, second = write_parts(tmp_path, "m", {}, [{"a": ONE}, {"b": ONE}])
    write(second, {"split.no": U32(1), "split.count": U32(2), "split.tensors.count": U32(2)}, {})
    with pytest.raises(CheckpointError, match=r"split\.tensors\.count is 2, the 2 parts have 1 tensors"):
        check(first)


def test_a_model_s_name_lacks_the_number_of_the_part() -> None:
    assert model_stem(Path("/x/big-Q8_0-00001-of-00012.gguf")) == "big-Q8_0"
    assert model_stem(Path("small.gguf")) == "small"
