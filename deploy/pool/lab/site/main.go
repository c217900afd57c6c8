// Command site is the etcd that a site has already, for the lab's tests: a process of its own, which is told by etcd's
// own file of settings how it is reached and by whom. It has etcd's server without the rest of the program etcd, whose
// modules the pool does not need otherwise.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func run(ctx context.Context, file string) error {
	c, err := embed.ConfigFromFile(file)
	if err != nil {
		return err
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
		fmt.Println("etcd answers")
	case err := <-e.Err():
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-e.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, os.Args[len(os.Args)-1])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}
