"""`redis-cli -c` at any node of a cluster is sent to the leader. Each request is a process of its own."""

import subprocess

from failover import CLUSTER, client, main, repeated


class Failed(Exception):
    """What redis-cli printed instead of a reply."""


@client
def redis_cli_c():
    def call(*words):
        errors = ["no node answers"]
        # As a user does who knows all nodes: the next one is tried if one is down.
        for host, port in CLUSTER:
            command = ["redis-cli", "-c", "--no-raw", "-h", host, "-p", str(port), *map(str, words)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
            reply = done.stdout.strip()
            if done.returncode == 0 and reply.startswith(("(integer) ", '"', "(nil)", "OK")):
                return {"(nil)": None, "OK": "OK"}.get(reply, int(reply[10:]) if reply.startswith("(integer)") else reply.strip('"'))
            errors.append(done.stderr + reply)
        raise Failed(errors[-1])

    return repeated(call, Failed)


if __name__ == "__main__":
    main()
