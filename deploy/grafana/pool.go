package main

// pool is the dashboard of a pool of servers, of which scuda-pool gives GPUs.
var pool = board{
	file: "deploy/grafana/scuda-pool.json", uid: "scuda-pool", title: "scuda: a pool of servers", version: 1,
	marks: [][2]string{
		{"etcd does not answer", `scuda_pool_readable{` + pick + `} == 0`},
		{"A server does not answer", `scuda_pool_server_readable{` + ofServers + `} == 0`},
	},
	choices: []choice{
		{"instance", "Process", "label_values(scuda_pool_build_info, instance)"},
		{"server", "Server", `label_values(scuda_pool_server_readable{` + pick + `}, server)`},
	},
	sections: poolSections,
}

// ofServers limits a query to the chosen servers, and to the processes that announce them.
const ofServers = pick + `, server=~"$server"`

// whole is a figure of the whole pool, which each process shows.
func whole(metric string) string { return `max(` + metric + `{` + pick + `})` }

// gpus counts them: in a state, or in all if none is given. Each process shows them all.
func gpus(by, state string) string {
	labels := pick
	if state != "" {
		labels += `, state="` + state + `"`
	}
	if by != "" {
		by = ` by (` + by + `)`
	}
	return `sum` + by + ` (max by (kind, state) (scuda_pool_gpus{` + labels + `}))`
}

// not counts where a figure is 0, which else is 1.
func not(metric, labels string) string { return `sum(1 - ` + metric + `{` + labels + `})` }

var poolSections = []section{
	{"Overview", []panel{
		{title: "Servers", kind: "stat", unit: "short", says: "Servers that are in the pool, those among them that drain.",
			queries: [][2]string{{`sum(max by (state) (scuda_pool_servers{` + pick + `}))`, ""}}},
		{title: "GPUs free", kind: "stat", unit: "short", says: "GPUs that the next program may have at once.",
			queries: [][2]string{{gpus("", "free"), ""}}},
		{title: "Waiting", kind: "stat", unit: "short", says: "Programs in the queue.",
			queries: [][2]string{{whole("scuda_pool_waiting"), ""}}},
		{title: "Longest wait", kind: "stat", unit: "s", warn: 600, bad: 1800,
			says:    "How long the oldest request has waited; scuda-pool status says whose it is, and who has the GPUs.",
			queries: [][2]string{{whole("scuda_pool_longest_wait_seconds"), ""}}},
		{title: "Servers that do not answer", kind: "stat", unit: "short", bad: 1,
			says: "Of those that the chosen processes announce. After 15 s they are out of the pool. Leases there end " +
				"unless they are renewed, within a minute if nobody says otherwise.",
			queries: [][2]string{{not("scuda_pool_server_readable", ofServers), ""}}},
		{title: "Without etcd", kind: "stat", unit: "short", bad: 1,
			says: "Processes that etcd does not answer. While there are any, programs may be refused; those that run go " +
				"on. If it is all of them, etcd is away, and the figures of the pool are missing.",
			queries: [][2]string{{not("scuda_pool_readable", pick), ""}}},
	}},
	{"Servers", []panel{
		{title: "Servers in the pool", kind: "timeseries", unit: "short",
			says: "draining: nobody new gets GPUs of them. A step down is a server that is gone, or whose announcer is.",
			queries: [][2]string{
				{`max by (state) (scuda_pool_servers{` + pick + `})`, "{{state}}"},
			}},
		{title: "Servers and their announcers", kind: "timeseries", unit: "short",
			says: "Of each server, 1 if it is so. It has not answered: it is down, or the announcer is not its " +
				"administrator. It is not announced, and answers: etcd does not let the announcer write.",
			queries: [][2]string{
				{`max by (server) (scuda_pool_server_readable{` + ofServers + `})`, "{{server}} has answered"},
				{`max by (server) (scuda_pool_server_announced{` + ofServers + `})`, "{{server}} is announced"},
			}},
	}},
	{"GPUs", []panel{
		{title: "GPUs, by state", kind: "timeseries", unit: "short",
			says: "leased: through the pool; outside: leased otherwise; kept: free, for somebody who waits for more; " +
				"draining: nobody has them, and nobody gets them.",
			queries: [][2]string{{gpus("state", ""), "{{state}}"}}},
		{title: "GPUs free, by kind", kind: "timeseries", unit: "short",
			says: "(others): kinds beyond the first 32. A kind whose servers are gone stays, with 0.", queries: [][2]string{
				{gpus("kind", "free"), "{{kind}}"},
			}},
		{title: "GPUs in leases of the pool, of all", kind: "timeseries", unit: "percentunit",
			says: "By kind. Where it is 100 % for long and programs wait, there are too few of the kind.",
			queries: [][2]string{
				{gpus("kind", "leased") + ` / (` + gpus("kind", "") + ` > 0)`, "{{kind}}"},
			}},
		{title: "GPUs that the pool does not give out, by kind", kind: "timeseries", unit: "short",
			says: "Leased otherwise, or of servers that drain.",
			queries: [][2]string{
				{gpus("kind", "outside"), "{{kind}} outside"}, {gpus("kind", "draining"), "{{kind}} draining"},
			}},
	}},
	{"Queue and leases", []panel{
		{title: "Programs in the queue", kind: "timeseries", unit: "short",
			says:    "A line that never falls is a request that no server can meet soon: scuda-pool status shows it.",
			queries: [][2]string{{whole("scuda_pool_waiting"), "waiting"}}},
		{title: "Longest wait in the queue", kind: "timeseries", unit: "s", warn: 600, bad: 1800,
			says:    "Of the oldest request, by the clock of its machine.",
			queries: [][2]string{{whole("scuda_pool_longest_wait_seconds"), "oldest"}}},
		{title: "Leases", kind: "timeseries", unit: "short", says: "Leases of the pool that hold: a program each.",
			queries: [][2]string{{whole("scuda_pool_leases"), "leases"}}},
		{title: "Leases taken, a minute", kind: "timeseries", unit: "short", says: "Programs that got their GPUs.",
			queries: [][2]string{
				{`60 * max(rate(scuda_pool_leases_taken_total{` + pick + `}[$__rate_interval]))`, "taken"},
			}},
		{title: "Leases of tenants", kind: "timeseries", unit: "short",
			says: "As the servers count them, those among them that were not taken through the pool. Prometheus has to " +
				"scrape the servers as well.",
			queries: [][2]string{{`sum by (tenant) (scuda_leases)`, "{{tenant}}"}}},
	}},
	{"etcd", []panel{
		{title: "etcd answers", kind: "timeseries", unit: "short",
			says: "1 if it does, for each process. All are at 0: etcd is away. One is: it has the wrong address or " +
				"certificate, or the network is at fault.",
			queries: [][2]string{{`scuda_pool_readable{` + pick + `}`, "{{instance}}"}}},
		{title: "Time of its answers", kind: "timeseries", unit: "s", warn: 0.5, bad: 1,
			says:    "How long it took to say how the pool is. After 2 s it is not waited for any more.",
			queries: [][2]string{{`scuda_pool_read_seconds{` + pick + `}`, "{{instance}}"}}},
		{title: "Scrapes without its answer, a minute", kind: "timeseries", unit: "short", bad: 1,
			says:    "Where they come and go, etcd is slow, has no leader, or the network loses something.",
			queries: [][2]string{{`60 * ` + rate("scuda_pool_read_failures_total", "instance"), "{{instance}}"}}},
	}},
}
