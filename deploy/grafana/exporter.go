package main

// byLibrary limits a query to the chosen machines and libraries.
const byLibrary = pick + `, library=~"$library"`

const (
	probeCount = "scuda_probe_call_duration_seconds_count"
	probeSum   = "scuda_probe_call_duration_seconds_sum"
)

// ten keeps the ten highest, as there are hundreds of functions.
func ten(query string) string { return `topk(10, ` + query + `)` }

// exporter is the dashboard of scuda exporter, which measures every call of the driver libraries of a machine.
var exporter = board{
	file: "deploy/grafana/scuda-exporter.json", uid: "scuda-exporter", title: "scuda: calls of driver libraries",
	version: 1,
	marks: [][2]string{
		{"Probes attached", `changes(scuda_probe_functions{` + pick + `}[1m]) > 0`},
	},
	choices: []choice{
		{"instance", "Machine", "label_values(scuda_probe_functions, instance)"},
		{"library", "Library", `label_values(scuda_probe_functions{` + pick + `}, library)`},
	},
	sections: []section{
		{"Overview", []panel{
			{title: "Calls", kind: "stat", unit: "ops", says: "Calls of the driver libraries a second, NVIDIA's and scuda's.",
				queries: [][2]string{{`sum(rate(` + probeCount + `{` + byLibrary + `}[$__rate_interval]))`, ""}}},
			{title: "Time of calls, 99th percentile", kind: "stat", unit: "s", warn: 1, bad: 10,
				says:    "99 of 100 calls end within this time. Waits for the GPU are among them.",
				queries: [][2]string{{quantile("0.99", "scuda_probe_call_duration_seconds", "", byLibrary), ""}}},
			{title: "Threads within calls", kind: "stat", unit: "short", says: "Calls that have begun and not ended.",
				queries: [][2]string{{`sum(scuda_probe_calls_in_flight{` + byLibrary + `})`, ""}}},
			{title: "Not measured", kind: "stat", unit: "ops", warn: 0.01, bad: 100,
				says:    "Calls that the probes lost. While there are any, the other figures are too low.",
				queries: [][2]string{{`sum(rate(scuda_probe_lost_total{` + pick + `}[$__rate_interval]))`, ""}}},
			{title: "A probe costs", kind: "stat", unit: "s", warn: 5e-6, bad: 20e-6,
				says: "What a call takes longer, at functions that the kernel enters in the cheapest way, as all of scuda's. " +
					"Shorter calls are not told apart.",
				queries: [][2]string{{`min(scuda_probe_cost_seconds{` + pick + `})`, ""}}},
		}},
		{"Functions", []panel{
			{title: "Called most often", kind: "timeseries", unit: "ops", says: "The ten functions with most calls.",
				queries: [][2]string{{ten(rateOf(probeCount, "function", byLibrary)), "{{function}}"}}},
			{title: "Most time within", kind: "timeseries", unit: "percentunit",
				says:    "How many threads are in a function on average; 100 % is one thread all the time. The ten highest.",
				queries: [][2]string{{ten(rateOf(probeSum, "function", byLibrary)), "{{function}}"}}},
			{title: "Longest calls, 99th percentile", kind: "timeseries", unit: "s", warn: 1, bad: 10,
				says: "The ten functions that take longest. cuStreamSynchronize and its like wait for the GPU.",
				queries: [][2]string{
					{ten(quantile("0.99", "scuda_probe_call_duration_seconds", "function", byLibrary)), "{{function}}"},
				}},
			{title: "Time of calls", kind: "heatmap", unit: "s", says: "How many calls took how long.",
				queries: [][2]string{{spreadOf("scuda_probe_call_duration_seconds", byLibrary), "{{le}}"}}},
			{title: "Under way", kind: "timeseries", unit: "short",
				says:    "Calls that have begun and not ended. A line that never falls is a call that hangs.",
				queries: [][2]string{{ten(`sum by (function) (scuda_probe_calls_in_flight{` + byLibrary + `})`), "{{function}}"}}},
			{title: "Without a processor", kind: "timeseries", unit: "percentunit",
				says:    "Time within calls in which the thread slept or waited for a processor. Absent with --no-system.",
				queries: [][2]string{{ten(rateOf("scuda_probe_off_cpu_seconds_total", "function", byLibrary)), "{{function}}"}}},
		}},
		{"Bytes and system calls", []panel{
			{title: "Copies", kind: "timeseries", unit: "Bps", says: "Bytes that copies were asked to move.",
				queries: [][2]string{{ten(rateOf("scuda_probe_copied_bytes_total", "function", byLibrary)), "{{function}}"}}},
			{title: "System calls", kind: "timeseries", unit: "ops",
				says:    "Of processes that use a driver library, by what they are made on. Absent with --no-system.",
				queries: [][2]string{{ten(rate("scuda_probe_system_calls_total", "call, descriptor")), "{{call}} {{descriptor}}"}}},
			{title: "Time in system calls", kind: "timeseries", unit: "percentunit",
				says: "How many threads are in a system call on average. Those that sleep in futex or epoll_wait are among them.",
				queries: [][2]string{
					{ten(rate("scuda_probe_system_call_seconds_total", "call, descriptor")), "{{call}} {{descriptor}}"},
				}},
		}},
		{"The probes", []panel{
			{title: "Functions with probes", kind: "timeseries", unit: "short",
				says: "None: the library was not found when the exporter started.",
				queries: [][2]string{
					{`sum by (instance, library) (scuda_probe_functions{` + byLibrary + `})`, "{{instance}} {{library}}"},
				}},
			{title: "A probe costs, by entry", kind: "timeseries", unit: "s",
				says:    "By how a function begins; measured with an empty one when the probes were attached (docs/ebpf.md).",
				queries: [][2]string{{`scuda_probe_cost_seconds{` + pick + `}`, "{{instance}} {{entry}}"}}},
			{title: "Not measured, by reason", kind: "timeseries", unit: "ops", bad: 1,
				says: "threads: more than there is room for; nested: within more than 8 others; " +
					"returns: begun before the probes were there; stalls: more stacks than there is room for.",
				queries: [][2]string{{rate("scuda_probe_lost_total", "reason"), "{{reason}}"}}},
		}},
	},
}
