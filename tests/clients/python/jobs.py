"""Jobs for the queues: a worker imports them by name."""


def double(number):
    return 2 * number


def fail():
    raise RuntimeError("on purpose")
