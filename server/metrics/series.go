package metrics

import (
	"time"

	"scuda.dev/scuda/api/class"
)

// SampleEvery says which of the calls that nobody waits for are timed: one in so many of a class. All are counted.
const SampleEvery = 16

// Series is a number of a [Page] that has a line in the table below.
type Series int

// Counters only grow; the gauges behind them are set.
const (
	ReceivedTCP Series = iota
	ReceivedRDMA
	SentTCP
	SentRDMA
	CopiedToDevice
	CopiedToHost
	MigratedToDevice
	MigratedToHost
	Faults
	Pushes
	ToRDMA
	ToTCP
	ModuleHit
	ModuleMiss
	ModuleUploaded
	RefusedHost
	RefusedPinned
	RefusedVRAM
	RefusedTenantVRAM
	Replayed
	ReceivedPeerTCP
	ReceivedPeerRDMA
	SentPeerTCP
	SentPeerRDMA

	QueueBytes // the first gauge
	PendingWaits
	PendingDownloads
	Away

	series int = iota
)

const firstGauge = QueueBytes

// RDMA is the name of the transport that [Received] and [Sent] tell from TCP.
const RDMA = "rdma"

// Received is the counter of bytes that came over a transport.
func Received(transport string) Series {
	if transport == RDMA {
		return ReceivedRDMA
	}
	return ReceivedTCP
}

// Sent is the counter of bytes that went over a transport.
func Sent(transport string) Series {
	if transport == RDMA {
		return SentRDMA
	}
	return SentTCP
}

// described is what Prometheus is told of a series or histogram; labels are names and values in turns.
type described struct {
	name, help string
	labels     []string
}

const (
	helpBytes     = "Bytes of scuda's protocol that workers received from and sent to clients, by transport."
	helpCopied    = "Bytes that clients copied between their memory and the GPUs'."
	helpMigrated  = "Bytes of unified memory that moved between clients and GPUs; they are among the copied ones."
	helpChanged   = "Times that a session's bulk data moved to another transport."
	helpModules   = "Module images that clients asked for, by whether the module cache had them."
	helpRefused   = "Requests for memory that a limit refused, by limit."
	helpPeer      = "Bytes that workers received from and sent to other servers of the same program, by transport."
	helpPending   = "Calls that wait for work of a GPU to complete."
	nameBytes     = "scuda_transport_bytes_total"
	nameCopied    = "scuda_copied_bytes_total"
	nameMigrated  = "scuda_managed_migrated_bytes_total"
	nameChanged   = "scuda_transport_changes_total"
	nameModules   = "scuda_module_cache_requests_total"
	nameRefused   = "scuda_memory_refused_total"
	namePeer      = "scuda_peer_bytes_total"
	namePending   = "scuda_pending"
	nameErrors    = "scuda_errors_total"
	nameCalls     = "scuda_calls_total"
	nameDuration  = "scuda_call_duration_seconds"
	nameQueueWait = "scuda_queue_wait_seconds"
	nameOutage    = "scuda_outage_seconds"
)

var table = [series]described{
	ReceivedTCP:      {nameBytes, helpBytes, []string{"direction", "received", "transport", "tcp"}},
	ReceivedRDMA:     {nameBytes, helpBytes, []string{"direction", "received", "transport", "rdma"}},
	SentTCP:          {nameBytes, helpBytes, []string{"direction", "sent", "transport", "tcp"}},
	SentRDMA:         {nameBytes, helpBytes, []string{"direction", "sent", "transport", "rdma"}},
	CopiedToDevice:   {nameCopied, helpCopied, []string{"direction", "to_device"}},
	CopiedToHost:     {nameCopied, helpCopied, []string{"direction", "to_host"}},
	MigratedToDevice: {nameMigrated, helpMigrated, []string{"direction", "to_device"}},
	MigratedToHost:   {nameMigrated, helpMigrated, []string{"direction", "to_host"}},
	Faults: {"scuda_managed_faults_total",
		"Times that a client fetched unified memory from a GPU, mostly because its program touched a page that lay there.",
		nil},
	Pushes: {"scuda_managed_pushes_total",
		"Times that unified memory came to a client with a wait for the GPU, because its program had used it in the " +
			"rounds before.", nil},
	ToRDMA:     {nameChanged, helpChanged, []string{"from", "tcp", "to", "rdma"}},
	ToTCP:      {nameChanged, helpChanged, []string{"from", "rdma", "to", "tcp"}},
	ModuleHit:  {nameModules, helpModules, []string{"result", "hit"}},
	ModuleMiss: {nameModules, helpModules, []string{"result", "miss"}},
	ModuleUploaded: {"scuda_module_uploaded_bytes_total",
		"Bytes of module images that clients sent because the module cache did not have them.", nil},
	RefusedHost:       {nameRefused, helpRefused, []string{"limit", "max-host-memory"}},
	RefusedPinned:     {nameRefused, helpRefused, []string{"limit", "max-pinned-memory"}},
	RefusedVRAM:       {nameRefused, helpRefused, []string{"limit", "max-vram"}},
	RefusedTenantVRAM: {nameRefused, helpRefused, []string{"limit", "max-vram-per-tenant"}},
	Replayed: {"scuda_outage_replayed_bytes_total",
		"Bytes that workers sent again, because their clients had not received them when a connection was lost.", nil},
	ReceivedPeerTCP:  {namePeer, helpPeer, []string{"direction", "received", "transport", "tcp"}},
	ReceivedPeerRDMA: {namePeer, helpPeer, []string{"direction", "received", "transport", "rdma"}},
	SentPeerTCP:      {namePeer, helpPeer, []string{"direction", "sent", "transport", "tcp"}},
	SentPeerRDMA:     {namePeer, helpPeer, []string{"direction", "sent", "transport", "rdma"}},
	QueueBytes:       {"scuda_queue_bytes", "Bytes of received commands that workers have not carried out yet.", nil},
	PendingWaits:     {namePending, helpPending, []string{"kind", "synchronize"}},
	PendingDownloads: {namePending, helpPending, []string{"kind", "download"}},
	Away: {"scuda_sessions_away",
		"Sessions that have lost a connection and wait for their clients to come back.", nil},
}

// Histogram is a distribution of times in a [Page]. The first ones are those of classes of calls, by the same numbers.
type Histogram int

// Histograms beside those of classes.
const (
	QueueWait Histogram = Histogram(class.Count) + iota
	Outage

	histograms int = class.Count + iota
)

func describeHistogram(h Histogram) described {
	if int(h) < class.Count {
		return described{nameDuration,
			"Time from when a worker turns to a call until it is answered or, where nobody waits for it, handed to the " +
				"driver (one in 16 of those is timed), by class.",
			[]string{"class", class.Class(h).String()}}
	}
	if h == Outage {
		return described{nameOutage, "Time that sessions waited for their clients, until these were back or given up.", nil}
	}
	return described{nameQueueWait, "Time that commands had been in a worker's memory when it turned to them.", nil}
}

var epoch = time.Now()

// Now is a clock for [Page.Observe], in nanoseconds since some moment; cheaper than time.Now.
func Now() int64 { return int64(time.Since(epoch)) }

// Names are those of all numbers of a page, in their order: what they mean to its reader.
func Names() (names []string) {
	for c := range class.Count {
		names = append(names, class.Class(c).String())
	}
	for _, s := range table {
		names = append(append(names, s.name), s.labels...)
	}
	for i := range histograms {
		names = append(names, describeHistogram(Histogram(i)).name)
	}
	return names
}
