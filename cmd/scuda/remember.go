package main

import (
	"context"
	"fmt"
	"io"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

// remember makes a server the one that programs use from now on, once it has answered.
func remember(ctx context.Context, out io.Writer, addr, tokenFile string) error {
	addr, err := transport.ParseAddress(addr)
	if err != nil {
		return usage(err)
	}
	token, err := clientToken(tokenFile)
	if err != nil {
		return err
	}
	c, w, err := ask(ctx, addr, token, transport.KindInfo)
	if err != nil {
		return err
	}
	c.Close()
	if err := config.SetServer(addr); err != nil {
		return fmt.Errorf("%s answers, but cannot be remembered: %w", addr, err)
	}
	file, err := config.HostFile()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s answers, %s; remembered in %s\n", addr, devices(w), file)
	if now, source, err := config.Server(); err == nil && now != addr {
		fmt.Fprintf(out, "note: %s says %s, and goes before the file\n", source, now)
	}
	return nil
}

func devices(w *transport.Welcome) string {
	switch len(w.Devices) {
	case 0:
		return "no GPUs"
	case 1:
		return "1 GPU (" + w.Devices[0].Name + ")"
	}
	return fmt.Sprintf("%d GPUs (%s, …)", len(w.Devices), w.Devices[0].Name)
}
