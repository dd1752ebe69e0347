"""limits: fixed, moving and sliding windows, all in Lua."""

import time

import limits
from limits import storage, strategies

from suite import HOST, PORT, PROTOCOL, case, main, threads

store = storage.storage_from_string(f"redis://{HOST}:{PORT}", protocol=PROTOCOL)


def admitted(strategy, item, workers, tries):
    """How many of the tries of so many threads were let through."""
    hits = []
    threads(workers, lambda number: [hits.append(number) for _ in range(tries) if strategy.hit(item, "user", "7")])
    return len(hits)


@case
def a_fixed_window_admits_its_limit():
    assert admitted(strategies.FixedWindowRateLimiter(store), limits.parse("20/hour"), 8, 10) == 20


@case
def a_moving_window_admits_its_limit():
    limiter, item = strategies.MovingWindowRateLimiter(store), limits.parse("20/hour")
    assert admitted(limiter, item, 8, 10) == 20
    stats = limiter.get_window_stats(item, "user", "7")
    assert stats.remaining == 0 and stats.reset_time > time.time() + 3000


@case
def a_sliding_window_admits_its_limit():
    assert admitted(strategies.SlidingWindowCounterRateLimiter(store), limits.parse("20/hour"), 8, 10) == 20


@case
def a_window_ends():
    limiter, item = strategies.MovingWindowRateLimiter(store), limits.parse("2/second")
    assert limiter.hit(item, "x") and limiter.hit(item, "x") and not limiter.hit(item, "x")
    time.sleep(1.1)
    assert limiter.hit(item, "x")
    assert limiter.test(item, "x")
    limiter.clear(item, "x")


main(before_each=store.reset)
