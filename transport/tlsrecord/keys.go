package tlsrecord

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"

	"golang.org/x/crypto/chacha20poly1305"
)

const nonceBytes = 12

// suite is what a cipher suite of TLS 1.3 stands for.
type suite struct {
	hash func() hash.Hash
	key  int // bytes
	aead func(key []byte) (cipher.AEAD, error)
}

var suites = map[uint16]suite{
	tls.TLS_AES_128_GCM_SHA256:       {sha256.New, 16, newGCM},
	tls.TLS_AES_256_GCM_SHA384:       {sha512.New384, 32, newGCM},
	tls.TLS_CHACHA20_POLY1305_SHA256: {sha256.New, chacha20poly1305.KeySize, chacha20poly1305.New},
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// half holds one direction's keys.
type half struct {
	suite  suite
	id     uint16
	secret []byte // of this generation of keys
	aead   cipher.AEAD
	iv     [nonceBytes]byte
	nonce  [nonceBytes]byte // of the record at hand
	seq    uint64           // of the next record under these keys
}

func newHalf(id uint16, secret []byte, seq uint64) (half, error) {
	s, ok := suites[id]
	if !ok {
		return half{}, fmt.Errorf("%w: cipher suite %#04x", ErrState, id)
	}
	if len(secret) != s.hash().Size() {
		return half{}, fmt.Errorf("%w: a secret of %d bytes", ErrState, len(secret))
	}
	h := half{suite: s, id: id}
	if err := h.use(secret); err != nil {
		return half{}, err
	}
	h.seq = seq
	return h, nil
}

// use derives keys from a traffic secret. Their first record has number 0.
func (h *half) use(secret []byte) error {
	key, err := expandLabel(h.suite.hash, secret, "key", h.suite.key)
	if err != nil {
		return err
	}
	iv, err := expandLabel(h.suite.hash, secret, "iv", nonceBytes)
	if err != nil {
		return err
	}
	if h.aead, err = h.suite.aead(key); err != nil {
		return err
	}
	h.secret, h.seq = secret, 0
	copy(h.iv[:], iv)
	return nil
}

// update goes on to the next generation of keys.
func (h *half) update() error {
	next, err := expandLabel(h.suite.hash, h.secret, "traffic upd", len(h.secret))
	if err != nil {
		return err
	}
	return h.use(next)
}

// number gives the nonce of the next record.
func (h *half) number() []byte {
	h.nonce = h.iv
	at := h.nonce[nonceBytes-8:]
	binary.BigEndian.PutUint64(at, binary.BigEndian.Uint64(at)^h.seq)
	h.seq++
	return h.nonce[:]
}

// expandLabel is HKDF-Expand-Label of RFC 8446, section 7.1, without a context.
func expandLabel(h func() hash.Hash, secret []byte, label string, bytes int) ([]byte, error) {
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(nil, uint16(bytes))
	info = append(info, byte(len(label)))
	info = append(info, label...)
	info = append(info, 0)
	return hkdf.Expand(h, secret, string(info), bytes)
}
