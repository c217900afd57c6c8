package config

// Setting is an environment variable that scuda reads. The tables of README.md and docs/operations.md are made of
// these (go run ./config/table).
type Setting struct {
	Name    string
	Common  bool   // stands in the README, too
	Meaning string // to a client; "" where only the server's option of that name reads it: `scuda serve --help`
	Server  bool   // the variable of an option of `scuda serve`
}

// Settings are all of them, in the order of the tables.
var Settings = []Setting{
	{Name: "SCUDA_SERVER", Common: true,
		Meaning: "HOST:PORT of the server, or its name in `scuda servers`, or several with commas between; else " +
			"`~/.config/scuda/host`; set to nothing: none"},
	{Name: "SCUDA_SPREAD",
		Meaning: "servers with commas between, of which each rank of a launcher has one (nccl.md); `scuda run --spread` " +
			"sets it, and `SCUDA_SERVER` to the first"},
	{Name: "SCUDA_TOKEN", Common: true,
		Meaning: "the token; with several servers one for all, or one for each with commas between, in their order; else " +
			"that of the file that `SCUDA_TOKEN_FILE` names; else the one that `scuda login` remembers"},
	{Name: "SCUDA_TOKEN_FILE", Common: true, Server: true,
		Meaning: "file with the token; else `~/.config/scuda/token`"},
	{Name: "SCUDA_FINGERPRINT", Common: true,
		Meaning: "the fingerprint that the server must have, or those of several servers, as `SCUDA_TOKEN`; else that of " +
			"`~/.config/scuda/known_servers` (tls.md)"},
	{Name: "SCUDA_CA", Meaning: "file with the authorities that servers' certificates must be of, instead of a " +
		"fingerprint; else `~/.config/scuda/ca.crt`"},
	{Name: "SCUDA_CERT", Meaning: "file with the client's certificate; else `~/.config/scuda/client.crt`"},
	{Name: "SCUDA_KEY", Meaning: "file with its key; default: that of `SCUDA_CERT` with `.key`"},
	{Name: "SCUDA_LOG", Common: true, Server: true,
		Meaning: "`debug`, `info`, `warn` or `error`, and optionally `,file=PATH`; default `warn`, to stderr"},
	{Name: "SCUDA_LOG_FORMAT", Server: true,
		Meaning: "`text` (the default) or `json`: how lines of the core's log are written"},
	{Name: "SCUDA_LAUNCH_BLOCKING", Common: true,
		Meaning: "`1`: every call is answered before it returns (also `CUDA_LAUNCH_BLOCKING=1`)"},
	{Name: "SCUDA_PAGER", Common: true,
		Meaning: "how faults of unified memory are seen: `uffd`, `uffd-sync`, `uffd-user` or `sigsegv`; " +
			"default: the first that works"},
	{Name: "SCUDA_TRANSPORT", Common: true, Server: true,
		Meaning: "how big copies travel: `auto` (the default: by RDMA where both machines have it), `rdma` " +
			"or `tcp`; `scuda rdma doctor` says why not by RDMA"},
	{Name: "SCUDA_RDMA_DEVICE", Common: true, Server: true,
		Meaning: "`DEVICE[:PORT[:GIDINDEX]]` for RDMA instead of the one that fits"},
	{Name: "SCUDA_RDMA_MEMORY", Common: true, Server: true,
		Meaning: "pinned memory for copies by RDMA of memory that cannot be registered; default `16MiB`, " +
			"`256MiB` at most, `0`: none"},
	{Name: "SCUDA_SLURM_BIND",
		Meaning: "in a job of Slurm with several tasks on a node: `rank` (each has its part of the job's GPUs) or " +
			"`none` (each has all)"},
	{Name: "SCUDA_POOL",
		Meaning: "the etcd of a pool of servers (pool.md), for `scuda-pool` and `scuda run --gpus`: `unix:///PATH` or " +
			"`https://HOST:PORT`, several with commas between them"},
	{Name: "SCUDA_POOL_CERT", Meaning: "file with the certificate that is shown to that etcd"},
	{Name: "SCUDA_POOL_KEY", Meaning: "file with its key"},
	{Name: "SCUDA_POOL_CA", Meaning: "file with the authorities of that etcd's own certificate"},
	{Name: "SCUDA_POOL_LEASE", Meaning: "the id of a program's lease, which `scuda-pool run` sets; of several servers " +
		"those of all, with commas between"},
	{Name: "SCUDA_POOL_GPUS", Meaning: "the UUIDs of its GPUs, likewise"},
	{Name: "SCUDA_QUEUE", Common: true,
		Meaning: "how long a program waits for a place on a server that is full: `30s`, `10m`, `2h`; `0`: not at all; " +
			"default: until there is one"},
	{Name: "SCUDA_RESUME", Common: true,
		Meaning: "`1` (the default): a program goes on where it was when its connections were lost and could be made " +
			"again; `0`: it loses its session with them"},
	{Name: "SCUDA_BULK", Meaning: "connections for big copies beside the main one; default 4"},
	{Name: "SCUDA_METRICS", Server: true,
		Meaning: "HOST:PORT where the program's process offers metrics; port 0 picks one"},
	{Name: "SCUDA_TRACE", Meaning: "files for `scuda trace`, which sets it"},
	{Name: "SCUDA_TIMELINE", Meaning: "files for `scuda trace --kernels`, which sets it"},
	{Name: "SCUDA_LIB", Meaning: "folder of the client's libraries, for `scuda run`"},
	{Name: "SCUDA_CORE", Meaning: "path of `libscuda-core.so`, where it does not lie beside `libcuda.so.1`"},
	{Name: "SCUDA_REAL_LIBCUDA",
		Meaning: "path of the machine's own driver, to which calls pass where no server is configured"},
	{Name: "SCUDA_REAL_LIBNVML", Meaning: "path of the machine's own NVML, likewise"},
	{Name: "SCUDA_REAL_LIBCUPTI", Meaning: "path of the program's own CUPTI, likewise"},
	{Name: "SCUDA_REAL_LIBNCCL", Meaning: "path of the program's own NCCL, likewise"},
	{Name: "SCUDA_SIM",
		Meaning: "settings of the simulated GPU (sim.md), for a server or the stand-alone libraries"},
	{Name: "SCUDA_ADMIN", Server: true,
		Meaning: "socket of the server that `scuda ps` and other administrator's verbs ask; default `auto`"},
	{Name: "SCUDA_EXPORTER_LISTEN", Meaning: "address of `scuda exporter`: its option `--listen`"},
	{Name: "SCUDA_CONFIG", Server: true},
	{Name: "SCUDA_GPU", Server: true},
	{Name: "SCUDA_INSECURE", Server: true,
		Meaning: "`1`: go on without TLS to a server of which nothing is known"},
	{Name: "SCUDA_TLS", Server: true},
	{Name: "SCUDA_TLS_CERT", Server: true},
	{Name: "SCUDA_TLS_KEY", Server: true},
	{Name: "SCUDA_CLIENT_CA", Server: true},
	{Name: "SCUDA_TENANTS", Server: true},
	{Name: "SCUDA_STATE_DIR", Server: true},
	{Name: "SCUDA_RDMA_FABRIC", Server: true},
	{Name: "SCUDA_FABRIC", Server: true},
	{Name: "SCUDA_NCCL", Server: true},
	{Name: "SCUDA_PEERS", Server: true},
	{Name: "SCUDA_CACHE_DIR", Server: true},
	{Name: "SCUDA_CACHE_SIZE", Server: true},
	{Name: "SCUDA_SHARE_IMAGES", Server: true},
	{Name: "SCUDA_MAX_SESSIONS", Server: true},
	{Name: "SCUDA_MAX_SESSIONS_PER_CLIENT", Server: true},
	{Name: "SCUDA_USAGE_LOG", Server: true},
	{Name: "SCUDA_MAX_QUEUE", Server: true},
	{Name: "SCUDA_MAX_AWAY", Server: true},
	{Name: "SCUDA_MAX_VRAM_KEPT", Server: true},
	{Name: "SCUDA_TURNS", Server: true},
	{Name: "SCUDA_MPS", Server: true},
	{Name: "SCUDA_MAX_NVML_SESSIONS", Server: true},
	{Name: "SCUDA_MAX_SESSIONS_PER_TENANT", Server: true},
	{Name: "SCUDA_MAX_QUEUE_PER_TENANT", Server: true},
	{Name: "SCUDA_MAX_NVML_SESSIONS_PER_TENANT", Server: true},
	{Name: "SCUDA_MAX_VRAM", Server: true},
	{Name: "SCUDA_MAX_VRAM_PER_TENANT", Server: true},
	{Name: "SCUDA_MAX_HOST_MEMORY", Server: true},
	{Name: "SCUDA_MAX_PINNED_MEMORY", Server: true},
	{Name: "SCUDA_IDLE_TIMEOUT", Server: true},
	{Name: "SCUDA_WORK_TIMEOUT", Server: true},
	{Name: "SCUDA_ISOLATION", Server: true},
	{Name: "SCUDA_PROFILES", Server: true},
	{Name: "SCUDA_SPAWNER", Server: true},
	{Name: "SCUDA_WORKER_UIDS", Server: true},
	{Name: "SCUDA_WORKER_FOLDER", Server: true},
	{Name: "SCUDA_WORKER_CGROUP", Server: true},
	{Name: "SCUDA_WORKER_MEMORY", Server: true},
	{Name: "SCUDA_WORKER_PIDS", Server: true},
	{Name: "SCUDA_WORKER_CPU_WEIGHT", Server: true},
	{Name: "SCUDA_ALLOW_NVML_SET", Server: true},
	{Name: "SCUDA_WARM", Server: true},
	{Name: "SCUDA_SIM_MEMORY", Server: true},
	{Name: "SCUDA_GPUDIRECT", Server: true},
	{Name: "SCUDA_DRAIN", Server: true},
	{Name: "SCUDA_GRACE", Server: true},
	{Name: "SCUDA_PPROF", Server: true},
}
