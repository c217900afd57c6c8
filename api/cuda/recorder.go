package cuda

// Recorder is implemented by a GPU that can say what it did and when.
type Recorder interface {
	// Record has every kernel, copy and memset told to sink that is enqueued from now on and whose call was correlated,
	// once it is over; graphs: launches of graphs as a whole, and not what is in them. sink is called by any thread and
	// does not wait; nil ends it. An error says why nobody can tell.
	Record(sink func(*Work), graphs bool) error
	// Correlate says what the calling thread's next calls belong to; 0: to nobody.
	Correlate(id uint32)
	// Flush has everything told that is over by now.
	Flush()
	// Numbers says whether there are numbers of graphs; an error says why not.
	Numbers() error
	// GraphNumber, ExecNumber and NodeNumber say by which numbers graphs and nodes are known in Work: that of an
	// executable graph in Graph, that of a node in Node. A node's has that of its graph in its upper half, and the
	// node's own in that graph in the lower one, which an executable graph's nodes have as well.
	GraphNumber(CUgraph) (uint32, CUresult)
	ExecNumber(CUgraphExec) (uint32, CUresult)
	NodeNumber(CUgraphNode) (uint64, CUresult)
}

// Work is something that a GPU did.
type Work struct {
	Kind           WorkKind
	Correlation    uint32
	Start, End     int64 // ns since 1970
	Device         CUdevice
	Context        uint64 // as CuCtxGetId gives it
	Stream         uint64 // as CuStreamGetId gives it
	Graph          uint32 // 0: none
	Node           uint64
	Name           string // of a kernel
	Grid, Block    [3]uint32
	Registers      uint32
	Static         uint32 // bytes of shared memory
	Dynamic        uint32
	Bytes          uint64 // of a copy or a memset
	Value          uint32
	Source, Target MemoryKind
}

// WorkKind is a kind of work.
type WorkKind uint32

// The kinds; their values are those of wire.spec.
const (
	WorkKernel WorkKind = 1
	WorkCopy   WorkKind = 2
	WorkMemset WorkKind = 4
	WorkGraph  WorkKind = 8
	// What no GPU tells of, but the server itself; the value is the operation.
	WorkCommand WorkKind = 256 // a command was carried out
	WorkTurn    WorkKind = 512 // it was kept back for the turn of another session
)

// MemoryKind is what kind of memory a copy meets. The values are CUPTI's.
type MemoryKind uint32

// The kinds of memory.
const (
	MemoryUnknown MemoryKind = iota
	MemoryPageable
	MemoryPinned
	MemoryDevice
	MemoryArray
	MemoryManaged
)
