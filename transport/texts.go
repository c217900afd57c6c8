package transport

import (
	"strings"
	"unicode"
)

// MostPrinted is how many characters of a text by the peer are shown.
const MostPrinted = 500

// Printable makes a text that the peer chose fit for a terminal and for one line of it: what is not printable could
// move the cursor, change the window or pretend to be a line of ours. A text that is too long ends with dots.
func Printable(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > MostPrinted {
			b.WriteString("…")
			break
		}
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case unicode.IsSpace(r):
			b.WriteByte(' ')
		default:
			b.WriteByte('?')
		}
	}
	return b.String()
}

// printable is applied to every welcome as it is read, so that nobody who shows a text of it has to think of that.
func (w *Welcome) printable() {
	for _, s := range []*string{&w.Error, &w.Version, &w.Digest, &w.Driver, &w.NoRDMA, &w.GPU, &w.Tenant} {
		*s = Printable(*s)
	}
	if w.Queue != nil {
		w.Queue.Reason = Printable(w.Queue.Reason)
	}
	for i := range w.Devices {
		d := &w.Devices[i]
		d.Name, d.PCIBusID = Printable(d.Name), Printable(d.PCIBusID)
	}
}
