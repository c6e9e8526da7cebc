"""https and wss, with a certificate of a hundred years."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.ws_client import connected
from unicorn_async.cli.server_options import add_server_options
from unicorn_async.cli.serving import server_options
from unicorn_async.errors import ConfigError
from unicorn_async.server import ServerOptions
from unicorn_async.server.tls import tls_context

if TYPE_CHECKING:
    from tests.server.conftest import ServeWith

FILES = Path(__file__).parent / "tls"
CERT = FILES / "cert.pem"


async def test_https_and_wss_are_served_under_the_printed_address(serve_with: ServeWith) -> None:
    trust = ssl.create_default_context(cafile=CERT)
    async with serve_with(ServerOptions(tls=tls_context(CERT, FILES / "key.pem"))) as served:
        assert served.url.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(base_url=served.url, verify=trust) as client:
            answer = await client.post("/v1/responses", json={"input": "Hi"}, headers={"origin": served.url})
            assert answer.status_code == 200
            plain = {"origin": served.url.replace("https://", "http://")}
            refused = await client.post("/v1/responses", json={"input": "Hi"}, headers=plain)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")
        url = served.url.replace("https://", "wss://") + "/v1/responses"
        async with connected(url, ssl=trust, origin=served.url) as socket:
            await socket.create()
            assert (await socket.answer())[-1]["type"] == "response.completed"
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.TransportError):
                await client.get(served.url.replace("https://", "http://") + "/health")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tls-cert", CERT], "both --tls-cert"),
        (["--tls-key", FILES / "key.pem"], "both --tls-cert"),
        (["--tls-cert", CERT, "--tls-key", FILES / "other.pem"], "other.pem: this TLS key does not belong to"),
        (["--tls-cert", CERT, "--tls-key", FILES / "locked.pem"], "locked.pem: the TLS key has a passphrase"),
        (["--tls-cert", CERT, "--tls-key", FILES / "none.pem"], "none.pem: the TLS key can't be read: No such file"),
        (["--tls-cert", FILES, "--tls-key", FILES / "key.pem"], "tls: the TLS certificate can't be read: Is a dir"),
        (["--tls-cert", __file__, "--tls-key", FILES / "key.pem"], "test_tls.py and .*not a TLS certificate"),
    ],
)
def test_files_that_cannot_be_used_are_refused_before_a_model_is_opened(
    arguments: list[str | Path], message: str
) -> None:
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    with pytest.raises(ConfigError, match=message):
        server_options(parser.parse_args([str(argument) for argument in arguments]))


def shown(url: str) -> str:
    """Return the certificate that the server shows."""
    host, port = url.removeprefix("https://").split(":")
    return ssl.get_server_certificate((host, int(port)), timeout=120)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_a_renewed_certificate_counts_without_a_restart_and_a_bad_one_does_not(
    tmp_path: Path, serve_with: ServeWith, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
    shutil.copy(CERT, cert)
    shutil.copy(FILES / "key.pem", key)
    async with serve_with(ServerOptions(tls=tls_context(cert, key))) as served:
        assert await asyncio.to_thread(shown, served.url) == CERT.read_text()
        cert.write_text("no certificate")
        for _ in range(2):
            assert await asyncio.to_thread(shown, served.url) == CERT.read_text()
        assert caplog.text.count("the TLS certificate stays as it was") == 1
        await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
        assert await asyncio.to_thread(shown, served.url) == cert.read_text()
