// A native lock over redigo: `go run lock.go HOST:PORT`.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"
)

const lease = 30 * time.Second

// unique names an owner or a request: nobody else has the name.
func unique() string {
	bytes := make([]byte, 16)
	if _, err := rand.Read(bytes); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes)
}

// acquire waits in the lock's queue, and returns the fencing token; redis.ErrNil if the wait, of at least a millisecond, is over.
//
// The wait has a connection of its own, whose read time-out is longer than the wait. When it breaks, the same request is sent again: the
// server grants it once. A reply that is an error is final.
func acquire(address, name, owner string, wait time.Duration) (int64, error) {
	request, end := unique(), time.Now().Add(wait)
	for {
		left := time.Until(end).Milliseconds() + 1
		if left <= 0 {
			return 0, redis.ErrNil
		}
		timeout := redis.DialReadTimeout(time.Duration(left)*time.Millisecond + 5*time.Second)
		conn, err := redis.Dial("tcp", address, timeout)
		if err == nil {
			var token int64
			token, err = redis.Int64(conn.Do("LOCK.ACQUIRE", name, owner, lease.Milliseconds(), "WAIT", left, "REQUEST", request))
			conn.Close()
			var reply redis.Error
			if err == nil || err == redis.ErrNil || errors.As(err, &reply) {
				return token, err
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// renew restarts the lease, at each third of it. An error reply, NOTHELD, says that the lock is lost.
func renew(conn redis.Conn, name, owner string, token int64) error {
	_, err := conn.Do("LOCK.RENEW", name, owner, lease.Milliseconds(), "TOKEN", token)
	return err
}

// release ends the grant with this token, and no later one.
func release(conn redis.Conn, name, owner string, token int64) error {
	_, err := conn.Do("LOCK.RELEASE", name, owner, "TOKEN", token, "REQUEST", unique())
	return err
}

func main() {
	owner := unique()
	token, err := acquire(os.Args[1], "order:42", owner, 10*time.Second)
	fail(err)
	fmt.Println("token", token)
	conn, err := redis.Dial("tcp", os.Args[1])
	fail(err)
	defer conn.Close()
	fail(renew(conn, "order:42", owner, token))
	fmt.Println("renewed")
	fail(release(conn, "order:42", owner, token))
	fmt.Println("released")
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
