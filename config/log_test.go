package config

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"unicode"
)

// TestHiddenCharactersInLogs: a peer's text shows nothing in a log that is not printable, and stays what it was.
func TestHiddenCharactersInLogs(t *testing.T) {
	var peer strings.Builder
	for _, table := range []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp} {
		for _, r := range table.R16 {
			peer.WriteRune(rune(r.Lo))
		}
		for _, r := range table.R32 {
			peer.WriteRune(rune(r.Lo))
		}
	}
	peer.WriteString("\u0085\u009b2J\u202eé日")
	for _, format := range []LogFormat{LogText, LogJSON} {
		var b bytes.Buffer
		slog.New(format.Handler(&b, slog.LevelWarn)).Warn("said", "by", peer.String())
		line := strings.TrimSuffix(b.String(), "\n")
		for _, r := range line {
			if !unicode.IsPrint(r) {
				t.Errorf("%s: %U is shown", format, r)
			}
		}
		if !strings.Contains(line, "é日") {
			t.Errorf("%s: letters are not shown: %s", format, line)
		}
		if format != LogJSON {
			continue
		}
		var got struct{ By string }
		if err := json.Unmarshal(b.Bytes(), &got); err != nil || got.By != peer.String() {
			t.Errorf("%q, %v", got.By, err)
		}
	}
}
