package transport

import "testing"

// Each change of a stream of messages shows by the second message from there.
func TestChain(t *testing.T) {
	stream := func() (list []MessageHeader) {
		var c Chain
		for i := range uint64(8) {
			h := MessageHeader{Type: MsgReply, ID: 3, Seq: i * 40, Len: 8}
			h.Flags = c.Next(&h)
			list = append(list, h)
		}
		return list
	}
	noticed := func(list []MessageHeader) int {
		var c Chain
		for i, h := range list {
			if c.Next(&h) != h.Flags {
				return i
			}
		}
		return len(list)
	}
	if at := noticed(stream()); at != 8 {
		t.Fatalf("an unchanged stream breaks at %d", at)
	}
	for name, change := range map[string]func(l []MessageHeader) []MessageHeader{
		"dropped":   func(l []MessageHeader) []MessageHeader { return append(l[:3], l[4:]...) },
		"doubled":   func(l []MessageHeader) []MessageHeader { return append(l[:4:4], l[3:]...) },
		"exchanged": func(l []MessageHeader) []MessageHeader { l[3], l[4] = l[4], l[3]; return l },
		"longer":    func(l []MessageHeader) []MessageHeader { l[3].Len += 4096; return l },
		"notice":    func(l []MessageHeader) []MessageHeader { l[3].Type = MsgNotice; return l },
		"thread":    func(l []MessageHeader) []MessageHeader { l[3].ID++; return l },
		"result":    func(l []MessageHeader) []MessageHeader { l[3].Result = 1; return l },
		"number":    func(l []MessageHeader) []MessageHeader { l[3].Seq += 8; return l },
		"offset":    func(l []MessageHeader) []MessageHeader { l[3].Aux++; return l },
		"the first": func(l []MessageHeader) []MessageHeader { return l[1:] },
	} {
		if at := noticed(change(stream())); at > 4 {
			t.Errorf("%s: noticed at %d", name, at)
		}
	}
}
