"""Runs the application's tests for ../../clients/run.py, which counts lines of `ok NAME` and `not ok NAME: why`."""

import pathlib
import sys

import pytest


class Lines:
    """Says of each test how it went."""

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            print(f"skip {report.nodeid}: {report.longrepr}", flush=True)
        elif report.failed:
            print(report.longreprtext, file=sys.stderr)
            why = report.longreprtext.strip().splitlines()[-1]
            print(f"not ok {report.nodeid} ({report.when}): {why}", flush=True)
        elif report.when == "call":
            print(f"ok {report.nodeid}", flush=True)


here = pathlib.Path(__file__).parent
sys.exit(pytest.main(["-p", "no:cacheprovider", "-p", "no:terminal", "--rootdir", str(here), str(here)], plugins=[Lines()]))
