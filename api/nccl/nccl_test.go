package nccl

import (
	"math"
	"strings"
	"testing"
)

// What an operation reads and writes is what NCCL says of it, and what cannot be is refused.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		o          Operation
		rank       int32
		send, recv uint64
		ok         bool
	}{
		"all-reduce":             {Operation{Function: AllReduce, Count: 10, Type: Float32, Op: Avg}, 0, 40, 40, true},
		"all-gather":             {Operation{Function: AllGather, Count: 10, Type: Float64}, 3, 80, 320, true},
		"reduce-scatter":         {Operation{Function: ReduceScatter, Count: 10, Type: Bfloat16}, 3, 80, 20, true},
		"broadcast at its root":  {Operation{Function: Broadcast, Count: 3, Type: Int8, Peer: 1}, 1, 3, 3, true},
		"broadcast elsewhere":    {Operation{Function: Broadcast, Count: 3, Type: Int8, Peer: 1}, 2, 0, 3, true},
		"reduce at its root":     {Operation{Function: Reduce, Count: 3, Type: Int64, Peer: 1}, 1, 24, 24, true},
		"reduce elsewhere":       {Operation{Function: Reduce, Count: 3, Type: Int64, Peer: 1}, 2, 24, 0, true},
		"send":                   {Operation{Function: Send, Count: 3, Type: Int64, Peer: 3}, 2, 24, 0, true},
		"receive":                {Operation{Function: Recv, Count: 3, Type: Int64}, 2, 0, 24, true},
		"nothing":                {Operation{Function: AllGather, Type: Int64}, 2, 0, 0, true},
		"a peer too many":        {Operation{Function: Recv, Count: 3, Type: Int64, Peer: 4}, 2, 0, 0, false},
		"a peer below 0":         {Operation{Function: Send, Count: 3, Type: Int64, Peer: -1}, 2, 0, 0, false},
		"no such function":       {Operation{Function: functions, Count: 3}, 2, 0, 0, false},
		"no such type":           {Operation{Count: 3, Type: 12}, 2, 0, 0, false},
		"no such reduction":      {Operation{Count: 3, Op: Avg + 1}, 2, 0, 0, false},
		"more than there is":     {Operation{Count: math.MaxUint64 / 4, Type: Int64}, 2, 0, 0, false},
		"more than there is × 4": {Operation{Function: AllGather, Count: math.MaxUint64 / 16, Type: Int64}, 2, 0, 0, false},
	} {
		if send, recv, ok := c.o.Ends(c.rank, 4); send != c.send || recv != c.recv || ok != c.ok {
			t.Errorf("%s: %d, %d, %v", name, send, recv, ok)
		}
	}
	if got := RemoteError.Error() + Result(77).Error(); got != "ncclRemoteErrorncclResult_t 77" {
		t.Error(got)
	}
}

// What a program may set is bounded, and never a path, a plugin or an interface.
func TestSetting(t *testing.T) {
	for s, want := range map[string]bool{
		"NCCL_ALGO=Ring": true, "NCCL_ALGO=allreduce:ring,tree;broadcast:^nvls": true, "NCCL_PROTO=^LL128": true,
		"NCCL_ALGO=/etc/passwd": false, "NCCL_ALGO=": false, "NCCL_MIN_NCHANNELS=1": true, "NCCL_MIN_NCHANNELS=0": false,
		"NCCL_MIN_NCHANNELS=65": false, "NCCL_MIN_NCHANNELS=-1": false, "NCCL_MIN_NCHANNELS=1 ": false,
		"NCCL_P2P_DISABLE=1": true, "NCCL_P2P_DISABLE=2": false, "NCCL_NET=Socket": true, "NCCL_NET=AWS Libfabric": false,
		"NCCL_LAUNCH_MODE=group": true, "NCCL_DEBUG=INFO": false,
		"NCCL_DEBUG=TRACE": false, "NCCL_DEBUG_FILE=/tmp/x": false, "NCCL_NET_PLUGIN=x": false,
		"NCCL_TUNER_PLUGIN=x": false, "NCCL_CONF_FILE=x": false, "NCCL_TOPO_FILE=x": false, "NCCL_SOCKET_IFNAME=eth0": false,
		"NCCL_IB_HCA=mlx5_0": false, "NCCL_COMM_BLOCKING=0": false, "LD_PRELOAD=x": false, "NCCL_BUFFSIZE=99999999999": false,
	} {
		if name, value, _ := strings.Cut(s, "="); Setting(name, value) != want {
			t.Errorf("%s: %v", s, !want)
		}
	}
	if Setting("NCCL_ALGO", strings.Repeat("a", mostSetting+1)) {
		t.Error("a long value is taken")
	}
}

func FuzzSetting(f *testing.F) {
	f.Add("NCCL_ALGO", "Ring")
	f.Add("NCCL_MIN_NCHANNELS", "2")
	f.Fuzz(func(t *testing.T, name, value string) {
		if Setting(name, value) && (strings.ContainsAny(value, "/\x00=\n.") || !strings.HasPrefix(name, "NCCL_")) {
			t.Errorf("%s=%q is taken", name, value)
		}
	})
}
