package main

// server is the dashboard of servers, and of clients that offer metrics.
var server = board{
	file: "deploy/grafana/scuda.json", uid: "scuda", title: "scuda", version: 5,
	marks: [][2]string{
		{"Server shuts down", `scuda_draining{` + pick + `} == 1`},
		{"Fallback to TCP", `increase(scuda_transport_changes_total{` + pick + `, to="tcp"}[1m]) > 0`},
	},
	choices: []choice{
		{"instance", "Server", "label_values(scuda_build_info, instance)"},
		{"gpu", "GPU", `label_values(scuda_gpu_info{` + pick + `}, gpu)`},
	},
	sections: serverSections,
}

// The time that programs waited in the queue, and those of them that got a place.
const (
	waited   = "scuda_admission_wait_seconds"
	admitted = pick + `, outcome="admitted"`
)

// The time that sessions waited for their clients, and those whose clients were given up.
const (
	outage = "scuda_outage_seconds"
	away   = pick + `, how="away"`
)

var serverSections = []section{
	{"Overview", []panel{
		{title: "Sessions", kind: "stat", unit: "short", says: "Programs that use GPUs now.",
			queries: [][2]string{{`sum(scuda_sessions{` + pick + `, kind="cuda"})`, ""}}},
		{title: "GPUs busy", kind: "stat", unit: "percentunit", says: "How busy the GPUs are, on average.",
			queries: [][2]string{{`avg(scuda_gpu_utilization_ratio{` + pick + `, gpu=~"$gpu"})`, ""}}},
		{title: "Calls, 99th percentile", kind: "stat", unit: "s", warn: 1, bad: 10,
			says:    "99 of 100 calls are answered or handed to the driver within this time. Waits for the GPU are among them.",
			queries: [][2]string{{quantile("0.99", "scuda_call_duration_seconds", "", pick), ""}}},
		{title: "Failed calls", kind: "stat", unit: "ops", warn: 0.1, bad: 10,
			says:    "Calls that were answered with an error. Programs that ask whether something is there cause some.",
			queries: [][2]string{{orNone(`sum(rate(scuda_errors_total{` + pick + `}[$__rate_interval]))`), ""}}},
		{title: "Throughput", kind: "stat", unit: "Bps", says: "Bytes between clients and servers, both ways.",
			queries: [][2]string{{`sum(rate(scuda_transport_bytes_total{` + pick + `}[$__rate_interval]))`, ""}}},
	}},
	{"Sessions", []panel{
		{title: "Open sessions", kind: "timeseries", unit: "short", says: "By server and kind.", queries: [][2]string{
			{`sum by (instance, kind) (scuda_sessions{` + pick + `})`, "{{instance}} {{kind}}"},
		}},
		{title: "Workers", kind: "timeseries", unit: "short",
			says:    "Processes that serve sessions. With no warm one the next program waits for its start.",
			queries: [][2]string{{`sum by (state) (scuda_workers{` + pick + `})`, "{{state}}"}}},
		{title: "Sessions that ended, a minute", kind: "timeseries", unit: "short",
			says:    "closed is how it should be; crashed is a worker that died.",
			queries: [][2]string{{`60 * ` + rate("scuda_sessions_ended_total", "how"), "{{how}}"}}},
		{title: "Refused connections, a minute", kind: "timeseries", unit: "short", bad: 60,
			says:    "Wrong tokens, other releases, no room.",
			queries: [][2]string{{orNone(`60 * ` + rate("scuda_connections_refused_total", "reason")), "{{reason}}"}}},
	}},
	{"Tenants", []panel{
		{title: "Sessions of tenants", kind: "timeseries", unit: "short", says: "Who uses the servers.",
			queries: [][2]string{{`sum by (tenant) (scuda_tenant_sessions{` + pick + `})`, "{{tenant}}"}}},
		{title: "GPU memory of tenants", kind: "timeseries", unit: "bytes",
			says:    "Counted where it is limited (--max-vram, --max-vram-per-tenant, --memory of a lease).",
			queries: [][2]string{{orNone(`sum by (tenant) (scuda_tenant_gpu_memory_bytes{` + pick + `})`), "{{tenant}}"}}},
		{title: "GPU time of tenants", kind: "timeseries", unit: "percentunit",
			says: "How many programs of a tenant had work for GPUs, on average; 100 % is one all the time. It is a guess at " +
				"the GPUs' time: of programs that share a GPU each counts in full.",
			queries: [][2]string{{rate("scuda_tenant_gpu_seconds_total", "tenant"), "{{tenant}}"}}},
		{title: "GPU memory of tenants, on average", kind: "timeseries", unit: "bytes",
			says:    "As scuda usage adds it up. Without a limit it is what the driver says every 30 s.",
			queries: [][2]string{{rate("scuda_tenant_gpu_memory_byte_seconds_total", "tenant"), "{{tenant}}"}}},
		{title: "Copies of tenants", kind: "timeseries", unit: "Bps", says: "Bytes that their programs copied.",
			queries: [][2]string{
				{rate("scuda_tenant_copied_bytes_total", "tenant, direction"), "{{tenant}} {{direction}}"},
			}},
		{title: "Leases", kind: "timeseries", unit: "short", says: "Those that hold. A server has room for 4096.",
			queries: [][2]string{{orNone(`sum by (tenant) (scuda_leases{` + pick + `})`), "{{tenant}}"}}},
	}},
	{"Queue", []panel{
		{title: "Programs in the queue", kind: "timeseries", unit: "short",
			says: "They wait in cuInit, as there is no place for a session of theirs. --max-queue bounds them.",
			queries: [][2]string{
				{orNone(`sum by (class) (scuda_admission_waiting{` + pick + `})`), "{{class}}"},
			}},
		{title: "Time until a place", kind: "timeseries", unit: "s", warn: 60, bad: 600,
			says: "Of those that waited and got one; half of them, and 95 of 100, within this time. Programs for which there " +
				"was a place at once are not among them.",
			queries: [][2]string{
				{quantile("0.5", waited, "class", admitted), "{{class}}, half"},
				{quantile("0.95", waited, "class", admitted), "{{class}}, 95 of 100"},
			}},
		{title: "Waits that ended, a minute", kind: "timeseries", unit: "short",
			says: "admitted: with a place; refused: its time was up (SCUDA_QUEUE), or the server takes no more; " +
				"left: the program went away.",
			queries: [][2]string{{orNone(`60 * (` + times(waited, "outcome", pick) + `)`), "{{outcome}}"}}},
		{title: "Waits", kind: "heatmap", unit: "s", says: "How many programs waited how long, whatever came of it.",
			queries: [][2]string{{spread(waited), "{{le}}"}}},
		{title: "Tenants in the queue", kind: "timeseries", unit: "short", says: "Whose programs wait for a place.",
			queries: [][2]string{
				{orNone(`sum by (tenant) (scuda_tenant_admission_waiting{` + pick + `})`), "{{tenant}}"},
			}},
	}},
	{"Turns (scuda serve --turns)", []panel{
		{title: "GPU time of tenants in turns", kind: "timeseries", unit: "percentunit",
			says: "What tenants got while programs with different rights wanted a GPU: by their shares and classes. 100 % is " +
				"one GPU all the time.",
			queries: [][2]string{{rate("scuda_tenant_turn_seconds_total", "tenant"), "{{tenant}}"}}},
		{title: "Tenants that wait for turns", kind: "timeseries", unit: "percentunit",
			says:    "How many programs of a tenant stood still with work for a GPU, on average.",
			queries: [][2]string{{rate("scuda_tenant_turn_wait_seconds_total", "tenant"), "{{tenant}}"}}},
		{title: "Turns", kind: "timeseries", unit: "ops", says: "Turns that tenants and leases were given, by class.",
			queries: [][2]string{{orNone(rate("scuda_turns_total", "class")), "{{class}}"}}},
		{title: "Time until a turn", kind: "timeseries", unit: "s", warn: 0.1, bad: 1,
			says: "On average, by class. One kernel, graph or copy that has begun goes on to its end, so long ones make " +
				"everybody wait. Longer than a second nobody waits but for those.",
			queries: [][2]string{
				{rate("scuda_turn_wait_seconds_total", "class") + " / " + rate("scuda_turns_total", "class"), "{{class}}"},
			}},
	}},
	{"MPS (scuda serve --mps)", []panel{
		{title: "MPS daemons", kind: "timeseries", unit: "short",
			says: "1: a tenant's daemon runs. 0: workers need it, and it does not; the server's log says why. It is " +
				"not there while nobody needs it.",
			queries: [][2]string{{orNone(`min by (tenant) (scuda_mps_up{` + pick + `})`), "{{tenant}}"}}},
		{title: "Clients of MPS", kind: "timeseries", unit: "short", warn: 50, bad: 60,
			says:    "Workers that are clients of a tenant's daemon, ready ones as well. A daemon has room for 60.",
			queries: [][2]string{{orNone(`sum by (tenant) (scuda_mps_clients{` + pick + `})`), "{{tenant}}"}}},
		{title: "Failures of MPS, an hour", kind: "timeseries", unit: "short", warn: 1, bad: 5,
			says: "Daemons that were started again after they had failed, and MPS servers that ended behind a daemon " +
				"that went on: the sessions that they had see the driver's errors.",
			queries: [][2]string{
				{orNone(`sum by (tenant) (increase(scuda_mps_restarts_total{` + pick + `}[1h]))`), "{{tenant}}, daemons"},
				{orNone(`sum by (tenant) (increase(scuda_mps_servers_lost_total{` + pick + `}[1h]))`), "{{tenant}}, servers"},
			}},
	}},
	{"Calls", []panel{
		{title: "Calls", kind: "timeseries", unit: "ops", says: "Calls that workers carried out, by group.",
			queries: [][2]string{{rate("scuda_calls_total", "class"), "{{class}}"}}},
		{title: "Time of calls, 99th percentile", kind: "timeseries", unit: "s",
			says:    "From when a worker turns to a call until it is answered or handed to the driver.",
			queries: [][2]string{{quantile("0.99", "scuda_call_duration_seconds", "class", pick), "{{class}}"}}},
		{title: "Time of calls", kind: "heatmap", unit: "s", says: "How many calls took how long.",
			queries: [][2]string{{spread("scuda_call_duration_seconds"), "{{le}}"}}},
		{title: "Time in the queue", kind: "heatmap", unit: "s",
			says:    "How long commands had been in a worker's memory. Long times: the GPU is waited for, not the network.",
			queries: [][2]string{{spread("scuda_queue_wait_seconds"), "{{le}}"}}},
		{title: "Failed calls by result", kind: "timeseries", unit: "ops", says: "By the CUresult that programs get.",
			queries: [][2]string{{orNone(rate("scuda_errors_total", "result")), "{{result}}"}}},
		{title: "Queued", kind: "timeseries", unit: "bytes", says: "Commands that were received and not carried out yet.",
			queries: [][2]string{{`sum by (instance) (scuda_queue_bytes{` + pick + `})`, "{{instance}}"}}},
	}},
	{"Transport", []panel{
		{title: "Throughput by transport", kind: "timeseries", unit: "Bps", says: "Bytes by TCP and by RDMA.",
			queries: [][2]string{{rate("scuda_transport_bytes_total", "direction, transport"), "{{direction}} {{transport}}"}}},
		{title: "Copies", kind: "timeseries", unit: "Bps", says: "Bytes that programs copied.",
			queries: [][2]string{{rate("scuda_copied_bytes_total", "direction"), "{{direction}}"}}},
		{title: "Unified memory", kind: "timeseries", unit: "Bps", says: "Bytes of unified memory that moved.",
			queries: [][2]string{{rate("scuda_managed_migrated_bytes_total", "direction"), "{{direction}}"}}},
		{title: "Page faults", kind: "timeseries", unit: "ops",
			says:    "Fetches of unified memory. Many of them: program and GPU use the same memory by turns.",
			queries: [][2]string{{rate("scuda_managed_faults_total", "instance"), "{{instance}}"}}},
		{title: "Changes of transport, a minute", kind: "timeseries", unit: "short", bad: 1,
			says:    "rdma to tcp is a device that failed.",
			queries: [][2]string{{orNone(`60 * ` + rate("scuda_transport_changes_total", "from, to")), "{{from}} to {{to}}"}}},
		{title: "Module cache", kind: "timeseries", unit: "ops", says: "Images that were asked for. A miss is sent once.",
			queries: [][2]string{{rate("scuda_module_cache_requests_total", "result"), "{{result}}"}}},
	}},
	{"Outages", []panel{
		{title: "Sessions without their clients", kind: "timeseries", unit: "short",
			says:    "They have lost a connection and wait for their clients to come back, for the time of --grace.",
			queries: [][2]string{{`sum by (instance) (scuda_sessions_away{` + pick + `})`, "{{instance}}"}}},
		{title: "Outages, a minute", kind: "timeseries", unit: "short",
			says: "Waits for clients that ended: these were back, or they were given up.", queries: [][2]string{
				{orNone(`60 * (` + times(outage, "instance", pick) + `)`), "{{instance}}"},
			}},
		{title: "Time of outages", kind: "heatmap", unit: "s", says: "How many outages lasted how long.",
			queries: [][2]string{{spread(outage), "{{le}}"}}},
		{title: "Clients given up, a minute", kind: "timeseries", unit: "short", bad: 1,
			says:    "Their sessions ended, as they were not back within --grace. Their programs' calls answer 46.",
			queries: [][2]string{{orNone(`60 * ` + rateOf("scuda_sessions_ended_total", "instance", away)), "{{instance}}"}}},
		{title: "Sent again", kind: "timeseries", unit: "Bps",
			says:    "Bytes that workers sent again, because clients had not received them when a connection was lost.",
			queries: [][2]string{{rate("scuda_outage_replayed_bytes_total", "instance"), "{{instance}}"}}},
	}},
	{"GPUs", []panel{
		{title: "Memory in use", kind: "timeseries", unit: "bytes", says: "Of all programs, also of the machine's own.",
			queries: [][2]string{{`scuda_gpu_memory_used_bytes{` + pick + `, gpu=~"$gpu"}`, "{{instance}} GPU {{gpu}}"}}},
		{title: "Utilisation", kind: "timeseries", unit: "percentunit", says: "The part of the time in which a kernel ran.",
			queries: [][2]string{{`scuda_gpu_utilization_ratio{` + pick + `, gpu=~"$gpu"}`, "{{instance}} GPU {{gpu}}"}}},
		{title: "Power", kind: "timeseries", unit: "watt", says: "By NVML.",
			queries: [][2]string{{`scuda_gpu_power_watts{` + pick + `, gpu=~"$gpu"}`, "{{instance}} GPU {{gpu}}"}}},
		{title: "Temperature", kind: "timeseries", unit: "celsius", warn: 80, bad: 90, says: "By NVML.",
			queries: [][2]string{{`scuda_gpu_temperature_celsius{` + pick + `, gpu=~"$gpu"}`, "{{instance}} GPU {{gpu}}"}}},
	}},
	{"Clients that offer metrics (SCUDA_METRICS)", []panel{
		{title: "Calls of clients", kind: "timeseries", unit: "ops", says: "Calls that programs sent.",
			queries: [][2]string{{rateOf("scuda_client_calls_total", "instance", ""), "{{instance}}"}}},
		{title: "Waiting of clients", kind: "timeseries", unit: "percentunit",
			says:    "The part of the time in which a thread stood still for an answer or for bytes.",
			queries: [][2]string{{rateOf("scuda_client_wait_seconds_sum", "instance, class", ""), "{{instance}} {{class}}"}}},
		{title: "Outages of clients", kind: "timeseries", unit: "percentunit", bad: 0.1,
			says:    "The part of the time in which a connection was lost and not there again.",
			queries: [][2]string{{rateOf("scuda_client_outage_seconds_sum", "instance", ""), "{{instance}}"}}},
	}},
}
