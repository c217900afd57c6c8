package spawner

import (
	"context"
	"errors"
	"io"
	"os"
)

// server carries out what one supervisor asks for.
type server struct {
	line    line
	starter Starter
	keeper  *keeper
}

// mostWorkers bounds what one supervisor may have at once.
const mostWorkers = 16384

// serve speaks with a supervisor until that is gone, when workers are ended that nobody keeps, or until ctx ends, when
// they go on.
func serve(ctx context.Context, l line, starter Starter, k *keeper) error {
	defer l.sock.Close()
	unhook := context.AfterFunc(ctx, func() { l.sock.Close() })
	defer unhook()
	facts, err := starter.Facts()
	if err != nil {
		return err
	}
	facts.Keeps = k.keeps
	uid, err := l.peerUID()
	if err != nil {
		return err
	}
	if err := l.send(&packet{Kind: kindHello, Facts: facts}); err != nil {
		return err
	}
	err = k.welcome(l, uid)
	s := &server{line: l, starter: starter, keeper: k}
	for err == nil {
		err = s.next()
	}
	if ctx.Err() != nil {
		return nil
	}
	k.left()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (s *server) next() error {
	p, files, err := s.line.receive()
	if err != nil {
		return err
	}
	switch p.Kind {
	case kindStart:
		return s.start(p, files)
	case kindKill:
		s.keeper.kill(p.ID)
		return nil
	case kindKeep:
		s.keeper.keep(p.ID, files)
		return nil
	case kindHouse:
		s.keeper.keepHouse(files)
		return nil
	case kindBye:
		s.keeper.farewell()
		return nil
	}
	closeAll(files)
	return errPacket
}

func (s *server) start(p packet, files []*os.File) error {
	defer closeAll(files)
	fail := func(err error) error { return s.line.send(&packet{Kind: kindFailed, ID: p.ID, Text: err.Error()}) }
	full, twice := s.keeper.full(p.ID)
	if twice {
		return errPacket
	}
	if full {
		return fail(errors.New("there are too many workers"))
	}
	w, err := s.starter.Start(p.Order, files[0], files[1])
	if err != nil {
		return fail(err)
	}
	return s.keeper.add(p.ID, w)
}
