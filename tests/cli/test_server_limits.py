"""Every limit of the server is a flag, and stands in the documentation."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from unicorn_async.cli.server_limits import add_limit_options, limits
from unicorn_async.server.options import ServerOptions


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_limit_options(made)
    return made


def test_flags_become_limits_and_what_is_left_out_is_as_it_is() -> None:
    given = parser().parse_args(["--max-client-requests", "3", "--send-timeout", "1.5", "--max-input-bytes", "2M"])
    assert limits(given) == {"max_client_requests": 3, "send_timeout_s": 1.5, "max_input_bytes": 2 << 20}
    assert ServerOptions(**limits(given)).max_input_bytes == 2 << 20
    assert limits(parser().parse_args([])) == {}


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1e9"])
def test_seconds_that_are_none_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([f"--queue-timeout={value}"])
    assert repr(value) in capsys.readouterr().err


def test_each_flag_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    flags = [action.option_strings[0] for action in parser()._actions if action.dest != "help"]
    assert [flag for flag in flags if f"`{flag}`" not in page] == []
