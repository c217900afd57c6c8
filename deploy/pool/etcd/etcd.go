// Package etcd runs an etcd within this process, for a pool that has none: one member, whose state lies in a folder.
// scuda-pool serve is the only one that imports it; everything else speaks to an etcd from outside.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
)

// Errors of starting one.
var (
	ErrInUse  = errors.New("another scuda-pool serve uses the folder")
	ErrListen = errors.New("the pool is not offered so")
)

// Options say where its state lies, and where it listens.
type Options struct {
	Folder string // with a socket, for programs of the same user on this machine
	// Listen is HOST:PORT, for programs elsewhere: they show certificates. "": there are none.
	Listen        string
	Cert, Key, CA string // files; of Listen
}

// Server is an etcd that runs.
type Server struct {
	Endpoint string // how clients on this machine name it
	etcd     *embed.Etcd
	lock     *os.File
}

// Socket is the path of the socket in a folder.
func Socket(folder string) string { return filepath.Join(folder, "etcd.sock") }

// longestSocket is what the kernel takes.
const longestSocket = 107

func (o *Options) config() (*embed.Config, error) {
	c := embed.NewConfig()
	c.Name, c.Dir = "scuda-pool", filepath.Join(o.Folder, "data")
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.LogLevel, c.LogOutputs = "warn", []string{filepath.Join(o.Folder, "etcd.log")}
	c.ListenPeerUrls, c.EnableGRPCGateway = nil, false // nobody else is a member, or comes with JSON
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	socket := url.URL{Scheme: "unix", Path: Socket(o.Folder)}
	c.ListenClientUrls = []url.URL{socket}
	switch {
	case len(socket.Path) > longestSocket:
		return nil, fmt.Errorf("%w: %s is too long for a socket's name; choose a shorter folder", ErrListen, socket.Path)
	case o.Listen != "" && (o.Cert == "" || o.Key == "" || o.CA == ""):
		return nil, fmt.Errorf("%w: with --listen it needs --cert, --key and --ca; scuda ca makes them", ErrListen)
	case o.Listen != "":
		if host, port, err := net.SplitHostPort(o.Listen); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("%w: %.60q is not HOST:PORT", ErrListen, o.Listen)
		}
		c.ListenClientUrls = append(c.ListenClientUrls, url.URL{Scheme: "https", Host: o.Listen})
		c.ClientTLSInfo = transport.TLSInfo{CertFile: o.Cert, KeyFile: o.Key, TrustedCAFile: o.CA, ClientCertAuth: true}
	}
	// Nobody asks it where it is, and it has to say something.
	c.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "localhost:1"}}
	return c, nil
}

// Start runs one. It returns when clients are answered.
func Start(ctx context.Context, o Options) (s *Server, err error) {
	if o.Folder, err = filepath.Abs(o.Folder); err != nil {
		return nil, err
	}
	c, err := o.config()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Folder, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(o.Folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("%w %s", ErrInUse, o.Folder)
	}
	s = &Server{Endpoint: c.ListenClientUrls[0].String(), lock: lock}
	if s.etcd, err = embed.StartEtcd(c); err != nil {
		lock.Close()
		return nil, fmt.Errorf("etcd: %w; its log is %s", err, c.LogOutputs[0])
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		return s, nil
	case err = <-s.etcd.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.Close()
	return nil, err
}

// Failed gives what ended it.
func (s *Server) Failed() <-chan error { return s.etcd.Err() }

// Close ends it.
func (s *Server) Close() {
	s.etcd.Close()
	s.lock.Close()
}
