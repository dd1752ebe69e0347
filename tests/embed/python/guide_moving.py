import redis

from portcullis_lock.compat import Lock

client = redis.Redis(host="127.0.0.1", port=6379)

with client.lock("report", timeout=30, blocking_timeout=5, lock_class=Lock) as lock:
    print(lock.grant.token)
