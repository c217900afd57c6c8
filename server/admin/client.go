package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport"
)

const (
	askTime   = 20 * time.Second
	maxAnswer = 64 << 20 // bytes: tens of thousands of sessions
)

// Client asks a server: by its socket ([Dial]), or over its port ([Over]). Close ends its connections.
type Client struct {
	Path    string // of the socket, or HOST:PORT
	http    *http.Client
	explain func(error) error // says what it means that there is no connection
	local   bool
}

// Dial gives a client of the server at a socket; path may be [Auto]: then it is the one server of this machine that
// this user may ask.
func Dial(ctx context.Context, path string) (*Client, error) {
	switch path {
	case None:
		return nil, fmt.Errorf("%w: --admin none, or SCUDA_ADMIN=none", ErrSwitched)
	case Auto, "":
		return find(ctx)
	}
	c, err := knockAt(ctx, path)
	if err != nil {
		return nil, explain(path, err)
	}
	c.Close()
	return at(path), nil
}

func at(path string) *Client {
	c := newClient(path, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}, func(err error) error { return explain(path, err) })
	c.local = true
	return c
}

func newClient(path string, dial func(context.Context) (net.Conn, error), explain func(error) error) *Client {
	return &Client{path, &http.Client{Timeout: askTime, Transport: &http.Transport{
		DialContext:  func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConns: 1, IdleConnTimeout: idleTime / 2, MaxResponseHeaderBytes: maxHeader,
	}}, explain, false}
}

// Local says whether it asks by a socket, as an administrator.
func (c *Client) Local() bool { return c.local }

func knockAt(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, knock)
	defer cancel()
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

// explain says what a socket that cannot be reached means.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %s is not for user %d; use sudo", ErrForbidden, path, os.Geteuid())
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no %s; a server has its socket where its log says it (admin interface)",
			ErrNoServer, path)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: the server of %s is gone; start it again", ErrNoServer, path)
	}
	return fmt.Errorf("%w: %s: %w", ErrNoServer, path, err)
}

// folders are where a server's socket may lie: this user's own, and that of the service.
func folders() []string {
	all := []string{folderOf(os.Geteuid()), rootFolder}
	if all[0] == "" || all[0] == all[1] {
		all = all[1:]
	}
	return all
}

// find looks for the one server of this machine.
func find(ctx context.Context) (*Client, error) {
	live, err := search(ctx, folders())
	switch {
	case err != nil:
		return nil, err
	case len(live) > 1:
		return nil, fmt.Errorf("%w: this machine has several servers; choose one with --admin: %s", ErrSeveral,
			strings.Join(live, ", "))
	}
	return at(live[0]), nil
}

// search gives the sockets of the servers that have theirs in some folders, at least one.
func search(ctx context.Context, folders []string) (live []string, err error) {
	var barred error
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if errors.Is(err, fs.ErrPermission) {
			barred = explain(folder, err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), prefix) || !strings.HasSuffix(e.Name(), suffix) {
				continue
			}
			path := filepath.Join(folder, e.Name())
			c, err := knockAt(ctx, path)
			switch {
			case err == nil:
				c.Close()
				live = append(live, path)
			case errors.Is(err, fs.ErrPermission):
				barred = explain(path, err)
			}
		}
	}
	slices.Sort(live)
	switch {
	case len(live) > 0:
		return live, nil
	case barred != nil:
		return nil, barred
	}
	return nil, fmt.Errorf("%w on this machine (looked into %s); run this where scuda serve runs, or give --admin "+
		"SOCKET, which the server's log names", ErrNoServer, strings.Join(folders, " and "))
}

// Close ends the client's connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status asks how the server is.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var s Status
	return &s, c.ask(ctx, http.MethodGet, "/v1/server", nil, &s)
}

// Sessions asks for all sessions, the oldest first.
func (c *Client) Sessions(ctx context.Context) ([]Session, error) {
	var list sessionList
	err := c.ask(ctx, http.MethodGet, "/v1/sessions", nil, &list)
	return list.Sessions, err
}

// End has the session with this id ended.
func (c *Client) End(ctx context.Context, id, reason string) error {
	return c.ask(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(id)+"/end", endRequest{reason}, &struct{}{})
}

// Drain says whether the server is to refuse new sessions.
func (c *Client) Drain(ctx context.Context, on bool) (*Status, error) {
	var s Status
	return &s, c.ask(ctx, http.MethodPut, "/v1/drain", drainRequest{&on}, &s)
}

func (c *Client) ask(ctx context.Context, method, path string, body, to any) error {
	var from io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		from = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://scuda"+path, from)
	if err != nil {
		return err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	got, err := c.http.Do(r)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if os.IsTimeout(err) && !errors.As(err, new(*transport.Error)) {
			return fmt.Errorf("%w: %s did not answer within %v; look into the server's log", ErrNoServer, c.Path, askTime)
		}
		return c.explain(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(io.LimitReader(got.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnexpected, err)
	}
	if got.StatusCode != http.StatusOK {
		var f Fault
		if json.Unmarshal(text, &f) != nil || f.Cause == "" {
			return fmt.Errorf("%w: %s", ErrUnexpected, got.Status)
		}
		f.status = got.StatusCode
		return &f
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("%w: %w", ErrUnexpected, err)
	}
	return nil
}
