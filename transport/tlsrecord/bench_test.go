package tlsrecord

import (
	"crypto/tls"
	"testing"
)

// BenchmarkSeal and BenchmarkOpen are a processor's share of a big copy, BenchmarkMessage that of a small one.
func BenchmarkSeal(b *testing.B) {
	s, _ := loop(b, tls.TLS_AES_128_GCM_SHA256, 32)
	data := make([]byte, batch*MaxPlaintext)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := s.Out.Fill([][]byte{data}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	s, r := loop(b, tls.TLS_AES_128_GCM_SHA256, 32)
	data := make([]byte, batch*MaxPlaintext)
	if _, err := s.Out.Fill([][]byte{data}); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		r.In.seq = 0
		r.In.Received(copy(r.In.Room(), s.Out.Pending()))
		if n, err := r.In.Read(data); n != len(data) || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkMessage(b *testing.B) {
	s, r := loop(b, tls.TLS_AES_128_GCM_SHA256, 32)
	data := [][]byte{make([]byte, 8), make([]byte, 120)}
	got := make([]byte, 4096)
	for b.Loop() {
		if _, err := s.Out.Fill(data); err != nil {
			b.Fatal(err)
		}
		carry(s, r, 1<<20)
		if _, err := r.In.Read(got); err != nil {
			b.Fatal(err)
		}
	}
}
