// Command grafana writes scuda.json, the dashboard for Grafana, in the classic format that every version imports. With
// -check it only says whether the file is up to date. Run it from the top folder: go run ./deploy/grafana.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

const file = "deploy/grafana/scuda.json"

// panel is what a panel shows: queries with their legends.
type panel struct {
	title, kind, unit string
	says              string // what is to be seen, and what is wrong
	queries           [][2]string
	warn, bad         float64 // from here on it is yellow and red; 0: never
}

// section is a row of panels.
type section struct {
	title  string
	panels []panel
}

// pick limits a query to the chosen servers.
const pick = `instance=~"$instance"`

// quantile asks both forms of a histogram: Prometheus keeps the classic buckets or, with native histograms on, the
// native ones, and then the other half of the query is empty.
func quantile(q, metric, by, labels string) string {
	classic, native := `le`, ``
	if by != "" {
		classic, native = `le, `+by, ` by (`+by+`)`
	}
	return `histogram_quantile(` + q + `, sum by (` + classic + `) (rate(` + metric + `_bucket{` + labels +
		`}[$__rate_interval]))) or histogram_quantile(` + q + `, sum` + native + ` (rate(` + metric + `{` + labels +
		`}[$__rate_interval])))`
}

// spread is a whole histogram in both forms.
func spread(metric string) string {
	return `sum by (le) (rate(` + metric + `_bucket{` + pick + `}[$__rate_interval])) or sum(rate(` + metric + `{` +
		pick + `}[$__rate_interval]))`
}

func rate(metric, by string) string { return rateOf(metric, by, pick) }

func rateOf(metric, by, labels string) string {
	return `sum by (` + by + `) (rate(` + metric + `{` + labels + `}[$__rate_interval]))`
}

// orNone is 0 where nothing of it has happened yet.
func orNone(query string) string { return query + ` or vector(0)` }

var sections = []section{
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
			says:    "Counted where the server limits it (--max-vram, --max-vram-per-tenant).",
			queries: [][2]string{{orNone(`sum by (tenant) (scuda_tenant_gpu_memory_bytes{` + pick + `})`), "{{tenant}}"}}},
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
	}},
}

type object = map[string]any

func variable(name, label, query string) object {
	return object{"name": name, "label": label, "type": "query", "query": object{"query": query, "refId": "A"},
		"definition": query,
		"datasource": source, "multi": true, "includeAll": true, "refresh": 2, "sort": 1,
		"current": object{"text": "All", "value": "$__all"}}
}

var source = object{"type": "prometheus", "uid": "${datasource}"}

// target is a query of a panel.
func target(kind string, i int, q [2]string) object {
	x := object{"refId": string(rune('A' + i)), "datasource": source, "expr": q[0], "legendFormat": q[1]}
	if kind == "heatmap" {
		x["format"] = "heatmap"
	}
	return x
}

// colours are the thresholds of a panel.
func (p *panel) colours() object {
	steps := []object{{"color": "green", "value": nil}}
	if p.warn > 0 {
		steps = append(steps, object{"color": "yellow", "value": p.warn})
	}
	if p.bad > 0 {
		steps = append(steps, object{"color": "red", "value": p.bad})
	}
	return object{"mode": "absolute", "steps": steps}
}

func (p *panel) object(id int, place object) object {
	var targets []object
	for i, q := range p.queries {
		targets = append(targets, target(p.kind, i, q))
	}
	defaults := object{"unit": p.unit, "min": 0, "thresholds": p.colours()}
	x := object{"id": id, "type": p.kind, "title": p.title, "description": p.says, "datasource": source,
		"targets": targets, "gridPos": place, "fieldConfig": object{"defaults": defaults, "overrides": []object{}}}
	switch {
	case p.kind == "heatmap":
		x["options"] = object{
			"calculate": false, "yAxis": object{"unit": p.unit}, "color": object{"mode": "scheme", "scheme": "Blues"},
		}
		x["fieldConfig"] = object{"defaults": object{}, "overrides": []object{}}
	case p.kind == "stat":
		defaults["color"] = object{"mode": "thresholds"}
		x["options"] = object{"colorMode": "value", "graphMode": "area", "reduceOptions": object{"calcs": []string{"last"}}}
	case p.warn+p.bad > 0:
		defaults["custom"] = object{"thresholdsStyle": object{"mode": "dashed"}}
	}
	return x
}

// annotations are marks in all panels.
func annotations() object {
	var list []object
	for _, a := range [][2]string{
		{"Server shuts down", `scuda_draining{` + pick + `} == 1`},
		{"Fallback to TCP", `increase(scuda_transport_changes_total{` + pick + `, to="tcp"}[1m]) > 0`},
	} {
		list = append(list, object{"name": a[0], "expr": a[1], "datasource": source, "enable": true, "iconColor": "red",
			"titleFormat": a[0], "textFormat": "{{instance}}", "step": "1m"})
	}
	return object{"list": list}
}

func dashboard() object {
	var panels []object
	id, y := 0, 0
	for _, s := range sections {
		id++
		panels = append(panels, object{
			"id": id, "type": "row", "title": s.title, "gridPos": object{"h": 1, "w": 24, "x": 0, "y": y}, "collapsed": false,
			"panels": []object{},
		})
		y++
		x, height := 0, 0
		for i := range s.panels {
			id++
			w, h := 12, 8
			if s.panels[i].kind == "stat" {
				w, h = 24/len(s.panels), 4
			}
			if x+w > 24 {
				x, y = 0, y+height
			}
			panels = append(panels, s.panels[i].object(id, object{"h": h, "w": w, "x": x, "y": y}))
			x, height = x+w, h
		}
		y += height
	}
	return object{"uid": "scuda", "title": "scuda", "tags": []string{"gpu", "scuda"}, "schemaVersion": 39, "version": 2,
		"editable": true, "refresh": "10s", "annotations": annotations(),
		"time": object{"from": "now-1h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
			variable("instance", "Server", "label_values(scuda_build_info, instance)"),
			variable("gpu", "GPU", `label_values(scuda_gpu_info{`+pick+`}, gpu)`),
		}}}
}

func text() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(dashboard())
	return b.Bytes(), err
}

func run(check bool) error {
	b, err := text()
	if err != nil {
		return err
	}
	if !check {
		return os.WriteFile(file, b, 0o644)
	}
	if old, err := os.ReadFile(file); err != nil || !bytes.Equal(old, b) {
		return fmt.Errorf("%s is not up to date; run go run ./deploy/grafana", file)
	}
	return nil
}

func main() {
	check := flag.Bool("check", false, "only check that the file is up to date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
}
