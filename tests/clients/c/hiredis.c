/* hiredis: synchronous contexts in threads, pipelines, a transaction, a blocking pop, a subscription.
 * A case prints `ok NAME` or `not ok NAME: why`; the runner (../run.py) counts the lines. */
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNLOCK "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"

static int failed;

static void report(const char *name, int passed) {
    printf(passed ? "ok %s\n" : "not ok %s: a reply was not the expected one\n", name);
    fflush(stdout);
    failed |= !passed;
}

static redisContext *dial(void) {
    const char *host = getenv("SERVER_HOST"), *port = getenv("SERVER_PORT");
    struct timeval patience = {10, 0};
    redisContext *c = redisConnectWithTimeout(host ? host : "127.0.0.1", port ? atoi(port) : 6379, patience);
    if (!c || c->err) {
        printf("not ok connect: %s\n", c ? c->errstr : "no memory");
        exit(1);
    }
    redisSetTimeout(c, patience);
    return c;
}

/* Whether the reply is of the type and, where it has one, of the text; frees it. */
static int is(redisReply *r, int type, const char *text) {
    int same = r && r->type == type && (!text || (r->str && strcmp(r->str, text) == 0));
    if (!same && r) fprintf(stderr, "type %d, integer %lld, text %s\n", r->type, r->integer, r->str ? r->str : "-");
    freeReplyObject(r);
    return same;
}

static int number(redisReply *r, long long expected) {
    int same = r && r->type == REDIS_REPLY_INTEGER && r->integer == expected;
    freeReplyObject(r);
    return same;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static atomic_int inside, most, entries, refused;

static void *worker(void *number_of) {
    redisContext *c = dial();
    char token[32];
    snprintf(token, sizeof token, "w%ld", (long)number_of);
    for (int round = 0; round < 15; round++) {
        for (;;) {
            redisReply *r = redisCommand(c, "SET lock %s NX PX 10000", token);
            int taken = r && r->type == REDIS_REPLY_STATUS;
            freeReplyObject(r);
            if (taken) break;
            usleep(500);
        }
        int now = atomic_fetch_add(&inside, 1) + 1, before = atomic_load(&most);
        while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) {}
        atomic_fetch_add(&entries, 1);
        usleep(500);
        atomic_fetch_sub(&inside, 1);
        if (!number(redisCommand(c, "EVAL %s 1 lock %s", UNLOCK, token), 1)) atomic_fetch_add(&refused, 1);
    }
    redisFree(c);
    return NULL;
}

static int mutual_exclusion(void) {
    pthread_t threads[8];
    for (long i = 0; i < 8; i++) pthread_create(&threads[i], NULL, worker, (void *)i);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    return most == 1 && entries == 120 && refused == 0;
}

static void *feeder(void *unused) {
    (void)unused;
    redisContext *c = dial();
    usleep(50000);
    freeReplyObject(redisCommand(c, "RPUSH jobs x"));
    redisFree(c);
    return NULL;
}

int main(void) {
    redisContext *c = dial();
    freeReplyObject(redisCommand(c, "FLUSHALL"));
    report("mutual exclusion", mutual_exclusion());

    int fine = is(redisCommand(c, "SET lock me NX PX 200"), REDIS_REPLY_STATUS, "OK");
    fine &= is(redisCommand(c, "SET lock you NX PX 200"), REDIS_REPLY_NIL, NULL);
    fine &= number(redisCommand(c, "EVAL %s 1 lock you", UNLOCK), 0);
    fine &= number(redisCommand(c, "PEXPIRE lock 300"), 1);
    double start = seconds();
    for (;;) {
        redisReply *r = redisCommand(c, "SET lock you NX PX 200");
        int taken = r && r->type == REDIS_REPLY_STATUS;
        freeReplyObject(r);
        if (taken || seconds() - start > 5) break;
        usleep(1000);
    }
    double waited = seconds() - start;
    report("another owner is refused, a dead holder outlived", fine && waited > 0.2 && waited < 2);

    for (int i = 0; i < 1000; i++) redisAppendCommand(c, "INCR n");
    fine = 1;
    for (int i = 1; i <= 1000; i++) {
        redisReply *r = NULL;
        fine &= redisGetReply(c, (void **)&r) == REDIS_OK && number(r, i);
    }
    report("a pipeline of a thousand", fine);

    fine = is(redisCommand(c, "MULTI"), REDIS_REPLY_STATUS, "OK");
    fine &= is(redisCommand(c, "SET k %b", "a\0b", (size_t)3), REDIS_REPLY_STATUS, "QUEUED");
    fine &= is(redisCommand(c, "STRLEN k"), REDIS_REPLY_STATUS, "QUEUED");
    redisReply *r = redisCommand(c, "EXEC");
    fine &= r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[1]->integer == 3;
    freeReplyObject(r);
    fine &= is(redisCommand(c, "LPUSH k x"), REDIS_REPLY_ERROR, "WRONGTYPE Operation against a key holding the wrong kind of value");
    report("a transaction and an error", fine);

    pthread_t thread;
    pthread_create(&thread, NULL, feeder, NULL);
    r = redisCommand(c, "BLPOP jobs 5");
    fine = r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 && strcmp(r->element[1]->str, "x") == 0;
    freeReplyObject(r);
    pthread_join(thread, NULL);
    fine &= is(redisCommand(c, "BLPOP jobs 0.1"), REDIS_REPLY_NIL, NULL);
    report("waiting for an element", fine);

    redisContext *subscriber = dial();
    freeReplyObject(redisCommand(subscriber, "SUBSCRIBE news"));
    fine = number(redisCommand(c, "PUBLISH news hello"), 1);
    fine &= redisGetReply(subscriber, (void **)&r) == REDIS_OK && r->elements == 3 && strcmp(r->element[2]->str, "hello") == 0;
    freeReplyObject(r);
    report("publish and subscribe", fine);
    redisFree(subscriber);
    redisFree(c);
    return failed;
}
