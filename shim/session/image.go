package session

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/fatbin"
	"scuda.dev/scuda/transport"
)

// images remembers which module images were sent.
type images struct {
	mutex
	there map[[sha256.Size]byte]struct{}
}

// errEnded is returned inside a session that has already ended, for whatever reason that was.
var errEnded = errors.New("the session has ended")

// Image gives the hash of what of the image a GPU of compute capability arch (90 for 9.0) can use. With send it makes
// sure that the server has it, and says how many bytes it sent for that; without, the server will say when it is asked
// to load what it does not have, which saves a round trip where it does. The result goes with the error: CUDA's number
// for what went wrong.
func (s *Session) Image(
	img *fatbin.Image, arch uint32, send bool,
) (hash [sha256.Size]byte, sent int, result int32, err error) {
	b, err := fatbin.Select(img, arch)
	switch {
	case errors.Is(err, fatbin.ErrNoMatch):
		return hash, 0, NoBinary, err
	case err != nil:
		return hash, 0, InvalidImage, err
	}
	if hash = sha256.Sum256(b); !send {
		return hash, 0, s.lost(), nil
	}
	s.images.Lock()
	defer s.images.Unlock()
	if _, ok := s.images.there[hash]; ok {
		return hash, 0, s.lost(), nil
	}
	payload := binary.LittleEndian.AppendUint64(hash[:len(hash):len(hash)], uint64(len(b)))
	payload = binary.LittleEndian.AppendUint64(payload, uint64(len(b)))
	result, err = s.ask(own(wire.OpModulePut, transport.FlagAnswer|transport.FlagBulk, payload), b)
	s.log.Debug("module image sent", "bytes", len(b), "of", len(img.Bytes), "sha256", fmt.Sprintf("%x", hash[:8]))
	if err != nil {
		return hash, len(b), result, err
	}
	if result != Success {
		return hash, len(b), result, fmt.Errorf("the server did not take the module image (error %d)", result)
	}
	if s.images.there == nil {
		s.images.there = make(map[[sha256.Size]byte]struct{})
	}
	s.images.there[hash] = struct{}{}
	return hash, len(b), Success, nil
}

// ask sends a command of the core itself and waits for its reply. images is locked: there is one such command at a
// time.
func (s *Session) ask(command, bulk []byte) (int32, error) {
	w := s.calls.waiter(transport.CoreThread)
	wait, err := s.calls.enroll(w, nil, 0)
	if err != nil {
		s.fail(err)
	}
	if wait {
		if err := s.send.sendOwn(&s.out, command, bulk, func(number uint64) { s.calls.awaits(w, number) }); err != nil {
			s.broken(err)
		}
		s.reader.await(w)
	}
	if lost := s.lost(); lost != 0 {
		return lost, errEnded
	}
	return w.result, nil
}
