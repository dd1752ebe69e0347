"""What an application has in its `conftest.py`. The fixtures of `portcullis-lock` come by its entry point."""

import os

import pytest


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
