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
	queries           [][2]string
}

// section is a row of panels.
type section struct {
	title  string
	panels []panel
}

// pick limits a query to the chosen servers.
const pick = `instance=~"$instance"`

func latency(q string) [2]string {
	return [2]string{
		`histogram_quantile(` + q + `, sum by (le, class) (rate(scuda_call_duration_seconds_bucket{` + pick +
			`}[$__rate_interval])))`, "{{class}} p" + q[2:],
	}
}

func rate(metric, by string) string {
	return `sum by (` + by + `) (rate(` + metric + `{` + pick + `}[$__rate_interval]))`
}

var sections = []section{
	{"Sessions", []panel{
		{"Open sessions", "timeseries", "short", [][2]string{
			{`sum by (instance, kind) (scuda_sessions{` + pick + `})`, "{{instance}} {{kind}}"},
		}},
		{"Workers", "timeseries", "short", [][2]string{{`sum by (state) (scuda_workers{` + pick + `})`, "{{state}}"}}},
		{"Sessions that ended", "timeseries", "ops", [][2]string{{rate("scuda_sessions_ended_total", "how"), "{{how}}"}}},
		{"Refused connections", "timeseries", "ops", [][2]string{
			{rate("scuda_connections_refused_total", "reason"), "{{reason}}"},
		}},
	}},
	{"Calls", []panel{
		{"Calls", "timeseries", "ops", [][2]string{{rate("scuda_calls_total", "class"), "{{class}}"}}},
		{"Time of calls, 99th percentile", "timeseries", "s", [][2]string{latency("0.99")}},
		{"Time of calls", "heatmap", "s", [][2]string{{rate("scuda_call_duration_seconds_bucket", "le"), "{{le}}"}}},
		{"Time in the queue", "heatmap", "s", [][2]string{{rate("scuda_queue_wait_seconds_bucket", "le"), "{{le}}"}}},
		{"Failed calls", "timeseries", "ops", [][2]string{{rate("scuda_errors_total", "result"), "{{result}}"}}},
		{"Queued", "timeseries", "bytes", [][2]string{
			{`sum by (instance) (scuda_queue_bytes{` + pick + `})`, "{{instance}}"},
		}},
	}},
	{"Transport", []panel{
		{"Throughput", "timeseries", "Bps", [][2]string{
			{rate("scuda_transport_bytes_total", "direction, transport"), "{{direction}} {{transport}}"},
		}},
		{"Copies", "timeseries", "Bps", [][2]string{{rate("scuda_copied_bytes_total", "direction"), "{{direction}}"}}},
		{"Unified memory", "timeseries", "Bps", [][2]string{
			{rate("scuda_managed_migrated_bytes_total", "direction"), "{{direction}}"},
		}},
		{"Page faults", "timeseries", "ops", [][2]string{{rate("scuda_managed_faults_total", "instance"), "{{instance}}"}}},
		{"Changes of transport", "timeseries", "ops", [][2]string{
			{rate("scuda_transport_changes_total", "from, to"), "{{from}} to {{to}}"},
		}},
		{"Module cache", "timeseries", "ops", [][2]string{
			{rate("scuda_module_cache_requests_total", "result"), "{{result}}"},
		}},
	}},
	{"GPUs", []panel{
		{"Memory in use", "timeseries", "bytes", [][2]string{
			{`scuda_gpu_memory_used_bytes{` + pick + `, gpu=~"$gpu"}`, "{{instance}} GPU {{gpu}}"},
		}},
		{"Utilisation", "timeseries", "percentunit", [][2]string{
			{`scuda_gpu_utilization_ratio{` + pick + `, gpu=~"$gpu"}`, "{{instance}} GPU {{gpu}}"},
		}},
		{"Power", "timeseries", "watt", [][2]string{
			{`scuda_gpu_power_watts{` + pick + `, gpu=~"$gpu"}`, "{{instance}} GPU {{gpu}}"},
		}},
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
		for i, p := range s.panels {
			id++
			var targets []object
			for k, q := range p.queries {
				target := object{"refId": string(rune('A' + k)), "datasource": source, "expr": q[0], "legendFormat": q[1]}
				if p.kind == "heatmap" {
					target["format"] = "heatmap"
				}
				targets = append(targets, target)
			}
			x := object{"id": id, "type": p.kind, "title": p.title, "datasource": source, "targets": targets,
				"gridPos":     object{"h": 8, "w": 12, "x": 12 * (i % 2), "y": y + 8*(i/2)},
				"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []object{}}}
			if p.kind == "heatmap" {
				x["options"] = object{
					"calculate": false, "yAxis": object{"unit": p.unit}, "color": object{"mode": "scheme", "scheme": "Blues"},
				}
				x["fieldConfig"] = object{"defaults": object{}, "overrides": []object{}}
			}
			panels = append(panels, x)
		}
		y += 8 * ((len(s.panels) + 1) / 2)
	}
	return object{"uid": "scuda", "title": "scuda", "tags": []string{"gpu", "scuda"}, "schemaVersion": 39, "version": 1,
		"editable": true, "refresh": "10s",
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
