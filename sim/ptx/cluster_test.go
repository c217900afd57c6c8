package ptx

import (
	"errors"
	"strings"
	"testing"
)

// clusterText is a kernel for clusters of two blocks.
func clusterText(code string) string {
	return strings.Replace(kernel(code), "(.param .u64 out) {",
		"(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 {", 1)
}

const clusterSync = " barrier.cluster.arrive; barrier.cluster.wait; "

// clusterCases are kernels for four blocks of 40 threads. What a GPU gives for larger ones is in
// e2e/programs/clusters.c.
var clusterCases = map[string]struct {
	code string
	want func(block, thread uint32) uint32
}{
	"the other block's memory": {`.shared .u32 x[40]; mov.u32 %r1, x; mad.lo.u32 %r2, %t, 4, %r1;
		st.shared.u32 [%r2], %g;` + clusterSync + `
	mov.u32 %r3, %cluster_ctarank; xor.b32 %r3, %r3, 1; mapa.shared::cluster.u32 %r4, %r2, %r3;
		ld.shared::cluster.u32 %r0, [%r4];` + clusterSync,
		func(b, t uint32) uint32 { return (b^1)*40 + t }},
	"own addresses name their block": {`.shared .u64 place; .shared .u32 x; .reg .b64 %a; st.shared.u32 [x], %g;
	mov.u64 %a, x; cvta.shared.u64 %a, %a; st.shared.u64 [place], %a;` + clusterSync + `
	mov.u32 %r1, place; mov.u32 %r3, %cluster_ctarank; xor.b32 %r3, %r3, 1; mapa.shared::cluster.u32 %r1, %r1, %r3;
	ld.shared::cluster.u64 %a, [%r1]; getctarank.u64 %r0, %a; ld.u32 %r2, [%a]; sub.u32 %r2, %r2, %g;
		mad.lo.u32 %r0, %r2, 0, %r0;` + clusterSync,
		func(b, _ uint32) uint32 { return b&1 ^ 1 }},
	"exited threads are not waited for": {"setp.gt.u32 %p1, %t, 3; @%p1 ret; " + clusterSync + " mov.u32 %r0, 1;",
		func(_, t uint32) uint32 {
			if t > 3 {
				return 0
			}
			return 1
		}},
	"work between arriving and waiting": {`.shared .u32 n; .reg .b32 %a; st.shared.u32 [n], 5;
		barrier.cluster.arrive.relaxed; mov.u32 %r1, 0;
loop: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra loop;
	barrier.cluster.wait; mov.u32 %a, n; mapa.shared::cluster.u32 %a, %a, 1;
		atom.shared::cluster.add.u32 %r2, [%a], 1;` + clusterSync + `
	ld.shared::cluster.u32 %r0, [%a];` + clusterSync, func(uint32, uint32) uint32 { return 85 }},
	"lanes of a warp on both sides": {`setp.lt.u32 %p1, %t, 9; @%p1 bra low;` + clusterSync +
		`mov.u32 %r0, 1; bra end; low:` + clusterSync + `mov.u32 %r0, 2; end:`,
		func(_, t uint32) uint32 {
			if t < 9 {
				return 2
			}
			return 1
		}},
	"one lane waits for another of its warp": {`.shared .align 8 .b64 bar; setp.eq.u32 %p1, %t, 0;
		@%p1 mbarrier.init.shared.b64 [bar], 1; bar.sync 0;
	setp.eq.u32 %p2, %t, 7; @%p2 bra late;
wait: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra wait; mov.u32 %r0, 1; bra end;
late: mbarrier.arrive.shared.b64 _, [bar]; mov.u32 %r0, 2; end:`, func(_, t uint32) uint32 {
		if t == 7 {
			return 2
		}
		return 1
	}},
	"bytes that were announced late": {`.shared .align 8 .b64 bar; .shared .align 8 .b32 x[2]; .reg .b32 %a, %b;
		setp.eq.u32 %p1, %t, 0;
	@%p1 mbarrier.init.shared.b64 [bar], 1;` + clusterSync + `
	mov.u32 %r3, %cluster_ctarank; xor.b32 %r3, %r3, 1; mov.u32 %a, bar; mapa.shared::cluster.u32 %a, %a, %r3;
		mov.u32 %b, x; mapa.shared::cluster.u32 %b, %b, %r3;
	@%p1 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%b], 11, [%a];
	@%p1 st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%b+4], 31, [%a];
	@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 8;
wait: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra wait;
	ld.shared.u32 %r0, [x]; ld.shared.u32 %r1, [x+4];
		add.u32 %r0, %r0, %r1;` + clusterSync, func(uint32, uint32) uint32 { return 42 }},
	"no cluster is explicit that is not": {"mov.pred %p1, %is_explicit_cluster; selp.u32 %r0, 1, 0, %p1;",
		func(uint32, uint32) uint32 { return 1 }},
}

func TestClusters(t *testing.T) {
	for name, c := range clusterCases {
		t.Run(name, func(t *testing.T) {
			expect(t, threads(t, clusterText(c.code), 4, 40), func(i uint32) uint32 { return c.want(i/40, i%40) })
		})
	}
}

func TestClusterFaults(t *testing.T) {
	for name, c := range map[string]struct {
		code string
		kind FaultKind
	}{
		"a block that is not there": {"mapa.shared::cluster.u32 %r1, 0, 2; ld.shared::cluster.u32 %r0, [%r1];",
			IllegalInstruction},
		"beyond the other block's memory": {".shared .u32 x; mov.u32 %r1, x; mapa.shared::cluster.u32 %r1, %r1, 1; " +
			"ld.shared::cluster.u32 %r0, [%r1+4];", IllegalAddress},
		"blocks that wait for one another": {"mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0; " +
			"setp.lt.u32 %p2, %t, 32; and.pred %p1, %p1, %p2; @%p1 bar.sync 0;" + clusterSync, Deadlock},
		"a barrier in global memory": {"mbarrier.init.b64 [16], 1;", IllegalAddress},
		"a barrier between two places": {
			".shared .align 8 .b64 x[2]; mov.u32 %r1, x; mbarrier.init.shared.b64 [%r1+4], 1;", Misaligned},
		"a bulk copy of an odd size": {".shared .align 16 .b8 x[32]; .shared .align 8 .b64 b; mov.u32 %r1, b; " +
			"mov.u32 %r2, x; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%out], 8, [%r1];",
			Misaligned},
		"a bulk copy beyond shared memory": {".shared .align 16 .b8 x[32]; mov.u32 %r2, x; and.b64 %out, %out, -16; " +
			"cp.async.bulk.global.shared::cta.bulk_group [%out], [%r2], 64;", IllegalAddress},
		"a barrier that nobody arrives at": {".shared .align 8 .b64 b; mbarrier.init.shared.b64 [b], 1; " +
			"l: mbarrier.try_wait.parity.shared.b64 %p1, [b], 0; @!%p1 bra l;", Timeout},
		"a bulk copy to a block not there": {".shared .align 16 .b8 x[16]; .shared .align 8 .b64 b; .reg .b16 %h; " +
			"mov.u16 %h, 4; mov.u32 %r1, b; mov.u32 %r2, x; and.b64 %out, %out, -16; " +
			"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2], [%out], 16, [%r1], %h;",
			IllegalInstruction},
		"a remote barrier that is nowhere": {
			"mapa.shared::cluster.u32 %r1, 0, 1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];", IllegalAddress},
		"a cluster's barrier after a fault": {"setp.eq.u32 %p1, %g, 3; @%p1 trap;" + clusterSync, Trap},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryThreads(t, clusterText(c.code), 4, 40, func(g *Grid) { g.MaxInstructions = 1e6 })
			var f *Fault
			if !errors.As(err, &f) || f.Kind != c.kind {
				t.Errorf("%v, want %v", err, c.kind)
			}
		})
	}
}

// TestClusterLaunches: the grid's clusters may be asked for by the launch; they have at most MaxCluster blocks.
func TestClusterLaunches(t *testing.T) {
	for _, c := range []struct {
		dim  [3]uint32
		want string
	}{{[3]uint32{16, 1, 1}, ""}, {[3]uint32{3, 1, 1}, "multiple"}, {[3]uint32{32, 1, 1}, "clusters of"},
		{[3]uint32{}, ""}} {
		got, err := tryThreads(t, kernel("mov.u32 %r0, %cluster_nctarank;"), 32, 1, func(g *Grid) { g.ClusterDim = c.dim })
		if c.want != "" {
			if !errors.Is(err, ErrLaunch) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v", c.dim, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		expect(t, got, func(uint32) uint32 { return max(c.dim[0], 1) })
	}
}
