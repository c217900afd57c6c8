package metrics

import (
	"runtime"
	"slices"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/shim/session"
)

// Sessions writes what a program's sessions, one with each server, and the front above them have counted.
func Sessions(t *Text, all *session.Sessions, version string) {
	t.Family("scuda_client_build_info", "The release of scuda and its API description.", Gauge)
	t.Sample("scuda_client_build_info", 1, "version", version, "goversion", runtime.Version(), "api", cuda.Digest)
	t.Family("scuda_client_connected", "Whether the session with the server stands (1) or was lost (0).", Gauge)
	each(t, all, "scuda_client_connected", func(s *session.Session) float64 { return number(!s.Figures().Lost) })
	transports(t, all)
	t.Family("scuda_client_away", "Whether a connection is lost and the session tries to come back (1).", Gauge)
	each(t, all, "scuda_client_away", func(s *session.Session) float64 { return number(s.Figures().Away) })
	t.Family("scuda_client_pending_downloads", "Asynchronous downloads under way.", Gauge)
	each(t, all, "scuda_client_pending_downloads", func(s *session.Session) float64 {
		return float64(s.Figures().PendingDownload)
	})

	s := all.Of(0) // what follows is the program's, whichever server it is of
	f := s.Figures()
	t.Family("scuda_client_outage_seconds",
		"Time without a connection that was lost, until it was there again or given up.", Summary)
	t.Sample("scuda_client_outage_seconds_sum", f.Out.Seconds())
	t.Sample("scuda_client_outage_seconds_count", float64(f.Outages))
	t.Family("scuda_client_outage_replayed_bytes_total",
		"Bytes that were sent again, because the server had not received them when a connection was lost.", Counter)
	t.Sample("scuda_client_outage_replayed_bytes_total", float64(f.Replayed))
	t.Family("scuda_client_queue_bytes", "Bytes of commands that have not been sent yet.", Gauge)
	t.Sample("scuda_client_queue_bytes", float64(f.Ring))
	if c := s.Counts(); c != nil {
		front(t, c)
	}
}

// each writes a sample of each server, with these labels before its own.
func each(t *Text, all *session.Sessions, name string, of func(*session.Session) float64, labels ...string) {
	for i := range all.Servers() {
		s := all.Of(i)
		t.Sample(name, of(s), slices.Concat(labels, []string{"server", s.Server()})...)
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func transports(t *Text, all *session.Sessions) {
	count := func(name string, of func(*session.Session) uint64, labels ...string) {
		each(t, all, name, func(s *session.Session) float64 { return float64(of(s)) }, labels...)
	}
	const bytes, changes = "scuda_client_transport_bytes_total", "scuda_client_transport_changes_total"
	t.Family(bytes, "Bytes of scuda's protocol by direction and transport.", Counter)
	count(bytes, func(s *session.Session) uint64 { return s.Figures().Received }, "direction", "received",
		"transport", "tcp")
	count(bytes, func(s *session.Session) uint64 { return s.RDMA.ReceivedBytes.Load() }, "direction", "received",
		"transport", "rdma")
	count(bytes, func(s *session.Session) uint64 { return s.Figures().Sent }, "direction", "sent", "transport", "tcp")
	count(bytes, func(s *session.Session) uint64 { return s.RDMA.SentBytes.Load() }, "direction", "sent",
		"transport", "rdma")
	t.Family(changes, "Times that the bulk data moved to another transport.", Counter)
	count(changes, func(s *session.Session) uint64 { return s.RDMA.Established.Load() }, "from", "tcp", "to", "rdma")
	count(changes, func(s *session.Session) uint64 { return s.RDMA.Lost.Load() }, "from", "rdma", "to", "tcp")
}

func front(t *Text, c *session.Counts) {
	var calls, waits [class.Count]uint64
	var seconds [class.Count]float64
	c.Each(session.CountSent, func(op uint16, n, _, _ uint64) { calls[class.Of(op)] += n })
	for _, kind := range []int{session.CountAnswer, session.CountData} {
		c.Each(kind, func(op uint16, n, ns, _ uint64) {
			waits[class.Of(op)] += n
			seconds[class.Of(op)] += float64(ns) * 1e-9
		})
	}
	t.Family("scuda_client_calls_total", "Calls that were sent to the server, by class.", Counter)
	for i, n := range calls {
		t.Sample("scuda_client_calls_total", float64(n), "class", class.Class(i).String())
	}
	t.Family("scuda_client_wait_seconds",
		"Time that the program's threads stood still for answers and for the bytes of copies, by class of the call.", Summary)
	for i, n := range waits {
		t.Sample("scuda_client_wait_seconds_sum", seconds[i], "class", class.Class(i).String())
		t.Sample("scuda_client_wait_seconds_count", float64(n), "class", class.Class(i).String())
	}
	var stalls, stalled, images, uploaded uint64
	c.Each(session.CountQueue, func(_ uint16, n, ns, _ uint64) { stalls, stalled = stalls+n, stalled+ns })
	c.Each(session.CountModule, func(_ uint16, n, _, bytes uint64) { images, uploaded = images+n, uploaded+bytes })
	t.Family("scuda_client_queue_wait_seconds",
		"Time that the program's threads stood still because the command ring was full.", Summary)
	t.Sample("scuda_client_queue_wait_seconds_sum", float64(stalled)*1e-9)
	t.Sample("scuda_client_queue_wait_seconds_count", float64(stalls))
	t.Family("scuda_client_module_images_total", "Images of modules that were looked at for the server.", Counter)
	t.Sample("scuda_client_module_images_total", float64(images))
	t.Family("scuda_client_module_uploaded_bytes_total",
		"Bytes of module images that were sent because the server did not have them.", Counter)
	t.Sample("scuda_client_module_uploaded_bytes_total", float64(uploaded))
	t.Family("scuda_client_errors_total", "Calls that failed, by CUresult.", Counter)
	c.Errors(func(r int32, n uint64) {
		t.Sample("scuda_client_errors_total", float64(n), "result", cuda.ResultName(cuda.CUresult(r)))
	})
	m := c.Managed()
	t.Family("scuda_client_managed_faults_total", "Page faults of the program in unified memory.", Counter)
	t.Sample("scuda_client_managed_faults_total", float64(m.Faults))
	t.Family("scuda_client_managed_migrated_bytes_total",
		"Bytes of unified memory that moved between the program and the GPUs.", Counter)
	t.Sample("scuda_client_managed_migrated_bytes_total", float64(m.ToHost), "direction", "to_host")
	t.Sample("scuda_client_managed_migrated_bytes_total", float64(m.ToDevice), "direction", "to_device")
	t.Family("scuda_client_managed_pushed_bytes_total",
		"Bytes of unified memory that came to the program with waits for the GPU, because it had used them in the rounds "+
			"before.", Counter)
	t.Sample("scuda_client_managed_pushed_bytes_total", float64(m.Pushed))
	t.Family("scuda_client_managed_pinned_total",
		"Times that a block of unified memory which went to and fro was pinned, so that it does not fault.", Counter)
	t.Sample("scuda_client_managed_pinned_total", float64(m.Pinned))
}
