"""rq: a queue, its workers, results, retries and dependencies."""

import logging

import redis
from rq import Queue, Retry, SimpleWorker

import jobs
from suite import HOST, PORT, PROTOCOL, case, main

# A job that fails on purpose is logged at length.
logging.disable(logging.CRITICAL)
client = redis.Redis(host=HOST, port=PORT, protocol=PROTOCOL)


def work(queue):
    SimpleWorker([queue], connection=client).work(burst=True, logging_level="ERROR")


@case
def jobs_are_done_in_order():
    queue = Queue("orders", connection=client)
    done = [queue.enqueue(jobs.double, number) for number in range(5)]
    work(queue)
    assert [job.return_value() for job in done] == [0, 2, 4, 6, 8]
    assert len(queue) == 0


@case
def a_dependent_job_waits():
    queue = Queue("orders", connection=client)
    first = queue.enqueue(jobs.double, 1)
    second = queue.enqueue(jobs.double, 2, depends_on=first)
    assert second.get_status() == "deferred"
    work(queue)
    assert second.return_value(refresh=True) == 4


@case
def a_failing_job_is_tried_again():
    queue = Queue("orders", connection=client)
    job = queue.enqueue(jobs.fail, retry=Retry(max=2))
    work(queue)
    assert job.get_status() == "failed" and job.id in queue.failed_job_registry


main(before_each=client.flushall)
