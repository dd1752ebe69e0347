import portcullis_lock

locks = portcullis_lock.connect("redis://127.0.0.1:6379")

with locks.lock("order:42", lease=30, wait=5) as grant:
    print(f"token {grant.token}, held for at least another {grant.remaining():.0f} s")
