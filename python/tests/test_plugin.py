"""The pytest plugin, in test runs of its own."""

import os
import textwrap

import pytest


@pytest.fixture
def run(pytester):
    def run(text, *arguments, **variables):
        for name, value in variables.items():
            os.environ[name] = value
        pytester.makepyfile(textwrap.dedent(text))
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    before = dict(os.environ)
    yield run
    os.environ.clear()
    os.environ.update(before)


def test_each_test_finds_an_empty_server_of_the_run(run):
    result = run("""
        pids = set()

        def test_one(portcullis, portcullisdb, portcullis_locks):
            pids.add(portcullis.pid)
            portcullisdb.set("k", "v")
            with portcullis_locks.lock("a") as grant:
                assert grant.check() and portcullisdb.exists("a")

        def test_two(portcullis_proc, portcullisdb):
            pids.add(portcullis_proc.pid)
            assert portcullisdb.dbsize() == 0 and len(pids) == 1
            assert portcullis_proc.host == "127.0.0.1" and portcullis_proc.port > 0
    """)
    result.assert_outcomes(passed=2)


def test_a_leaked_lock_fails_its_test_and_is_named(run):
    result = run("""
        import pytest

        def test_leaky(portcullis_locks):
            portcullis_locks.lock("order:7", owner="worker-1").acquire()

        def test_plain(portcullisdb):
            portcullisdb.set("lock:order:8", "bob", px=30_000)

        @pytest.fixture
        def held(portcullis_locks):
            with portcullis_locks.lock("b") as grant:
                yield grant

        def test_fine(held):
            assert held.check()

        @pytest.mark.leaks_locks
        def test_marked(portcullis_locks):
            portcullis_locks.lock("a").acquire()
    """)
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(["*test_leaky leaves locks held:*", "*order:7 (lock) held by 'worker-1'*", "*lock:order:8 (string) held by 'bob'*"])


def test_a_missing_program_is_one_error_that_says_how_to_get_it(run, tmp_path, pytester):
    # The environment of this test may have the program among its scripts.
    pytester.makeconftest("import sysconfig\nsysconfig.get_path = lambda name: '/nowhere'\n")
    tests = "def test_a(portcullis): ...\n"
    result = run(tests, PORTCULLIS="/nowhere/portcullis")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the variable PORTCULLIS names /nowhere/portcullis, which is not a program*"])
    os.environ.pop("PORTCULLIS")
    result = run(tests, PATH=str(tmp_path))
    result.stdout.fnmatch_lines(["*there is no portcullis program. The wheel of portcullis-lock*--portcullis-exec*PORTCULLIS*"])
    assert "During handling" not in result.stdout.str()


def test_the_option_names_the_program_and_its_flags(run, portcullis_proc):
    result = run(
        """
        def test_a(portcullis):
            assert portcullis.client().config_get("appendonly")["appendonly"] == "yes"
        """,
        f"--portcullis-exec={portcullis_proc.program}",
        "-o", "portcullis_args=--appendonly yes",
        PORTCULLIS="/nowhere",
    )  # fmt: skip
    result.assert_outcomes(passed=1)


def test_a_worker_of_xdist_has_a_server_of_its_own(run):
    pytest.importorskip("xdist")
    result = run(
        """
        import pytest

        @pytest.mark.parametrize("number", range(8))
        def test_a(portcullis, portcullisdb, number):
            portcullis.clock.freeze()
            before = portcullisdb.time()
            assert portcullisdb.dbsize() == 0
            portcullisdb.set("n", number)
            assert portcullisdb.get("n") == str(number) and portcullisdb.time() == before
        """,
        "-n", "2",
    )  # fmt: skip
    result.assert_outcomes(passed=8)


def test_without_pytest_asyncio_the_other_fixtures_are_there(run):
    result = run(
        """
        def test_a(portcullis_locks):
            with portcullis_locks.lock("a"):
                pass
        """,
        "-p", "no:asyncio",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
