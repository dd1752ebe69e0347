"""What an application that uses the fixtures has in its `conftest.py`."""

import os

import pytest
from portcullis_server import portcullis, portcullis_process, pytest_configure  # noqa: F401


@pytest.fixture
def connect(portcullis):
    """Makes clients of the protocol that is to be tested, and closes them."""
    clients = []

    def connect(**options):
        clients.append(portcullis.client(protocol=int(os.environ.get("PROTOCOL", "2")), **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
