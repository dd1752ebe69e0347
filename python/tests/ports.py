"""Ports for servers that are told theirs."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/clients"))
import nodes  # noqa: E402


def free_port():
    return nodes.free_ports(1)[0]
