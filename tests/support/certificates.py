"""Certificates of the nodes of a cluster, made by ``openssl``."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path, name: str) -> None:
    """An authority and a node: ``NAME-ca.crt``, ``NAME.crt``, ``NAME.key``. Skips where there is no ``openssl``."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    authority = ("-x509", "-subj", f"/CN={name}", "-keyout", f"{name}-ca.key", "-out", f"{name}-ca.crt")
    _openssl(folder, "req", *key, *authority)
    _openssl(folder, "req", *key, "-subj", "/CN=node", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    by = ("-CA", f"{name}-ca.crt", "-CAkey", f"{name}-ca.key", "-CAcreateserial", "-days", "2")
    addresses = dict.fromkeys(["127.0.0.1", "127.0.0.2", _own_address()])
    (folder / "names").write_text(f"subjectAltName={','.join(f'IP:{each}' for each in addresses)}\n")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *by, "-extfile", "names", "-out", f"{name}.crt")


def tls_variables(folder: Path, node: str, authority: str) -> dict[str, str]:
    """The variables by which Ray uses the certificate of one, and trusts that of another one's authority."""
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(folder / f"{node}.crt"),
        "RAY_TLS_SERVER_KEY": str(folder / f"{node}.key"),
        "RAY_TLS_CA_CERT": str(folder / f"{authority}-ca.crt"),
    }


def _own_address() -> str:
    """By which Ray knows this machine: that from which others would be reached. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:  # there is no network
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=30)
